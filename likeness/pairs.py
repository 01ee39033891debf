"""Many pairs of files: each file is embedded once, and every pair gets a row with its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval.errors import LikenessError
from eval.formats.cells import Block, cell, parquet_blocks, text_blocks
from eval.formats.trials import read_trials
from eval.similarity import pairs as similarities
from eval.types import Embeddings, name_first
from likeness.row_files import DELIMITERS, table_text, write_rows
from likeness.verification import NO_DECISION, Comparer, Verification, judged
from toolkit.data.items import Item
from toolkit.models.embed import embed_where_readable

File = str | PathLike[str]
# Names of columns in lower case, without blanks, - and _.
_SIDES = {
    "first": (
        *("first", "path1", "file1", "filename1", "a", "patha", "filea"),
        *("left", "enrol", "enroll", "enrolment", "enrollment", "reference"),
    ),
    "second": (
        *("second", "path2", "file2", "filename2", "b", "pathb", "fileb"),
        *("right", "probe", "test"),
    ),
}
_LABEL = ("label", "same", "target", "issame", "istarget", "match", "key")
_TRUE = ("1", "true", "yes", "same", "target", "tgt")
_FALSE = ("0", "false", "no", "different", "nontarget", "imp")


class Pair(NamedTuple):
    """Two files, and whether they are of one subject where that is known."""

    first: str
    second: str
    label: bool | None = None


class PairRow(NamedTuple):
    """What the comparison of one pair gave.

    Attributes:
        first: The path of the first file, as it was given.
        second: That of the second one.
        label: Whether they are of one subject, where the list says it.
        score: A higher score is more similar; None where a file cannot be read.
        same: The verdict; None where nothing decides or a file cannot be read.
        threshold: The score from which on two are taken for one subject, or None.
        probability: That both are of one subject; None without a calibration.
        quality_first: The norm of the first embedding, where norms measure quality; else None.
        quality_second: That of the second one.
        note: What is wrong with the pair; "" if nothing is.
    """

    first: str
    second: str
    label: bool | None
    score: float | None = None
    same: bool | None = None
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
    """

    rows: Sequence[PairRow]
    similarity: str
    source: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return self.summary()

    def to_frame(self) -> Any:
        """Give a pandas DataFrame with a row for each pair."""
        import pandas

        return pandas.DataFrame([row._asdict() for row in self.rows])

    def save(self, path: File) -> None:
        """Write the rows, whole or not at all.

        Args:
            path: The file. It ends in .csv, .tsv, .parquet or .json.

        Raises:
            LikenessError: It has another ending.
        """
        document = {
            "schema": "likeness.pairs/1",
            "similarity": self.similarity,
            "source": self.source,
            "pairs": [row._asdict() for row in self.rows],
        }
        types = dict.fromkeys(PairRow._fields, "float64")
        types |= dict.fromkeys(("first", "second", "note"), "string")
        types |= dict.fromkeys(("label", "same"), "bool")
        write_rows(Path(path), PairRow._fields, self.rows, document=document, types=types)

    def text(self, delimiter: str = ",") -> str:
        """The rows as a table of text with a head; what is not known is left empty."""
        return table_text(PairRow._fields, self.rows, delimiter)

    def summary(self) -> str:
        """What was done, and how often the verdicts agree with the labels, in a few lines."""
        scored = [row for row in self.rows if row.score is not None]
        lines = [f"{len(scored):,} of {len(self.rows):,} pairs compared ({self.similarity})"]
        decided = [row for row in scored if row.same is not None]
        if decided:
            same = sum(bool(row.same) for row in decided)
            lines[0] += f": {same:,} the same subject, {len(decided) - same:,} different"
        elif scored:
            lines.append(f"no verdict: {NO_DECISION}")
        threshold = decided[0].threshold if decided else None
        if threshold is not None:
            at = f" at {self.source}" if self.source else ""
            lines.append(f"threshold {threshold:.4g}{at}")
        wrong = [row for row in decided if row.label is not None and row.same is not row.label]
        if labelled := sum(row.label is not None for row in decided):
            false_accepts = sum(bool(row.same) for row in wrong)
            lines.append(
                f"of {labelled:,} pairs with a label: {false_accepts:,} false accepts, "
                f"{len(wrong) - false_accepts:,} false rejects"
            )
        noted = [row for row in self.rows if row.note]
        if noted:
            names = name_first(f"{row.first} {row.second}" for row in noted)
            lines.append(f"{len(noted):,} pairs have a note ({names}); the first: {noted[0].note}")
        return "\n".join(lines)


