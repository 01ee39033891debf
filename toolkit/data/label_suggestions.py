"""Labels that look wrong: folders that name no subjects, and names that differ only in case."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from likeness.eval.items.labels import LabelPattern
from likeness.eval.items.levels import Names, is_part

Pairs = Sequence[tuple[str, str]]  # the first folder and the label of each path

_NUMBERED = re.compile(r"[^\W\d]*-?\d+")
_SUBJECT = re.compile(r"(?i:spk|speaker|s|id|subj?|subject|p|person|user|client)[_-]?\d+")
_SEPARATORS = re.compile(r"([_\-. ]+)")
_MOST = 0.9  # the share of the paths that a rule has to hold for
_LEAST_NUMBERS = 4  # of subjects that numbers are taken for
_SHARED = 0.5  # the share of the items whose name occurs under several labels


def alike(labels: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns the groups of labels that differ only in case, blanks, _ or -.

    Example:
        >>> alike(["Ann", "ann ", "bob", "J_Doe", "J Doe"])
        [('Ann', 'ann '), ('J Doe', 'J_Doe')]
    """
    groups = defaultdict(set)
    for label in labels:
        groups[" ".join(re.split(r"[\s_-]+", label.strip().casefold()))].add(label)
    return sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1)


def suggest_labels(
    paths: Sequence[str], *, are_voices: bool
) -> tuple[str, tuple[str, ...], str] | None:
    """Finds out whether the first folder of each path is no subject.

    Nested folders are looked at by `levels`. Here it is so where all items lie in one folder, or in
    folders such as part1 and flac, and where parts of the names of files return under many first
    folders and look like subjects: numbers behind a word such as spk; or, for voices, words and
    hashes, as in Speech Commands (word/HASH_nohash_0.wav). Files that name their folder are no such
    sign, nor are running numbers. Of voices in folders that are called by words, a number before
    another number, as in backward/00000001_NO_01.wav, is taken for a subject if all folders have
    the same ones, and more of them than files of each.

    Args:
        paths: The path of each item below the folder of the data, with slashes.
        are_voices: Whether they are recordings. Of images, words in names are rather poses.

    Returns:
        A pattern of the paths whose labels fit better, such as "{word}/{label}_*"; these labels,
        sorted; and why the first folders are none. None where they may be the subjects.

    Example:
        >>> paths = [f"{word}/{name}_{i}.wav" for word in "abc" for name in ("ann", "bob")
        ...          for i in range(3)]
        >>> suggest_labels(paths, are_voices=True)
        ('{word}/{label}_*', ('ann', 'bob'), 'the same names return in 3 folders each')
        >>> suggest_labels([f"{n}/rec_{i}.wav" for n in "ab" for i in (1, 2)], are_voices=True)
    """
    parts = [path.split("/") for path in paths]
    deep = [names for names in parts if len(names) >= 2]
    if len(deep) < max(2, _MOST * len(paths)):
        return None
    first = {names[0] for names in deep}
    why = "they are parts of a data set" if all(map(is_part, first)) else ""
    why = "one folder holds all items" if len(first) == 1 else why
    for pattern, pairs in _candidates(deep):
        shared, names = _shared(pairs), tuple(sorted({name for _, name in pairs}))
        is_few = 1 < len(names) <= len(pairs) / 2
        if why and is_few and _are_subjects({*names}, first, deep, True):
            return pattern, names, why
        if shared and _are_subjects(set(shared), first, deep, are_voices):
            mean = sum(shared.values()) / len(shared)
            return pattern, names, f"the same names return in {mean:.3g} folders each"
        if are_voices and _are_numbered(pattern, pairs, deep):
            return pattern, names, f"the same numbers return in each of {len(first)} folders"
    return None


def _candidates(deep: Names) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Patterns, and the first folder and the label that each path has by the pattern."""
    depth = Counter(map(len, deep)).most_common(1)[0][0]
    patterns = []
    written = "{word}/" if depth == 2 else "{word}/**/"
    stems = [_SEPARATORS.split(names[-1].rpartition(".")[0] or names[-1]) for names in deep]
    width = Counter(map(len, stems)).most_common(1)[0][0]
    example = next(stem for stem in stems if len(stem) == width)
    for place, mark in enumerate([*example[1::2], "."]):
        patterns.append(f"{written}{{label}}{mark}*")
        written += f"{{part{place + 1}}}{mark}"
    for pattern in map(LabelPattern, patterns):
        fields = [(names[0], pattern.fields("/".join(names))) for names in deep]
        pairs = [(folder, values["label"]) for folder, values in fields if values is not None]
        if len(pairs) >= _MOST * len(deep):
            yield pattern.text, pairs


def _shared(pairs: Pairs) -> dict[str, int]:
    """The names that are under several first folders, and under how many; none if few are."""
    folders = defaultdict(set)
    for folder, name in pairs:
        folders[name].add(folder)
    shared = {name: len(under) for name, under in folders.items() if len(under) > 1}
    num_items = sum(name in shared for _, name in pairs)
    return shared if len(shared) > 1 and num_items >= _SHARED * len(pairs) else {}


def _are_numbered(pattern: str, pairs: Pairs, deep: Names) -> bool:
    """Whether names are numbers of subjects, of whom each folder has the same."""
    folders, values = {folder for folder, _ in pairs}, {name for _, name in pairs}
    cells, behind = len(set(pairs)), 2 * pattern.count("{part") + 2
    stems = (_SEPARATORS.split(names[-1].rpartition(".")[0])[behind:] for names in deep)
    return (
        all(map(str.isdigit, values))
        and not any(map(_NUMBERED.fullmatch, folders))
        and len(folders) > 1
        and cells >= _MOST * len(folders) * len(values)
        and len(values) > max(_LEAST_NUMBERS - 1, len(pairs) / cells)
        and sum(any(map(str.isdigit, stem)) for stem in stems) >= _MOST * len(deep)
    )


def _are_subjects(values: set[str], folders: set[str], deep: Names, are_voices: bool) -> bool:
    """Whether names that return under many folders look like subjects."""
    if all(map(is_part, values)) or values <= folders:
        return False
    if all(map(_NUMBERED.fullmatch, values)):
        return all(map(_SUBJECT.fullmatch, values))
    # Files that name their folder, as ann/hello-ann.wav, are in the folder of their subject.
    named = sum(parts[0] in _SEPARATORS.split(parts[-1].rpartition(".")[0]) for parts in deep)
    return are_voices and (named < _MOST * len(deep) or all(map(str.isdigit, folders)))
