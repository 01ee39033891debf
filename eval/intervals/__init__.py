"""Intervals, paired differences, and what a test can show."""
