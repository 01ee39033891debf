"""Makes the voice model that comes with Likeness, and measures it on corpora that it has not heard.

    python benchmarks/small_voice.py --data ../shared/data --out runs/corpora
        [--package likeness/voice]

With --package the model of all three corpora, its thresholds and its calibration are written there.

Measures: the systems of corpora.py that --systems names, each with the head `head:score_norm` on
    it, side by side in one model. It is trained on two of {speechocean, AN4, LibriSpeech} and
    tested on the third; the model of all three is tested on FSDD. EER, minDCF(.01); FAR and FRR at
    the threshold that had a FAR of 1 % or .1 % on the two other tests, which is what a threshold
    means on a corpus that nobody measured; Cllr with a calibration fitted on the two other tests,
    and the least Cllr that any calibration reaches; the probability that the packaged model states,
    beside the share of true pairs. Then error rates by age and sex at the threshold of FAR 1 %, and
    for recordings that are cut, band-limited, noisy, filtered, quiet or beside digital silence; and
    how many recordings the packaged model refuses. Intervals are a bootstrap over speakers. What is
    in OUT is not run again. The thresholds and the calibration of the package are of the three
    tests together, so of models of two corpora each: the model of all three has heard everybody
    there is.
Peers: none here; corpora.py has them. Limit: none.
Needs: speechocean/, an4/, librispeech/ and fsdd/ in the folder of --data.
Takes: 3 CPU minutes a model.
Gives: likeness/voice/, its card, and a section of docs/reference/results.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import corpora
import numpy as np
from corpora import Cell
from folds import errors_of, subject_pairs, with_interval
from numpy.typing import NDArray
from performance import parser_of, row, table
from scipy.signal import butter, sosfilt

import likeness
from eval import groups, thresholds
from eval.bootstrap import intervals
from eval.calibration import Calibration, fit_calibration
from eval.formats import embeddings
from eval.formats.trials import read_scores, write_scores
from eval.scoring.origin import Origin
from eval.scoring.settings import Scoring
from eval.similarity import pairs, score_trials
from eval.types import Scores, Trials
from eval.verification import cllr, eer, min_cllr, tar_threshold
from modalities.speaker import audio, speechocean
from modalities.speaker.bandwidth import refuse_narrow
from modalities.speaker.decoding import BadAudio, Wave
from modalities.speaker.level import levelled
from toolkit.backbones.beside import Beside
from toolkit.data.items import Item
from toolkit.data.pairs import all_pairs
from toolkit.models import checkpoint
from toolkit.models.embed import embed
from toolkit.models.parts import describe

FARS = (0.01, 0.001)
DRAWN_TARGETS, DRAWN_NONTARGETS = 700, 20_000  # trials of each corpus that fit the calibration
SYSTEMS = ("statistics, to 7 kHz", "mixture, trained, to 7 kHz")
RATE_HZ = 16_000
LEAST_SECONDS, NEEDS_HZ = 1.0, 7000.0  # of the recordings that the packaged model takes
LEVEL_DBFS = -26.0  # that recordings are brought to after training
READ = partial(audio.read, level_dbfs=LEVEL_DBFS)


class Tested(NamedTuple):
    """The scores of a cell, by the joined model."""

    trials: Trials
    values: NDArray[np.float64]

    @property
    def scores(self) -> Scores:
        """The scores with their labels."""
        return Scores(self.values, self.trials.target)


def joined(system: str, cell: Cell, data: Path, out: Path) -> Path:
    """The folder of a cell's model with the head on it, which is made if it is not there."""
    folder = out / "voice" / corpora.folder_of(system, Path()).name / cell.name
    if (folder / "joined" / "last.safetensors").exists():
        return folder / "joined"
    corpora.run_cell(system, cell, data, out, steps=0)
    base = corpora.folder_of(system, out) / f"run-{cell.name}"
    loaded = likeness.load(base).loaded
    items = [item for name in cell.sources for item in corpora.items_of(data, name)]
    known, _ = embed(loaded.embedder, items, READ, meta=loaded.meta)
    folder.mkdir(parents=True, exist_ok=True)
    embeddings.write(folder / "training.npz", known)
    lines = [f"{item.id} {item.label}\n" for item in items]
    (folder / "subjects.txt").write_text("".join(lines), encoding="utf-8")
    for part in ("head", "joined"):
        shutil.rmtree(folder / part, ignore_errors=True)
    likeness.train(
        "head:score_norm",
        folder,
        folder / "head",
        settings=[
            *("items.test_share=0", "measure=None", "compute.threads=1"),
            "estimate_views=1",  # as it was when docs/reference/results.md was measured
        ],
    )
    likeness.join(base, folder / "head", folder / "joined")
    return folder / "joined"


