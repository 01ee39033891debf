"""Which level of nested folders is the label: data/train/ann/1.wav, data/Fruit/Apple/1.jpg."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress, islice, zip_longest

from likeness.eval.errors import LikenessError
from likeness.eval.types import counted, item_keys

Names = Sequence[Sequence[str]]  # of folders, or of the folders of each level

_TOGETHER = 2**16  # files that are looked at together
_MOST = 0.9  # the share of the files that a rule has to hold for
_SHOWN = 0.1  # the share of the files that a level has to have to be proposed
_SPLIT = (
    r"(un)?(train|test|dev|development|val|valid|validation|eval|evaluation|query|queries|gallery|"
    r"probes?|enroll?|enroll?ment|hold ?out|held|seen|labell?ed)(ing|s|set|data|split|images)?"
)
_PARTS = {  # of a data set, of a recording, or of time; and formats
    *("part", "set", "subset", "split", "fold", "disc", "disk", "batch", "chunk", "shard", "vol"),
    *("session", "sess", "day", "week", "month", "year", "visit", "take", "camera", "cam"),
    *("wav", "flac", "mp3", "ogg", "opus", "m4a", "sph", "jpg", "jpeg", "png", "audio", "raw"),
}
_GROUPS = re.compile(  # of subjects or recordings, which are none themselves
    r"(fe)?males?|[mf]|(wo)?m[ae]n|boys?|girls?|clean|nois[ey]|other|phone|telephone|studio|"
    r"(mon|tues|wednes|thurs|fri|satur|sun)day|english|french|german|spanish|chinese|dr\d|"
    r"(site|room|lab)[ _-]?\w"
)
_YEAR = re.compile(r"(19|20)\d\d")
_MONTH = re.compile(r"0?[1-9]|1[0-2]")
_DATE = re.compile(r"(19|20)\d\d[-_.]?(0[1-9]|1[0-2])([-_.]?[0-3]\d)?")


def is_part(name: str) -> bool:
    """Returns whether a folder is called like a part of a data set: train, dev-clean, session2.

    Example:
        >>> [is_part(name) for name in ("TRAIN", "val2017", "bounding_box_test", "disc1", "ann")]
        [True, True, True, True, False]
    """
    words = re.split(r"[\W\d_]+", name.casefold())
    is_named = any(word in _PARTS or re.fullmatch(_SPLIT, word) for word in words)
    return is_named or _DATE.fullmatch(name) is not None


def _are_splits(names: Sequence[str]) -> bool:
    """Whether half of the names or more begin or end with a split, as test_set does, and differ."""
    words = [re.findall(r"[^\W\d_]+", name.casefold()) for name in names]
    ends = (filter(re.compile(_SPLIT).fullmatch, each[:1] + each[-1:]) for each in words)
    splits = [split for split in (next(each, "") for each in ends) if split]
    return len(set(splits)) > 1 and 2 * len(splits) >= len(names)


def doubt_of_levels(ids: Iterable[str], *, remedy: str = "") -> str:
    """Says that the first folder need not be the label, and how the others are taken.

    That is so where the first folders are splits, sessions or years, where one folder holds all
    others, where the first folders are groups such as male and female, where the second folders
    are words (Fruit/Apple), and where both are bare numbers. It is not so where each label has
    folders of numbers, hashes, sessions or splits.

    Args:
        ids: The paths of files below the folder of the data, with slashes.
        remedy: What to do where no --label can take another level.

    Returns:
        The levels with their counts and an example, and what to do; "" where nothing is doubtful.

    Example:
        >>> doubt_of_levels(["ann/1.wav", "bob/2.wav"]), doubt_of_levels(["ann/hash7/1.wav"])
        ('', '')
        >>> "level 2 has 2 such as 'ann'" in doubt_of_levels(["train/ann/1.wav", "test/bob/1.wav"])
        True
    """
    counts, examples = Counter[str](), dict[str, str]()
    rows = iter(ids)
    for block in iter(lambda: list(islice(rows, _TOGETHER)), []):
        split = [id.strip("/").rpartition("/") for id in item_keys(block)]
        counts.update([folder for folder, _, _ in split])
        examples.update([(folder, file) for folder, _, file in split])
    del counts[""]
    folders = [folder.split("/") for folder in counts]
    columns = list(zip_longest(*folders, fillvalue=""))
    depth_of = [sum(compress(counts.values(), names)) for names in columns]
    least = _SHOWN * sum(counts.values())
    reached = [names for names, num in zip(columns, depth_of, strict=True) if num >= least]
    levels = [sorted(set(filter(None, names))) for names in reached]
    if not levels or not _is_doubtful(levels, folders, depth_of, examples):
        return ""
    return _proposal(levels, folders, remedy)


def _is_doubtful(
    levels: Names, folders: Names, depth_of: Sequence[int], files: dict[str, str]
) -> bool:
    """Whether another level than the first may be the label."""
    first = levels[0]
    if _are_splits(first):
        return True
    if len(levels) < 2 or depth_of[1] < _MOST * depth_of[0]:
        return False
    top = next((level for level, names in enumerate(levels) if len(names) > 1), 0)
    second, is_last = levels[max(top, 1)], top == len(levels) - 1
    if len(first) == 1:  # one folder holds all, unless these are the sessions of one label
        return top > 0 and not (is_last and all(map(is_part, second)))
    if len(second) < 2:
        return False
    if all(_GROUPS.fullmatch(name.casefold()) for name in first):
        return True
    pairs = {tuple(names[:2]) for names in folders if len(names) > 1}
    is_number = all(map(str.isdigit, first))
    if len(pairs) == len(first) == len(second) and not is_number:  # ann/ann_photos
        return False
    if all(map(is_part, first)):
        return True
    if all(map(_YEAR.fullmatch, first)) and all(map(_MONTH.fullmatch, second)):
        return True
    if is_number and all(map(str.isdigit, second)):
        named = sum(file.startswith(folder.split("/")[0]) for folder, file in files.items())
        return named < _MOST * len(files)
    words = [name for name in second if not is_part(name) and not re.search(r"\d", name)]
    return len(words) > len(second) / 2


def _proposal(levels: Names, folders: Names, remedy: str) -> str:
    """What a user reads of doubtful levels."""
    top = "{split}" if _are_splits(levels[0]) else "*"
    shown = []
    for level, names in enumerate(levels):
        is_last = all(len(parts) <= level + 1 for parts in folders)
        above = [top, *["*"] * (level - 1)] if level else []
        pattern = "/".join([*above, "{label}", "*" if is_last else "**"])
        option = "" if remedy else f' (--label "{pattern}")'
        many = f"{len(names):,}" if level else counted(len(names), "name")
        shown.append(f"level {level + 1} has {many} such as {names[0][:40]!r}{option}")
    add = "add the option of the right level"
    if len(levels) == 1:
        add += ', or say where the label is in the names, as in --label "{split}/{label}_*"'
    return f"which folder is the label is uncertain: {', '.join(shown)}; {remedy or add}"


def labels_of_ids(ids: Iterable[str]) -> list[str]:
    """The first folder of each id, its label; "" for an id without a folder.

    Whether this folder need not be the label is asked by `check_levels`.

    Args:
        ids: The paths of files below the folder of the data. Neither ./ nor / before one is a
            folder.

    Example:
        >>> labels_of_ids(["ann/1.wav", "./bob/1.wav", "./1.wav"])
        ['ann', 'bob', '']
    """
    keys = (key.lstrip("/") for key in item_keys([*ids]))
    return [key.partition("/")[0] if "/" in key else "" for key in keys]


def check_levels(ids: Iterable[str], where: object, *, remedy: str = "") -> None:
    """Refuses ids whose first folder need not be the label, as `doubt_of_levels` finds them.

    Args:
        ids: The paths of files below the folder of the data, with slashes.
        where: What messages begin with.
        remedy: What to do where no --label can take another level.

    Raises:
        LikenessError: The levels with their counts, and what to do.
    """
    if doubt := doubt_of_levels(ids, remedy=remedy):
        raise LikenessError(f"{where}: {doubt}")
