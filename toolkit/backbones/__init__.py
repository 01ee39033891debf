"""Backbones from front-end features to a raw embedding, one file per family."""
