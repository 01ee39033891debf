"""Metrics, protocols and files of pairwise similarity evaluation: numpy only, no torch."""
