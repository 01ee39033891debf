"""Verification pairs of faces: the lists of LFW, CALFW, CPLFW, CFP and AgeDB, and their images.

read_folder() chooses the reader by what is in a folder. LFW's pairs.txt is read by
likeness.eval.protocols.lfw.read_pairs. OpenSphere's `label path0 path1` and other trial lists are
read by likeness.eval.formats.trials.read_trials.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.files import as_stored, read_mat, text_lines
from likeness.eval.items.items import Item
from likeness.eval.items.suffixes import IMAGES
from likeness.eval.protocols import lfw
from likeness.eval.types import Trials, name_first

_MAX_MAT = 2**24
_NUM_FOLDS = 10


def find_list(folder: str | Path) -> Path | None:
    """Find the list of pairs in a folder, as the data sets come.

    The list is pairs.txt, otherwise pairs_NAME.txt, CFP's folder Protocol or AgeDB's .mat.

    Args:
        folder: The folder of a data set.

    Returns:
        The path of the list, or None if there is none.

    Raises:
        LikenessError: There are several lists.
    """
    folder = Path(folder)
    # LFW's pairs.txt comes with other lists beside it.
    if (folder / "pairs.txt").is_file():
        return folder / "pairs.txt"
    lists = [path for kind in ("pairs_*.txt", "Protocol", "*.mat") for path in folder.glob(kind)]
    if len(lists) > 1:
        raise LikenessError(
            f"{folder}: several lists ({name_first(sorted(p.name for p in lists))}); leave one"
        )
    return lists[0] if lists else None


def read_folder(folder: str | Path) -> Trials:
    """Read the pairs of a folder, by the form of its list.

    CFP's folder Protocol is read by read_cfp(), frontal-frontal where the folder's name ends in ff
    and frontal-profile otherwise. A .mat is read by read_agedb(). A text whose first line is
    numbers alone is LFW's, whose ids are NAME/NAME_0001.jpg; any other is read by read_two_lines().

    Args:
        folder: The folder of a data set.

    Returns:
        The trials, fold by fold; ids are paths below the images' folder.

    Raises:
        LikenessError: There is no list. What find_list() and the readers refuse.
    """
    folder = Path(folder)
    path = find_list(folder)
    if path is None:
        raise LikenessError(
            f"{folder}: no list of pairs; put pairs.txt, pairs_NAME.txt, Protocol or a .mat there"
        )
    if path.name == "Protocol":
        return read_cfp(path, "FF" if folder.name.lower().endswith("ff") else "FP")
    if path.suffix == ".mat":
        return read_agedb(path)
    first = next(text_lines(path), (0, ""))[1].split()
    if first and not all(field.isdecimal() for field in first):
        return read_two_lines(path)
    return lfw.read_pairs(path, suffix=".jpg")[0]


def read_two_lines(path: str | Path) -> Trials:
    """Read CALFW's pairs_CALFW.txt or CPLFW's pairs_CPLFW.txt, which have two lines a pair.

    Each line is `name.jpg label`, with 0 for different people and anything else for the same (CALFW
    writes the fold's number). The file lists all same pairs first, then all different ones. Each of
    the ten folds takes a tenth of both. The result is ordered by fold, same before different, as in
    FaceX-Zoo (test_protocol/lfw/pairs_parser.py) and in InsightFace's .bin files.

    Args:
        path: The list.

    Returns:
        The trials.

    Raises:
        LikenessError: Lines are of another kind, pairs have one line or two labels, or the numbers
            of same and different pairs do not divide into ten folds.
    """
    rows = []
    for number, text in text_lines(path):
        name, _, label = text.strip().rpartition(" ")
        if not name or not label.isdecimal():
            raise _torn(path, number, "name.jpg label")
        rows.append((name.strip(), label != "0"))
    pairs = list(zip(rows[::2], rows[1::2], strict=False))
    same, different = (
        [(first[0], second[0], label) for first, second in pairs if first[1] == label]
        for label in (True, False)
    )
    if (
        len(rows) % 2
        or any(first[1] != second[1] for first, second in pairs)
        or not (same and different)
        or len(same) % _NUM_FOLDS
        or len(different) % _NUM_FOLDS
    ):
        raise LikenessError(
            f"{path}: {len(rows)} lines of {len(same)} same and {len(different)} different pairs "
            f"do not divide into {_NUM_FOLDS} folds of pairs of two lines; fetch the file again"
        )
    s, d = len(same) // _NUM_FOLDS, len(different) // _NUM_FOLDS
    return lfw.make_trials(
        [
            pair
            for f in range(_NUM_FOLDS)
            for pair in (*same[f * s : (f + 1) * s], *different[f * d : (f + 1) * d])
        ]
    )


def read_cfp(protocol: str | Path, kind: Literal["FF", "FP"] = "FP") -> Trials:
    """Read CFP's folder Protocol.

    It holds Pair_list_F.txt and Pair_list_P.txt (`number path`), and
    Split/FP/01..10/{same,diff}.txt (`number,number`, frontal first). Ids are the paths below the
    data set's folder, such as Data/Images/001/frontal/01.jpg.

    Args:
        protocol: The folder Protocol.
        kind: "FP" for frontal-profile, "FF" for frontal-frontal.

    Returns:
        The trials.

    Raises:
        LikenessError: There are no folders of folds, or lines of a list are of another kind.
    """
    protocol = Path(protocol)
    sides = [_numbered_paths(protocol / f"Pair_list_{side}.txt") for side in ("F", kind[1])]
    splits = sorted(path for path in (protocol / "Split" / kind).glob("*") if path.is_dir())
    if len(splits) < 2:
        raise LikenessError(
            f"{protocol / 'Split' / kind}: {len(splits)} folds; take 01 to 10 from the archive"
        )
    return lfw.make_trials(
        [
            (*pair, same)
            for split in splits
            for name, same in (("same.txt", True), ("diff.txt", False))
            for pair in _numbered_pairs(split / name, *sides)
        ]
    )


def _numbered_pairs(
    path: Path, left: Mapping[str, str], right: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Read the pairs of a list of `number,number`; left and right give the path of each number."""
    pairs = []
    for number, text in text_lines(path):
        fields = [field.strip() for field in text.split(",")]
        if len(fields) != 2 or fields[0] not in left or fields[1] not in right:
            raise _torn(path, number, "two numbers of the image lists")
        pairs.append((left[fields[0]], right[fields[1]]))
    return pairs


def read_agedb(path: str | Path) -> Trials:
    """Read AgeDB's new_protocol_30.mat, or that of another year; ids are NAME.jpg.

    The file holds a cell `splits` of folds, each with the names of two images and labels 1 and -1.
    The nesting is that of FaceX-Zoo's parser (test_protocol/lfw/pairs_parser.py).

    Args:
        path: The file.

    Returns:
        The trials.

    Raises:
        LikenessError: The file is nested otherwise, is too large, or has too few or empty folds.
    """
    path = Path(path)
    content = read_mat(path, "splits", max_bytes=_MAX_MAT)
    try:
        folds = [_agedb_fold(fold[0][0][0]) for fold in content]
        if len(folds) < 2 or not all(folds):
            raise LikenessError(f"{len(folds)} folds, of which at least 2 are needed, none empty")
    except Exception as error:  # arrays of other nesting raise many kinds
        raise LikenessError(
            f"{path}: this is no protocol of AgeDB ({first_line(error)}); fetch the file again"
        ) from None
    return lfw.make_trials([pair for fold in folds for pair in fold])


def _agedb_fold(record: Any) -> list[tuple[str, str, bool]]:
    """Return the pairs of one fold.

    record[0] has (2, P) cells of structs whose first field is the image's name, and record[1] has
    (1, P) labels.
    """
    names, labels = record[0], record[1][0].tolist()
    first, second = ([f"{cell[0][0][0][0]}.jpg" for cell in names[side]] for side in (0, 1))
    same = [label == 1 for label in labels]
    return list(zip(first, second, same, strict=True))


def find_images(trials: Trials, root: str | Path) -> list[Item]:
    """Find the image of every id of a list.

    The image is root/id or, for ids without a suffix, the first of .jpg, .png, ... that is there.

    Args:
        trials: The trials whose ids are looked for.
        root: The folder of the images.

    Returns:
        One item for each id; its label is the image's folder, if there is any.

    Raises:
        LikenessError: Ids name no file, or one outside root; they are counted, and
            the first is named.
    """
    root = Path(root)
    ids = list(dict.fromkeys((*trials.enrol_ids, *trials.probe_ids)))
    items: list[Item] = []
    missing = []
    for id in ids:
        written = root / id
        inside = ".." not in written.parts and not Path(id).is_absolute()
        suffixes = ("",) if written.suffix.lower() in IMAGES else IMAGES
        candidates = [root / as_stored(root, id + suffix) for suffix in suffixes] if inside else []
        # Path.is_file raises where a name is too long.
        path = next((path for path in candidates if os.path.isfile(path)), None)
        if path is None:
            missing.append(id)
        else:
            items.append(Item(id, path, Path(id).parent.name or None))
    if missing:
        raise LikenessError(
            f"{root}: {len(missing)} of {len(ids)} images of the pairs are not there "
            f"({name_first(missing)}); fetch them or correct the list"
        )
    return items


def _torn(path: str | Path, number: int, form: str) -> LikenessError:
    """The error for a line of another form."""
    return LikenessError(f"{path}: line {number} is not `{form}`; fetch the file again")


def _numbered_paths(path: Path) -> dict[str, str]:
    """Map numbers to paths below the data set's folder, which the list states from its own."""
    paths: dict[str, str] = {}
    for number, text in text_lines(path):
        fields = text.split(maxsplit=1)
        if len(fields) != 2 or fields[0] in paths:
            raise _torn(path, number, "number path")
        paths[fields[0]] = fields[1].strip().removeprefix("../")
    return paths
