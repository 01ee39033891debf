"""Items, batches, sampling, shards and decoded images."""
