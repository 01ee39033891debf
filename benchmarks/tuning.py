"""Measures whether fine-tuning helps: four ways of training on little data, at the same budget.

    python benchmarks/tuning.py --data ../shared/data --out runs/tuning
    python benchmarks/tuning.py --data ../shared/data --out runs/tuning --only images
    python benchmarks/tuning.py --data ../shared/data --out runs/tuning --only voices --folds 0

Measures: voices: an ECAPA-TDNN of 64 channels is trained on the 149 speakers of speechocean, and
    then on the 43 or 44 training speakers of each fold of AN4; EER and minDCF(.01) on the fold's
    other speakers.
    Images: an SFNet is trained on 15 alphabets of Omniglot, and then on 5 of the other 15; recall
    and MAP@R on the characters of the last 10. Every way has the same steps, batches and seeds:
    scratch: nothing is taken from the first training
    frozen: all stands still but the last layer and the loss
    full: everything is trained on
    lora: adapters of rank 8 on the convolutions and the last layer
    Beside them is `as-it-is`: the network of the first training, after no step of its own.
    With --tune N, the rate of each way is chosen on validation classes first, from N of a third,
    once and three times the recipe's rate; the test is never touched for it.
    Differences are to scratch, or to the network as it is (--reference as-it-is). They are paired,
    with intervals over the subjects that are tested. Those of AN4 are of the mean over the folds,
    and each fold's subjects are drawn by themselves.
LoRA: peft knows linear layers and plain convolutions, so networks of these were chosen.
    OrderStatistics, the best network on AN4, has a single linear layer; the dilated convolutions of
    the ECAPA-TDNN get no adapter.
Needs: `pip install 'likeness[hub,tune]'`; speechocean/, an4/ and omniglot/ in the folder of --data.
Takes: with the defaults, not quite two hours of one core, of which the search is half (--tune 0);
    what is complete in OUT is not done again.
Gives: the tables of the section on fine-tuning of docs/reference/results.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from performance import ROOT, parser_of, row, table

from eval.bootstrap import Drawn
from eval.comparison import (
    Comparison,
    Outcome,
    measure,
    resamples_needed,
    subjects_behind,
    summarise,
)
from eval.formats.trials import read_scores
from eval.reports import comparison as text
from eval.types import Scores
from likeness.models.initial import read_initial
from modalities import folders
from modalities.image import small_sets
from modalities.image.splits import Split
from modalities.speaker import an4
from toolkit.backbones.ecapa import ECAPA
from toolkit.training import recipe as recipes
from toolkit.training.compare import SCORES, Search, Terms, compare
from toolkit.training.recipe import Recipe, Verification
from toolkit.training.train import fit
from toolkit.training.tune import Choice
from toolkit.training.tuning import LoRA, Tuning

RANK = 8
RATES = (1 / 3, 1.0, 3.0)  # multiples of the recipe's rate that a search tries
CHANNELS, FIRST_STEPS, STEPS = 64, 600, 200
# All of a network but its last layer.
ECAPA_BODY = tuple(f"backbone.network.{part}" for part in ("blocks", "mfa", "asp", "asp_bn"))
SFNET_BODY = tuple(f"backbone.layer{number}" for number in (1, 2, 3, 4))


def short(recipe: Recipe, steps: int) -> Recipe:
    """A recipe that trains for so many steps, a tenth of them with a rising rate."""
    schedule = replace(
        recipe.schedule, steps=steps, warmup_steps=steps // 10, save_every=max(1, steps)
    )
    return replace(recipe, schedule=schedule)


def ecapa() -> Recipe:
    """The recipe of the ECAPA-TDNN on AN4, with half the channels: it has to train many times."""
    recipe = recipes.load(f"{ROOT / 'recipes' / 'speaker' / 'an4.py'}:ecapa_arcface")[0]
    return replace(recipe, backbone=partial(ECAPA, dim=128, channels=CHANNELS))


def first_of_voices(steps: int) -> Recipe:
    """That recipe on the speakers of speechocean instead."""
    recipe = ecapa()
    items = partial(folders.items, split="all", test_share=0.0)
    return short(replace(recipe, items=items, measure=None), steps)


def voices(fold: int, steps: int) -> Recipe:
    """That recipe on a fold of AN4."""
    recipe = ecapa()
    assert isinstance(recipe.measure, Verification)
    measured = replace(recipe.measure, trials=partial(an4.trials, split="test", fold=fold))
    items = partial(an4.items, split="train", fold=fold, speeds=(0.9, 1.1))
    return short(replace(recipe, items=items, measure=measured), steps)


def images(split: Split, steps: int) -> Recipe:
    """Omniglot's recipe on its first 15 alphabets ("train"), or on the next 5 ("validation")."""
    recipe = recipes.load(f"{ROOT / 'recipes' / 'image' / 'omniglot.py'}:arcface")[0]
    items = partial(small_sets.omniglot_items, split=split, validation_alphabets=5)
    return short(replace(recipe, items=items), steps)


def ways(
    recipe: Recipe, init: Path, body: Sequence[str], targets: Sequence[str]
) -> dict[str, Recipe]:
    """The ways of training by name.

    Args:
        recipe: What is trained.
        init: The run that all but `scratch` start from.
        body: The parts that stand still below the last layer.
        targets: The layers that get adapters.
    """
    tuned = replace(recipe, init=str(init))
    lora = LoRA(rank=RANK, alpha=2.0 * RANK, targets=tuple(targets))
    none = replace(tuned.schedule, steps=1, warmup_steps=0)
    return {
        "scratch": recipe,
        "as-it-is": replace(tuned, tuning=Tuning(freeze=("backbone",)), schedule=none),
        "frozen": replace(tuned, tuning=Tuning(freeze=tuple(body))),
        "full": tuned,
        "lora": replace(tuned, tuning=Tuning(lora=lora)),
    }


