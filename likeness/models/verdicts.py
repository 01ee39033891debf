"""Are two recordings (or images) of one subject? What `likeness verify` gives, of one pair and of
many.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from likeness.eval.errors import LikenessError, refuse_unused
from likeness.eval.formats import trials
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.runs import CALIBRATION
from likeness.eval.items.item_lists import listed_paths
from likeness.eval.items.items import Item
from likeness.eval.items.remote import refuse_missing_files
from likeness.eval.metrics.calibration import Fusion, by_side, load_fusion, log_measure
from likeness.eval.metrics.self_matches import itself_text, warn_of_repeats
from likeness.eval.metrics.similarity import pairs as similarities
from likeness.eval.protocols.arguments import State, files_read
from likeness.eval.scoring.origin import Origin, write_origin
from likeness.eval.scoring.settings import Scoring
from likeness.eval.scoring.threshold_files import thresholds_path
from likeness.eval.types import (
    Floats32,
    Scores,
    Trials,
    boolean_labels,
    counted,
    item_id,
    name_first,
    pair_text,
)
from likeness.eval.writing import table_text, write_json, write_rows
from likeness.models.bundled import resolve_model
from likeness.toolkit.models.embed import embed_where_readable
from likeness.toolkit.models.loaded import Loaded

if TYPE_CHECKING:
    from likeness.eval.protocols.verification import Evaluation
    from likeness.eval.scoring.thresholds import Thresholds

NO_DECISION = (
    "name a stored threshold by its false-accept rate (`--far`, in Python `far=`), which --save-to "
    "of `likeness evaluate` and of `verify --pairs` stores, or give a number as the threshold"
)
NO_RATES = "rates and thresholds need labelled pairs, some of one subject and some of two"
_QUALITY = ("log_norm_low", "log_norm_high")  # the quality measures that two files alone give


def no_decision(stored: Thresholds | None) -> str:
    """What gives a decision where nothing does; it names the rates that are stored, if any are."""
    if stored is None:
        return NO_DECISION
    return (
        f"thresholds are stored at {stored.rates}: name one of these false-accept rates (`--far`, "
        "in Python `far=`), or give a number as the threshold"
    )


class Verification(NamedTuple):
    """What a comparison of two recordings or images gave. Print it to read it.

    Attributes:
        score: By `similarity`. A higher score is more similar.
        similarity: How the embeddings were compared, such as "cosine".
        norms: Of the two raw embeddings. They measure the quality of their inputs where the loss
            gave norms this meaning. A fusion of two models has none of its own.
        llr: The natural log-likelihood ratio; None without a calibration.
        prior: The share of pairs of one subject that `probability` takes for granted; None without
            a calibration.
        probability: That both are of one subject; None without a calibration.
        threshold: The score from which on both are taken for one subject. None where the
            probability decides, or nothing does.
        accepted: The decision: whether both are taken for one subject. None where there is neither
            a threshold nor a calibration.
        source: Where a stored threshold comes from; "" for a number that the caller gave.
        norm_is_quality: Whether the loss gave norms this meaning.
        parts: Where a fusion of two models gave the score, a log-likelihood ratio: by the modality
            of each its digest as `model`, and its `score`, `similarity` and `norms`.

    Example:
        >>> import likeness
        >>> result = likeness.load("runs/voices").verify("a.wav", "a.wav")
        >>> result.accepted, round(result.score, 3), result.probability
        (None, 1.0, None)
        >>> print(result)  # doctest: +ELLIPSIS
        score        1.0000 (cosine)
        norms        ...
        decision     none: ...
    """

    score: float
    similarity: str
    norms: tuple[float, ...]
    llr: float | None = None
    prior: float | None = None
    probability: float | None = None
    threshold: float | None = None
    accepted: bool | None = None
    source: str = ""
    norm_is_quality: bool = False
    parts: Mapping[str, Mapping[str, Any]] | None = None

    def __bool__(self) -> bool:
        """The decision, so that `if model.verify(a, b, far=0.01):` asks for it.

        Raises:
            LikenessError: Nothing was decided.
        """
        if self.accepted is None:
            raise LikenessError("there is no decision; give far or threshold, or use the score")
        return self.accepted

    def __str__(self) -> str:
        """What it says, in lines."""
        lines = [f"score        {self.score:.4f} ({self.similarity})"]
        for modality, part in (self.parts or {}).items():
            lines.append(f"{modality:12} {part['score']:.4f} ({part['similarity']})")
        if self.norms:
            lines.append(f"norms        {self.norms[0]:.4g} and {self.norms[1]:.4g}")
            if self.norm_is_quality:
                lines[-1] += " (quality, as the loss gave norms this meaning)"
        if self.llr is not None:
            lines += [
                f"llr          {self.llr:.3f}",
                f"probability  {self.probability:.4f} of the same subject, if {self.prior:g} of "
                "all pairs are",
            ]
        if self.accepted is not None:
            verdict = "the same subject" if self.accepted else "different subjects"
            what = "probability" if self.threshold is None else "score"
            bound = 0.5 if self.threshold is None else self.threshold
            side = "at least" if self.accepted else "below"
            lines.append(f"decision     {verdict} ({what} {side} {bound:.4g})")
            if self.source:
                lines.append(f"threshold    {self.threshold:.4g} at {self.source}")
        else:
            lines.append(f"decision     none: {NO_DECISION}")
        return "\n".join(lines)

    def save(self, path: Path, *, files: Sequence[Path], meta: Mapping[str, str]) -> None:
        """Write it into a JSON file in the schema "likeness.verification/1".

        Args:
            path: The file.
            files: What was compared.
            meta: Of the model.
        """
        about = {"schema": "likeness.verification/1", "files": [str(file) for file in files]}
        write_json(path, {**about, **meta, **self._asdict()})


class Comparer(NamedTuple):
    """What compares files: a model, and what decides.

    Attributes:
        model: Embeds them.
        calibration: Turns scores into probabilities, or None.
        threshold: The score from which on two are taken for one subject, or None.
        source: Where a stored threshold comes from; "" for a number of the caller's own.
    """

    model: Loaded
    calibration: Fusion | None = None
    threshold: float | None = None
    source: str = ""


def compared(comparer: Comparer, matrix: Floats32) -> Verification:
    """What follows from two raw embeddings (2, D)."""
    score = float(similarities(matrix[:1], matrix[1:], [0], [0], comparer.model.similarity)[0])
    first, second = np.linalg.norm(matrix.astype(np.float64), axis=1).tolist()
    return judged(comparer, score, (first, second))


def judged(comparer: Comparer, score: float, norms: tuple[float, float]) -> Verification:
    """What follows from a score.

    Args:
        comparer: What decides.
        score: Of two embeddings, by the model's similarity.
        norms: Of the two raw embeddings.
    """
    model, calibration, threshold, source = comparer
    is_quality = model.norm_is_quality
    verified = Verification(score, model.similarity, norms, norm_is_quality=is_quality)
    if threshold is not None:
        accepted = score >= threshold
        verified = verified._replace(threshold=threshold, accepted=accepted, source=source)
    if calibration is None:
        return verified
    quality = None
    if calibration.names:
        measured = log_measure("the norm", norms)
        quality = by_side(measured[:1], measured[1:], [0], [0])
    llr = float(calibration.apply([score], quality)[0])
    return with_probability(verified, llr, calibration.p_target)


def with_probability(verified: Verification, llr: float, prior: float) -> Verification:
    """The verdict with its probability, which decides at one half where no threshold does.

    Args:
        verified: The score and the decision by a threshold, or None.
        llr: The log-likelihood ratio.
        prior: The share of pairs of one subject.
    """
    log_odds = np.clip(llr + math.log(prior / (1 - prior)), -700, 700)
    probability = float(1 / (1 + np.exp(-log_odds)))
    accepted = probability >= 0.5 if verified.accepted is None else verified.accepted
    return verified._replace(llr=llr, prior=prior, probability=probability, accepted=accepted)


def calibration_path(model: str) -> Path | None:
    """Where the calibration of a model lies; None for a model that has no place for one."""
    return thresholds_path(resolve_model(model), CALIBRATION)


def calibration_for(
    model: Loaded, source: str, named: Fusion | str | PathLike[str] | Literal[False] | None
) -> Fusion | None:
    """The calibration of a model's scores.

    Args:
        model: What embeds the files.
        source: The text that named the model.
        named: A calibration or its file. None takes that beside the model, if there is one
            and it serves the scores of the model; with a warning if it does not. False takes none.

    Returns:
        The calibration, or None.

    Raises:
        LikenessError: The calibration that was named was fitted on scores of another system, or
            needs quality measures that two files alone do not give. Its file is damaged.
    """
    beside = calibration_path(source)
    if named is False or (named is None and not (beside and beside.is_file())):
        return None
    fitted = named if isinstance(named, Fusion) else load_fusion(Path(named or beside or ""))
    system = Scoring().system(model.meta)
    if fitted.systems in (("",), (system,)) and fitted.names in ((), _QUALITY):
        return fitted
    reason = (
        f"the calibration {fitted.mismatch([system])}, with {' and '.join(_QUALITY)} or no "
        "measure of quality; fit one on scores of this model by `likeness fit calibration`"
    )
    if named is not None:
        raise LikenessError(reason)
    warnings.warn(f"{CALIBRATION} beside the model is left out: {reason}", stacklevel=3)
    return None


def remedy_for(model: Loaded) -> str:
    """What may help where a file cannot be read, as the end of a sentence; "" for nothing."""
    if model.modality == "face" and "faces" not in model.settings:
        return "; with --detector FILE.onnx photographs are aligned"
    return ""


class PairRow(NamedTuple):
    """A pair of files, and what their comparison gave.

    Attributes:
        first: The path of the first file, as it was given.
        second: That of the second one.
        label: Whether they are of one subject, where the list says it.
        score: A higher score is more similar; None where a file cannot be read.
        accepted: The verdict; None where nothing decides or a file cannot be read.
        threshold: The score from which on two are taken for one subject, or None.
        probability: That both are of one subject; None without a calibration.
        quality_first: The norm of the first embedding, where norms measure quality; else None.
        quality_second: That of the second one.
        note: What is wrong with the pair; "" if nothing is.
    """

    first: str
    second: str
    label: bool | None = None
    score: float | None = None
    accepted: bool | None = None
    threshold: float | None = None
    probability: float | None = None
    quality_first: float | None = None
    quality_second: float | None = None
    note: str = ""


@dataclass(frozen=True)
class VerifiedPairs:
    """The rows of a list of pairs, in its order.

    Attributes:
        rows: One for each pair.
        similarity: How embeddings were compared.
        source: Where the threshold comes from; "" for a number of the caller's own, or for none.
        origin: What gave the scores, for the thresholds of `likeness evaluate --save-to`.
        itself: Which rows compare an item with itself, and are measured by no rate.
        files: The list, and in which state it was read.
    """

    rows: Sequence[PairRow]
    similarity: str
    source: str = ""
    origin: Origin | None = None
    itself: frozenset[int] = frozenset()
    files: Mapping[Path, State] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def compared(self) -> list[PairRow]:
        """The rows that count: those with a score, of two items."""
        numbered = enumerate(self.rows)
        return [row for i, row in numbered if row.score is not None and i not in self.itself]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the rows, whole or not at all, and beside them what gave the scores.

        Args:
            path: The file. It ends in .csv or .tsv.

        Raises:
            LikenessError: It has another ending.
        """
        write_rows(Path(path), PairRow._fields, self.rows)
        if self.origin is not None:
            write_origin(Path(path), self.origin)

    def text(self) -> str:
        """The rows as a table of text with a head; what is not known is left empty."""
        return table_text(PairRow._fields, self.rows, ",")

    def evaluation(self) -> Evaluation | None:
        """Measure the error rates of the pairs with a label, with intervals over subjects.

        Subjects are the first folders of the paths, see `likeness.evaluate`.

        Returns:
            What `likeness.evaluate` gives for such scores, whose `save_thresholds` keeps the
            thresholds; None where no pair, or every one, is of one subject.
        """
        return self._evaluation

    @cached_property
    def _evaluation(self) -> Evaluation | None:
        from likeness.eval.metrics.system import VerificationSettings
        from likeness.eval.protocols.side_by_side import evaluate_together
        from likeness.eval.protocols.verification import Evaluation

        known = [row for row in self.compared if row.label is not None]
        if len({row.label for row in known}) < 2:
            return None
        first, i = np.unique([item_id(row.first) for row in known], return_inverse=True)
        second, j = np.unique([item_id(row.second) for row in known], return_inverse=True)
        scores, labels = np.array([(row.score, row.label) for row in known], dtype=np.float64).T
        names = tuple(first.tolist()), tuple(second.tolist())
        num_itself = sum(self.rows[i].label is not None for i in self.itself)
        listed = Trials(
            *names, i.astype(np.int32), j.astype(np.int32), labels == 1, self_matches=num_itself
        )
        measured = {self.similarity: (listed, Scores(scores, labels == 1))}
        compared = evaluate_together(measured, settings := VerificationSettings())
        return Evaluation(compared, settings, {self.similarity: self.origin}, self.files)

    def __str__(self) -> str:
        """What was done, how often the verdicts agree with the labels, and the error rates."""
        compared = self.compared
        all_pairs = counted(len(self.rows), "pair")
        lines = [f"{len(compared):,} of {all_pairs} compared ({self.similarity})"]
        decided = [row for row in compared if row.accepted is not None]
        if decided:
            same = sum(bool(row.accepted) for row in decided)
            lines[0] += f": {same:,} the same subject, {len(decided) - same:,} different"
        elif compared:
            lines.append(f"no verdict: {NO_DECISION}")
        if decided and decided[0].threshold is not None:
            at = f" at {self.source}" if self.source else ""
            lines.append(f"threshold {decided[0].threshold:.4g}{at}")
        elif decided:
            lines.append("decided by the probability, at one half; thresholds are of the score")
        decided = [row for row in decided if row.label is not None]
        wrong = [row for row in decided if row.accepted is not row.label]
        if labelled := len(decided):
            false_accepts = sum(bool(row.accepted) for row in wrong)
            false_rejects = len(wrong) - false_accepts
            same = sum(bool(row.label) for row in decided)
            lines.append(
                f"of {counted(labelled, 'compared pair')} with a label: "
                f"{counted(false_accepts, 'false accept')}, "
                f"{counted(false_rejects, 'false reject')}"
            )
            if 0 < same < labelled:
                right = 1 - (false_accepts / (labelled - same) + false_rejects / same) / 2
                lines[-1] += f", balanced accuracy {right:.2%}"
        noted = [row for row in self.rows if row.note]
        if noted:
            names = name_first(f"{row.first} {row.second}" for row in noted)
            have = f"{counted(len(noted), 'pair')} {'has' if len(noted) == 1 else 'have'} a note"
            lines.append(f"{have} ({names}); the first: {noted[0].note}")
        # A small image verifies without scipy.
        if find_spec("scipy") and (evaluation := self.evaluation()) is not None:
            lines.append(str(evaluation))
        return "\n".join(lines)


