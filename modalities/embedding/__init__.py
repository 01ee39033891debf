"""Embeddings that a model has made, as a data set: heads are trained on them."""
