"""Tests the claims of the three papers on data that is small and at hand.

    python benchmarks/claims.py --data ../shared/data --out runs/claims
    python benchmarks/claims.py --data ../shared/data --out runs/claims --only omniglot

Measures: differences of two losses, paired by seed and by class or subject, with three seeds each,
    and the AUROC of an embedding's norm. `likeness compare` trains and measures; what is in OUT is
    not run again. Heads are linear layers on embeddings of a network that is whitened on other
    people (histograms of gradients for faces, statistics of the filterbank for voices), and two
    settings of every loss are picked in five trials on training subjects.
    What it does not show: how these losses do with a million images and deep networks.
Peers: none.
Limit: none.
Needs: omniglot/, mnist/, speechocean/, an4/, librispeech/, orl/ and gt/ in the folder of --data.
Takes: four hours of one core, and five more for MNIST; --only leaves data sets out.
Gives: the rows of docs/reference/claims.toml, which leaves the metric out.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import cv2
import numpy as np
from corpora import Cell, run_cell
from folds import train_and_score
from numpy.typing import NDArray
from performance import ROOT, parser_of, row, table

from likeness.data import folders
from likeness.eval.intervals.bootstrap import drawn_groups
from likeness.eval.items.pairs import all_pairs
from likeness.metrics import bounds, per_item
from likeness.models.run import load_model
from likeness.toolkit.models.embed import embed
from likeness.toolkit.training import measure
from likeness.toolkit.training import recipe as recipes

SEEDS = 3
HEADS = ("speechocean", "an4", "gt", "orl")
VOICES = {
    "speechocean": Cell(("an4", "librispeech"), "speechocean"),
    "an4": Cell(("speechocean", "librispeech"), "an4"),
}
RETRIEVAL_LOSSES = (
    "softmax,softmax_euclidean,cosine,arcface,vmf,simple,simple_margin,"
    "simple_cosine,simple_cosine_margin,hyperbolic,hyperbolic_cosine,"
    "el_nivmf_moving,proxy_anchor,joint,el_vmf,b_vmf,kl_vmf,l2"
)
HEAD_LOSSES = (
    "softmax,softmax_euclidean,cosine,cosine_fixed_16,cosine_fixed_64,arcface,vmf,"
    "hyperbolic,hyperbolic_cosine,el_nivmf,proxy_anchor,joint,el_vmf,b_vmf,kl_vmf,l2,"
    "simple,simple_margin,simple_no_bank,simple_r3,simple_theta0.2"
)
# Half of the subjects are tested.
HEAD_SETTINGS = (
    *("--tune", "5", "items.test_share=0.5", "measure.trials.test_share=0.5"),
    *("--allow-different", "measure.similarity"),
)


class Case(NamedTuple):
    """A data set with what is trained on it, and the metric that decides."""

    recipe: str
    variants: str
    metric: str
    higher_is_better: bool
    what: str
    settings: tuple[str, ...] = ()


CASES = {
    "omniglot": Case(
        *("image/omniglot", RETRIEVAL_LOSSES, "map@r", True, "Omniglot, 331 characters"),
        ("--allow-different", "measure.similarity"),
    ),
    "mnist": Case(
        *("image/vmf:mnist", "standard,hyperbolic,cosine,arcface,vmf"),
        *("accuracy", True, "MNIST, 10,000 test images"),
    ),
}
for name in HEADS:
    CASES[name] = Case("head_losses", HEAD_LOSSES, "eer", False, f"heads, {name}", HEAD_SETTINGS)


class Row(NamedTuple):
    """One test of a claim, which holds where the value is above 0.

    Attributes:
        what: The data.
        compared: What is set against what.
        metric: Its name.
        value: How much the claim's side is better.
        over: The interval over classes or subjects; None where there is none.
        seeds: The interval over seeds; None where it is not asked for.
    """

    what: str
    compared: str
    metric: str
    value: float
    over: tuple[float, float] | None
    seeds: tuple[float, float] | None = None

    @property
    def verdict(self) -> str:
        """What may be said."""
        ends = [self.over, self.over if self.seeds is None else self.seeds]
        if any(pair is not None and pair[0] <= 0 <= pair[1] for pair in ends) or None in ends:
            return "open"
        return "holds" if self.value > 0 else "fails"


VERDICTS = ("holds", "fails", "open")
Tests = Callable[[Path, Path], Iterator[Row]]


def compare(name: str, data: Path, out: Path, reference: str, variants: str) -> dict[str, Any]:
    """Run `likeness compare`, and return its comparison.json."""
    case = CASES[name]
    source = out / f"{name}.npz" if name in HEADS else data
    command = [sys.executable, "-m", "likeness", "compare", case.recipe, *case.settings]
    command += ["--seeds", str(SEEDS), "--data", str(source), "--out", str(out / name)]
    command += ["--variants", variants, "--reference", reference]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return json.loads((out / name / "comparison.json").read_text())


def better(winner: str, others: str, *names: str, metric: str = "", slack: float = 0.0) -> Tests:
    """Test on each of the data sets whether a loss is better than each of the others.

    With slack it holds as well where the loss is worse by less than that.
    """

    def rows(data: Path, out: Path) -> Iterator[Row]:
        for name in names:
            if not (out / name).is_dir():
                continue
            case = CASES[name]
            sign = 1 if case.higher_is_better and metric != "ece_l2" else -1
            for other in others.split(","):
                made = compare(name, data, out, other, f"{winner},{other}")
                compared_metric = metric or case.metric
                cells = {(each["variant"], each["metric"]): each for each in made["cells"]}
                cell = cells[winner, compared_metric]["difference"]
                pairs = (cell["interval"], cell["seed_interval"])
                ends = [pair and sorted(sign * end + slack for end in pair) for pair in pairs]
                value = sign * cell["value"] + slack
                shown = compared_metric + (f" + {slack:g}" if slack else "")
                yield Row(case.what, f"{winner}, {other}", shown, value, ends[0], ends[1])

    return rows


def norms(name: str, variant: str) -> Tests:
    """Test whether longer embeddings are those of right answers, and of images that are whole.

    The value is the AUROC less one half, as the mean over seeds.
    """

    def rows(data: Path, out: Path) -> Iterator[Row]:
        if not (out / name).is_dir():
            return
        case = CASES[name]
        file, _, group = case.recipe.partition(":")
        spec = f"{ROOT}/recipes/{file}.py:{'.'.join(filter(None, (group, variant)))}"
        recipe = recipes.load(spec)[0]
        items = measure.settings_of(recipe.measure)[-1].items(data)
        kinds: dict[str, list[per_item.PerItem]] = {"right answers": [], "blur": [], "noise": []}
        for seed in range(SEEDS):
            folder = out / name / variant / f"seed-{seed}"
            kinds["right answers"].append(per_item.read(folder / measure.TEST))
            loaded = load_model(folder)
            whole = embed(loaded.embedder, items, loaded.read)[0]
            labels = np.unique([item.label for item in items], return_inverse=True)[1]
            for kind in ("blur", "noise"):
                spoilt = embed(loaded.embedder, items, partial(degraded, loaded.read, kind))[0]
                norm = np.concatenate([each.norms for each in (whole, spoilt)])
                columns = {"norm": norm, "correct": np.repeat([1.0, 0.0], len(items))}
                ids = (*whole.ids, *(f"{id} {kind}" for id in whole.ids))
                groups = np.concatenate([labels, labels])
                kinds[kind].append(per_item.PerItem(ids, columns, groups, "classes"))
        for kind, measured in kinds.items():
            correct = "recall@1" if "recall@1" in measured[0].columns else "correct"
            auroc = {"auroc": partial(per_item.norm_auroc, correct=correct)}
            value = float(np.mean([auroc["auroc"](each.columns) for each in measured]))
            draws = [per_item.resample(auroc, each, num_resamples=200) for each in measured]
            drawn = np.mean([each["auroc"] for each in draws], axis=0)
            groups = measured[0].groups
            number = range(len(measured[0].ids)) if groups is None else groups
            ends = bounds(drawn, value, 0.95, drawn_groups(number, measured[0].over)).ends
            over = ends and (ends[0] - 0.5, ends[1] - 0.5)
            yield Row(case.what, f"{variant}: {kind}", "AUROC - .5", value - 0.5, over)

    return rows


def degraded(read: Callable[[Any], NDArray[Any]], kind: str, item: Any) -> NDArray[Any]:
    """Read an image (C, H, W) with levels of 0 to 255, and blur it or add noise."""
    image = read(item).astype(np.float32)
    if kind == "blur":
        return np.stack([cv2.GaussianBlur(plane, (0, 0), 1.5) for plane in image])
    rng = np.random.default_rng(crc32(item.id.encode()))
    return np.clip(image + rng.normal(0, 64, image.shape), 0, 255).astype(np.float32)


NEAR = 0.01  # a point of EER or MAP@R, about what the papers' standard deviations are
RETRIEVED = ("omniglot", *HEADS)
CLAIMS: dict[str, list[Tests]] = {
    # SimPLE, Sec. 1 and 3: a loss of pairs against softmax
    "No proxies are needed": [better("simple", "softmax", *RETRIEVED)],
    # SimPLE, Sec. 3: the generalised inner product of raw embeddings against the cosine
    "No normalisation is needed": [better("simple", "simple_cosine", "omniglot")],
    # SimPLE, Sec. 2
    "A margin is unnecessary for pairs": [
        better("simple", "simple_margin", *RETRIEVED),
        better("simple_cosine", "simple_cosine_margin", "omniglot"),
    ],
    # SimPLE, Table 2: easy positives and hard negatives weigh more
    "r above 1 helps": [better("simple_r3", "simple", *HEADS)],
    # SimPLE, Table 9
    "b_theta of .3 helps, against .2": [better("simple", "simple_theta0.2", *HEADS)],
    # SimPLE, Sec. 3: pairs with the keys of a queue, against those of the batch alone
    "A larger queue helps": [better("simple", "simple_no_bank", *HEADS)],
    # vMF, Sec. 2.3, and nivMF, Sec. 4.4
    "The norm tells certainty": [
        *(norms("omniglot", loss) for loss in ("softmax", "vmf", "simple")),
        norms("mnist", "vmf"),
    ],
    # vMF, Sec. 3.1 and 3.2: softmax on cosines against that on products and distances
    "Spherical losses tend to beat Euclidean and hyperbolic": [
        better("cosine", "softmax_euclidean", "omniglot"),
        better("cosine", "standard,hyperbolic", "mnist"),
        better("cosine", "hyperbolic", *HEADS),
        better("arcface", "softmax_euclidean", "omniglot"),
        better("arcface", "softmax", *HEADS),
    ],
    # vMF, Sec. 3.2, says the opposite: no loss wins on all data sets
    "ArcFace is the best spherical loss": [better("arcface", "cosine,vmf", *RETRIEVED)],
    # vMF, Table 4
    "Cosine at test helps Euclidean and hyperbolic": [
        better("softmax", "softmax_euclidean", *RETRIEVED),
        better("hyperbolic_cosine", "hyperbolic", *RETRIEVED),
    ],
    # vMF, Sec. 3.1: the error of the confidences, before a temperature is fitted
    "vMF lowers the calibration error": [
        better("vmf", "standard,hyperbolic,cosine,arcface", "mnist", metric="ece_l2")
    ],
    # vMF, Sec. 3.3
    "A learned temperature is at least as good": [
        better("cosine", "cosine_fixed_16,cosine_fixed_64", *HEADS, slack=NEAR)
    ],
    # nivMF, Sec. 4.3: a concentration for each axis against one for all
    "Non-isotropy helps": [
        better("el_nivmf_moving", "el_vmf", "omniglot"),
        better("el_nivmf", "el_vmf", *HEADS),
    ],
    # nivMF, Sec. 4.2 and Fig. 4
    "Both parts together beat each": [
        better("joint", "el_nivmf_moving,proxy_anchor", "omniglot"),
        better("joint", "el_nivmf,proxy_anchor", *HEADS),
    ],
    # nivMF, Sec. 4.3
    "Expected likelihood beats Bhattacharyya beats KL": [
        better("el_vmf", "b_vmf", *RETRIEVED),
        better("b_vmf", "kl_vmf", *RETRIEVED),
    ],
    # nivMF, Sec. 4.3: neither is far below the other
    "Training by l2 is near EL-vMF": [
        better("l2", "el_vmf", *RETRIEVED, slack=NEAR),
        better("el_vmf", "l2", *RETRIEVED, slack=NEAR),
    ],
}


def prepare(data: Path, out: Path) -> None:
    """Embed the data of the heads, by networks that are whitened on other people."""
    for name, cell in VOICES.items():
        run_cell("estimated", cell, data, out / "voices")
        (out / f"{name}.npz").write_bytes((out / f"voices/estimated/{cell.name}.npz").read_bytes())
    recipe = recipes.load(f"{ROOT}/recipes/face/orl.py:estimated")[0]
    for name, other in (("gt", "orl"), ("orl", "gt")):
        tested, known = (folders.scan(data / folder, "face") for folder in (name, other))
        folder = out / "faces"
        train_and_score(recipe, known, tested, all_pairs(tested), data, folder / name)
        (out / f"{name}.npz").write_bytes((folder / f"{name}.npz").read_bytes())


def print_tables(data: Path, out: Path) -> None:
    """Print how many rows of each claim hold, then the rows."""
    tested = {name: [row for test in of for row in test(data, out)] for name, of in CLAIMS.items()}
    table("claim", *VERDICTS)
    for claim, rows in tested.items():
        verdicts = [each.verdict for each in rows]
        row(claim, *(verdicts.count(kind) for kind in VERDICTS))
    for claim, rows in tested.items():
        print(f"\n## {claim}\n")
        table("data", "compared", "metric", "better by", "over classes", "over seeds", "verdict")
        for each in rows:
            texts = (pair and f"[{pair[0]:+.3f}, {pair[1]:+.3f}]" for pair in each[4:])
            ends = [text or "-" for text in texts]
            row(each.what, each.compared, each.metric, f"{each.value:+.4f}", *ends, each.verdict)


def main() -> None:
    """Train what is missing, and write the page."""
    only = ("only", "", "train on these data sets alone, with commas")
    arguments = parser_of(__doc__, "data", "out", only).parse_args()
    data, out = arguments.data.resolve(), arguments.out.resolve()
    names = arguments.only.split(",") if arguments.only else list(CASES)
    if set(names) & set(HEADS):
        prepare(data, out)
    for name in names:
        compare(name, data, out, "", CASES[name].variants)
    print_tables(data, out)


if __name__ == "__main__":
    main()