def _name_self_matches(pairs: Sequence[PairRow], id_of: Mapping[str, str]) -> frozenset[int]:
    """The pairs of a file with itself, which are named as in a list of trials.

    Args:
        pairs: The pairs.
        id_of: The file of each name.

    Raises:
        LikenessError: A pair has two labels, in one order or in both.
    """
    name_of = {id: name for name, id in reversed([*id_of.items()])}
    ids, number = tuple(name_of.values()), {id: i for i, id in enumerate(name_of)}
    sides = np.array([[number[id_of[name]] for name in pair[:2]] for pair in pairs], np.int32)
    known = np.array([pair.label is not None for pair in pairs])
    labels = np.array([pair.label for pair in pairs])[known].astype(np.bool_)
    every = Trials(ids, ids, sides[:, 0], sides[:, 1])
    warn_of_repeats(Trials(ids, ids, sides[known, 0], sides[known, 1], labels), "pairs")
    if every.itself.size:
        pair = pair_text(every, int(every.itself[0]))
        warnings.warn(itself_text("pairs", every.itself.size, len(every), pair), stacklevel=3)
    return frozenset(every.itself.tolist())


def read_pairs(source: Any, *, columns: str | Mapping[str, str] = "") -> list[PairRow]:
    """Read a list of pairs of files.

    Args:
        source: A trial list of paths in any form (`likeness.eval.formats.trials`): lines of two
            paths and possibly a label, or a table with a header: a text, a .parquet file, or one in
            memory, as of pandas. Its columns of paths are called first and second, path1 and path2,
            file_a and file_b, left and right, or enrol and probe. That of labels, if there is one,
            is called label, same or decision, and may be empty in some rows.
        columns: Which column is which, where their names do not say it: "enrol=a,probe=b,label=c".

    Returns:
        The pairs, in the order of the file.

    Raises:
        LikenessError: There is no such file. A column is missing or there twice, a row lacks a
            path, or a label is of no known kind.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "pairs.csv"
        ...     _ = path.write_text("path1;path2;same\\na.wav;b.wav;1\\n")
        ...     read_pairs(path)[0][:3]
        ('a.wav', 'b.wav', True)
    """
    return list(map(PairRow, *trials.read_pairs(source, columns=columns)))


