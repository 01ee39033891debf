"""Many pairs of files: each file is embedded once, and every pair gets a row with its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval.errors import LikenessError
from eval.formats import trials
from eval.similarity import pairs as similarities
from eval.types import Embeddings, name_first
from likeness.row_files import table_text, write_rows
from likeness.verification import NO_DECISION, Comparer, Verification, judged
from toolkit.data.items import Item
from toolkit.models.embed import embed_where_readable

File = str | PathLike[str]


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


def read_pairs(source: Any, *, columns: str | Mapping[str, str] = "") -> list[Pair]:
    """Read a list of pairs of files.

    Args:
        source: A trial list of paths in any form (`eval.formats.trials`): lines of two paths and
            possibly a label, or a table with a header: a text, a .parquet file, or one in memory,
            as of pandas. Its columns of paths are called first and second, path1 and path2, file_a
            and file_b, left and right, or enrol and probe. That of labels, if there is one, is
            called label, same or decision, and may be empty in some rows.
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
        ...     read_pairs(path)
        [Pair(first='a.wav', second='b.wav', label=True)]
    """
    return list(map(Pair, *trials.read_pairs(source, columns=columns)))


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
    return [_row(comparer, pair, results.get(i), why) for i, pair in enumerate(pairs)]


def _row(
    comparer: Comparer,
    pair: Pair,
    result: Verification | None,
    why: dict[str, str],
) -> PairRow:
    if result is None:
        side = pair.first if why[pair.first] else pair.second
        reason = why[side] if side in why[side] else f"{side}: {why[side]}"
        return PairRow(*pair, threshold=comparer.threshold, note=reason)
    quality = result.norms if comparer.model.norm_is_quality else (None, None)
    return PairRow(
        *pair,
        score=result.score,
        same=result.same,
        threshold=result.threshold,
        probability=result.probability,
        quality_first=quality[0],
        quality_second=quality[1],
    )
