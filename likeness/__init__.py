"""Likeness, the application: what people import and what they type."""
