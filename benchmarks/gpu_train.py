"""Trains voices, faces and characters on a GPU, and tests them on subjects that are held out.

    python benchmarks/gpu_train.py --data ../shared/data --out runs/gpu-train
    python benchmarks/gpu_train.py --data ../shared/data --out runs/small --small
        a few steps of small networks, also without a GPU: shows that it runs

Measures: EER and minDCF(.01) with 95 % intervals over subjects, all pairs of held-out subjects.
    Voices: a fifth of the speakers of speechocean, AN4 and LibriSpeech is held out, and ResNet34
    trains on the others together. Faces: the same with IResNet-18 on Georgia Tech, Yale and ORL.
    Characters: R@1 and MAP@R of Omniglot, the mean of three seeds and its standard error, with
    batches of 128 (softmax, vMF) and 512 (SimPLE) as in the papers. What is in OUT is not run
    again.
Peers: LDA on filterbank statistics, and on the principal components of pixels, trained on the same
    subjects. likeness:voice is no fair peer: it was trained on the held-out speakers.
Limit: none.
Needs: speechocean/, an4/, librispeech/, gt/, yale/, orl/ and omniglot/ in the folder of --data.
Takes: at most eight minutes of an H200 is what it is made for; not measured yet.
Gives: section "Trained on a GPU" of docs/reference/results.md, once it was run.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from corpora import CORPORA, items_of, named
from folds import both_with_intervals
from peers import FACE_PEERS, PEERS
from performance import ROOT, parser_of, row, table

import likeness
from likeness import Embeddings
from likeness.data import folders
from likeness.eval.items.items import Items
from likeness.eval.items.pairs import all_pairs
from likeness.eval.metrics.similarity import score_trials
from likeness.modalities.speaker.audio import speed_copies
from likeness.models.run import load_model
from likeness.recipe import Recipe, fit, override
from likeness.toolkit.data.splits import hold_out
from likeness.toolkit.models.embed import embed
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.training.measure import metrics_of, run_test
from likeness.toolkit.training.recipe import load

FACES = ("gt", "yale", "orl")
BATCHES = {"softmax": 128, "vmf": 128, "simple": 512}  # of Omniglot, by loss
METRICS = ("recall@1", "map@r")
QUICK = ["schedule.steps=2", "schedule.warmup_steps=0", "compute.workers=0"]
QUICK += ["sampling.batch_size=8"]
FIELDS = {  # what is changed of speaker/folders:resnet34 and face/folders:iresnet50
    "speaker": ["schedule.steps=3000", "schedule.warmup_steps=300", "sampling.batch_size=128"],
    "face": ["schedule.steps=1500", "schedule.warmup_steps=150", "sampling.batch_size=128"],
}
FIELDS["face"] += ["backbone.depth=18", "read.fit=resize"]


class Split(NamedTuple):
    """The items of a data set: four fifths of its subjects, and the others."""

    training: Items
    tested: Items


def split(items: Items, name: str, *, small: bool) -> Split:
    """Hold a fifth of the subjects out, of ten subjects with four items each where it is small."""
    if small:
        labels = list(dict.fromkeys(items.labels))[:10]
        rows = {label: [i for i, of in enumerate(items.labels) if of == label] for label in labels}
        items = items.take(np.array([row for label in labels for row in rows[label][:4]]))
    hold = partial(hold_out, items, test_share=0.2, seed=0, where=name)
    return Split(hold(split="train"), hold(split="test"))


def recipe_of(modality: str, *, small: bool) -> Recipe:
    """A network of the field, on all data of the modality at once."""
    variant = {"speaker": "resnet34", "face": "iresnet50"}[modality]
    recipe, _ = load(f"{ROOT / 'recipes' / modality / 'folders.py'}:{variant}")
    changes = [*FIELDS[modality], "schedule.eval_every=0", "schedule.watch="]
    quick = [*QUICK, "backbone.width=8"] if small else []
    return override(recipe, changes + quick)


def verify(modality: str, splits: dict[str, Split], data: Path, out: Path, *, small: bool) -> None:
    """Train on all splits together, and print a row for each system."""
    training = [item for each in splits.values() for item in each.training]
    items = speed_copies(training, (0.9, 1.1)) if modality == "speaker" else training
    recipe = replace(recipe_of(modality, small=small), measure=None)
    trained = load_model(fit(recipe, data=data, out=out / modality, items=items, resume=True))
    is_voice = modality == "speaker"
    name = "ResNet34" if is_voice else "IResNet-18"
    peer: Any = PEERS["lda"] if is_voice else FACE_PEERS["PCA and LDA"]
    table("system", *(f"{name}: EER %; minDCF(.01)" for name in splits))
    systems: dict[str, Callable[[Items], Embeddings]] = {
        name: partial(embedded_by, trained),
        "LDA": partial(peer, training),
    }
    if is_voice:
        bundled = likeness.load("likeness:voice").loaded
        systems["likeness:voice (trained on these)"] = partial(embedded_by, bundled)
    for system, embedded in systems.items():
        row(system, *(errors_in(each.tested, embedded(each.tested)) for each in splits.values()))


def embedded_by(loaded: Loaded, tested: Items) -> Embeddings:
    """The embeddings of items by a model."""
    return embed(loaded.embedder, tested, loaded.read, meta=loaded.meta)[0]


def errors_in(tested: Items, embedded: Embeddings) -> str:
    """EER and minDCF of all pairs that the system reads, by the cosine, with their intervals."""
    read = set(embedded.ids)
    trials = all_pairs([item for item in tested if item.id in read])
    return both_with_intervals(trials, score_trials(trials, embedded, similarity="cosine"))


def retrieve(data: Path, out: Path, *, small: bool) -> None:
    """Train Omniglot by three losses with three seeds, and print a row for each."""
    table("loss", *(f"{metric}, mean and standard error" for metric in METRICS))
    for name, batch_size in BATCHES.items():
        values = []
        for seed in range(2 if small else 3):
            recipe, _ = load(f"{ROOT / 'recipes' / 'image' / 'omniglot.py'}:{name}")
            changes = [f"sampling.batch_size={batch_size}", f"seed={seed}", "schedule.eval_every=0"]
            recipe = override(recipe, changes + (QUICK if small else []))
            folder = out / f"{name}-{seed}"
            fit(recipe, data=data, out=folder, resume=True)
            values.append(metrics_of(recipe.metrics, run_test(recipe, folder, data)))
        columns = np.array([[each[metric] for each in values] for metric in METRICS])
        errors = columns.std(axis=1, ddof=1) / len(values) ** 0.5
        pairs = zip(columns.mean(axis=1), errors, strict=True)
        row(name, *(f"{mean:.4f} ± {error:.4f}" for mean, error in pairs))


def main() -> None:
    """Train what is missing, and print the tables."""
    small = ("small", False, "a few steps of small networks")
    parser = parser_of(__doc__, "data", "out", small)
    arguments = parser.parse_args()
    data, out, small = arguments.data, arguments.out, arguments.small
    if not torch.cuda.is_available() and not small:
        parser.error("there is no GPU; --small runs a few steps on the CPU")
    voices = {name: split(items_of(data, name), name, small=small) for name in CORPORA}
    verify("speaker", voices, data, out, small=small)
    pictures = {name: named(name, folders.list_all(data / name, "face")) for name in FACES}
    faces = {name: split(items, name, small=small) for name, items in pictures.items()}
    verify("face", faces, data, out, small=small)
    retrieve(data, out, small=small)


if __name__ == "__main__":
    main()