def compared(
    variants: dict[str, Recipe],
    data: Path,
    out: Path,
    seeds: int,
    num_tried: int,
    reference: str,
) -> Comparison:
    """Train and measure the ways, after a search of their rates if one is wanted."""
    rate = variants["scratch"].optim.lr
    choice = Choice(tuple(rate * factor for factor in RATES))
    ranges = {name: {"optim.lr": choice} for name in variants if name != "as-it-is"}
    return compare(
        variants,
        num_seeds=seeds,
        data=data,
        out=out,
        terms=Terms(reference, ("init", "schedule.steps"), "python benchmarks/tuning.py"),
        search=Search(ranges, num_tried) if num_tried else None,
        say=partial(print, flush=True),
        read_initial=read_initial,
    )


def outcome(recipe: Recipe, data: Path, folder: Path, fold: int) -> tuple[Outcome, int]:
    """A finished run's metrics with their resamples, and how many subjects were drawn."""
    assert isinstance(recipe.measure, Verification)
    items, trials = recipe.measure.trials(data)
    subjects = subjects_behind(trials, {item.id: item.label for item in items})
    scored, values = read_scores(folder / SCORES, trials)
    assert scored.target is not None
    made = measure(
        Scores(values, scored.target),
        recipe.metrics,
        subjects,
        num_resamples=resamples_needed(4 * len(recipe.metrics)),
        seed=fold,  # other draws in each fold: its subjects are others
    )
    return made, subjects.num_subjects or 0


def print_folds(
    by_fold: dict[int, dict[str, Recipe]],
    data: Path,
    out: Callable[[int], Path],
    seeds: int,
    reference: str,
) -> None:
    """Print the means over folds of each way, and their paired differences to the reference."""
    some = next(iter(by_fold.values()))
    pooled: dict[str, dict[int, Outcome]] = {name: {} for name in some}
    for name in some:
        for seed in range(seeds):
            parts = [
                outcome(variants[name], data, out(fold) / name / f"seed-{seed}", fold)
                for fold, variants in by_fold.items()
            ]
            metrics = parts[0][0].values
            pooled[name][seed] = Outcome(
                {key: float(np.mean([each.values[key] for each, _ in parts])) for key in metrics},
                {
                    key: np.mean([each.replicates[key] for each, _ in parts], axis=0)
                    for key in metrics
                },
                "folds",
                Drawn(sum(subjects for _, subjects in parts), "subjects"),
            )
    cells, _ = summarise(pooled, list(some["scratch"].metrics), reference=reference)
    less = f"less {reference}"
    table("way", "metric", "mean", "seeds", "interval", less, "interval", "p (Holm)")
    for cell in cells:
        differs = cell.difference
        row(
            cell.variant,
            cell.metric,
            f"{cell.mean:.4f}",
            " ".join(f"{value:.4f}" for value in cell.values.values()),
            ends(cell.interval),
            "-" if differs is None else f"{differs.value:+.4f}",
            "-" if differs is None else ends(differs.interval),
            "-" if differs is None or differs.p_holm is None else f"{differs.p_holm:.3f}",
        )


def ends(interval: Sequence[float] | None) -> str:
    """An interval as text."""
    return "none" if interval is None else f"[{interval[0]:.4f}, {interval[1]:.4f}]"


def main() -> None:
    """Train what is missing, and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", default="0,1,2", help="folds of AN4, of 0 to 4")
    parser.add_argument("--tune", type=int, default=3, help="rates that are tried for each way")
    parser.add_argument("--first-steps", type=int, default=FIRST_STEPS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--reference", choices=("scratch", "as-it-is"), default="scratch")
    parser.add_argument("--only", choices=("voices", "images"), default="")
    arguments = parser.parse_args()
    data, out, seeds, steps = arguments.data, arguments.out, arguments.seeds, arguments.steps
    compare_all = partial(
        compared, data=data, seeds=seeds, num_tried=arguments.tune, reference=arguments.reference
    )
    if arguments.only != "voices":
        first = out / "omniglot-first"
        recipe = replace(images("train", arguments.first_steps), measure=None)
        fit(recipe, data=data, out=first, resume=True)
        variants = ways(images("validation", steps), first, SFNET_BODY, ("conv1", "fc"))
        print("\nOmniglot: 5 alphabets after 15 others\n", flush=True)
        print(text.table(compare_all(variants, out=out / "omniglot")))
    if arguments.only != "images":
        first = out / "speechocean-first"
        fit(
            first_of_voices(arguments.first_steps),
            data=data / "speechocean" / "flac",
            out=first,
            resume=True,
        )
        by_fold = {}
        for fold in map(int, arguments.folds.split(",")):
            by_fold[fold] = ways(voices(fold, steps), first, ECAPA_BODY, ("conv",))
            print(f"\nAN4, fold {fold}\n", flush=True)
            result = compare_all(by_fold[fold], out=out / f"an4-{fold}")
            print(text.table(result), flush=True)
        print(f"\nAN4, mean over folds {arguments.folds}\n")
        print_folds(by_fold, data, lambda fold: out / f"an4-{fold}", seeds, arguments.reference)


if __name__ == "__main__":
    main()
