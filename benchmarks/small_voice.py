"""Makes the voice model that comes with Likeness, and measures it on corpora that it has not heard.

    python benchmarks/small_voice.py --data ../shared/data --out runs/corpora
        [--package likeness/voice]

With --package the model of all three corpora, its thresholds and its calibration are written there.

Measures: two systems of corpora.py, each with the head `head:score_norm` on it, side by side in one
    model. It is trained on two of {speechocean, AN4, LibriSpeech} and tested on the third; the
    model of all three is tested on FSDD. EER, minDCF(.01); FAR and FRR at the threshold that had a
    FAR of 1 % or .1 % on the two other tests, which is what a threshold means on a corpus that
    nobody measured; Cllr with a calibration fitted on the two other tests, and the least Cllr that
    any calibration reaches. Intervals are a bootstrap over speakers. What is in OUT is not run
    again. The thresholds and the calibration of the package are of the three tests together, so of
    models of two corpora each: the model of all three has heard everybody there is.
Peers: none here; corpora.py has them. Limit: none.
Needs: speechocean/, an4/, librispeech/ and fsdd/ in the folder of --data.
Takes: 3 CPU minutes a model.
Gives: likeness/voice/ and its card.
"""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import corpora
import numpy as np
from corpora import Cell
from folds import errors_of, subject_pairs, with_interval
from numpy.typing import NDArray
from performance import parser_of, row, table

import likeness
from likeness import Fusion, Scores, Scoring, Trials
from likeness.backbones import Beside
from likeness.data import audio, read_scores
from likeness.eval.formats.trials import write_scores
from likeness.eval.items.pairs import all_pairs
from likeness.eval.metrics.similarity import score_trials
from likeness.eval.metrics.verification import measured_tar, sort_scores
from likeness.eval.scoring import threshold_files, thresholds
from likeness.eval.scoring.origin import Origin
from likeness.metrics import bounds_of, cllr, fit_fusion, min_cllr
from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.embed import embed
from likeness.toolkit.models.parts import describe

FARS = (0.01, 0.001)
TRAVELLED = (*(f"at FAR {far:.1%}" for far in FARS), "Cllr; least")
DRAWN_TARGETS, DRAWN_NONTARGETS = 700, 20_000  # trials of each corpus that fit the calibration
SYSTEMS = ("statistics_robust", "mixture_robust")
LEAST_SECONDS, NEEDS_HZ = 1.0, 7000.0  # of the recordings that the packaged model takes
LEVEL_DBFS = -26.0  # that recordings are brought to after training
# What the trials and the data of the three corpora are called.
_ALL = "speechocean, AN4 and LibriSpeech"
NAMED = _ALL, f"{_ALL}, each by a model of the two others"
READ = partial(audio.read, level_dbfs=LEVEL_DBFS)
PACKAGED_READ = partial(READ, min_seconds=LEAST_SECONDS, needs_hz=NEEDS_HZ)


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
    folder = out / "voice" / system / cell.name
    if (folder / "joined" / "last.safetensors").exists():
        return folder / "joined"
    corpora.run_cell(system, cell, data, out)
    base = out / system / f"run-{cell.name}"
    loaded = likeness.load(base).loaded
    items = [item for name in cell.sources for item in corpora.items_of(data, name)]
    known, _ = embed(loaded.embedder, items, READ, meta=loaded.meta)
    folder.mkdir(parents=True, exist_ok=True)
    known.save(folder / "training.npz")
    lines = [f"{item.id} {item.label}\n" for item in items]
    (folder / "subjects.txt").write_text("".join(lines), encoding="utf-8")
    for part in ("head", "joined"):
        shutil.rmtree(folder / part, ignore_errors=True)
    # one view, as it was when docs/reference/results.md was measured
    settings = ["items.test_share=0", "measure=None", "compute.threads=1", "estimate_views=1"]
    likeness.train("head:score_norm", folder, folder / "head", settings=settings)
    likeness.join(base, folder / "head", folder / "joined")
    return folder / "joined"


def beside(cell: Cell, data: Path, out: Path) -> Path:
    """The folder of one model whose scores are the sums of the systems' scores."""
    models = [joined(system, cell, data, out) for system in SYSTEMS]
    file = out / "voice" / "+".join(SYSTEMS) / cell.name / "joined" / "last.safetensors"
    if file.exists():
        return file.parent
    opened = [checkpoint.read(model / "last.safetensors", checkpoint.FORMAT) for model in models]
    descriptions = [description for _, description, _ in opened]
    # One front-end feeds all of them.
    assert all(other["frontend"] == descriptions[0]["frontend"] for other in descriptions)
    tensors = {}
    for number, (own, _, _) in enumerate(opened):
        for key, value in own.items():
            part, _, rest = key.partition(".")
            name = f"backbone.networks.{number}.{rest}" if part == "backbone" else key
            tensors[name] = value
    backbone = describe(Beside, "backbone")
    backbone["args"] = {"networks": [description["backbone"] for description in descriptions]}
    file.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(file, tensors, descriptions[0] | {"backbone": backbone}, checkpoint.FORMAT)
    return file.parent


