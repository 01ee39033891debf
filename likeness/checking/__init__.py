"""What is wrong with a data set, before anything trains on it."""
