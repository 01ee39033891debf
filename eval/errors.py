"""The exceptions that are made for users."""

from __future__ import annotations

from collections.abc import Mapping


class LikenessError(ValueError):
    """An input or a setting is wrong: one sentence says what, its value, and what to do.

    The command line prints the sentence, and exits with 2. Every other exception is a defect, of
    Likeness or of a file of the user, and is shown with its traceback.
    """


def refuse_broken(rules: Mapping[str, bool], settings: object) -> None:
    """Refuse settings that break a rule.

    Args:
        rules: Each rule as a sentence, and whether it holds.
        settings: What the message shows.

    Raises:
        LikenessError: It says the first rule that does not hold.
    """
    for rule, holds in rules.items():
        if not holds:
            raise LikenessError(f"needed: {rule}; given: {settings}")


class Unreachable(RuntimeError):
    """A server, a store or another process does not answer, which is said in one sentence.

    It is neither a LikenessError nor an OSError: an item that cannot be read is left out, and this
    says nothing about the item.
    """


LikenessError.__module__ = "likeness"  # where people import it from
