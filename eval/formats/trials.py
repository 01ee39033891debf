"""Reading and writing of trial lists and score files in the formats of the field.

A trial list has the columns `label enrol probe`, `enrol probe label` or `enrol probe` (a blind
list). A score file has `score enrol probe`, `enrol probe score`, or one of these with a label.

Which column is which follows from the whole file, not from its first line. A label column holds
labels of one kind throughout (1 0, target nontarget, tgt imp, true false). A score column holds
numbers. A header line, where there is one, decides. It settles the rare files that can be read in
two ways, for example because their ids are themselves 0 or 1.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats import coded, plain
from eval.formats.files import (
    Column,
    Table,
    all_fractions,
    as_floats,
    atomic_path,
    is_number,
    read_table,
    refuse_empty,
)
from eval.progress import report
from eval.types import Bools, Floats, Ints, Trials, name_first, quoted, shortened

# A layout has one letter for each column: label, enrol, probe, score. `write_scores` writes "epsl".
_TRIAL_LAYOUTS = ("ep", "lep", "epl")
_SCORE_LAYOUTS = ("sep", "eps", "epsl", "leps", "sepl")
_NAMES = {"l": "label", "e": "enrol", "p": "probe", "s": "score"}

_LABELS: tuple[dict[bytes, bool], ...] = (
    {b"1": True, b"0": False},
    {b"target": True, b"nontarget": False},
    {b"tgt": True, b"imp": False},
    {b"true": True, b"false": False},
)

# The names of columns in lower case, without _, - and blanks. Neither numbers nor labels are among
# them, because a line that has one is data. `_header` treats "target" as a name and as a label.
_HEADER = {
    "l": {
        b"label",
        b"labels",
        b"key",
        b"istarget",
        b"issame",
        b"same",
        b"match",
        b"targettype",
        b"truth",
        b"groundtruth",
    },
    "s": {b"score", b"scores", b"llr", b"similarity", b"cosine"},
    "e": {
        b"enrol",
        b"enroll",
        b"enrolment",
        b"enrollment",
        b"enrolid",
        b"enrollid",
        b"enrolmentid",
        b"enrollmentid",
        b"model",
        b"modelid",
        b"reference",
        b"referenceid",
    },
    "p": {b"probe", b"probeid", b"test", b"testid", b"segment", b"segmentid", b"verification"},
}
_CHUNK = 100_000  # trials written at a time
_QUICK_FROM = 200_000  # trials; importing pyarrow pays for no fewer
_UNWRITABLE = re.compile(r"^\Z|^[# \ufeff]| \Z|[\x00-\x1f\ud800-\udfff]")


def read_trials(path: str | Path) -> Trials:
    r"""Reads a trial list in one of the layouts that the head of this module lists.

    Fields are separated by blanks, tabs or commas. Comments (#), blank lines, a header and .gz
    files are accepted. The trials stay in the order of the file, and identical duplicates stay too.
    Ids are numbered by their first occurrence.

    Args:
        path: The list, plain or compressed by gzip.

    Returns:
        The trials. Their `target` is None for a blind list.

    Raises:
        LikenessError: The file is empty, binary or damaged; its lines differ in their number of
            fields; it has no label column where three columns need one, or several; a pair has both
            labels.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "trials.txt"
        ...     _ = path.write_text("1 ann/1 ann/2\n0 ann/1 bob/1\n")
        ...     trials = read_trials(path)
        >>> trials.enrol_ids, trials.probe_ids, trials.target.tolist()
        (('ann/1',), ('ann/2', 'bob/1'), [True, False])
    """
    table, fitting = _read(path, _TRIAL_LAYOUTS)
    if len(fitting) > 1:
        raise _ambiguous(table, fitting)
    return _trials(table, fitting[0])


def read_scores(path: str | Path, trials: Trials | None = None) -> tuple[Trials, Floats]:
    """Reads the trials of a score file and their scores.

    With `trials`, the scores come in the order of that list and with its labels. They are matched
    by the pair (enrol, probe): every trial needs one score, and every score needs a trial.

    Args:
        path: The score file, plain or compressed by gzip.
        trials: The trial list that the scores belong to.

    Returns:
        The P trials and their scores (P,) in float64.

    Raises:
        LikenessError: As for `read_trials`. Also for scores that are not finite numbers, pairs that
            do not match the list, and labels that contradict it. Also for a trial list in
            place of a score file, because its labels would pass for perfect scores.
    """
    table, fitting = _read(path, _SCORE_LAYOUTS)
    if len(fitting) > 1 and trials is not None:
        # Some ids are numbers. The trial list knows which columns hold its ids.
        sides = [set(trials.enrol_ids), set(trials.probe_ids)]
        fitting = [
            layout
            for layout in fitting
            if all(
                known.issuperset(_column(table, layout, side).texts(table.path))
                for known, side in zip(sides, "ep", strict=True)
            )
        ] or fitting
    if len(fitting) > 1:
        raise _ambiguous(table, fitting)
    column = table.columns[fitting[0].index("s")]
    all_binary = isinstance(column, Column) and {b"0", b"1"}.issuperset(column.keys)
    if table.layout is None and "l" not in fitting[0] and all_binary:
        raise LikenessError(
            f"{table.path}: all scores are 0 or 1, as the labels of a trial "
            "list are; give the score file, "
            f"or put `{_spelt(fitting[0])}` as a header line on top if these are scores"
        )
    values = as_floats(column.keys)[column.codes] if isinstance(column, Column) else column
    scored = _trials(table, fitting[0])
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise LikenessError(
            f"{table.path}: scores are NaN, infinite or not numbers (first: "
            f"{pair_text(scored, int(bad[0]))}); score these trials again"
        )
    return (scored, values) if trials is None else _align(table, scored, values, trials)


def write_trials(path: str | Path, trials: Trials) -> None:
    """Writes a trial list that `read_trials` reads back, whole or not at all.

    The columns are `enrol probe label`, with the label 1 or 0; a blind list has no label. A path
    that ends in .gz is compressed. Tabs separate the fields if an id contains blanks. A file that
    could be misread gets a header line.

    Args:
        path: The file to write.
        trials: At least one trial.

    Raises:
        LikenessError: There are no trials, no such file can hold some of the ids, or the path ends
            in .npz.gz or .parquet.gz.
    """
    _write(path, trials, None)


def write_scores(path: str | Path, trials: Trials, values: Floats) -> None:
    """Writes `enrol probe score label` with the shortest digits that give back the same float64.

    Everything else is as for `write_trials`.

    Args:
        path: The file to write.
        trials: P trials, at least one.
        values: Their finite scores (P,).

    Raises:
        LikenessError: As for `write_trials`, and for scores of another number or that are not
            finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (len(trials),) or not np.isfinite(values).all():
        raise LikenessError(
            f"scores: {len(trials)} trials need as many finite scores, but got shape "
            f"{values.shape} with {int((~np.isfinite(values)).sum())} NaN or infinite"
        )
    _write(path, trials, values)


def _read(path: str | Path, layouts: tuple[str, ...]) -> tuple[Table, list[str]]:
    """The table, and the layouts (at least one) that all of its lines fit."""

    def fits(fields: Sequence[bytes]) -> bool:
        """Whether the fields look like a line of one of the layouts."""
        return any(
            len(layout) == len(fields)
            and all(_is(role, field) for role, field in zip(layout, fields, strict=True))
            for layout in layouts
        )

    if coded.is_coded(path):
        table = _fitted(coded.read_table(path, _roles), layouts)
    else:
        table = read_table(
            path, fits, lambda fields: _header(fields, layouts), fractions="s" in layouts[0]
        )
    width = len(table.columns)
    possible = layouts if table.layout is None else (table.layout,)
    candidates = [layout for layout in possible if len(layout) == width]
    if not candidates:
        allowed = ", ".join(f"`{_spelt(layout)}`" for layout in possible)
        hint = ""
        if width == 1:
            hint = "; blanks, tabs or commas separate fields, and semicolons do not"
        raise LikenessError(f"{path}: {width} fields in each line; expected {allowed}{hint}")
    refuse_empty(table)
    fitting = [
        layout
        for layout in candidates
        if not any(
            _misfits(column, role).any() for role, column in zip(layout, table.columns, strict=True)
        )
    ]
    if not fitting:
        ways = "; ".join(_misfit_text(table, layout) for layout in candidates)
        raise LikenessError(
            f"{path}: {ways}; labels must be 1 0, target nontarget, tgt imp or true false, of one "
            "kind throughout"
        )
    return table, fitting


def _header(fields: Sequence[bytes], layouts: tuple[str, ...]) -> str | None:
    """The layout that a header line states, or None for a data line.

    A line with a label or a number is never a header.
    """
    names = [_bare(field) for field in fields]
    roles = [
        next((role for role, known in _HEADER.items() if name in known), "?") for name in names
    ]
    other_roles = [role for role, name in zip(roles, names, strict=True) if name != b"target"]
    if b"target" in names and "l" not in roles and "?" not in other_roles:
        roles[names.index(b"target")] = "l"
    elif any(_is("l", name) or is_number(name) for name in names):
        return None
    if "l" not in roles and "s" not in roles and "?" in roles:
        return None  # a data line with two ids
    free = [side for side in "ep" if side not in roles]
    layout = "".join(free.pop(0) if role == "?" and free else role for role in roles)
    return layout if sorted(layout) in [sorted(allowed) for allowed in layouts] else None


def _bare(name: bytes) -> bytes:
    """The name of a column in lower case, without _, - and blanks."""
    return re.sub(rb"[\s_-]", b"", name.lower())


def _roles(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """The layout that names of columns stand for, and the columns that it takes.

    Columns of other names are left out where those that a header may name suffice.
    """
    known = {name for of_role in _HEADER.values() for name in of_role} | {b"target"}
    encoded = {name: name.encode(errors="replace") for name in names}
    named = [name for name in names if _bare(encoded[name]) in known]
    for chosen in (list(names), named):
        if 2 <= len(chosen) <= len(_NAMES):
            layout = _header([encoded[name] for name in chosen], _TRIAL_LAYOUTS + _SCORE_LAYOUTS)
            if layout is not None:
                return layout, chosen
    return None


def _fitted(table: Table, layouts: tuple[str, ...]) -> Table:
    """The table of named columns with those that the layouts have. Scores need no trial list."""
    assert table.layout is not None
    layout = table.layout if "s" in layouts[0] else table.layout.replace("s", "")
    if sorted(layout) not in [sorted(allowed) for allowed in layouts]:
        raise LikenessError(
            f"{table.path}: its columns are {_spelt(layout)}, without a score; give a file with "
            "scores"
        )
    columns = [table.columns[table.layout.index(role)] for role in layout]
    return table._replace(layout=layout, columns=columns)


def label_kinds(fields: Sequence[bytes]) -> list[dict[bytes, bool]]:
    """Returns the kinds of labels, field in small letters -> whether it is a target, that all of
    these fields may be of.

    Example:
        >>> label_kinds([b"1", b"0"])
        [{b'1': True, b'0': False}]
    """
    lower = {field.lower() for field in fields}
    return [kind for kind in _LABELS if lower <= kind.keys()]


def role_of_name(name: bytes) -> str | None:
    """Returns the letter of a column that has this name in a header, None for another field."""
    bare = _bare(name)
    return next((role for role, known in _HEADER.items() if bare in known), None)


def _is(role: str, field: bytes) -> bool:
    """Whether a field can play a role: label, score, or an id."""
    if role == "l":
        return any(field.lower() in known for known in _LABELS)
    return is_number(field) if role == "s" else bool(field)


def _misfits(column: Column | Floats, role: str) -> Bools:
    """Which of the distinct fields (K,) of a column cannot play a role.

    For labels these are the ones that are not of the kind that is most common in the column. The
    numbers of a column of fractions (P,) all play the same role.
    """
    if not isinstance(column, Column):
        return np.array([role != "s"])
    if role == "l":
        bad = ~np.array(
            [[key.lower() in known for key in column.keys] for known in _LABELS], dtype=np.bool_
        )
        misfits: Bools = bad[int(np.argmin(bad.sum(axis=1)))]
        return misfits
    if role == "s":
        return np.array([not is_number(key) for key in column.keys], dtype=np.bool_)
    return np.zeros(len(column.keys), dtype=np.bool_)


def _misfit_text(table: Table, layout: str) -> str:
    """The first field that cannot play its role in a layout, for messages."""
    for role, column in zip(layout, table.columns, strict=True):
        misfits = np.flatnonzero(_misfits(column, role))
        if misfits.size:
            field = "a number"
            if isinstance(column, Column):
                field = quoted(column.keys[misfits[0]].decode(errors="replace"))
            return f"as `{_spelt(layout)}`, {field} is no {_NAMES[role]}"
    raise AssertionError(f"{layout} fits")


def _trials(table: Table, layout: str) -> Trials:
    """The trials of a table whose layout is known."""
    enrol, probe = (_column(table, layout, side) for side in "ep")
    target: Bools | None = None
    if "l" in layout:
        column = _column(table, layout, "l")
        value_of = {key: value for known in _LABELS for key, value in known.items()}
        target = np.array([value_of[key.lower()] for key in column.keys], dtype=np.bool_)[
            column.codes
        ]
        _refuse_both_labels(table, enrol, probe, target)
    return Trials(
        enrol.texts(table.path), probe.texts(table.path), enrol.codes, probe.codes, target
    )


def _refuse_both_labels(table: Table, enrol: Column, probe: Column, target: Bools) -> None:
    """Raises ValueError for pairs that are listed as target and as nontarget."""
    marked = _pairs(enrol.codes, probe.codes, len(probe.keys))
    marked *= 2
    marked += target
    marked.sort()
    contradictory = []
    for start in range(0, marked.size, _CHUNK):
        part = marked[start : start + _CHUNK + 1]
        contradictory.append(part[:-1][(part[1:] - part[:-1] == 1) & (part[:-1] & 1 == 0)] >> 1)
    del marked
    both = np.unique(np.concatenate(contradictory))
    if both.size:
        first, second = divmod(int(both[0]), len(probe.keys))
        named = b" ".join((enrol.keys[first], probe.keys[second])).decode(errors="replace")
        raise LikenessError(
            f"{table.path}: pairs are labelled both target and nontarget (first: {quoted(named)}); "
            "remove one label of each"
        )


def _pairs(enrol: Ints, probe: Ints, num_probes: int) -> NDArray[np.int64]:
    """One number (P,) for each pair of an enrolment and a probe id."""
    pair = enrol.astype(np.int64)
    pair *= num_probes
    pair += probe
    return pair


def _repeats(pairs: NDArray[np.int64]) -> bool:
    """Whether a pair occurs twice."""
    ordered = np.sort(pairs)
    return bool((ordered[1:] == ordered[:-1]).any())


def _align(table: Table, scored: Trials, values: Floats, trials: Trials) -> tuple[Trials, Floats]:
    """The scores in the order of `trials`, with its labels."""
    number_of = [
        {name: i for i, name in enumerate(ids)} for ids in (trials.enrol_ids, trials.probe_ids)
    ]
    enrol = np.array([number_of[0].get(name, -1) for name in scored.enrol_ids], dtype=np.int64)[
        scored.enrol
    ]
    probe = np.array([number_of[1].get(name, -1) for name in scored.probe_ids], dtype=np.int64)[
        scored.probe
    ]
    width = len(trials.probe_ids)
    have = np.where((enrol < 0) | (probe < 0), -1, enrol * width + probe)
    want = _pairs(trials.enrol, trials.probe, width)
    del enrol, probe
    # Lists that are in one order are the usual case, and much the quicker.
    alike = np.array_equal(have, want) and not _repeats(have)
    order = np.arange(have.size) if alike else np.argsort(have, kind="stable")
    # A pair may be scored in several rows. Any of them will do, since differing scores are refused.
    at = order
    unscored = unlisted = np.zeros(0, dtype=np.int64)
    if not alike:
        at = order[np.minimum(np.searchsorted(have[order], want), order.size - 1)]
        unscored, unlisted = np.flatnonzero(have[at] != want), np.flatnonzero(~np.isin(have, want))
    if unscored.size or unlisted.size:
        texts = [
            f"{rows.size} {what} (first: {pair_text(of, int(rows[0]))})"
            for rows, of, what in (
                (unscored, trials, "trials have no score"),
                (unlisted, scored, "scores have no trial"),
            )
            if rows.size
        ]
        raise LikenessError(
            f"{table.path}: {' and '.join(texts)}; does the trial list belong to these scores?"
        )
    clash = np.zeros(0, dtype=np.int64)
    if not alike:
        pairs, in_order = have[order], values[order]
        clash = np.flatnonzero((pairs[1:] == pairs[:-1]) & (in_order[1:] != in_order[:-1]))
    if clash.size:
        raise LikenessError(
            f"{table.path}: repeated pairs have differing scores (first: "
            f"{pair_text(scored, int(order[clash[0]]))}); keep one"
        )
    if scored.target is not None:
        if trials.target is None:
            labelled = Trials(
                trials.enrol_ids, trials.probe_ids, trials.enrol, trials.probe, scored.target[at]
            )
            return labelled, values[at]
        wrong = np.flatnonzero(scored.target[at] != trials.target)
        if wrong.size:
            raise LikenessError(
                f"{table.path}: labels contradict the trial list (first: "
                f"{pair_text(trials, int(wrong[0]))})"
            )
    return trials, values[at]


def _write(path: str | Path, trials: Trials, values: Floats | None) -> None:
    """Writes trials, with scores unless `values` is None."""
    if not len(trials):
        raise LikenessError(f"{path}: there are no trials to write")
    coded.check_written(path)
    if coded.is_coded(path):
        coded.write(Path(path), trials, values)
        return
    occurring = [
        [ids[k] for k in _occurring(index, len(ids))]
        for ids, index in ((trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe))
    ]
    bad = [name for side in occurring for name in side if _UNWRITABLE.search(name)]
    if bad:
        raise LikenessError(
            f"{path}: ids are empty, begin with # or a blank, end in a blank, or hold "
            f"control characters ({name_first(bad)}); rename them"
        )
    blank = any(" " in name for side in occurring for name in side)
    first = [trials.enrol_ids[trials.enrol[0]].encode(), trials.probe_ids[trials.probe[0]].encode()]
    layout = "ep" + ("s" if values is not None else "") + ("l" if trials.target is not None else "")
    sides = [[name.encode() for name in side] for side in occurring]
    misread = _header(first, ("ep",)) is not None or any(
        all_fractions(side) or all(_is("l", name) for name in side) for side in sides
    )
    separator = "\t" if blank else " "
    with atomic_path(path) as temporary, temporary.open("wb") as raw:
        stream = (
            cast(IO[bytes], gzip.GzipFile("", "wb", 6, raw, mtime=0))
            if str(path).endswith(".gz")
            else raw
        )
        if misread or blank or any("," in name for side in occurring for name in side):
            stream.write((separator.join(_NAMES[role] for role in layout) + "\n").encode())
        blocks = _lines(trials, values, separator)
        if len(trials) >= _QUICK_FROM:
            blocks = plain.lines(
                (trials.enrol_ids, trials.enrol),
                (trials.probe_ids, trials.probe),
                values,
                trials.target,
                separator,
            )
        for block in blocks:
            stream.write(block)
        report("writing", len(trials), len(trials))
        if stream is not raw:
            stream.close()


def _occurring(index: Ints, size: int) -> NDArray[np.int64]:
    """Which of the numbers below `size` occur."""
    occurs = np.zeros(size, dtype=np.bool_)
    occurs[index] = True
    return np.flatnonzero(occurs)


def _lines(trials: Trials, values: Floats | None, separator: str) -> Iterator[bytes]:
    """The lines of a list as text, in blocks."""
    for start in range(0, len(trials), _CHUNK):
        report("writing", start, len(trials))
        part = slice(start, start + _CHUNK)
        columns = [
            map(trials.enrol_ids.__getitem__, trials.enrol[part].tolist()),
            map(trials.probe_ids.__getitem__, trials.probe[part].tolist()),
        ]
        if values is not None:
            columns.append(map(repr, values[part].tolist()))
        if trials.target is not None:
            columns.append(map("01".__getitem__, trials.target[part].tolist()))
        yield ("\n".join(map(separator.join, zip(*columns, strict=True))) + "\n").encode()


def _ambiguous(table: Table, fitting: list[str]) -> LikenessError:
    """The error for a table that fits several layouts."""
    ways = " and as ".join(f"`{_spelt(layout)}`" for layout in fitting)
    return LikenessError(
        f"{table.path}: its lines can be read as {ways}; put the right one as a header line on top"
    )


def _column(table: Table, layout: str, role: str) -> Column:
    """The column of ids or labels that plays a role in a layout."""
    column = table.columns[layout.index(role)]
    assert isinstance(column, Column)
    return column


def _spelt(layout: str) -> str:
    """The names of the columns of a layout, as in its header line."""
    return " ".join(_NAMES[role] for role in layout)


def pair_text(trials: Trials, row: int) -> str:
    """The ids `enrol probe` of the trial in one row, for messages."""
    pair = trials.enrol_ids[trials.enrol[row]], trials.probe_ids[trials.probe[row]]
    return " ".join(map(shortened, pair))
