"""Embeddings of long lists as files, and galleries of files."""
