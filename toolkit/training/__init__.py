"""Recipes, the training loop, run folders, measuring, comparing, tuning."""
