"""Where a data set comes from: what to fetch, from where, and what should be there afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Count(NamedTuple):
    """How many things of one kind are there, and how many there should be.

    Attributes:
        what: What is counted.
        found: How many are there.
        expected: How many there should be.
    """

    what: str
    found: int
    expected: int


@dataclass(frozen=True)
class Archive:
    """One archive (in one file or in parts), or a single file, and where it goes.

    Attributes:
        makes: The folder or file below DATA that it becomes. Where that exists, nothing is done.
        urls: Its parts in order. () means that it cannot be fetched; then `files`, or the one file
            `joined`, are looked for in DATA/downloads and DATA.
        files: The file names of the parts, where they differ from those of the urls.
        joined: The name of the one file that the parts may already be joined to.
        takes: Patterns inside an archive whose matches make up that folder; () takes everything.
        size: Bytes of the joined parts; 0 if unknown.
        sha256: The digest of the joined parts; "" if unknown.
        md5: The digest of the joined parts; "" if unknown.
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
        """The file names of the parts."""
        return self.files or tuple(url.rpartition("/")[2] for url in self.urls)


@dataclass(frozen=True)
class Holds:
    """A number of files with one of these suffixes that should lie below a folder of DATA."""

    folder: str
    suffixes: tuple[str, ...]
    files: int


@dataclass(frozen=True)
class Dataset:
    """One data set.

    Attributes:
        check: A function that takes the folder of the data and gives a list of Counts; None where
            there is nothing more to count. It may raise what reading the data raises.
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
