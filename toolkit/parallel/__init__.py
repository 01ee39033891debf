"""Many processes that train as one.

They are the group, classes spread over it, and batch norm of the whole batch.
"""