def beside(systems: Sequence[str], cell: Cell, data: Path, out: Path) -> Path:
    """The folder of one model whose scores are the sums of several systems' scores."""
    models = [joined(system, cell, data, out) for system in systems]
    if len(models) == 1:
        return models[0]
    folder = "+".join(corpora.folder_of(system, Path()).name for system in systems)
    file = out / "voice" / folder / cell.name / "joined" / "last.safetensors"
    if file.exists():
        return file.parent
    opened = [checkpoint.load(model / "last.safetensors", checkpoint.FORMAT) for model in models]
    descriptions = [description for _, description in opened]
    # One front-end feeds all of them.
    assert all(other["frontend"] == descriptions[0]["frontend"] for other in descriptions)
    tensors = {}
    for number, (own, _) in enumerate(opened):
        for key, value in own.items():
            part, _, rest = key.partition(".")
            name = f"backbone.networks.{number}.{rest}" if part == "backbone" else key
            tensors[name] = value
    networks = [description["backbone"] for description in descriptions]
    call = f"{Beside.__module__}.{Beside.__qualname__}"
    backbone = {"call": call, "args": {"networks": networks}}
    file.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(file, tensors, descriptions[0] | {"backbone": backbone}, checkpoint.FORMAT)
    return file.parent


def tested(systems: Sequence[str], cell: Cell, data: Path, out: Path) -> Tested:
    """The scores of a cell."""
    model = beside(systems, cell, data, out)
    file = model.parent / "scores.txt"
    if not file.exists():
        items = corpora.items_of(data, cell.target)
        loaded = likeness.load(model).loaded
        embedded, _ = embed(loaded.embedder, items, READ, meta=loaded.meta)
        trials = all_pairs(items)
        write_scores(file, trials, score_trials(trials, embedded, similarity=loaded.similarity))
    trials, values = read_scores(file)
    return Tested(trials, np.asarray(values, dtype=np.float64))


def drawn(parts: Sequence[Tested]) -> Scores:
    """Equally many trials of each corpus, drawn with seed 0."""
    rng = np.random.default_rng(0)
    values, targets = [], []
    for part in parts:
        assert part.trials.target is not None
        for is_target, number in ((True, DRAWN_TARGETS), (False, DRAWN_NONTARGETS)):
            places = np.flatnonzero(part.trials.target == is_target)
            places = rng.choice(places, min(number, len(places)), replace=False)
            values.append(part.values[places])
            targets.append(np.full(len(places), is_target))
    return Scores(np.concatenate(values), np.concatenate(targets))


def calibrated(parts: Sequence[Tested], system: str = "") -> Calibration:
    """A calibration that is fitted to several corpora with equal shares."""
    scores = drawn(parts)
    return fit_calibration(scores.values, scores.target, system=system)


def threshold_at(parts: Sequence[Tested], far: float) -> float:
    """The threshold at a FAR over several corpora with equal shares."""
    scores = drawn(parts)
    return tar_threshold(scores.targets, scores.nontargets, far)


def rates_with_intervals(part: Tested, threshold: float) -> str:
    """ "FAR 1.20 [0.80, 1.90], FRR 20.1 [15.0, 25.0]" in percent, at a threshold."""
    metrics = {
        "FAR": lambda targets, nontargets: float(np.mean(np.asarray(nontargets) >= threshold)),
        "FRR": lambda targets, nontargets: float(np.mean(np.asarray(targets) < threshold)),
    }
    ends = intervals(metrics, part.scores, subject_pairs(part.trials))
    texts = []
    for name, metric in metrics.items():
        value = metric(part.scores.targets, part.scores.nontargets)
        low, high = ends[name] or (np.nan, np.nan)
        texts.append(f"{name} {100 * value:.2f} [{100 * low:.2f}, {100 * high:.2f}]")
    return ", ".join(texts)


