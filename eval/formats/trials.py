"""Trial lists and score files in the formats of the field.

A trial list has the columns `label enrol probe`, `enrol probe label` or `enrol probe` (a blind
list). A score file has `score enrol probe`, `enrol probe score`, or one of these with a label:
last, first, or before the score as SpeechBrain writes it. One with labels is a trial list too.
Files are text or .parquet (see `likeness.eval.formats.tables` and
`likeness.eval.formats._trial_writing`).

Which column is which follows from the whole file, not from its first line. A label column holds
labels of one kind throughout (1 0, target nontarget, tgt imp, true false, yes no, same different,
match nonmatch). A score column holds numbers. A header line, where there is one, decides (see
`likeness.eval.formats.column_names`). It settles the rare files that can be read in two ways, for
example because their ids are themselves 0 or 1.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats import tables
from likeness.eval.formats._trial_writing import write_scores as write_scores
from likeness.eval.formats._trial_writing import write_trials as write_trials
from likeness.eval.formats.column_names import (
    IS_TARGET,
    ITEMS,
    LABELS,
    SCORE_LAYOUTS,
    TRIAL_LAYOUTS,
    TRIALS,
    by_number,
    choose,
    is_label,
    is_trial_header,
    parse_columns,
    role_of,
)
from likeness.eval.formats.parquet import Column
from likeness.eval.formats.tables import Table, as_floats, is_number
from likeness.eval.option import if_option
from likeness.eval.types import Floats, Trials, ascending, pair_numbers, pair_text, quoted

_VERDICTS = {"accepted", "note"}  # columns of what `verify --pairs` writes
# Columns that tell the parts of a recording apart; "side" is NIST's of a telephone call.
_PARTS = {"start": ITEMS["start"], "end": ITEMS["end"], "channel": (*ITEMS["channel"], "side")}


def read_trials(source: Any, *, columns: str | Mapping[str, str] = "") -> Trials:
    r"""Reads a trial list in one of the layouts that the head of this module lists.

    Fields are separated by blanks, tabs, commas or semicolons. Comments (#), blank lines, a header
    and .gz files are accepted. The trials stay in the order of the file, and identical duplicates
    stay too. Ids are numbered by their first occurrence. A backslash in one is a slash, as in
    Windows paths. Rows of `verify --pairs` without a label are left out, with a warning, if others
    have one.

    Args:
        source: The list, plain or compressed by gzip; a .parquet file; or a table in
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
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "trials.txt"
        ...     _ = path.write_text("1 ann/1 ann/2\n0 ann/1 bob/1\n")
        ...     trials = read_trials(path)
        >>> trials.enrol_ids, trials.probe_ids, trials.target.tolist()
        (('ann/1',), ('ann/2', 'bob/1'), [True, False])
    """
    return trials_of(_complete(_read(source, TRIAL_LAYOUTS, columns)))


def read_scores(
    source: Any, trials: Trials | None = None, *, columns: str | Mapping[str, str] = ""
) -> tuple[Trials, Floats]:
    """Reads the trials of a score file and their scores.

    With `trials`, the scores come in the order of that list and with its labels. They are matched
    by the pair (enrol, probe): every trial needs one score, and every score needs a trial. Rows
    of `verify --pairs` that have no score are left out, with a warning that counts them. So are
    those without a label, if others have one and the list does not know it.

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
    table = _read(source, SCORE_LAYOUTS, columns)
    if not np.isfinite(_scores(table)).all():  # as text, to tell none from NaN
        table = _read(source, SCORE_LAYOUTS, columns, fractions=False)
    table = _complete(table if trials is None else _labelled(table, trials))
    values, scored = _scores(table), trials_of(table)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        first = pair_text(scored, int(bad[0]))
        problem = f"the score of {first} is NaN, infinite or no number"
        raise LikenessError(f"{table.where}: {problem}; score it again")
    if trials is not None and scored.itself.size and not trials.itself.size:
        # The list was read without its self-trials, see likeness.eval.metrics.self_matches.
        others = np.setdiff1d(np.arange(len(scored)), scored.itself)
        scored, values = scored.rows(others), values[others]
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
    table = _read(source, TRIAL_LAYOUTS, columns, may_lack=True)
    enrol, probe = (table.column(side).texts() for side in ("enrol", "probe"))
    labels: list[bool | None] = [None] * len(enrol)
    if "label" in table.roles:
        column = table.column("label")
        of_key = [IS_TARGET[key.lower()] if key else None for key in column.keys]
        labels = [of_key[code] for code in column.codes.tolist()]
    return enrol, probe, labels


def _read(
    source: Any,
    of_lines: Sequence[str],
    columns: str | Mapping[str, str],
    *,
    may_lack: bool = False,
    fractions: bool = True,
) -> Table:
    """The table, in the one way in which all of its rows can be read.

    Args:
        source: As for `read_trials`; so is `columns`.
        of_lines: What lines without a header may be: the roles of their fields.
        may_lack: Whether rows may have no label; those of `verify --pairs` may, and no score.
        fractions: Whether scores become numbers at once.
    """
    layouts = [tuple(text.split()) for text in of_lines]
    stated, needed = parse_columns(columns, TRIALS), layouts[0]
    where = str(source) if isinstance(source, str | os.PathLike) else "the table"

    def places_of(names: list[str]) -> dict[str, int]:
        """The columns of a table whose columns have names, or which somebody stated."""
        nonlocal may_lack
        may_lack |= set(names) >= _VERDICTS
        places = choose(names, stated, where, TRIALS, needed)
        known = {role: place for role, place in places.items() if role in (*needed, "label")}
        own = {name: place for place, name in enumerate(names) if place not in places.values()}
        if by_number(stated):
            return known
        looked_at = own if "label" not in known else filter(lambda n: role_of(n, _PARTS), own)
        return {**known, **{name: own[name] for name in looked_at}}

    def shape_of(sample: list[str]) -> tables.Shape:
        fields = tables.split(sample[0], tables.separator_of(sample[0]))
        is_named = is_trial_header(fields, needed, partly=where.lower().endswith((".csv", ".tsv")))
        if stated or is_named:
            return tables.named_shape(sample, places_of, header=is_named or not by_number(stated))
        return tables.headless_shape(sample, fits)

    def fits(fields: Sequence[str]) -> bool:
        """Whether the fields look like a line of one of the layouts."""
        is_of = {"label": is_label, "score": is_number}
        pairs = [zip(of, fields, strict=True) for of in layouts if len(of) == len(fields)]
        return any(all(is_of.get(role, bool)(text) for role, text in of) for of in pairs)

    if where.lower().endswith(".npz"):
        raise LikenessError(f"{where}: an .npz holds embeddings; give a text or .parquet file")
    fractions = fractions and "score" in needed
    table = tables.read_table(source, shape_of, places_of, fractions=fractions)
    table = _whole(table, (*needed, "label"))
    possible = [table.roles] if table.roles else layouts
    ways = [layout for layout in possible if len(layout) == len(table.columns)]
    is_named = bool(table.roles)
    misfits = [_misfit(way, table.columns, is_named=is_named, may_lack=may_lack) for way in ways]
    fitting = [way for way, misfit in zip(ways, misfits, strict=True) if not misfit]
    if not fitting:
        reasons = "; ".join(misfits) or f"{len(table.columns)} fields in each line"
        remedy = "labels must be of one kind, as 1 0, yes no or target nontarget"
        if not is_named:
            first = [c.keys[c.codes[0]] if isinstance(c, Column) else c[0] for c in table.columns]
            remedy += (
                ", and scores that are all 0 or 1 need a header; name the columns in the first "
                f"line, which is ({', '.join(map(str, first[:12]))})"
                + if_option(", or by --columns enrol=NAME --columns probe=NAME")
            )
        raise LikenessError(f"{table.where}: {reasons}; {remedy}")
    if not all(_same(fitting[0], way, table.columns) for way in fitting):
        shown = " and as ".join(f"`{' '.join(way)}`" for way in fitting)
        raise LikenessError(f"{table.where}: its lines can be {shown}; put one on top as a header")
    return table._replace(roles=fitting[0])


def _same(first: Sequence[str], second: Sequence[str], columns: Sequence[Column | Floats]) -> bool:
    """Whether two ways of reading columns give each role the same values."""
    pairs = [(columns[first.index(role)], columns[second.index(role)]) for role in first]
    return all(
        a is b or (isinstance(a, Column) and isinstance(b, Column) and a.texts() == b.texts())
        for a, b in pairs
    )


def _whole(table: Table, known: Sequence[str]) -> Table:
    """A table without the columns that play no role, of which one that may be labels is named.

    Raises:
        LikenessError: Such a column has several values, while an id has one embedding.
    """
    columns = dict(zip(table.roles, table.columns, strict=False))
    for name in [name for name in columns if name not in known]:
        column = columns[name]
        values = column.keys if isinstance(column, Column) else np.unique(column).tolist()
        if not role_of(name, _PARTS):
            texts = list(map(str, values))
            if "label" not in columns and len(texts) == 2 and all(map(is_label, texts)):
                text = f"{table.where}: the column {name!r} is passed over, but may hold the labels"
                remedy = f"call it label{if_option(f', or add --columns label={name}')}"
                both = " and ".join(texts)
                warnings.warn(f"{text} ({both}); if it does, {remedy}", stacklevel=5)
        elif len(values) > 1:
            problem = f"the column {name!r} names parts of recordings"
            raise LikenessError(f"{table.where}: {problem}; give each part its own id")
    label = columns.get("label")
    if isinstance(label, Column) and label.keys == [""]:  # of a blind list
        del columns["label"]
    roles = tuple(role for role in columns if role in known)
    return table._replace(roles=roles, columns=[columns[role] for role in roles] or table.columns)


def _labelled(table: Table, trials: Trials) -> Table:
    """The table in which a row without a label has that of its trial in the list, if it has one."""
    if trials.target is None or "label" not in table.roles or "" not in table.column("label").keys:
        return table
    blind = table._replace(roles=tuple("" if r == "label" else r for r in table.roles))
    listed, scored = pair_numbers(trials, trials_of(blind))
    label_of = dict(zip(listed.tolist(), np.where(trials.target, "1", "0").tolist(), strict=True))
    rows = zip(table.column("label").texts(), scored.tolist(), strict=True)
    labels = Column.of([text or label_of.get(pair, "") for text, pair in rows])
    columns = zip(table.roles, table.columns, strict=True)
    return table._replace(columns=[labels if role == "label" else of for role, of in columns])


def _complete(table: Table) -> Table:
    """The rows that have a score, and a label where others have one."""
    num_rows = len(table.column("enrol").codes)
    whole = np.ones(num_rows, np.bool_)
    for role, column in zip(table.roles, table.columns, strict=True):
        if isinstance(column, Column) and "" in column.keys:
            lacks = column.codes == column.keys.index("")
            whole &= ~lacks
            text = f"{lacks.sum()} of {num_rows} trials have no {role}, and are left out"
            warnings.warn(f"{table.where}: {text}", stacklevel=4)
    if whole.all():
        return table
    if not whole.any():
        raise LikenessError(f"{table.where}: no trial has a score and a label; score them first")
    columns = [
        tables.in_order(Column(c.keys, c.codes[whole])) if isinstance(c, Column) else c[whole]
        for c in table.columns
    ]
    return table._replace(columns=columns)


def _misfit(
    roles: Sequence[str], columns: Sequence[Column | Floats], *, is_named: bool, may_lack: bool
) -> str:
    """What of a table cannot play its role, for messages; "" if all can.

    Of labels these are the ones that are not of the kind that is most common in the column. The
    numbers of a column of fractions are scores.

    Args:
        roles: Those that its columns may have.
        columns: Its columns.
        is_named: Whether a header or the user gave the roles.
        may_lack: Whether a row may lack its label or score.
    """
    for role, column in zip(roles, columns, strict=True):
        wrong: list[str] = []
        if not isinstance(column, Column):
            wrong = [] if role == "score" else ["a number"]
        elif role == "label":
            keys = [key for key in column.keys if key or not may_lack]
            wrong = min(([k for k in keys if k.lower() not in kind] for kind in LABELS), key=len)
        elif role == "score":
            wrong = [key for key in column.keys if not (is_number(key) or (may_lack and not key))]
            # The labels of a trial list would separate its trials perfectly.
            if not is_named and "label" not in roles and {"0", "1"}.issuperset(column.keys):
                wrong = column.keys
        elif "" in column.keys:
            wrong = [""]
        if wrong:
            return f"as `{' '.join(roles)}`, {quoted(wrong[0])} is no {role}"
    return ""


def _scores(table: Table) -> Floats:
    """(P,) the scores of a table, NaN where a text is no number."""
    column = table.columns[table.roles.index("score")]
    return as_floats(column.keys)[column.codes] if isinstance(column, Column) else column


def trials_of(table: Table) -> Trials:
    """Returns the trials of a table whose columns are known.

    Raises:
        LikenessError: A pair has both labels.
    """
    enrol, probe = (tables.as_ids(table.column(side)) for side in ("enrol", "probe"))
    target, spoof = None, None
    if "label" in table.roles:
        keys, codes = table.column("label")
        target = np.array([IS_TARGET[key.lower()] for key in keys], np.bool_)[codes]
        if any(is_spoof := [key.lower() == "spoof" for key in keys]):
            spoof = np.array(is_spoof)[codes]
    try:
        return Trials(tuple(enrol.keys), tuple(probe.keys), enrol.codes, probe.codes, target, spoof)
    except LikenessError as error:
        raise LikenessError(f"{table.where}: {error}") from None


def _align(where: str, scored: Trials, values: Floats, trials: Trials) -> tuple[Trials, Floats]:
    """The scores in the order of `trials`, with its labels."""
    want, have = pair_numbers(trials, scored)
    at, problems = np.arange(have.size), []
    # Lists that are in one order are the usual case, and much the quicker.
    if not np.array_equal(have, want) or np.unique(have).size < have.size:
        order = ascending(have)
        pairs, in_order = have[order], values[order]
        # A pair may be scored in several rows. Any of them will do, since they have to agree.
        at = order[np.minimum(np.searchsorted(pairs, want), order.size - 1)]
        clash = (pairs[1:] == pairs[:-1]) & (in_order[1:] != in_order[:-1])
        problems = [
            (np.flatnonzero(have[at] != want), trials, "has no score"),
            (np.flatnonzero(~np.isin(have, want)), scored, "is not in the trial list"),
            (order[1:][clash], scored, "has two scores that differ"),
        ]
    if scored.target is not None and trials.target is not None:
        contradicted = np.flatnonzero(scored.target[at] != trials.target)
        problems.append((contradicted, trials, "has another label in the trial list"))
    for rows, of, problem in problems:
        if rows.size:
            pair = pair_text(of, int(rows[0]))
            raise LikenessError(f"{where}: {pair} {problem}; are the scores those of this list?")
    if scored.target is not None and (trials.target is None or scored.spoof is not None):
        spoof = None if scored.spoof is None else scored.spoof[at]
        trials = replace(trials, target=scored.target[at], spoof=spoof)
    return trials, values[at]
