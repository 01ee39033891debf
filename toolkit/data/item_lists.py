"""Lists of items: one path in each line, or `id path [label]`, or a CSV file with a header."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from eval.errors import LikenessError
from eval.formats.files import at_lines, atomic_path
from eval.progress import report
from eval.types import name_first
from toolkit.data.item_checks import check_unique
from toolkit.data.items import Item, Items, ItemsBuilder
from toolkit.data.remote import is_url, place_below, url_of

_MAX_LINE = 8192  # characters of a line
_FIRST, _CHUNK = 2**12, 2**22  # characters that are read together, at first and later
FURTHER = ("start", "end", "sex", "age", "session", "group")  # columns that Items carry along
_READ = ("id", "path", "label")  # the other columns that are read
_OTHER_BLANK = re.compile(r"[^\S \t\n]")
# Path writes a path otherwise that has an empty part or a part that is a dot.
_REWRITTEN = ("//", "/\n", "\n\n", "/.", "\n.")


def read_items(path: Path, root: Path | None = None) -> Items:
    """Reads a list file: one path in each line, or `id path [label]`.

    Fields are separated by blanks, tabs or commas. Blank lines and # comments are skipped. The
    first line may be a header that names a column `path`, and perhaps `id` and `label`, as in a CSV
    file, in small or large letters. The columns start, end, sex, age and session are carried along
    (Items.column). Others are skipped.

    Args:
        path: The list.
        root: The folder that relative paths are relative to; by default the folder of the list.

    Returns:
        The items. A path without an id is its own id.

    Raises:
        LikenessError: Lines are malformed, ids or paths are empty, or ids are repeated; they are
            counted, and the first are named. The header names a column twice.
    """
    rows = _Rows(path.parent if root is None else root)
    size = path.stat().st_size
    num_read, what = 0, f"reading {path.name}"
    report(what, num_read, size, unit="bytes")
    for above, text in _chunks(path):
        if not rows.add_plain(text):
            rows.add_lines(path, above, text)
        num_read += len(text)
        report(what, min(num_read, size - 1), size, unit="bytes")
    report(what, size, size, unit="bytes")
    if rows.malformed:
        raise LikenessError(
            f"{path}: {len(rows.malformed)} malformed lines ({', '.join(rows.malformed[:5])}); "
            "each must be "
            + ("as long as the header" if rows.header else "`path` or `id path [label]`")
            + ", and where a field contains blanks, all fields need tabs or commas between them"
        )
    if rows.empty:
        raise LikenessError(
            f"{path}: {len(rows.empty)} lines have an empty id or path "
            f"({at_lines(np.array(rows.empty))}); fill or remove them"
        )
    items = rows.built.build()
    if not items:
        raise LikenessError(
            f"{path}: the list has no items; each line must be `path` or `id path [label]`"
        )
    check_unique(items, str(path))
    return items


def write_items(path: Path, items: Sequence[Item], root: Path | None = None) -> None:
    """Writes a list that `read_items` reads, `id path` separated by a tab, whole or not at all.

    Where items are stretches of recordings, the columns start and end are there too, below a
    header.

    Args:
        path: The list.
        items: The items, which must be files.
        root: The folder that relative paths start from: the path of a file in it is written
            relative to it, and that of another file whole. None leaves the paths as they are.

    Raises:
        LikenessError: Items lie in tar shards, which a list of paths cannot name, or their names
            would be read back as others. They are counted.
    """
    if inside := [item.id for item in items if item.span is not None]:
        raise LikenessError(
            f"{path}: {len(inside)} of {len(items)} items lie inside tar shards "
            f"({name_first(inside)}), and a list names files only; unpack the shards, and"
            " make the list of the folder of their files"
        )
    timed = any(item.stretch is not None for item in items)
    rows = [
        [item.id, _place(item.path, root), *(_times(item.stretch) if timed else ())]
        for item in items
    ]
    bad = [
        row[0]
        for row in rows
        if row[0].startswith("\ufeff") or _line_fields("\t".join(row[:2])) != row[:2]
    ]
    if bad:
        raise LikenessError(
            f"{path}: {len(bad)} of {len(items)} items have names that a list cannot contain "
            f"({name_first(bad)}): they begin with # or a quotation mark,"
            " begin or end with a blank, contain tabs, line ends or bytes that are not UTF-8, or "
            "are too long; rename their files"
        )
    with atomic_path(path) as temporary:
        header = ""
        if timed:
            header = "id\tpath\tstart\tend\n"
        elif rows and _is_header(rows[0]):
            # Where the first line could be a header, a header comes before it.
            header = "id\tpath\n"
        lines = "".join("\t".join(row) + "\n" for row in rows)
        temporary.write_text(header + lines, encoding="utf-8")


def _place(path: Path, root: Path | None) -> str:
    """How a path is written that is read from a folder."""
    if is_url(path):
        return url_of(path)
    if root is None:
        return path.as_posix()
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return Path(os.path.abspath(path)).as_posix()


def _times(stretch: tuple[float, float] | None) -> list[str]:
    """Start and end as text, which is empty where there is none."""
    if stretch is None:
        return ["", ""]
    return [repr(stretch[0]), "" if stretch[1] == np.inf else repr(stretch[1])]


def _chunks(path: Path) -> Iterator[tuple[int, str]]:
    """Yields whole lines that are read together, and the number of the lines above them.

    The last line may be cut where it is too long.
    """
    with path.open(encoding="utf-8-sig", errors="strict") as lines:
        above, size = 0, _FIRST
        try:
            # A line is read in parts, because a link to /dev/zero has no end of a line.
            while text := lines.read(size):
                if not text.endswith("\n"):
                    text += lines.readline(_MAX_LINE + 1)
                yield above, text
                above, size = above + text.count("\n"), _CHUNK
        except UnicodeDecodeError as error:
            raise LikenessError(
                f"{path} is not UTF-8 text ({error.reason}); is this a list of files?"
            ) from None


class _Rows:
    """The rows of a list, as far as they have been read."""

    def __init__(self, root: Path) -> None:
        self.built, self.header, self.malformed = ItemsBuilder(), list[str](), list[str]()
        self.empty: list[int] = []  # the lines that lack an id or a path
        self._root, self._begun = root, False
        self._before = (root / "x").as_posix()[:-1]

    def add_lines(self, path: Path, above: int, text: str) -> None:
        """Adds lines of any form, one by one."""
        table: list[list[str]] = []
        for number, line in enumerate(text.removesuffix("\n").split("\n"), above + 1):
            if not _is_text(line + "\n"):
                raise LikenessError(
                    f"{path}: line {number} is not text of at most {_MAX_LINE} characters; is "
                    "this a list of files?"
                )
            fields = _line_fields(line)
            if not fields:
                continue
            if not self._begun and _is_header(fields):
                self.header = [field.lower() for field in fields]
                twice = [name for name in _READ if self.header.count(name) > 1]
                if twice:
                    raise LikenessError(
                        f"{path}: the header in line {number} names {len(twice)} columns twice "
                        f"({name_first(twice)}); rename one of each"
                    )
            elif len(fields) == len(self.header) or (not self.header and len(fields) <= 3):
                if any(fields[place] == "" for place in self._needed(len(fields))):
                    self.empty.append(number)
                else:
                    table.append(fields)
            else:
                self.malformed.append(f"line {number}")
            self._begun = True
        start = 0  # the first of the next rows of one width
        for place in range(1, len(table) + 1):
            if place == len(table) or len(table[place]) != len(table[start]):
                self._add(list(zip(*table[start:place], strict=True)))
                start = place

    def add_plain(self, text: str) -> bool:
        """Adds lines whose fields leave no choice, and says whether they are such lines.

        There is one separator between two fields, and there are no quotation marks, comments, blank
        lines and blanks around fields.
        """
        separator = "\t" if "\t" in text else "," if "," in text else " "
        around = {f"{a}{b}" for a in (" ", separator) for b in (" ", separator)} - {separator * 2}
        refused = {'"', "\0", "\n\n", "\n#", "\n ", " \n", "\n\t", "\t\n", *around}
        refused |= {"  "} if separator == " " else set()
        lines = f"\n{text}"
        # A text is quickly searched for one character, and most of these are not there.
        refused = {mark for mark in refused if all(character in lines for character in mark)}
        if not self._begun or lines[-1] != "\n" or any(mark in lines for mark in refused):
            return False
        values = np.frombuffer(text.encode(), dtype=np.uint8)
        is_end = values == ord("\n")
        ends = np.flatnonzero(is_end)
        if not text.isascii():
            other_blanks = _OTHER_BLANK.search(text) is not None
        else:
            control = np.count_nonzero(values < ord(" "))
            other_blanks = control != ends.size + text.count("\t")
        marks = np.flatnonzero(is_end | (values == ord(separator)))
        width = marks.size // ends.size
        if (
            other_blanks
            or width * ends.size != marks.size
            or (marks[width - 1 :: width] != ends).any()
            or np.diff(ends, prepend=-1).max() > _MAX_LINE
            or width != (len(self.header) or min(width, 3))
        ):
            return False
        empty = np.flatnonzero(np.diff(marks, prepend=-1) == 1) % width
        if empty.size and np.isin(empty, self._needed(width)).any():
            return False  # so that the lines are counted
        fields = text[:-1].replace("\n", separator).split(separator)
        self._add([fields[place::width] for place in range(width)])
        return True

    def _names(self, width: int) -> Sequence[str]:
        """The names of the columns of rows of this width."""
        return self.header or (["path"], ["id", "path"], ["id", "path", "label"])[width - 1]

    def _needed(self, width: int) -> list[int]:
        """The places of the id and the path in rows of this width, which may not be empty."""
        return [k for k, name in enumerate(self._names(width)) if name in ("id", "path")]

    def _add(self, columns: Sequence[Sequence[str]]) -> None:
        """Adds the columns of rows of one width."""
        column = dict(zip(self._names(len(columns)), columns, strict=True))
        places = column["path"]
        lines = "\n".join(["", *places, ""])
        if os.sep != "/" or any(mark in lines for mark in _REWRITTEN):
            paths = [place_below(self._root, place) for place in places]
        elif "\n/" in lines:
            paths = [place if place[0] == "/" else self._before + place for place in places]
        else:
            paths = f"\n{self._before}".join(["", *places]).split("\n")[1:]
        self.built.add(
            column.get("id", places),
            paths,
            column.get("label"),
            further={name: column[name] for name in FURTHER if name in column},
        )


def _is_header(fields: Sequence[str]) -> bool:
    """Whether the fields are names of columns, of which one is `path`, and not a path."""
    return "path" in map(str.lower, fields) and not any(
        "." in field or "/" in field for field in fields
    )


def _is_text(line: str) -> bool:
    """Whether a line can belong to a list: it is not too long and contains no NUL."""
    return len(line) <= _MAX_LINE and "\0" not in line


def _line_fields(line: str) -> list[str]:
    """The fields of one line of a list.

    A blank line, a comment, and text that is more than one line or not UTF-8 have none.
    """
    stripped = line.strip()
    try:
        stripped.encode()
    except UnicodeEncodeError:
        return []
    several = "\n" in stripped or "\r" in stripped
    if not stripped or stripped.startswith("#") or several or not _is_text(stripped):
        return []
    if "\t" in stripped or "," in stripped:
        delimiter = "\t" if "\t" in stripped else ","
        return [field.strip() for field in next(csv.reader([stripped], delimiter=delimiter))]
    return stripped.split()
