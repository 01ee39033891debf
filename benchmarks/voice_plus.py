"""Measures likeness:voice-plus beside likeness:voice, and its weight, thresholds and calibration.

    python benchmarks/voice_plus.py --data ../shared/data --out runs/corpora
        [--package likeness/voice-plus]

Measures: models of the kind of likeness:voice that were trained without the tested corpus
    (small_voice.py), alone and beside Resemblyzer's network. The weight of the sum is fitted on the
    two other corpora, and thresholds are of the two others, too. First all pairs of a corpus; then
    trials within groups of speechocean, and its speakers with four enrolled recordings; then what
    changes a recording, on three recordings a speaker. Codecs, noise, rooms and levels damage one
    side, as `likeness bench` does it; both sides are cut. Pairs with a recording that
    likeness:voice refuses are left out there, and counted. Differences are paired, and intervals
    are a bootstrap over speakers. With --package the weight of all three corpora, with equal
    shares, is written there, with thresholds and calibration of the scores that it gives. What is
    in OUT is not run again.
    What it does not show: two sessions, microphones or days of a speaker.
Peers: Resemblyzer alone.
Limit: none.
Needs: `likeness prepare voice`, and what small_voice.py needs.
Takes: what small_voice.py takes, and 20 CPU minutes.
Gives: likeness/voice-plus/, its card, and the table "Ready models" of
    docs/reference/results.md.
"""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import corpora
import numpy as np
import small_voice
import soundfile
from corpora import Cell
from folds import difference, errors_of, with_interval
from numpy.typing import NDArray
from performance import parser_of, row, table
from small_voice import FARS, Tested, drawn, rates_with_intervals, threshold_at

import likeness
from likeness import Item, Trials
from likeness.conditions import Condition, damaged, parse
from likeness.eval.formats.provenance import digest
from likeness.eval.items.pairs import all_pairs
from likeness.metrics import eer, fit_fusion
from likeness.models import bundled
from likeness.recipe import write_json
from likeness.toolkit.data.reading import Read
from likeness.toolkit.models import joint
from likeness.toolkit.models.embed import embedded_rows
from likeness.toolkit.models.loaded import Loaded

CONDITIONS = ("opus", "8khz", "noise20", "reverb")  # of one side
CUTS = (2.0, 1.0)  # seconds in the middle, of both sides
FEW, ENROLLED = 3, 4  # recordings of a speaker
TITLES = ("likeness:voice, EER %", "voice-plus", "difference")
Index = NDArray[np.int32]
Rows = NDArray[np.float32]  # (N, D) embeddings; NaN where a recording was refused
Change = Callable[[Item, Path], Item]  # an item and a folder -> what is embedded in its place


class Corpus(NamedTuple):
    """A corpus, and the scores of both models for the same trials of it."""

    cell: Cell
    voice: Tested
    resemblyzer: Tested

    def plus(self, weight: float) -> Tested:
        """The scores of the sum."""
        values = self.voice.values + weight * self.resemblyzer.values
        return Tested(self.voice.trials, values)


# ---------------------------------------------------------------- embeddings and scores


@cache
def resemblyzer() -> Loaded:
    """What `likeness prepare voice` wrote."""
    return likeness.load(bundled.models_folder() / bundled.RESEMBLYZER).loaded


@cache
def voice(cell: Cell, data: Path, out: Path) -> Loaded:
    """A model of the kind of likeness:voice that has not heard the tested corpus."""
    return likeness.load(small_voice.beside(cell, data, out)).loaded


def rows_of(items: Sequence[Item], model: Loaded, read: Read, file: Path) -> Rows:
    """The embeddings of items in their order, which stay in a file."""
    if not file.exists():
        rows, _ = embedded_rows(model.embedder, items, read)
        array = np.full((len(items), model.embedder.dim), np.nan, dtype=np.float32)
        for number, embedding in rows.items():
            array[number] = embedding
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, array)
    return np.load(file)


def both_rows(
    cell: Cell, name: str, data: Path, out: Path, change: Change | None = None
) -> list[Rows]:
    """The embeddings of a corpus by both models, of which likeness:voice refuses what it does.

    Args:
        cell: The corpus.
        name: "all", of all recordings, or of what happened to the first few of each speaker.
        data: The folder of the data sets.
        out: The folder of files.
        change: What happened to them.
    """
    items = items_of(cell, data) if name == "all" else few(cell, data)
    heard = {
        "voice": (voice(cell, data, out), small_voice.PACKAGED_READ),
        "resemblyzer": (resemblyzer(), resemblyzer().read),
    }
    with TemporaryDirectory() as folder:

        def changed(item: Item, read: Read) -> NDArray[np.float32]:
            return read(item if change is None else change(item, Path(folder)))

        made = []
        for of, (model, read) in heard.items():
            file = out / "voice-plus" / f"{cell.target}-{name}-{of}.npy"
            made.append(rows_of(items, model, partial(changed, read=read), file))
        return made


@cache
def items_of(cell: Cell, data: Path) -> list[Item]:
    """All recordings of a corpus."""
    return list(corpora.items_of(data, cell.target))