def print_cells(cells: Sequence[Cell], parts: Sequence[Tested]) -> None:
    """Print a row for each cell; the thresholds and the calibration are of the other tests."""
    table(
        "tested on", "EER %", "minDCF(.01)", *(f"at FAR {far:.1%}" for far in FARS), "Cllr; least"
    )
    for cell, part in zip(cells, parts, strict=True):
        # What is tested on FSDD has heard the three corpora, and its thresholds are of all three.
        others = [other for other in parts[:3] if other is not part]
        errors = errors_of(part.trials, part.values)
        llrs = calibrated(others).apply(part.values)
        target = part.trials.target
        assert target is not None
        row(
            cell.target,
            with_interval(errors, "eer"),
            with_interval(errors, "min_dcf"),
            *(rates_with_intervals(part, threshold_at(others, far)) for far in FARS),
            f"{cllr(llrs[target], llrs[~target]):.3f}; "
            f"{min_cllr(part.scores.targets, part.scores.nontargets):.3f}",
        )


def print_probabilities(parts: Sequence[Tested]) -> None:
    """Print the probability of the package's calibration beside the share of true pairs.

    Each corpus and each kind of trial counts the same.

    Its calibration is of these trials too, so that this is its best case.
    """
    table("probability", "mean of what it says", "share of one speaker", "share of all pairs")
    calibration = calibrated(parts)
    probabilities, labels, weights = [], [], []
    for part in parts:
        target = part.trials.target
        assert target is not None
        probabilities.append(1 / (1 + np.exp(-calibration.apply(part.values))))
        labels.append(target)
        weights.append(np.where(target, 1 / target.sum(), 1 / (~target).sum()))
    probability, is_target = np.concatenate(probabilities), np.concatenate(labels)
    weight = np.concatenate(weights) / (2 * len(parts))
    edges = (0.0, 0.01, 0.1, 0.3, 0.7, 0.9, 0.99, 1.0)
    for low, high in pairwise(edges):
        inside = (probability >= low) & ((probability < high) | (high == 1.0))
        mass = weight[inside].sum()
        row(
            f"{low:g} to {high:g}",
            f"{np.sum((weight * probability)[inside]) / mass:.3f}",
            f"{weight[inside & is_target].sum() / mass:.3f}",
            f"{mass:.3f}",
        )


def only(trials: Trials, chosen: NDArray[np.bool_]) -> Trials:
    """The chosen ones of some trials."""
    assert trials.target is not None
    return replace(
        trials,
        enrol=trials.enrol[chosen],
        probe=trials.probe[chosen],
        target=trials.target[chosen],
    )


def print_groups(part: Tested, others: Sequence[Tested], data: Path) -> None:
    """Print error rates of speechocean's trials by age and sex."""
    known = {f"speechocean-{who}": speaker for who, speaker in speechocean.speakers(data).items()}
    ids = {*part.trials.enrol_ids, *part.trials.probe_ids}
    speaker_of = {item: item.partition("/")[0] for item in ids}
    threshold = threshold_at(others, FARS[0])
    table("trials within", "EER %", f"at the threshold of FAR {FARS[0]:.1%} elsewhere")
    for group_of in (
        {who: speaker.band for who, speaker in known.items()},
        {who: speaker.sex for who, speaker in known.items()},
    ):
        sides, names = groups.sides_of(part.trials, group_of, speaker_of)
        for number, name in enumerate(names):
            within = (sides == number).all(axis=1)
            own = Tested(only(part.trials, within), part.values[within])
            row(
                name,
                with_interval(errors_of(own.trials, own.values), "eer"),
                rates_with_intervals(own, threshold),
            )


