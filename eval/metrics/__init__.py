"""Metrics of scores, embeddings and labels."""
