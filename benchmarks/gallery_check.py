"""Measures how many findings of `likeness gallery check` are right, and how many faults it sees.

    python benchmarks/gallery_check.py speechocean.npz orl.npz omniglot.npz

Measures: precision and recall of "misfit" with 2, 10 and 30 % of the enrolments moved to another
    subject, who is in the gallery, and of "twins" with 10 and 30 % of the subjects cut in two,
    alone and with 10 % of the enrolments moved as well. Means of five seeds.
    What it does not show: "low" has no ground truth here.
Peers: none.
Limit: the precision is at least .9 with 10 and 30 %.
Needs: files of embeddings whose ids are SUBJECT/ITEM; SUBJECT may have folders. Those of the table
    are speechocean by a model of AN4 and LibriSpeech (benchmarks/corpora.py), ORL by the recipe
    face/orl:arcface trained on other people, and the unseen alphabets of image/omniglot:arcface.
Takes: a minute.
Gives: section "Faults in galleries" of docs/reference/results.md.
"""

import sys
from typing import Any

import numpy as np
from performance import row, table

import likeness
from likeness.gallery_checks import check

SHARES = ((0.02, 0), (0.1, 0), (0.3, 0), (0, 0.1), (0, 0.3), (0.1, 0.1), (0.1, 0.3))


def faulty(subjects: Any, moved: float, cut: float, seed: int) -> tuple[list[str], set[str]]:
    """The names with faults, and which items were moved."""
    rng, names = np.random.default_rng(seed), np.unique(subjects)
    given = subjects.astype(object)
    rows = rng.choice(len(given), round(moved * len(given)), replace=False)
    for item in rows:
        given[item] = rng.choice(names[names != subjects[item]])
    for name in rng.choice(names, round(cut * len(names)), replace=False):
        mine = rng.permutation(np.flatnonzero(given == name))
        given[mine[: len(mine) // 2]] = f"{name} again"
    return [str(name) for name in given], {str(item) for item in rows}


def rates(named: set[Any], right: set[Any]) -> tuple[float, float]:
    """Precision and recall."""
    hits = len(named & right)
    return hits / max(1, len(named)), hits / max(1, len(right))


def main() -> None:
    """Print a table."""
    table("embeddings", "moved, cut in two", "misfits: precision, recall", "twins")
    for path in sys.argv[1:]:
        stored = likeness.read_embeddings(path)
        subjects = np.array([name.rpartition("/")[0] for name in stored.ids])
        numbered = likeness.Embeddings(
            [*map(str, range(len(subjects)))], stored.matrix, stored.meta
        )
        for moved, cut in SHARES:
            found = []
            for seed in range(5):
                names, wrong = faulty(subjects, moved, cut, seed)
                gallery = likeness.open_gallery(None, stored.meta)
                gallery.enrol(numbered, names)
                doubts = check(gallery).doubts
                misfits = {doubt.item for doubt in doubts if doubt.finding == "misfit"}
                pairs = {(d.subject, d.looks_like) for d in doubts if d.finding == "twins"}
                cuts = {(name.removesuffix(" again"), name) for name in names if " again" in name}
                found.append((*rates(misfits, wrong), *rates(pairs, cuts)))
            misfit, missed, twin, lost = np.mean(found, axis=0)
            first = f"{misfit:.2f}, {missed:.2f}" if moved else ""
            second = f"{twin:.2f}, {lost:.2f}" if cut else ""
            row(path, f"{100 * moved:.0f} %, {100 * cut:.0f} %", first, second)


if __name__ == "__main__":
    main()