def middle(wave: Wave, seconds: float) -> Wave:
    """The middle of a wave, or all of a shorter one."""
    length = round(RATE_HZ * seconds)
    start = max(0, (len(wave) - length) // 2)
    return wave[start : start + length]


def band(wave: Wave, top_hz: int) -> Wave:
    """A wave with nothing above a frequency, as by a lower sampling rate."""
    return audio.resample(audio.resample(wave, RATE_HZ, 2 * top_hz), 2 * top_hz, RATE_HZ)


def noisy(wave: Wave, snr_db: float) -> Wave:
    """A wave with white noise, which depends on its length alone."""
    noise = np.random.default_rng(len(wave)).normal(size=len(wave))
    power = float(np.mean(np.square(wave, dtype=np.float64)))
    added = noise * (power * 10 ** (-snr_db / 10)) ** 0.5
    return (wave + added).astype(np.float32)


def gained(wave: Wave, decibels: float) -> Wave:
    """A louder or quieter wave."""
    return wave * np.float32(10 ** (decibels / 20))


def padded(wave: Wave, share: float) -> Wave:
    """A wave with digital silence after it, as a share of its length."""
    return np.concatenate([wave, np.zeros(round(share * len(wave)), np.float32)])


def stored(wave: Wave) -> Wave:
    """A wave as a file of 16 bits holds it."""
    return np.asarray(np.round(np.clip(wave, -1, 1 - 2**-15) * 2**15) / 2**15, dtype=np.float32)


def filtered(wave: Wave, hertz: float, kind: str) -> Wave:
    """A wave after a filter of first order, "low" or "high" passing: a duller or thinner one."""
    sections = butter(1, hertz, kind, fs=RATE_HZ, output="sos")
    return np.asarray(sosfilt(sections, wave), dtype=np.float32)


# What is done to a recording, and whether to both sides of a trial or to the second one alone.
CHANGES: dict[str, tuple[Callable[[Wave], Wave], bool]] = {
    "nothing": (lambda wave: wave, True),
    **{
        f"the middle {seconds:g} s of both": (partial(middle, seconds=seconds), True)
        for seconds in (0.5, 1.0, 2.0, 3.0)
    },
    "both without all above 7.2 kHz": (partial(band, top_hz=7200), True),
    "both without all above 7 kHz": (partial(band, top_hz=7000), True),
    "both without all above 4 kHz": (partial(band, top_hz=4000), True),
    "noise of 20 dB on one side": (partial(noisy, snr_db=20.0), False),
    "one side duller (low pass, 6 dB an octave from 3 kHz)": (
        partial(filtered, hertz=3000, kind="low"),
        False,
    ),
    "one side thinner (high pass, 6 dB an octave from 300 Hz)": (
        partial(filtered, hertz=300, kind="high"),
        False,
    ),
    **{
        f"{sides} {decibels:g} dB quieter": (partial(gained, decibels=-decibels), sides == "both")
        for decibels in (20,)
        for sides in ("one side", "both")
    },
    **{
        f"both with {share:.0%} of digital silence": (partial(padded, share=share), True)
        for share in (0.05,)
    },
}
# What is done to recordings before it is counted how many of them the packaged model refuses.
STORED: dict[str, Callable[[Wave], Wave]] = {
    "as they are": lambda wave: wave,
    "20 dB quieter": lambda wave: stored(gained(wave, -20)),
    "without all above 7 kHz": lambda wave: stored(band(wave, 7000)),
    "without all above 4 kHz": lambda wave: stored(band(wave, 4000)),
    "without all above 4 kHz, 20 dB quieter": lambda wave: stored(gained(band(wave, 4000), -20)),
    "without all above 4 kHz, stored, then as loud as may be": lambda wave: (
        stored(band(wave, 4000)) / np.abs(wave).max()
    ),
    "without all above 4 kHz, 12 dB too loud and clipped": lambda wave: stored(
        band(wave, 4000) * 4 / np.abs(wave).max()
    ),
}


def print_changes(
    systems: Sequence[str], cells: Sequence[Cell], parts: Sequence[Tested], data: Path, out: Path
) -> None:
    """Print what changes of the recordings do, at the threshold of FAR 1 % of the other tests."""
    table("what is changed", *(f"{cell.target}: EER %; FAR, FRR %" for cell in cells))
    rows: dict[str, list[str]] = {name: [] for name in CHANGES}
    for cell, part in zip(cells, parts, strict=True):
        threshold = threshold_at([other for other in parts if other is not part], FARS[0])
        loaded = likeness.load(beside(systems, cell, data, out)).loaded
        items = corpora.items_of(data, cell.target)
        plain, _ = embed(loaded.embedder, items, READ, meta=loaded.meta)
        trials = all_pairs(items)
        for name, (change, both) in CHANGES.items():

            def read(item: Item, change: Callable[[Wave], Wave] = change) -> Wave:
                return levelled(change(audio.read(item)), LEVEL_DBFS)

            changed, _ = embed(loaded.embedder, items, read, meta=loaded.meta)
            values = pairs(
                (changed if both else plain).matrix[plain.rows(trials.enrol_ids)],
                changed.matrix[changed.rows(trials.probe_ids)],
                trials.enrol,
                trials.probe,
                loaded.similarity,
            )
            scores = Scores(values, trials.target)
            rows[name].append(
                f"{100 * eer(scores.targets, scores.nontargets):.1f}; "
                f"{100 * np.mean(scores.nontargets >= threshold):.1f}, "
                f"{100 * np.mean(scores.targets < threshold):.1f}"
            )
    for name, cells_of_row in rows.items():
        row(name, *cells_of_row)


def print_refused(cells: Sequence[Cell], data: Path) -> None:
    """Print how many recordings the packaged model refuses for what they lack."""
    table("recordings, stored with 16 bits", *(f"{cell.target}: refused" for cell in cells))
    counts = {name: [0] * len(cells) for name in STORED}
    totals = [0] * len(cells)
    for place, cell in enumerate(cells):
        for item in corpora.items_of(data, cell.target):
            wave = audio.read(item)
            totals[place] += 1
            for name, change in STORED.items():
                try:
                    refuse_narrow(item.id, change(wave), RATE_HZ, NEEDS_HZ)
                except BadAudio:
                    counts[name][place] += 1
    for name, refused in counts.items():
        row(name, *(f"{n} of {total}" for n, total in zip(refused, totals, strict=True)))


def package(folder: Path, model: Path, parts: Sequence[Tested]) -> None:
    """Write the model of all corpora with thresholds and calibration of the three tests.

    It refuses recordings for which print_changes shows that it is of no use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors, description = checkpoint.load(model / "last.safetensors", checkpoint.FORMAT)
    reading = partial(READ, min_seconds=LEAST_SECONDS, needs_hz=NEEDS_HZ)
    description |= {"read": describe(reading, "read")}
    checkpoint.save(folder / "last.safetensors", tensors, description, checkpoint.FORMAT)
    meta = likeness.load(folder).meta
    system = Scoring().system(meta)
    scores = drawn(parts)
    subjects = {id.partition("/")[0] for part in parts for id in part.trials.enrol_ids}
    (folder / "last.safetensors").chmod(0o644)  # for everybody who installs the package
    measured, _ = thresholds.measure(
        scores,
        Origin(system, meta, trials="speechocean, AN4 and LibriSpeech"),
        data="speechocean, AN4 and LibriSpeech, each by a model of the two others",
        fars=FARS,
        subjects=len(subjects),
    )
    (folder / "thresholds.json").unlink(missing_ok=True)
    thresholds.save(folder / "thresholds.json", measured)
    calibrated(parts, system).save(folder / "calibration.json")


def main() -> None:
    """Train what is missing, print the tables, and write the package where it is wanted."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of corpora.py")
    parser.add_argument(
        "--systems",
        default=";".join(SYSTEMS),
        help="of corpora.py, separated by semicolons, whose scores are summed",
    )
    parser.add_argument("--package", type=Path, help="folder to write the model into")
    arguments = parser.parse_args()
    systems = arguments.systems.split(";")
    cells = corpora.matrix()
    parts = [tested(systems, cell, arguments.data, arguments.out) for cell in cells]
    print_cells(cells, parts)
    print_probabilities(parts[:3])
    print_groups(parts[0], parts[1:3], arguments.data)
    print_changes(systems, cells[:3], parts[:3], arguments.data, arguments.out)
    print_refused(cells[:3], arguments.data)
    if arguments.package:
        model = beside(systems, cells[3], arguments.data, arguments.out)
        package(arguments.package, model, parts[:3])


if __name__ == "__main__":
    main()
