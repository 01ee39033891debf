"""What a parameter of a public function says of its option on the command line."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Option:
    """How a parameter or a field is typed, in `Annotated[int, Option(least=0)]`.

    Without one, the option is called like the parameter, and its type says what it takes.

    Attributes:
        name: The option where it is called otherwise, such as "--far" for `fars`; or in capitals,
            as "SCORES", the word for what is typed without a name.
        metavar: The word for its value in help, such as "FILE[:COLUMN]". A path without `path` is
            then handed on as text.
        least: The smallest number that it takes.
        most: The largest number that it takes.
        path: What has to exist; without it a path may be an address, such as s3://BUCKET. An output
            is written, and need not exist; without `file` or `folder` it may be either.
        endings: Those that the name of an output may have.
        separator: What stands between several names in one value.
        help: A sentence for help, where no docstring has it.
        envvar: The environment variable that gives the value where nothing is typed.
        is_typed: Whether there is an option at all.
    """

    name: str = ""
    metavar: str = ""
    least: float | None = None
    most: float | None = None
    path: Literal["", "file", "folder", "any", "output", "output file", "output folder"] = ""
    endings: tuple[str, ...] = ()
    separator: str = ""
    help: str = ""
    envvar: str = ""
    is_typed: bool = True


_options: frozenset[str] | None = None  # of the command that runs; None in Python


@contextmanager
def only_options(names: Iterable[str]) -> Iterator[None]:
    """Within the block, messages name no options but these, which the command has that runs."""
    global _options
    before, _options = _options, frozenset(names)
    try:
        yield
    finally:
        _options = before


def if_option(text: str) -> str:
    """Returns a part of a message that names options, or "" if the command that runs lacks one.

    Example:
        >>> if_option(", or name it by --columns")
        ', or name it by --columns'
    """
    named = re.findall(r"--[a-z][a-z-]+", text)
    return text if _options is None or _options.issuperset(named) else ""
