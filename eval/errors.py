"""The exceptions that are made for users."""

import re
from collections.abc import Callable, Mapping


class LikenessError(ValueError):
    """An input or a setting is wrong: one sentence says what, its value, and what to do.

    The command line prints the sentence, and exits with 2. Every other exception is a defect, of
    Likeness or of a file of the user, and is shown with its traceback.
    """


def refuse_broken(rules: Mapping[str, bool], value_of: Callable[[str], object]) -> None:
    """Refuse settings that break a rule.

    Args:
        rules: Each rule as a sentence that names its settings as GROUP.FIELD, and whether it holds.
        value_of: Gives the value of GROUP.FIELD.

    Raises:
        LikenessError: It says the first rule that does not hold, and the values of its settings.

    Example:
        >>> refuse_broken({"schedule.steps is at least 1": False}, {"schedule.steps": 0}.get)
        Traceback (most recent call last):
            ...
        likeness.LikenessError: schedule.steps=0 breaks the rule that schedule.steps is at least 1
    """
    for rule, holds in rules.items():
        if not holds:
            names = re.findall(r"[a-z]+(?:\.[a-z_]+)+", rule)
            values = ", ".join(f"{name}={value_of(name)}" for name in dict.fromkeys(names))
            raise LikenessError(f"{values} breaks the rule that {rule}" if values else rule)


class Unreachable(RuntimeError):
    """A server, a store or another process does not answer, which is said in one sentence.

    It is neither a LikenessError nor an OSError: an item that cannot be read is left out, and this
    says nothing about the item.
    """


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or its type where it says nothing.

    It is cut at 200 characters, as libraries quote whole files and their own code.

    >>> first_line(OSError("disk full\\nat page 7")), first_line(AssertionError())
    ('disk full', 'AssertionError')
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


LikenessError.__module__ = "likeness"  # where people import it from