def tested(cell: Cell, data: Path, out: Path) -> Tested:
    """The scores of a cell."""
    model = beside(cell, data, out)
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
        for is_target, number in ((True, DRAWN_TARGETS), (False, DRAWN_NONTARGETS)):
            places = np.flatnonzero(part.trials.target == is_target)
            places = rng.choice(places, min(number, len(places)), replace=False)
            values.append(part.values[places])
            targets.append(np.full(len(places), is_target))
    return Scores(np.concatenate(values), np.concatenate(targets))


def calibrated(parts: Sequence[Tested], system: str = "") -> Fusion:
    """A calibration that is fitted to several corpora with equal shares."""
    scores = drawn(parts)
    return fit_fusion(scores.values, scores.target, systems=(system,))


def threshold_at(parts: Sequence[Tested], far: float) -> float:
    """The threshold at a FAR over several corpora with equal shares."""
    scores = drawn(parts)
    return measured_tar(sort_scores(scores.targets, scores.nontargets), far).threshold


def rates_with_intervals(part: Tested, threshold: float) -> str:
    """ "FAR 1.20 [0.80, 1.90], FRR 20.1 [15.0, 25.0]" in percent, at a threshold."""
    metrics = {
        "FAR": lambda _, nontargets: float(np.mean(np.asarray(nontargets) >= threshold)),
        "FRR": lambda targets, _: float(np.mean(np.asarray(targets) < threshold)),
    }
    ends, _ = bounds_of(metrics, part.scores, subject_pairs(part.trials))
    texts = []
    for name, metric in metrics.items():
        value = metric(part.scores.targets, part.scores.nontargets)
        low, high = ends[name].ends or (np.nan, np.nan)
        texts.append(f"{name} {100 * value:.2f} [{100 * low:.2f}, {100 * high:.2f}]")
    return ", ".join(texts)


def travelled(part: Tested, others: Sequence[Tested]) -> list[str]:
    """The cells of TRAVELLED: rates and Cllr by thresholds and a calibration of other tests."""
    rates = [rates_with_intervals(part, threshold_at(others, far)) for far in FARS]
    llrs, target = calibrated(others).apply(part.values), part.scores.target
    least = min_cllr(part.scores.targets, part.scores.nontargets)
    return [*rates, f"{cllr(llrs[target], llrs[~target]):.3f}; {least:.3f}"]


def print_cells(cells: Sequence[Cell], parts: Sequence[Tested]) -> None:
    """Print a row for each cell; the thresholds and the calibration are of the other tests."""
    table("tested on", "EER %", "minDCF(.01)", *TRAVELLED)
    for cell, part in zip(cells, parts, strict=True):
        # What is tested on FSDD has heard the three corpora, and its thresholds are of all three.
        others = [other for other in parts[:3] if other is not part]
        errors = errors_of(part.trials, part.values)
        both = [with_interval(errors, metric) for metric in ("eer", "min_dcf")]
        row(cell.target, *both, *travelled(part, others))


def package(folder: Path, model: Path, parts: Sequence[Tested]) -> None:
    """Write the model of all corpora with thresholds and calibration of the three tests.

    It refuses recordings for which it is of no use: short ones, and those that end below 7 kHz.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors, description, _ = checkpoint.read(model / "last.safetensors", checkpoint.FORMAT)
    description |= {"read": describe(PACKAGED_READ, "read")}
    checkpoint.save(folder / "last.safetensors", tensors, description, checkpoint.FORMAT)
    (folder / "last.safetensors").chmod(0o644)  # for everybody who installs the package
    write_numbers(folder, likeness.load(folder).meta, parts, *NAMED)


def write_numbers(
    folder: Path, meta: Mapping[str, str], parts: Sequence[Tested], trials: str, data: str
) -> None:
    """Write the thresholds and the calibration of several tests with equal shares.

    Args:
        folder: Where they are written.
        meta: Of the model.
        parts: Its scores.
        trials: What the trials are called.
        data: What the data are called.
    """
    system = Scoring().system(meta)
    subjects = {(n, id.partition("/")[0]) for n, p in enumerate(parts) for id in p.trials.enrol_ids}
    how = {"data": data, "fars": FARS, "subjects": len(subjects)}
    measured, _ = thresholds.measure(drawn(parts), Origin(system, meta, trials=trials), **how)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "thresholds.json").unlink(missing_ok=True)
    threshold_files.write_thresholds(folder / "thresholds.json", measured)
    calibrated(parts, system).save(folder / "calibration.json")


def main() -> None:
    """Train what is missing, print the tables, and write the package where it is wanted."""
    package_to = ("package", None, "folder to write the model into")
    arguments = parser_of(__doc__, "data", "out", package_to).parse_args()
    cells = corpora.matrix()
    parts = [tested(cell, arguments.data, arguments.out) for cell in cells]
    print_cells(cells, parts)
    if arguments.package:
        model = beside(cells[3], arguments.data, arguments.out)
        package(arguments.package, model, parts[:3])


if __name__ == "__main__":
    main()