def read_pairs(source: Any) -> list[Pair]:
    """Read a list of pairs of files.

    Args:
        source: A .csv, .tsv or .parquet file with a head, or a table in memory, as of pandas. Its
            columns of paths are called first and second, path1 and path2, file_a and file_b, left
            and right, or enrol and probe. That of labels, if there is one, is called label or same.
            Any other file is read as a trial list (`eval.formats.trials`): two paths on each line,
            and possibly a label.

    Returns:
        The pairs, in the order of the file.

    Raises:
        LikenessError: There is no such file. A column is missing or there twice, a row lacks a
            path, or a label is neither 1 nor 0; all are counted, the first are named.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "pairs.csv"
        ...     _ = path.write_text("path1;path2;same\\na.wav;b.wav;1\\n")
        ...     read_pairs(path)
        [Pair(first='a.wav', second='b.wav', label=True)]
    """
    if not isinstance(source, str | PathLike):
        names = [str(name) for name in source.columns]
        places = _places("the table", names)
        columns = {
            role: list(map(cell, source[list(source.columns)[place]]))
            for role, place in places.items()
        }
        return _from_blocks([Block(range(1, len(source) + 1), columns)], "the table", "row")
    path = Path(source)
    if not path.exists():
        raise LikenessError(f"{path}: there is no such list of pairs; correct the path")
    if path.suffix.lower() == ".parquet":
        blocks = parquet_blocks(path, lambda names: _places(path, names))
        return _from_blocks(blocks, path, "row")
    if path.suffix.lower() in DELIMITERS:
        blocks = text_blocks(path, lambda names: _places(path, names))
        return _from_blocks(blocks, path, "line")
    trials = read_trials(path)
    labels = [None] * len(trials) if trials.target is None else trials.target.tolist()
    return [
        Pair(trials.enrol_ids[i], trials.probe_ids[j], label)
        for i, j, label in zip(trials.enrol.tolist(), trials.probe.tolist(), labels, strict=True)
    ]


def _from_blocks(blocks: Iterable[Block], where: Path | str, unit: str) -> list[Pair]:
    """The pairs of the rows of a table."""
    pairs, lacking, odd = list[Pair](), list[str](), list[str]()
    for numbers, cells in blocks:
        labels = cells.get("label", [""] * len(numbers))
        for number, first, second, label in zip(
            numbers, cells["first"], cells["second"], labels, strict=True
        ):
            if not (first or second or label):
                continue  # as spreadsheets write an empty row
            if not first or not second:
                lacking.append(f"{unit} {number}")
            if label and label.lower() not in _TRUE + _FALSE:
                odd.append(f"{unit} {number}: {label[:40]}")
            pairs.append(Pair(first, second, label.lower() in _TRUE if label else None))
    if not pairs:
        raise LikenessError(f"{where}: there are no pairs; give a head and a row for each pair")
    if lacking:
        raise LikenessError(f"{where}: {len(lacking)} rows lack a path ({name_first(lacking)})")
    if odd:
        raise LikenessError(
            f"{where}: {len(odd)} labels are unknown ({name_first(odd)}); write 1 for one subject "
            "and 0 for two"
        )
    return pairs


def _places(where: Path | str, head: Sequence[str]) -> dict[str, int]:
    """The places of the columns: first, second, and label where there is one."""
    bare = ["".join(sign for sign in name.lower() if sign not in " _-") for name in head]
    found = {}
    for role, names in (*_SIDES.items(), ("label", _LABEL)):
        places = [place for place, name in enumerate(bare) if name in names]
        if len(places) > 1:
            raise LikenessError(
                f"{where} has several columns for the {role} "
                f"({name_first(head[place] for place in places)}); leave one of them"
            )
        if places:
            found[role] = places[0]
        elif role != "label":
            raise LikenessError(
                f"{where} has no column for the {role} path; its columns are "
                f"({name_first(head)}): its first line has to call the two that hold paths first "
                "and second, or path1 and path2"
            )
    return found


