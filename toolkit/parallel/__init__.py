"""Many processes that train as one: the group, classes spread over it, statistics of the whole
batch.
"""
