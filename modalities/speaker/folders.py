"""Anyone's own recordings, DATA/SPEAKER/**/*.wav (or flac, mp3, ogg, ...): items, a split by
speaker, trials. Other data sets use scan() and the pairs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from eval.types import Trials, name_first
from modalities.speaker.audio import AV_SUFFIXES, SUFFIXES
from toolkit.data import shards
from toolkit.data.batch import Item
from toolkit.data.pairs import draw_pairs, hold_out

Split = Literal["train", "test", "all"]


def items(
    data: str | Path, *, split: Split = "train", test_share: float = 0.2, seed: int = 0
) -> list[Item]:
    """Items of the speakers of one split, in order of speaker and path; id = path below `data`,
    label = speaker = first folder.

    The speakers are divided, never one speaker's files: round(test_share x speakers), at least 2,
    are held out, drawn with `seed`; with test_share 0, nobody. Raises ValueError for a folder
    without audio files, a single speaker, and too few speakers to hold some out; FileNotFoundError
    when the folder is missing.
    """
    return hold_out(
        scan(Path(data)),
        split=split,
        test_share=test_share,
        seed=seed,
        where=data,
        example="DATA/SPEAKER/file.wav",
        of="speaker",
    )


def trials(
    data: str | Path,
    *,
    split: Split = "test",
    num_trials: int = 20_000,
    test_share: float = 0.2,
    seed: int = 0,
) -> tuple[list[Item], Trials]:
    """Items of a split and trials among them: all pairs if there are at most num_trials, otherwise
    a seeded draw, half target and half nontarget, none twice.

    Where one kind has fewer than half, all of it is taken and the other kind fills up. Warns when a
    speaker has a single file (no target trial with it). Raises ValueError when no speaker has two
    files, and what items() raises.
    """
    if num_trials < 2:
        raise ValueError(f"{data}: num_trials is {num_trials}; at least 2 are needed")
    chosen = items(data, split=split, test_share=test_share, seed=seed)
    labels = [str(one.label) for one in chosen]
    names, counts = np.unique(labels, return_counts=True)
    single = [str(one) for one in names[counts == 1]]
    if len(single) == len(names):
        raise ValueError(
            f"{data}: each of the {len(names)} speakers of split {split!r} has a single file, so "
            "that no target trial exists; add files"
        )
    if single:
        warnings.warn(
            f"{data}: {len(single)} of {len(names)} speakers have a single file and so no target "
            f"trial ({name_first(single)})",
            stacklevel=2,
        )
    return chosen, draw_pairs(chosen, num_trials, np.random.default_rng(seed))


def scan(root: Path, *, example: str = "DATA/SPEAKER/file.wav") -> list[Item]:
    """Every audio file below the folders of `root`, sorted; id = posix path below root, label =
    first folder. Hidden files are passed over.

    If `root` holds .tar shards (toolkit.data.shards.write makes them), their items instead, in the
    same order.

    Raises FileNotFoundError when root is missing and ValueError when there is no audio file in a
    folder, saying what layout is expected.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; one with {example} is needed")
    allowed = SUFFIXES + AV_SUFFIXES
    if any(root.glob("*.tar")):
        return sorted(
            shards.items(root, suffixes=allowed), key=lambda one: PurePosixPath(one.id).parts
        )
    found: list[Item] = []
    for folder in sorted(
        one for one in root.iterdir() if one.is_dir() and not one.name.startswith(".")
    ):
        files = (
            one
            for one in folder.rglob("*")
            if one.suffix.lower() in allowed and not one.name.startswith(".") and one.is_file()
        )
        found += [Item(one.relative_to(root).as_posix(), one, folder.name) for one in sorted(files)]
    if not found:
        loose = sum(one.suffix.lower() in allowed for one in root.iterdir())
        beside = f"; {loose} lie directly in it, without a speaker's folder" if loose else ""
        raise ValueError(
            f"{root}: no audio files in its folders{beside}; expected {example}, with one of "
            f"{', '.join(allowed)}"
        )
    return found


def stratified_folds(
    groups: Sequence[Sequence[str]], num_folds: int, seed: int = 0
) -> list[set[str]]:
    """Divide the members of each group evenly over num_folds, drawn with `seed`; fold sizes differ
    by at most one, also within each group.

    >>> [len(fold) for fold in stratified_folds([["f1", "f2", "f3"], ["m1", "m2"]], 2)]
    [3, 2]
    """
    rng = np.random.default_rng(seed)
    shuffled = [group[i] for group in map(sorted, groups) for i in rng.permutation(len(group))]
    if not 2 <= num_folds <= len(shuffled):
        raise ValueError(
            f"num_folds is {num_folds} for {len(shuffled)} speakers; 2 to {len(shuffled)} are "
            "allowed"
        )
    return [set(shuffled[i::num_folds]) for i in range(num_folds)]


def check_split(split: str) -> None:
    """ValueError for anything but train, test and all."""
    if split not in ("train", "test", "all"):
        raise ValueError(f"split is {split!r}; allowed are 'train', 'test' and 'all'")
