"""Verification pairs of faces: the lists of LFW, CALFW, CPLFW, CFP and AgeDB, and their images.

read_folder() takes the reader by what is there. LFW's pairs.txt is read by
eval.protocols.lfw.read_pairs; OpenSphere's `label path0 path1` and other trial lists by
eval.formats.trials.read_trials.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from eval.formats.files import as_stored, at_lines, text_lines
from eval.formats.mat import agedb_folds
from eval.protocols import lfw
from eval.types import Ints, Trials, name_first
from toolkit.data.batch import Item
from toolkit.data.images import SUFFIXES

_MAX_MAT = 2**28


class Pairs(NamedTuple):
    """Trials between image ids (paths below the images' folder) and their folds (P,), from 0."""

    trials: Trials
    folds: Ints


def find_list(folder: str | Path) -> Path | None:
    """A folder's list, as the data sets come: pairs.txt, else pairs_NAME.txt, CFP's folder Protocol
    or AgeDB's .mat, None without any. ValueError: several.
    """
    folder = Path(folder)
    if (folder / "pairs.txt").is_file():  # LFW's comes with others beside it
        return folder / "pairs.txt"
    found = [
        *sorted(folder.glob("pairs_*.txt")),
        *(one for one in [folder / "Protocol"] if one.is_dir()),
        *sorted(folder.glob("*.mat")),
    ]
    if len(found) > 1:
        raise ValueError(
            f"{folder}: {len(found)} lists of pairs ({name_first([one.name for one in found])}); "
            "leave the one that is wanted"
        )
    return found[0] if found else None


def read_folder(folder: str | Path) -> Pairs:
    """The pairs of a folder, by the form of its list: read_cfp (frontal-frontal where the folder's
    name ends in ff, else frontal-profile), read_agedb, read_lfw where the first line is numbers
    alone, else read_two_lines. FileNotFoundError: no list; ValueError: what find_list() and the
    readers refuse.
    """
    folder = Path(folder)
    path = find_list(folder)
    if path is None:
        raise FileNotFoundError(
            f"{folder}: no list of pairs; pairs.txt, pairs_NAME.txt, CFP's folder Protocol or "
            "AgeDB's .mat is needed"
        )
    if path.name == "Protocol":
        return read_cfp(path, "FF" if folder.name.lower().endswith("ff") else "FP")
    if path.suffix == ".mat":
        return read_agedb(path)
    first = next(text_lines(path), (0, ""))[1].split()
    return (
        read_two_lines(path)
        if first and not all(one.isdecimal() for one in first)
        else read_lfw(path)
    )


def read_lfw(path: str | Path) -> Pairs:
    """LFW's pairs.txt, ids NAME/NAME_0001.jpg.

    As eval.protocols.lfw.read_pairs, which counts what is wrong.
    """
    return Pairs(*lfw.read_pairs(path, suffix=".jpg"))


def read_two_lines(path: str | Path, *, num_folds: int = 10) -> Pairs:
    """CALFW's pairs_CALFW.txt and CPLFW's pairs_CPLFW.txt: two lines a pair, `name.jpg label` each,
    0 for different people (CALFW: else the fold's number).

    First come all same pairs, then all different ones. Fold f takes the f-th tenth of both, and the
    result is ordered by fold, same before different, as in FaceX-Zoo
    (test_protocol/lfw/pairs_parser.py) and in InsightFace's .bin files.
    ValueError: lines of another kind, an odd number, two labels that differ, same and different
    pairs that do not divide into the folds; counted.
    """
    rows, bad = [], []
    for number, text in text_lines(path):
        fields = text.split()
        if (
            len(fields) == 2
            and fields[1].isascii()
            and fields[1].isdecimal()
            and len(fields[1]) < 10
        ):
            rows.append((fields[0], int(fields[1]) != 0))
        else:
            bad.append(number)
    if bad or len(rows) % 2 or not rows:
        where = (
            f"{len(bad)} lines are not `name.jpg label` ({at_lines(np.array(bad, dtype=np.int32))})"
            if bad
            else f"{len(rows)} lines, not two for each pair"
        )
        raise ValueError(f"{path}: {where}; fetch the file again")
    torn = [str(i + 1) for i in range(0, len(rows), 2) if rows[i][1] != rows[i + 1][1]]
    if torn:
        raise ValueError(
            f"{path}: {len(torn)} pairs have two labels (first: data line {torn[0]}); fetch the "
            "file again"
        )
    pairs = [(rows[i][0], rows[i + 1][0], rows[i][1]) for i in range(0, len(rows), 2)]
    same, different = [one for one in pairs if one[2]], [one for one in pairs if not one[2]]
    if (
        num_folds < 1
        or len(same) % num_folds
        or len(different) % num_folds
        or not same
        or not different
    ):
        raise ValueError(
            f"{path}: {len(same)} same and {len(different)} different pairs do not divide into "
            f"{num_folds} folds; fetch the file again"
        )
    each = [len(one) // num_folds for one in (same, different)]
    folds = [
        [*same[f * each[0] : (f + 1) * each[0]], *different[f * each[1] : (f + 1) * each[1]]]
        for f in range(num_folds)
    ]
    return _pairs(folds)


def read_cfp(protocol: str | Path, kind: Literal["FF", "FP"] = "FP") -> Pairs:
    """CFP's folder Protocol: Pair_list_F.txt and Pair_list_P.txt (`number path`),
    Split/FP/01..10/{same,diff}.txt (`number,number`, frontal first).

    Ids are the paths below the data set's folder, Data/Images/001/frontal/01.jpg. FF: both frontal.
    ValueError and FileNotFoundError say what is missing.
    """
    if kind not in ("FF", "FP"):
        raise ValueError(
            f"read_cfp: kind is {kind!r}; choose 'FF' (frontal-frontal) or 'FP' (frontal-profile)"
        )
    protocol = Path(protocol)
    sides = [_numbered_paths(protocol / f"Pair_list_{side}.txt") for side in ("F", kind[1])]
    splits = sorted(one for one in (protocol / "Split" / kind).glob("*") if one.is_dir())
    if len(splits) < 2:
        raise FileNotFoundError(
            f"{protocol / 'Split' / kind}: {len(splits)} folders of folds; 01 to 10 are needed, "
            "from the data set's archive"
        )
    folds = []
    for split in splits:
        fold = []
        for name, same in (("same.txt", True), ("diff.txt", False)):
            bad = []
            for number, text in text_lines(split / name):
                fields = [one.strip() for one in text.split(",")]
                if len(fields) == 2 and fields[0] in sides[0] and fields[1] in sides[1]:
                    fold.append((sides[0][fields[0]], sides[1][fields[1]], same))
                else:
                    bad.append(number)
            if bad:
                raise ValueError(
                    f"{split / name}: {len(bad)} lines are not two numbers of the image lists "
                    f"({at_lines(np.array(bad, dtype=np.int32))})"
                )
        folds.append(fold)
    return _pairs(folds)


def read_agedb(path: str | Path) -> Pairs:
    """AgeDB's new_protocol_30.mat (or another year's): a cell `splits` of folds, each with the two
    images' names and labels 1 and -1; ids NAME.jpg.

    The nesting is that of FaceX-Zoo's parser (test_protocol/lfw/pairs_parser.py). ValueError if it
    is otherwise.
    """
    path = Path(path)
    if path.stat().st_size > _MAX_MAT:
        raise ValueError(f"{path}: over {_MAX_MAT} bytes; this is no list of pairs")
    try:
        folds = [
            [(first, second, same) for first, second, same in fold] for fold in agedb_folds(path)
        ]
    except ValueError as error:
        raise ValueError(
            f"{path}: no protocol of AgeDB ({str(error).removeprefix(f'{path}: ')[:160]}); fetch "
            "the file again"
        ) from None
    if len(folds) < 2 or not all(folds):
        raise ValueError(
            f"{path}: {len(folds)} folds, {sum(not one for one in folds)} of them empty; fetch the "
            "file again"
        )
    return _pairs(folds)


def find_images(trials: Trials, root: str | Path) -> list[Item]:
    """The image of every id of a list: root/id, or, for ids without a suffix, the first of .jpg,
    .png, ... that is there. label = the image's folder, if any.

    ValueError counts the ids that name no file, or one outside root, and names the first.
    """
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root}: no such folder; one with the images of the pairs is needed"
        )
    ids = list(dict.fromkeys((*trials.enrol_ids, *trials.probe_ids)))
    found: list[Item] = []
    missing = []
    for one in ids:
        named = root / one
        inside = ".." not in named.parts and not Path(one).is_absolute()
        suffixes = ("",) if named.suffix.lower() in SUFFIXES else SUFFIXES
        candidates = [as_stored(root, one + suffix) for suffix in suffixes] if inside else []
        there = next(
            (path for path in candidates if os.path.isfile(path)), None
        )  # Path.is_file raises where a name is too long
        if there is None:
            missing.append(one)
        else:
            found.append(Item(one, there, Path(one).parent.name or None))
    if missing:
        raise ValueError(
            f"{root}: {len(missing)} of {len(ids)} images of the pairs are not there "
            f"({name_first(missing)}); fetch them or correct the list"
        )
    return found