def list_pairs(
    listed: Any, root: str | Path | None = None, columns: str | Mapping[str, str] = ""
) -> tuple[list[PairRow], dict[str, Path]]:
    """Read pairs, and find the file of each name in them.

    Args:
        listed: A list as of `read_pairs`, or pairs of paths, with a label where it is known: a
            boolean, 1 or 0, or None.
        root: The folder that relative paths start from; None for the current one.
        columns: As for `read_pairs`.

    Raises:
        LikenessError: There are no pairs. None of the files exists. Pairs in memory have columns.
    """
    if isinstance(listed, str | PathLike) or hasattr(listed, "columns"):
        pairs = read_pairs(listed, columns=columns)
    else:
        refuse_unused("pairs in memory", columns=columns)
        pairs = [PairRow(str(pair[0]), str(pair[1]), _label(*pair[2:3])) for pair in listed]
    if not pairs:
        raise LikenessError("there are no pairs; give at least one")
    names = list(dict.fromkeys(name for pair in pairs for name in pair[:2]))
    path_of = dict(zip(names, map(Path, listed_paths(Path(root or ""), names)), strict=True))
    refuse_missing_files(list(path_of.values()), allow_some=True)
    return pairs, path_of


def _label(value: Any = None) -> bool | None:
    """The label of a pair, None where there is none."""
    return None if value is None else bool(boolean_labels("pairs", [value])[0])


