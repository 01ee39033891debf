"""Trial lists and score files in the formats of the field.

A trial list has the columns `label enrol probe`, `enrol probe label` or `enrol probe` (a blind
list). A score file has `score enrol probe`, `enrol probe score`, or one of these with a label.
Files are text, .npz or .parquet (see `eval.formats.lists` and `eval.formats.trial_writing`).

Which column is which follows from the whole file, not from its first line. A label column holds
labels of one kind throughout (1 0, target nontarget, tgt imp, true false, yes no). A score column
holds numbers. A header line, where there is one, decides (see `eval.formats.column_names`). It
settles the rare files that can be read in two ways, for example because their ids are themselves 0
or 1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats import lists, npz, parquet
from eval.formats.column_names import (
    BARE_LAYOUTS,
    LABEL_HINT,
    LABELS,
    NAMED_LABELS,
    SCORE_LAYOUTS,
    TRIAL_LAYOUTS,
    TRIALS,
    by_number,
    choose,
    is_label,
    parse_columns,
    role_of,
    trial_header,
)
from eval.formats.files import text_lines
from eval.formats.lists import Column, Table, as_floats, is_number
from eval.formats.trial_writing import SUFFIXES
from eval.formats.trial_writing import write_scores as write_scores
from eval.formats.trial_writing import write_trials as write_trials
from eval.types import Bools, Floats, Ints, Scores, Trials, quoted, shortened

Layouts = tuple[tuple[str, ...], ...]

_ARRAYS = {
    "enrol_ids": "U",
    "probe_ids": "U",
    "enrol": "iu",
    "probe": "iu",
    "target": "biu",
    "score": "fiu",
}


def read_trials(source: Any, *, columns: str | Mapping[str, str] = "") -> Trials:
    r"""Reads a trial list in one of the layouts that the head of this module lists.

    Fields are separated by blanks, tabs, commas or semicolons. Comments (#), blank lines, a header
    and .gz files are accepted. The trials stay in the order of the file, and identical duplicates
    stay too. Ids are numbered by their first occurrence.

    Args:
        source: The list, plain or compressed by gzip; a .parquet or .npz file; or a table in
            memory, as of pandas.
        columns: Which column is which, where a header does not say it: "enrol=a,probe=b,label=c",
            by name or by number from 1; or a mapping.

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
    return trials_of(_only(_read(source, TRIAL_LAYOUTS, columns)[0]))


def read_scores(
    source: Any, trials: Trials | None = None, *, columns: str | Mapping[str, str] = ""
) -> tuple[Trials, Floats]:
    """Reads the trials of a score file and their scores.

    With `trials`, the scores come in the order of that list and with its labels. They are matched
    by the pair (enrol, probe): every trial needs one score, and every score needs a trial.

    Args:
        source: The score file, as for `read_trials`.
        trials: The trial list that the scores belong to.
        columns: As for `read_trials`; the scores are "score".

    Returns:
        The P trials and their scores (P,) in float64.

    Raises:
        LikenessError: As for `read_trials`. Also for scores that are not finite numbers, pairs that
            do not match the list, and labels that contradict it. Also for a trial list in
            place of a score file, because its labels would pass for perfect scores.
    """
    fitting, is_named = _read(source, SCORE_LAYOUTS, columns)
    if len(fitting) > 1 and trials is not None:
        # Some ids are numbers. The trial list knows which columns hold its ids.
        sides = {"enrol": set(trials.enrol_ids), "probe": set(trials.probe_ids)}
        known = [
            table
            for table in fitting
            if all(ids.issuperset(table.column(side).keys) for side, ids in sides.items())
        ]
        fitting = known or fitting
    table = _only(fitting)
    column = table.columns[table.roles.index("score")]
    all_binary = isinstance(column, Column) and {"0", "1"}.issuperset(column.keys)
    if not is_named and "label" not in table.roles and all_binary:
        raise LikenessError(
            f"{table.where}: all scores are 0 or 1, as the labels of a trial list are; give the "
            f"score file, or put `{' '.join(table.roles)}` as a header line on top if these are "
            "scores"
        )
    values, scored = _scores(table), trials_of(table)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise LikenessError(
            f"{table.where}: scores are NaN, infinite or not numbers (first: "
            f"{pair_text(scored, int(bad[0]))}); score these trials again"
        )
    return (scored, values) if trials is None else _align(table.where, scored, values, trials)


def read_pairs(
    source: Any, *, columns: str | Mapping[str, str] = ""
) -> tuple[list[str], list[str], list[bool | None]]:
    """Reads the ids of both sides of a trial list, and its labels, of which some may be empty.

    Args:
        source: The list, as for `read_trials`; so is `columns`.

    Returns:
        The enrolment and the probe of each trial, and whether it is a target trial; None where that
        is not known.

    Raises:
        LikenessError: As for `read_trials`.
    """
    table = _only(_read(source, TRIAL_LAYOUTS, columns, label_needed=False)[0])
    enrol, probe = (table.column(side).texts() for side in ("enrol", "probe"))
    labels: list[bool | None] = [None] * len(enrol)
    if "label" in table.roles:
        column = table.column("label")
        of_key = [_value_of(key) if key else None for key in column.keys]
        labels = [of_key[code] for code in column.codes.tolist()]
    return enrol, probe, labels


def is_bare(path: str | Path) -> bool:
    """Returns whether the lines of a score file have two fields, of which none can be an id.

    A pipe, which is read once, and a file of arrays are not looked into.
    """
    place = Path(path)
    if place.suffix.lower() in SUFFIXES or not place.is_file():
        return False
    first = next((line for _, line in text_lines(place)), "")
    return len(lists.split(first, lists.separator_of(first))) == 2


def read_bare_scores(path: str | Path) -> Scores:
    r"""Reads the scores of labelled trials whose ids are not known.

    Args:
        path: Lines of a label and a score, plain or compressed by gzip. Labels are of one kind
            throughout, as in trial lists. The first line may be a header, and has to be one where
            both columns can be labels.

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
    table = _only(_read(Path(path), BARE_LAYOUTS, "")[0])
    try:
        return Scores(_scores(table), _targets(table.column("label")))
    except LikenessError as error:
        raise LikenessError(f"{path}: {error}") from None


def _read(
    source: Any, layouts: Layouts, columns: str | Mapping[str, str], *, label_needed: bool = True
) -> tuple[list[Table], bool]:
    """The table as all of its rows can be read, in one way or several; and if they are named."""
    stated = parse_columns(columns, TRIALS)
    has_scores = "score" in layouts[-1]

    def header(fields: Sequence[str]) -> dict[str, int] | None:
        """The columns that a first line names, None for a line of data."""
        places = trial_header(fields, (*layouts, *SCORE_LAYOUTS))
        if places is not None and not has_scores:
            places.pop("score", None)
        return places if places is None or len(places) in map(len, layouts) else None

    def places_of(names: list[str]) -> dict[str, int]:
        """The columns of a table whose columns have names, or which somebody stated."""
        places = None if stated else header(names)
        if places is None:
            places = choose(names, stated, str(source), TRIALS, layouts[0])
        return {role: place for role, place in places.items() if role != "score" or has_scores}

    def shape(sample: list[str]) -> lists.Shape:
        if stated:
            return lists.named_shape(sample, places_of, header=not by_number(stated))
        found = lists.ranked_shape(sample, fits, header)
        fields = lists.split(sample[0], found.separator)
        is_header = any(role_of(field, TRIALS) for field in fields)
        is_header &= not any(is_label(field) or is_number(field) for field in fields)
        if found.places is None and path.suffix.lower() in (".csv", ".tsv") and is_header:
            choose(fields, {}, str(source), TRIALS, layouts[0])  # says what the header lacks
        return found

    def fits(fields: Sequence[str]) -> bool:
        """Whether the fields look like a line of one of the layouts."""
        is_of = {"label": is_label, "score": is_number}
        return any(
            len(layout) == len(fields)
            and all(
                is_of.get(role, bool)(field) for role, field in zip(layout, fields, strict=True)
            )
            for layout in layouts
        )

    if not isinstance(source, str | os.PathLike):
        table = _of_values(lists.read_frame(source, places_of))
    elif (path := Path(source)).suffix.lower() == ".npz":
        table = _of_values(_read_npz(path, has_scores=has_scores))
    elif path.suffix.lower() == ".parquet":
        table = _of_values(lists.read_parquet(path, places_of))
    else:
        lists.refuse_other_kinds(path)
        table = lists.read_table(path, shape, fractions=has_scores)
    possible = (table.roles,) if table.roles else layouts
    candidates = tuple(layout for layout in possible if len(layout) == len(table.columns))
    if not candidates:
        allowed = ", ".join(f"`{' '.join(layout)}`" for layout in possible)
        raise LikenessError(
            f"{table.where}: {len(table.columns)} fields in each line; expected {allowed}, or a "
            "header with names of columns; say which are which with --columns "
            "enrol=NAME,probe=NAME"
        )
    for role, column in zip(table.roles or [""] * len(table.columns), table.columns, strict=True):
        is_needed = role != "label" or label_needed
        if is_needed and isinstance(column, Column) and "" in column.keys:
            raise LikenessError(
                f"{table.where}: fields are empty{f' of {role}' * bool(role)}; fill or remove "
                "these rows"
            )
    misfits = {layout: _misfit(table, layout) for layout in candidates}
    fitting = [table._replace(roles=layout) for layout in candidates if not misfits[layout]]
    if not fitting:
        raise LikenessError(
            f"{table.where}: {'; '.join(misfits.values())}; {LABEL_HINT} throughout"
        )
    return fitting, bool(table.roles)


def _only(fitting: Sequence[Table]) -> Table:
    """The table, if it can be read in one way alone."""
    if len(fitting) > 1:
        ways = " and as ".join(f"`{' '.join(table.roles)}`" for table in fitting)
        raise LikenessError(
            f"{fitting[0].where}: its lines can be read as {ways}; put the right one as a header "
            "line on top"
        )
    return fitting[0]


def _of_values(table: Table) -> Table:
    """A table of values, whose ids and labels are numbered as those of text are."""
    try:
        columns = [lists.in_order(c) if isinstance(c, Column) else c for c in table.columns]
    except LikenessError as error:  # of a name that is no text
        raise LikenessError(f"{table.where}: {error}") from None
    if not table.column("enrol").codes.size:
        raise LikenessError(f"{table.where}: it holds no trials; expected one row for each")
    return table._replace(columns=columns)


def _misfit(table: Table, layout: tuple[str, ...]) -> str:
    """What of a table cannot play its role in a layout, for messages; "" if all can.

    Of labels these are the ones that are not of the kind that is most common in the column. The
    numbers of a column of fractions are scores.
    """
    for role, column in zip(layout, table.columns, strict=True):
        wrong: list[str] = []
        if not isinstance(column, Column):
            wrong = [] if role == "score" else ["a number"]
        elif role == "label":
            kinds = NAMED_LABELS if table.roles else LABELS
            keys = [key for key in column.keys if key]
            wrong = min(([k for k in keys if k.lower() not in kind] for kind in kinds), key=len)
        elif role == "score":
            wrong = [key for key in column.keys if not is_number(key)]
        if wrong:
            return f"as `{' '.join(layout)}`, {quoted(wrong[0])} is no {role}"
    return ""


def _value_of(label: str) -> bool:
    """Whether a label says that both sides are of one subject."""
    return next(kind[label.lower()] for kind in NAMED_LABELS if label.lower() in kind)


def _targets(labels: Column) -> Bools:
    """(P,) whether labels are those of target trials."""
    is_target: Bools = np.array(list(map(_value_of, labels.keys)), dtype=np.bool_)
    return is_target[labels.codes]


def _scores(table: Table) -> Floats:
    """(P,) the scores of a table, NaN where a text is no number."""
    column = table.columns[table.roles.index("score")]
    return as_floats(column.keys)[column.codes] if isinstance(column, Column) else column


def trials_of(table: Table) -> Trials:
    """Returns the trials of a table whose columns are known.

    Raises:
        LikenessError: A pair has both labels.
    """
    enrol, probe = table.column("enrol"), table.column("probe")
    target: Bools | None = None
    if "label" in table.roles:
        target = _targets(table.column("label"))
        # Equal numbers but for the last bit are one pair with both labels.
        marked = _pairs(enrol.codes, probe.codes, len(probe.keys))
        marked *= 2
        marked += target
        marked.sort()
        both = np.flatnonzero(np.bitwise_xor(marked[1:], marked[:-1]) == 1)
        if both.size:
            first, second = divmod(int(marked[both[0]]) >> 1, len(probe.keys))
            raise LikenessError(
                f"{table.where}: pairs are labelled both target and nontarget (first: "
                f"{quoted(f'{enrol.keys[first]} {probe.keys[second]}')}); remove one label of each"
            )
    return Trials(tuple(enrol.keys), tuple(probe.keys), enrol.codes, probe.codes, target)


def _pairs(enrol: Ints, probe: Ints, num_probes: int) -> NDArray[np.int64]:
    """One number (P,) for each pair of an enrolment and a probe id."""
    pair = enrol.astype(np.int64)
    pair *= num_probes
    pair += probe
    return pair


def _align(where: str, scored: Trials, values: Floats, trials: Trials) -> tuple[Trials, Floats]:
    """The scores in the order of `trials`, with its labels."""
    sides = []
    for ids, known, codes in (
        (scored.enrol_ids, trials.enrol_ids, scored.enrol),
        (scored.probe_ids, trials.probe_ids, scored.probe),
    ):
        number = {name: i for i, name in enumerate(known)}
        sides.append(np.array([number.get(name, -1) for name in ids], dtype=np.int64)[codes])
    width = len(trials.probe_ids)
    have = np.where((sides[0] < 0) | (sides[1] < 0), -1, sides[0] * width + sides[1])
    want = _pairs(trials.enrol, trials.probe, width)
    del sides
    # Lists that are in one order are the usual case, and much the quicker.
    at = order = np.arange(have.size)
    if not np.array_equal(have, want) or np.unique(have).size < have.size:
        order = np.argsort(have, kind="stable")
        pairs, in_order = have[order], values[order]
        # A pair may be scored in several rows. Any of them will do, since they have to agree.
        at = order[np.minimum(np.searchsorted(pairs, want), order.size - 1)]
        for rows, of, what in (
            (np.flatnonzero(have[at] != want), trials, "trials have no score"),
            (np.flatnonzero(~np.isin(have, want)), scored, "scores have no trial"),
        ):
            if rows.size:
                raise LikenessError(
                    f"{where}: {rows.size} {what} (first: {pair_text(of, int(rows[0]))}); "
                    "does the trial list belong to these scores?"
                )
        clash = np.flatnonzero((pairs[1:] == pairs[:-1]) & (in_order[1:] != in_order[:-1]))
        if clash.size:
            raise LikenessError(
                f"{where}: repeated pairs have differing scores (first: "
                f"{pair_text(scored, int(order[clash[0]]))}); keep one"
            )
    if scored.target is not None and trials.target is None:
        target = scored.target[at]
        trials = Trials(trials.enrol_ids, trials.probe_ids, trials.enrol, trials.probe, target)
    elif scored.target is not None:
        wrong = np.flatnonzero(scored.target[at] != trials.target)
        if wrong.size:
            raise LikenessError(
                f"{where}: labels contradict the trial list (first: "
                f"{pair_text(trials, int(wrong[0]))})"
            )
    return trials, values[at]


def _read_npz(path: Path, *, has_scores: bool) -> Table:
    """The table of an .npz file as `write_trials` and `write_scores` write it."""
    with npz.opened(path, parquet.size_limit(path)) as archive:
        headers = {name: header for name, header in archive.headers.items() if name in _ARRAYS}
        needed = {"enrol_ids", "probe_ids", "enrol", "probe", *["score"] * has_scores}
        sizes = {header.shape for name, header in headers.items() if not name.endswith("_ids")}
        if (
            not needed <= headers.keys()
            or len(sizes) > 1
            or any(
                header.dtype.kind not in _ARRAYS[name] or len(header.shape) != 1
                for name, header in headers.items()
            )
        ):
            present = ", ".join(f"{name} {kind} {shape}" for name, (kind, shape) in headers.items())
            raise LikenessError(
                f"{path}: not a list of trials{' with scores' * has_scores}: expected enrol_ids "
                "and probe_ids, texts, enrol and probe (P,) integers, and perhaps target (P,) bool "
                f"and score (P,) floats; arrays found: {quoted(present)}"
            )
        columns: dict[str, Column | Floats] = {}
        for name in ("enrol", "probe"):
            ids, codes = archive.read(f"{name}_ids"), archive.read(name)
            if codes.size and not (codes.min() >= 0 and codes.max() < len(ids)):
                raise LikenessError(
                    f"{path}: numbers of {name} are outside the {len(ids)} {name}_ids; write the "
                    "file again"
                )
            # A file of a few kilobytes can hold millions of ids: only those that occur become
            # texts.
            occurs = np.zeros(len(ids), dtype=np.bool_)
            occurs[codes] = True
            numbers = (np.cumsum(occurs) - 1)[codes].astype(np.int32)
            columns[name] = Column(ids[occurs].tolist(), numbers)
        if "target" in headers:
            distinct, codes = np.unique(archive.read("target"), return_inverse=True)
            columns["label"] = Column(list(map(str, distinct.tolist())), codes.astype(np.int32))
        if has_scores:
            columns["score"] = np.asarray(archive.read("score"), dtype=np.float64)
    return Table(str(path), tuple(columns), list(columns.values()))


def pair_text(trials: Trials, row: int) -> str:
    """The ids `enrol probe` of the trial in one row, for messages."""
    pair = trials.enrol_ids[trials.enrol[row]], trials.probe_ids[trials.probe[row]]
    return " ".join(map(shortened, pair))
