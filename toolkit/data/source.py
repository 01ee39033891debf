"""Where a data set comes from: what to fetch, from where, and what should be there afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Count(NamedTuple):
    """How many of what are there, and how many there should be."""

    what: str
    found: int
    expected: int


@dataclass(frozen=True)
class Archive:
    """One archive (in one file or in parts), or a single file, and where it goes.

    makes: the folder or file below DATA; where it exists, nothing is done. takes: patterns inside
    an archive whose matches make up that folder; () = all.
    urls: its parts in order; () = it cannot be fetched, and `files`, or the one file `joined`, are
    looked for in DATA/downloads and DATA.
    size: bytes, 0 = unknown. sha256, md5: of the joined parts, "" = unknown.
    """

    makes: str
    urls: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    joined: str = ""
    takes: tuple[str, ...] = ()
    size: int = 0
    sha256: str = ""
    md5: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """File names of the parts."""
        return self.files or tuple(url.rpartition("/")[2] for url in self.urls)


@dataclass(frozen=True)
class Holds:
    """`files` files with one of these suffixes below a folder of DATA."""

    folder: str
    suffixes: tuple[str, ...]
    files: int


@dataclass(frozen=True)
class Dataset:
    """One data set.

    Attributes:
        check: (data) -> list[Count], or None. It may raise what reading the data raises.
        by_hand: What to do about what cannot be fetched.
    """

    name: str
    about: str
    licence: str
    page: str
    archives: tuple[Archive, ...]
    holds: tuple[Holds, ...] = ()
    check: Callable[[Path], list[Count]] | None = None
    by_hand: str = ""
    note: str = ""