def verify_pairs(
    comparer: Comparer,
    listed: Any,
    root: str | Path | None,
    columns: str | Mapping[str, str],
    *,
    batch_size: int,
    workers: int,
) -> VerifiedPairs:
    """Compare many pairs of files; each file is embedded once.

    Args:
        comparer: The model and what decides.
        listed: As of `list_pairs`, and so are `root` and `columns`.
        batch_size: How many files pass through the network at once.
        workers: How many processes read files; 0 reads them in this one.

    Returns:
        A row for each pair. A pair with a file that cannot be read has a note in place of a score.

    Raises:
        LikenessError: As `list_pairs`.
    """
    model, where = comparer.model, str(listed) if isinstance(listed, str | PathLike) else ""
    files = files_read(where)
    pairs, path_of = list_pairs(listed, root, columns)
    # Two names of one file are embedded once.
    id_of = {name: str(path.resolve()) for name, path in path_of.items()}
    itself = _name_self_matches(pairs, id_of)
    items = [Item(id_of[name], path) for name, path in path_of.items()]
    items = list({item.id: item for item in items}.values())
    remarked: dict[int, str] = {}
    embeddings, bad = embed_where_readable(
        model.embedder,
        items,
        model.read,
        batch_size=batch_size,
        workers=workers,
        remarks=remarked,
    )
    reason_of = {item.id: item.reason for item in bad}
    remarks = {items[position].id: text for position, text in remarked.items()}
    embedded = embeddings or Embeddings((), np.zeros((0, 1), np.float32))
    row_of = {id: row for row, id in enumerate(embedded.ids)}
    sides = np.array([[row_of.get(id_of[name], -1) for name in pair[:2]] for pair in pairs])
    scores, norms = np.full(len(pairs), np.nan), embedded.norms.tolist()
    readable = (sides >= 0).all(axis=1)
    if readable.any():
        matrix, (first, second) = embedded.matrix, sides[readable].T
        scores[readable] = similarities(matrix, matrix, first, second, model.similarity)
    rows = []
    values = zip(pairs, sides.tolist(), scores.tolist(), strict=True)
    for row, (pair, (left, right), score) in enumerate(values):
        if math.isnan(score):
            name = next(name for name in pair[:2] if id_of[name] in reason_of)
            reason = reason_of[id_of[name]]
            note = reason if name in reason else f"{name}: {reason}"
            rows.append(pair._replace(threshold=comparer.threshold, note=note))
            continue
        made = judged(comparer, score, (norms[left], norms[right]))
        quality = made.norms if model.norm_is_quality else (None, None)
        notes = ["one item, compared with itself"] if row in itself else []
        notes += [remarks[id] for id in {id_of[name]: 0 for name in pair[:2]} if id in remarks]
        verdict = made.accepted, made.threshold, made.probability
        rows.append(PairRow(*pair[:3], score, *verdict, *quality)._replace(note="; ".join(notes)))
    origin = Origin(Scoring().system(model.meta), model.meta, trials=where)
    return VerifiedPairs(rows, model.similarity, comparer.source, origin, itself, files)
