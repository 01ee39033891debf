"""Losses over raw embeddings, one file per family."""