def few(cell: Cell, data: Path) -> list[Item]:
    """The first recordings of each speaker."""
    items = items_of(cell, data)
    return [item for item, number in zip(items, numbers(items), strict=True) if number < FEW]


def numbers(items: Sequence[Item]) -> NDArray[np.int64]:
    """Of each recording, how many of its speaker come before it."""
    before: defaultdict[str | None, Iterator[int]] = defaultdict(count)
    return np.array([next(before[item.label]) for item in items])


def scored(
    cell: Cell, items: Sequence[Item], trials: Trials, enrolled: list[Rows], probes: list[Rows]
) -> Corpus:
    """The scores of both models for pairs of items, from their embeddings in the items' order."""
    row_of = {item.id: number for number, item in enumerate(items)}
    i = np.array([row_of[id] for id in trials.enrol_ids])[trials.enrol]
    j = np.array([row_of[id] for id in trials.probe_ids])[trials.probe]
    both = [dots(*rows, i, j) for rows in zip(enrolled, probes, strict=True)]
    return Corpus(cell, *(Tested(trials, values) for values in both))


def dots(enrolled: Rows, probes: Rows, i: Index, j: Index) -> NDArray[np.float64]:
    """The dot products of pairs of rows; Resemblyzer's embeddings have the length 1."""
    return np.asarray((enrolled @ probes.T)[i, j], dtype=np.float64)


def tested(cell: Cell, data: Path, out: Path) -> Corpus:
    """All pairs of a corpus; those of likeness:voice are of small_voice.py, which refuses none."""
    voice = small_voice.tested(cell, data, out)
    rows = both_rows(cell, "all", data, out)
    return scored(cell, items_of(cell, data), voice.trials, rows, rows)._replace(voice=voice)


def weight_of(parts: Sequence[Corpus]) -> float:
    """The weight of Resemblyzer's cosine beside likeness:voice's score, as `fit fusion` fits it."""
    # The same trials are drawn of both, because they have the same labels.
    columns = [drawn([part.voice for part in parts]), drawn([part.resemblyzer for part in parts])]
    values = np.stack([column.values for column in columns], axis=1)
    first, second = fit_fusion(values, columns[0].target, systems=("voice", "resemblyzer")).weights
    return round(second / first, 3)


# ---------------------------------------------------------------- tables


def compared(corpus: Corpus, weight: float) -> list[str]:
    """EER of likeness:voice and of the sum, and what it gains, with its paired interval."""
    first, second = (errors_of(*part) for part in (corpus.voice, corpus.plus(weight)))
    gain = 100 * (second.values["eer"] - first.values["eer"])
    texts = [with_interval(each, "eer") for each in (first, second)]
    return [*texts, f"{gain:+.2f} {difference(second, first, 'eer')}"]


def alone(part: Tested) -> str:
    """The EER of a system that is not compared, of what it does not refuse."""
    values, target = part.values, np.asarray(part.trials.target)
    heard = np.isfinite(values)
    return f"{100 * eer(values[heard & target], values[heard & ~target]):.2f}"


def print_matrix(parts: Sequence[Corpus]) -> None:
    """All pairs of each corpus: what the sum gains, then its rates at thresholds of the others."""
    table("tested on", *TITLES, "Resemblyzer", "weight")
    for part in parts:
        weight = weight_of([other for other in parts if other is not part])
        gained = compared(part, weight)
        row(part.cell.target, *gained, alone(part.resemblyzer), f"{weight:.2f}")
    table("tested on", *small_voice.TRAVELLED)
    for part in parts:
        weight, sums = fitted([other for other in parts if other is not part])
        row(part.cell.target, *small_voice.travelled(part.plus(weight), sums))


def fitted(others: Sequence[Corpus]) -> tuple[float, list[Tested]]:
    """The weight that other corpora give, and their scores by it."""
    weight = weight_of(others)
    return weight, [other.plus(weight) for other in others]


def print_groups(part: Corpus, weight: float, threshold: float, data: Path) -> None:
    """Trials of speechocean within a group of age or sex."""
    with (data / "speechocean" / "speakers.tsv").open(encoding="utf-8") as file:
        known = {line["speaker"]: line for line in csv.DictReader(file, delimiter="\t")}
    groups: dict[str, Callable[[dict[str, str]], bool]] = {
        "adults": lambda of: int(of["age"]) >= 18,
        "teenagers": lambda of: 10 < int(of["age"]) < 18,
        "children of 10 years and below": lambda of: int(of["age"]) <= 10,
        "women and girls": lambda of: of["sex"] == "f",
        "men and boys": lambda of: of["sex"] == "m",
    }
    trials = part.voice.trials
    sides = [[known[speaker_of(id)] for id in ids] for ids in (trials.enrol_ids, trials.probe_ids)]
    table("trials within", *TITLES, "at the threshold of FAR 1 %")
    for name, is_in in groups.items():
        first, second = (np.array([is_in(line) for line in side]) for side in sides)
        group = taken(part, first[trials.enrol] & second[trials.probe])
        rates = rates_with_intervals(group.plus(weight), threshold)
        row(name, *compared(group, weight), rates)