def _pairs(folds: Sequence[Sequence[tuple[str, str, bool]]]) -> Pairs:
    rows = [one for fold in folds for one in fold]
    ids = tuple(dict.fromkeys(name for first, second, _ in rows for name in (first, second)))
    number = {one: i for i, one in enumerate(ids)}
    sides = np.array([(number[first], number[second]) for first, second, _ in rows], dtype=np.int32)
    fold_of = np.repeat(np.arange(len(folds), dtype=np.int32), [len(fold) for fold in folds])
    return Pairs(
        Trials(
            ids, ids, sides[:, 0], sides[:, 1], np.array([row[2] for row in rows], dtype=np.bool_)
        ),
        fold_of,
    )


def _numbered_paths(path: Path) -> dict[str, str]:
    """Number -> path below the data set's folder; the list states it from the list's own folder."""
    paths: dict[str, str] = {}
    bad = []
    for number, text in text_lines(path):
        fields = text.split(maxsplit=1)
        if (
            len(fields) == 2
            and fields[0].isascii()
            and fields[0].isdecimal()
            and fields[0] not in paths
        ):
            paths[fields[0]] = fields[1].strip().removeprefix("../")
        else:
            bad.append(number)
    if bad or not paths:
        raise ValueError(
            f"{path}: {len(bad)} lines are not `number path` with a new number "
            f"({at_lines(np.array(bad, dtype=np.int32))}); fetch the file again"
        )
    return paths
