"""Score files without ids: lines `label score` or `score label`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import numpy as np

from eval.errors import LikenessError
from eval.formats import coded
from eval.formats.files import Column, as_floats, is_number, read_table, refuse_empty, text_lines
from eval.formats.trials import label_kinds, role_of_name
from eval.types import Floats, Scores

Order = Literal["label-score", "score-label"]


def is_bare(path: str | Path) -> bool:
    """Returns whether the lines of a score file have two fields, of which none can be an id.

    A pipe, which is read once, and a file of arrays are not looked into.
    """
    place = Path(path)
    if coded.is_coded(place) or not place.is_file():
        return False
    first = next((line for _, line in text_lines(place)), "")
    return len(re.split(r"\s*,\s*|\s+", first.strip())) == 2


def read_bare_scores(path: str | Path, order: Order | None = None) -> Scores:
    r"""Reads the scores of labelled trials whose ids are not known.

    Args:
        path: Lines of a label and a score, plain or compressed by gzip. Labels are 1 0, target
            nontarget, tgt imp, or true false, of one kind throughout. The first line may be a
            header.
        order: Which comes first; None takes it from the header, or from the fields if only one
            column can hold labels.

    Returns:
        The scores and labels (P,), in the order of the file.

    Raises:
        LikenessError: The order cannot be known, because both columns can be labels; or fields are
            no labels or no finite numbers.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "scores.txt"
        ...     _ = path.write_text("1 0.7\n0 -0.2\n")
        ...     read_bare_scores(path).targets.tolist()
        [0.7]
    """
    table = read_table(path, lambda fields: len(fields) == 2 and all(fields), _header)
    if len(table.columns) != 2:
        raise LikenessError(
            f"{path}: {len(table.columns)} fields in each line; two are expected, a label and a "
            "score"
        )
    refuse_empty(table)
    first, second = (cast(Column, column) for column in table.columns)
    layout = table.layout
    stated = None if order is None else "".join(name[0] for name in order.split("-"))
    if layout is not None and stated is not None and layout != stated:
        raise LikenessError(
            f"{path}: its header says the other order than {order}; leave the order out"
        )
    layout = layout or stated or _recognised(str(path), first, second)
    labels, scores = (first, second) if layout == "ls" else (second, first)
    kinds = label_kinds(labels.keys)
    if not kinds:
        raise LikenessError(
            f"{path}: the labels in its {'first' if layout == 'ls' else 'second'} column are not "
            "1 0, target nontarget, tgt imp or true false, of one kind throughout"
        )
    values: Floats = as_floats(scores.keys)[scores.codes]
    bad = ~np.isfinite(values)
    if bad.any():
        raise LikenessError(
            f"{path}: {bad.sum()} of {values.size} scores are NaN, infinite or not numbers; score "
            "these trials again"
        )
    is_target = np.array([kinds[0][key.lower()] for key in labels.keys])
    return Scores(values, is_target[labels.codes])


def _header(fields: Sequence[bytes]) -> str | None:
    """The order that a header states, None for a line of data."""
    roles = "".join(role_of_name(field) or "?" for field in fields)
    return roles if sorted(roles) == ["l", "s"] else None


def _recognised(path: str, first: Column, second: Column) -> str:
    """The order of two columns, of which one only can hold labels."""
    can_be = {
        layout: bool(label_kinds(labels.keys)) and all(map(is_number, scores.keys))
        for layout, labels, scores in (("ls", first, second), ("sl", second, first))
    }
    if all(can_be.values()):
        raise LikenessError(
            f"{path}: both columns can be labels, so that the scores are not known; say which is "
            "which by a first line `label score` or `score label`, or by --score-order"
        )
    if not any(can_be.values()):
        raise LikenessError(
            f"{path}: two fields in each line, which are no label (1 0, target nontarget, tgt imp, "
            "true false, of one kind) and a score; give lines `label score`, or `enrol probe score`"
        )
    return "ls" if can_be["ls"] else "sl"