def speaker_of(id: str) -> str:
    """Such as "0001", of "speechocean-0001/000010011"."""
    return id.partition("/")[0].partition("-")[2]


def taken(corpus: Corpus, mask: NDArray[np.bool_]) -> Corpus:
    """Some of the trials."""
    places = np.flatnonzero(mask)
    trials = corpus.voice.trials.rows(places)
    parts = (Tested(trials, part.values[places]) for part in (corpus.voice, corpus.resemblyzer))
    return Corpus(corpus.cell, *parts)


def print_enrolled(part: Corpus, weight: float, data: Path, out: Path) -> None:
    """The mean of four recordings of each speaker against all other recordings."""
    items = items_of(part.cell, data)
    labels, number = np.array([str(item.label) for item in items]), numbers(items)
    speakers, probes = np.unique(labels), np.flatnonzero(number >= ENROLLED)
    i, j = (side.reshape(-1).astype(np.int32) for side in np.indices((len(speakers), len(probes))))
    ids = tuple(f"{name}/enrolled" for name in speakers), tuple(items[n].id for n in probes)
    trials = Trials(*ids, i, j, speakers[i] == labels[probes][j])
    both = []
    for rows in both_rows(part.cell, "all", data, out):
        enrolled_by = [(labels == name) & (number < ENROLLED) for name in speakers]
        means = [np.nanmean(rows[own], axis=0) for own in enrolled_by]
        both.append(Tested(trials, dots(np.stack(means), rows[probes], i, j)))
    enrolled = Corpus(part.cell, *both)
    table("enrolled recordings", *TITLES, "Resemblyzer")
    row(ENROLLED, *compared(enrolled, weight), alone(enrolled.resemblyzer))


def print_conditions(part: Corpus, weight: float, threshold: float, data: Path, out: Path) -> None:
    """What changes a recording."""
    cell, items = part.cell, few(part.cell, data)
    is_taken = numbers(items_of(cell, data)) < FEW
    clean = [rows[is_taken] for rows in both_rows(cell, "all", data, out)]
    changed = {"nothing": (clean, clean)}
    for seconds in CUTS:
        rows = both_rows(cell, f"{seconds:g}s", data, out, partial(middle, seconds=seconds))
        changed[f"the middle {seconds:g} s of both"] = rows, rows
    for condition in parse(CONDITIONS, "speaker"):
        change = partial(in_condition, condition)
        changed[condition.text] = clean, both_rows(cell, condition.name, data, out, change)
    trials = all_pairs(items)
    table(cell.target, *TITLES, "at the threshold of FAR 1 %", "Resemblyzer", "refused %")
    for name, (enrolled, probes) in changed.items():
        corpus = scored(cell, items, trials, enrolled, probes)
        is_scored = np.isfinite(corpus.plus(weight).values)
        cells = [""] * 4
        if is_scored.any():
            both = taken(corpus, is_scored)
            cells = [*compared(both, weight), rates_with_intervals(both.plus(weight), threshold)]
        row(name, *cells, alone(corpus.resemblyzer), f"{100 * np.mean(~is_scored):.0f}")


def middle(item: Item, folder: Path, seconds: float) -> Item:
    """The seconds in the middle of a recording, or all of a shorter one."""
    start, end = item.stretch or (0.0, soundfile.info(item.path).duration)
    seconds = min(seconds, end - start)
    start += (end - start - seconds) / 2
    return item._replace(stretch=(start, start + seconds))


def in_condition(condition: Condition, item: Item, folder: Path) -> Item:
    """A recording as it is in a condition, which is written once for both models."""
    file = folder / f"{digest([item.id])}.flac"
    if not file.exists():
        damaged(item, condition, "speaker", folder).rename(file)
    return item._replace(path=file, stretch=None)


def package(folder: Path, parts: Sequence[Corpus]) -> None:
    """Write the weight, and the thresholds and the calibration of the scores that it gives."""
    weight, sums = fitted(parts)
    with TemporaryDirectory() as temporary:
        file = Path(temporary) / "sum.onnx"
        pair = bundled.onnx_file(bundled.VOICE), bundled.models_folder() / bundled.RESEMBLYZER
        joint.write(pair, (1.0, weight), file)
        meta = likeness.load(file).meta
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "sum.json", {"weight": weight, "model": meta["model"]})
    small_voice.write_numbers(folder, meta, sums, *small_voice.NAMED)


def main() -> None:
    """Train and embed what is missing, and print the tables."""
    package_to = ("package", None, "folder to write weight and numbers into")
    arguments = parser_of(__doc__, "data", "out", package_to).parse_args()
    data, out = arguments.data, arguments.out
    parts = [tested(cell, data, out) for cell in corpora.matrix()[:3]]
    print_matrix(parts)
    if arguments.package:
        package(arguments.package, parts)
    for part in parts:
        weight, sums = fitted([other for other in parts if other is not part])
        threshold = threshold_at(sums, FARS[0])
        if part.cell.target == "speechocean":
            print_groups(part, weight, threshold, data)
            print_enrolled(part, weight, data, out)
        print_conditions(part, weight, threshold, data, out)


if __name__ == "__main__":
    main()
