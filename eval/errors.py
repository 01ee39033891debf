"""The exceptions that are made for users, short texts for messages, and how to install what is
missing.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

DISTRIBUTION = "likeness-toolkit"  # on the package index, where `likeness` is another project
_LONGEST = 60  # characters of a value that a message quotes


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


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuses a value that is not among the names that a setting may have.

    >>> check_choice("norm", "q", ("as", "s"))
    Traceback (most recent call last):
    ...
    likeness.LikenessError: unknown norm 'q'; choose one of as, s
    """
    names = tuple(allowed)
    if value not in names:
        raise LikenessError(f"unknown {name} {value!r}; choose one of {', '.join(map(str, names))}")


def refuse_unused(where: str, **options: object) -> None:
    """Refuse options that change nothing.

    Args:
        where: What they are given for, with which the message begins.
        options: The options by name; what is None or empty was not given.

    Raises:
        LikenessError: One was given.

    Example:
        >>> refuse_unused("faces.rec", columns="label=name", root=None)
        Traceback (most recent call last):
            ...
        likeness.LikenessError: faces.rec: leave out columns, which would change nothing
    """
    if idle := [name for name, value in options.items() if value]:
        names = " and ".join(idle)
        raise LikenessError(f"{where}: leave out {names}, which would change nothing")


def is_tensor(value: Any) -> bool:
    """Say whether a value is a tensor of torch. Without torch there are none.

    Example:
        >>> is_tensor([1.0, 2.0])
        False
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def described(given: Any) -> str:
    """Return what a network, or another part of a model, gives, in words.

    Example:
        >>> import torch
        >>> described((torch.zeros(2, 3), None))
        'a tuple of 2: a tensor (2, 3), None'
    """
    if given is None:
        return "None"
    if is_tensor(given):
        return f"a tensor {tuple(given.shape)}"
    if isinstance(given, Mapping):
        return f"a {type(given).__name__} of {', '.join(map(str, given))}"
    if isinstance(given, tuple | list):
        values = f": {', '.join(map(described, given[:4]))}" if given else ""
        return f"a {type(given).__name__} of {len(given)}{values}"
    return f"a {type(given).__name__}"


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


def install_line(extra: str) -> str:
    """Return the command that adds an extra to this installation.

    What was installed from a folder is installed from it again (direct_url.json, PEP 610), while
    the folder is there.

    Args:
        extra: One of pyproject.toml's, such as "serve".

    Example:
        >>> install_line("serve").endswith('[serve]"')
        True
    """
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import, as
    from urllib.parse import urlsplit  # are these, and needed here only
    from urllib.request import url2pathname

    source = DISTRIBUTION
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # a source tree on the path
        origin = {}
    if "dir_info" in origin:
        folder = url2pathname(urlsplit(origin["url"]).path)
        source = folder if Path(folder).is_dir() else source
    return f'pip install "{source}[{extra}]"'


LikenessError.__module__ = "likeness"  # where people import it from


def shorten(text: str, most: int = _LONGEST) -> str:
    """A text for a message or a legend, of which some of the beginning and of the end is shown.

    >>> shorten("a" * 50 + "b", 44)
    'aaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaab'
    """
    return text if len(text) <= most else f"{text[:20]}...{text[20 - most :]}"


def likeness_version() -> str:
    """Returns the installed version, or "unknown" where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
