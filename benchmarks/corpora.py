"""Measures speaker verification across corpora: trained on two, tested on a third.

    python benchmarks/corpora.py --data ../shared/data --out runs/corpora

Measures: EER and minDCF(.01) with 95 % intervals over the tested speakers. The corpora are
    speechocean (149 speakers, read English, half children), AN4 (54 speakers) and LibriSpeech (251
    speakers, one recording each, which is cut into three equal stretches). Models of all three
    are tested on FSDD (six speakers, digits of .4 s at 8 kHz) as well. All pairs of the tested
    corpus are trials. Ours are scored by their own similarity, and by cosine with AS-norm whose
    cohort is the training speakers. What is in OUT is not run again.
    What it does not show: each speaker has one session in each corpus, so that the microphone and
    the room are a cue in the tests as well.
Peers: LDA on filterbank statistics and SpeechBrain's ECAPA-TDNN without mean normalisation
    (peers.py), trained on the same recordings.
Limit: none.
Needs: speechbrain and scikit-learn, which come with Likeness, and speechocean/, an4/, librispeech/
    and fsdd/ in the folder of --data.
Takes: 2 CPU minutes a model of statistics, 5.5 one of SpeechBrain's.
Gives: section "Across corpora" of docs/reference/results.md.
"""

import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import soundfile
from folds import both_with_intervals, score_peer, train_and_score
from peers import PEERS
from people import ENDINGS
from performance import ROOT, parser_of, row, table

from likeness import Item
from likeness.data import an4, folders, read_scores, speechocean
from likeness.eval.items.items import Items
from likeness.eval.items.pairs import all_pairs
from likeness.frontends import KaldiFbank, train_view
from likeness.modalities.speaker.audio import speed_copies
from likeness.toolkit.training import recipe as recipes

RECIPE = ROOT / "recipes" / "speaker" / "speechocean.py"
CORPORA = ("speechocean", "an4", "librispeech")
NUM_STRETCHES, LEAST_SECONDS = 3, 3.0
# Fields of the recipe speaker/speechocean that a system changes.
_NOISE: dict[str, Any] = {"noise_prob": 0.1, "snr_db": (15.0, 30.0)}
ROBUST = {
    "frontend": partial(KaldiFbank, num_mels=80, cmn=False, high_hz=7000.0),
    "augment": partial(train_view, seconds=(0.8, 2.5), **_NOISE, level_dbfs=-26.0),
}
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {  # the variant of the recipe, and the changes
    "statistics": ("arcface", {}),
    "statistics_robust": ("arcface", ROBUST),
    "estimated": ("estimated", {}),
    "mixture_robust": ("mixture_arcface", ROBUST),
}


class Cell(NamedTuple):
    """What is trained on and what is tested."""

    sources: tuple[str, ...]
    target: str

    @property
    def name(self) -> str:
        """Such as "an4+librispeech-to-speechocean"."""
        return "+".join(self.sources) + "-to-" + self.target


def matrix() -> list[Cell]:
    """Two corpora to the third, and all three to FSDD."""
    two = [Cell(tuple(name for name in CORPORA if name != target), target) for target in CORPORA]
    return [*two, Cell(CORPORA, "fsdd")]


def items_of(data: Path, corpus: str) -> Items:
    """All recordings of a corpus; labels begin with its name.

    Those of LibriSpeech are stretches, and recordings below 3 s are left out.
    """
    if corpus == "librispeech":
        listed = []
        for item in folders.scan(data / "librispeech" / "flac"):
            length = soundfile.info(item.path).duration
            ends = [length * number / NUM_STRETCHES for number in range(NUM_STRETCHES + 1)]
            own = item._replace(label=f"libri-{item.label}")
            for number, stretch in enumerate(itertools.pairwise(ends)):
                if length >= LEAST_SECONDS:
                    id = f"libri-{item.id.removesuffix(item.suffix)}-{number}"
                    listed.append(own._replace(id=id, stretch=stretch))
        return Items.of(listed)
    if corpus == "fsdd":
        files = folders.list_all(data / "fsdd" / "recordings", label="*_{label}_*")
        # 0_ann_1.wav is ann/0_1.wav
        names = [f"{file.label}/{file.id.replace(f'_{file.label}_', '_')}" for file in files]
        listed = sorted(file._replace(id=id) for id, file in zip(names, files, strict=True))
    else:
        listed = list({"speechocean": speechocean, "an4": an4}[corpus].items(data, split="all"))
    return named(corpus, listed)


def named(name: str, listed: Iterable[Item]) -> Items:
    """The items, whose ids and labels begin with the name of their data set."""
    return Items.of(it._replace(id=f"{name}-{it.id}", label=f"{name}-{it.label}") for it in listed)


def run_cell(system: str, cell: Cell, data: Path, out: Path) -> str:
    """Train and score a cell; a line that says what it took, or "" where it is there already."""
    folder = out / system
    tested = items_of(data, cell.target)
    trials = all_pairs(tested)
    training: Sequence[Item] = [item for name in cell.sources for item in items_of(data, name)]
    if system in PEERS:
        return score_peer(PEERS[system], training, tested, trials, folder / f"{cell.name}.txt")
    variant, changes = SYSTEMS[system]
    recipe = replace(recipes.load(f"{RECIPE}:{variant}")[0], **changes)
    training = speed_copies(training, (0.9, 1.1))  # speeds are new classes, as in the recipe
    return train_and_score(recipe, training, tested, trials, data, folder / cell.name)


def main() -> None:
    """Train what is missing, then print the matrix."""
    systems = ("systems", "lda,speechbrain,statistics,estimated")
    arguments = parser_of(__doc__, "data", "out", systems).parse_args()
    systems, cells = arguments.systems.split(","), matrix()
    for system in systems:
        for cell in cells:
            print(run_cell(system, cell, arguments.data, arguments.out), file=sys.stderr)
    headings = [f"{'+'.join(cell.sources)} to {cell.target}" for cell in cells]
    table("EER % and minDCF(.01)", *headings)
    for system in systems:
        for ending, text in ENDINGS.items():
            files = [arguments.out / system / f"{cell.name}{ending}" for cell in cells]
            if all(file.exists() for file in files):
                row(system + text, *(both_with_intervals(*read_scores(file)) for file in files))


if __name__ == "__main__":
    main()
