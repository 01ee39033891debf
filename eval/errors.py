"""The one exception that is made for users."""

from __future__ import annotations


class LikenessError(ValueError):
    """An input or a setting is wrong: one sentence says what, its value, and what to do.

    The command line prints the sentence, and exits with 2. Every other exception is a defect, of
    Likeness or of a file of the user, and is shown with its traceback.
    """


LikenessError.__module__ = "likeness"  # where people import it from