def verify_pairs(
    comparer: Comparer,
    pairs: Iterable[Pair],
    *,
    root: Path | None = None,
    batch_size: int = 16,
    workers: int = 0,
) -> VerifiedPairs:
    """Compare many pairs of files; each file is embedded once.

    Args:
        comparer: The model and what decides.
        pairs: Paths, and labels where they are known.
        root: The folder that relative paths start from; by default the current one.
        batch_size: How many files pass through the network at once.
        workers: How many processes read files.

    Returns:
        A row for each pair. A pair with a file that cannot be read has a note in place of a score.

    Raises:
        LikenessError: There are no pairs. None of the files exists.
    """
    listed = list(pairs)
    if not listed:
        raise LikenessError("there are no pairs; give at least one")
    names = list(dict.fromkeys(side for pair in listed for side in pair[:2]))
    base = Path() if root is None else root
    paths = {name: base / name for name in names}
    absent = {name: "there is no such file" for name in names if not paths[name].is_file()}
    if len(absent) == len(names):
        raise LikenessError(
            f"none of the {len(names)} files of the pairs exists ({name_first(absent)}); correct "
            "the paths, or name the folder that they start from with --root"
        )
    # Two names of one file are embedded once.
    number = {
        path: str(i) for i, path in enumerate(dict.fromkeys(p.resolve() for p in paths.values()))
    }
    items = [
        Item(number[path.resolve()], path)
        for path in {p.resolve(): p for name, p in paths.items() if name not in absent}.values()
    ]
    model = comparer.model
    embeddings, bad = embed_where_readable(
        model.embedder,
        items,
        model.read,
        batch_size=batch_size,
        workers=workers,
    )
    reasons = {item.id: item.reason for item in bad}
    id_of = {name: number[paths[name].resolve()] for name in names}
    why = {name: absent.get(name) or reasons.get(id_of[name], "") for name in names}
    rows = _rows(comparer, listed, embeddings, id_of, why)
    return VerifiedPairs(rows, model.similarity, comparer.source)


def _rows(
    comparer: Comparer,
    pairs: Sequence[Pair],
    embeddings: Embeddings | None,
    id_of: dict[str, str],
    why: dict[str, str],
) -> list[PairRow]:
    """The rows of all pairs, given why files could not be read ("" where they could)."""
    readable = [i for i, pair in enumerate(pairs) if not (why[pair.first] or why[pair.second])]
    results: dict[int, Verification] = {}
    if embeddings is not None and readable:
        index = {name: i for i, name in enumerate(embeddings.ids)}
        sides = np.array(
            [[index[id_of[side]] for side in pairs[i][:2]] for i in readable], dtype=np.int64
        )
        matrix = embeddings.matrix
        scores = similarities(matrix, matrix, sides[:, 0], sides[:, 1], comparer.model.similarity)
        norms = embeddings.norms.astype(float)
        for i, (a, b), score in zip(readable, sides.tolist(), scores.tolist(), strict=True):
            results[i] = judged(comparer, score, (float(norms[a]), float(norms[b])))
    return [_row(comparer, pair, results.get(i), id_of, why) for i, pair in enumerate(pairs)]


def _row(
    comparer: Comparer,
    pair: Pair,
    result: Verification | None,
    id_of: dict[str, str],
    why: dict[str, str],
) -> PairRow:
    if result is None:
        side = pair.first if why[pair.first] else pair.second
        reason = why[side] if side in why[side] else f"{side}: {why[side]}"
        return PairRow(*pair, threshold=comparer.threshold, note=reason)
    quality = result.norms if comparer.model.norm_is_quality else (None, None)
    same_file = id_of[pair.first] == id_of[pair.second]
    return PairRow(
        *pair,
        score=result.score,
        same=result.same,
        threshold=result.threshold,
        probability=result.probability,
        quality_first=quality[0],
        quality_second=quality[1],
        note="both are the same file" if same_file else "",
    )
