"""Lists of what belongs to ids: subjects, seconds, qualities, and the items that enrol a model."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats import tables
from likeness.eval.formats.column_names import choose, role_of
from likeness.eval.formats.files import File, text_lines
from likeness.eval.formats.parquet import Column, text_of
from likeness.eval.formats.row_names import name_rows
from likeness.eval.types import item_id, item_keys, nfc, number_items, quoted

Names = File | Mapping[str, str]


def read_mapping(
    path: str | Path, *, column: str = "subject", separator: str = ""
) -> dict[str, str]:
    """Reads lines `id subject` (Kaldi's utt2spk) into a dictionary from id to subject.

    Args:
        path: The list, in the syntax of trial lists (likeness.eval.formats.trials), but with two
            columns; or a list of items (`id path label`), or a table of them, whose header names
            the columns. Without a column of ids, an item has the id that `embed` gives it.
        column: What errors call the second one.
        separator: What lies between the two, such as " " in Kaldi's files; "" for whatever fits.

    Returns:
        The subject of each id.

    Raises:
        LikenessError: As for `read_trials`; also where an id has two subjects.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "utt2spk"
        ...     _ = path.write_text("utterance1 ann")
        ...     read_mapping(path)
        {'utterance1': 'ann'}
    """

    def chosen(names: list[str]) -> dict[str, int]:
        places = choose(names, {}, str(path), needed=("label",))
        if "id" not in places and "path" not in places:
            raise LikenessError(f"{path}: no column is the id; call one of them id")
        return places

    def shape(sample: list[str]) -> tables.Shape:
        mark = separator or tables.separator_of(sample[0])
        rows = [tables.split(line, mark) for line in sample]
        roles = set(map(role_of, rows[0]))
        if separator:
            return tables.Shape(separator, 2, {"id": 0, "label": 1})
        if "label" in roles and roles & {"id", "path"}:
            return tables.named_shape(sample, chosen, header=True)
        if all(len(row) == 3 and re.search(r"[/\\.]", row[1]) for row in rows):
            return tables.Shape(mark, 3, {"id": 0, "path": 1, "label": 2})
        fitting = tables.headless_shape(sample, lambda fields: len(fields) == 2 and all(fields))
        return fitting._replace(width=2, places={"id": 0, "label": 1})

    table = tables.read_table(path, shape, chosen)
    listed = {role: table.column(role) for role in table.roles}
    if "path" in listed:
        try:
            names, *_ = name_rows({role: of_rows.texts() for role, of_rows in listed.items()})
        except LikenessError as error:
            raise LikenessError(f"{path}: {error}") from None
        listed["id"] = Column.of(names)
    ids, values = tables.as_ids(listed["id"]), listed["label"]
    value_of = np.zeros(len(ids.keys), dtype=np.int32)
    (item_of,) = number_items(ids.keys)  # one for all spellings of an id
    rows = item_of[ids.codes]
    # Of an id that stands in several lines, the last one counts here. Other lines must agree.
    value_of[rows] = values.codes
    bad = np.flatnonzero(value_of[rows] != values.codes)
    if bad.size or "" in ids.keys + values.keys:
        wrong = f"{ids.keys[ids.codes[bad[0]]]!r} has more than one" if bad.size else "an id has no"
        raise LikenessError(f"{path}: {wrong} {column}; each id needs one: correct the lines")
    number_of = zip(ids.keys, value_of[item_of].tolist(), strict=True)
    return {name: values.keys[i] for name, i in number_of}


def read_durations(path: str | Path) -> dict[str, float]:
    """Reads lines `id seconds` (Kaldi's utt2dur) into a dictionary from id to seconds.

    Args:
        path: The list; it may have a header.

    Returns:
        The duration of each id, in seconds.

    Raises:
        LikenessError: A second field is no number; and as `read_mapping`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "utt2dur"
        ...     _ = path.write_text("id seconds\\nutterance1 2.5")
        ...     read_durations(path)
        {'utterance1': 2.5}
    """
    return read_numbers(path, "seconds")


def read_numbers(path: str | Path, column: str) -> dict[str, float]:
    """Reads lines of an id and a finite number, such as a quality, below a header or none.

    Args:
        path: The list.
        column: What errors call the second column.

    Raises:
        LikenessError: As `read_durations`.
    """
    listed = read_mapping(path, column=column)
    values = dict(zip(listed, tables.as_floats(list(listed.values())).tolist(), strict=True))
    if len(values) > 1 and not tables.is_number(next(iter(listed.values()))):
        del values[next(iter(values))]  # the header, which the reader of any list cannot know
    wrong = [name for name, value in values.items() if not np.isfinite(value)]
    if wrong:
        value = f"{listed[wrong[0]]!r} as its {column}"
        raise LikenessError(f"{path}: {wrong[0]!r} has {value}; give each a finite number")
    return values


_HEADER = re.compile(r"(model|enroll?)([_-]?id)?|enrollment[_-]?id")  # of the first column


def read_enrolment(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Reads which items enrol which model: lines `model item item ...` (spk2utt) or one `model
    item` line per item; a model's lines add up.

    Separated by tabs, commas or semicolons where every line has one, else by blanks; a header
    `model ...`, comments, blank lines and .gz are fine. Returns {model: items}, both in file order.
    ValueError: empty file; a model without items; an item twice in one model.
    """
    lines = [(number, item_id(line)) for number, line in text_lines(path)]
    marks = [mark for mark in "\t,;" if all(mark in line for _, line in lines)]
    fields = [(number, tables.split(line, (*marks, " ")[0])) for number, line in lines]
    if fields and _HEADER.fullmatch(fields[0][1][0].lower()):
        del fields[0]
    models: dict[str, list[str]] = {}
    for number, (model, *listed) in fields:
        known = models.setdefault(model, [])
        known += listed
        if not model or not listed or "" in listed or len(set(known)) < len(known):
            problem = "has an empty name, no item, or one twice"
            raise LikenessError(f"{path}: line {number} {problem}; correct it")
    if not models:
        raise LikenessError(f"{path}: the file is empty; expected lines `model item item ...`")
    return {model: tuple(items) for model, items in models.items()}


def names_of(names: Names | None) -> Mapping[str, str] | None:
    """The subject, class or group of each id, read if they are in a file.

    A mapping gives the texts that a file would give, and "" where a value is missing.

    Raises:
        LikenessError: An item has two values, under two spellings of its id; and as `read_mapping`.

    Example:
        >>> names_of({"ann\\\\1.wav": "ann", 2: 0, "bob/1.wav": float("nan")})
        {'ann/1.wav': 'ann', '2': '0', 'bob/1.wav': ''}
    """
    if not isinstance(names, Mapping):
        return None if names is None else read_mapping(Path(names))
    ids, texts = [item_id(str(id)) for id in names], [nfc(text_of(each)) for each in names.values()]
    keys = item_keys(ids)
    text_of_item = dict(zip(keys, texts, strict=True))
    for id, key, text in zip(ids, keys, texts, strict=True):
        if text_of_item[key] != text:
            both = f"{quoted(text)} and {quoted(text_of_item[key])}"
            raise LikenessError(f"{quoted(id)} has two names, {both}; each id needs one")
    return dict(zip(ids, texts, strict=True))
