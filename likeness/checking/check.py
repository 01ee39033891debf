"""Checks a data set before anything trains on it: its files, its labels, and what leaks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from likeness.checking import _confounds
from likeness.checking._files import Seen, inspection_of, look_at, read_headers
from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings, embeddings_of
from likeness.eval.formats.files import File
from likeness.eval.intervals.subjects import connected_groups
from likeness.eval.items.items import Items
from likeness.eval.items.levels import check_levels
from likeness.eval.items.listing import is_plain_folder
from likeness.eval.items.suffixes import suffixes_of
from likeness.eval.metrics.cleaning import fit_of, near_pairs, suspects
from likeness.eval.option import Option
from likeness.modalities.folders import Modality, list_most
from likeness.models.inputs import check_root
from likeness.toolkit.data import shards
from likeness.toolkit.data.label_suggestions import alike, suggest_labels

FEW = 2  # items of a label: with so many or fewer, hardly any pair of them can be drawn
LEAST_LABELS = 4  # that recipes which hold subjects out need: two to train on, two to test
_MOST_LOOKED_AT = 2_000  # items, before a training
CLIPPED_SHARE = 0.001  # of the samples of a recording, from which on it is called clipped
NEAR = 0.98  # the cosine from which on two items are called nearly the same
_NO_SUBJECT = "no subject (one colour, a gradient or noise)"
# Of each modality what a label is, and several; what items are; and what an empty one holds.
_WORDS = {
    "speaker": ("speaker", "speakers", "Recordings", "no voice (silence, noise or a tone)"),
    "face": ("subject", "subjects", "Images", _NO_SUBJECT),
    "image": ("class", "classes", "Images", _NO_SUBJECT),
}
# What is found, without its count. The words in braces are those of the modality.
_TEXTS = {
    "name": "Files and folders whose names are not UTF-8, or whose paths are too long",
    "missing": "{items} that do not exist",
    "unreadable": "{items} that cannot be read",
    "cut": "{items} that end before their header says",
    "empty": "{items} that hold {nothing}",
    "doubtful": "{items} that may hold {nothing}",
    "conflict": "{items} that are there with several labels (by the SHA-256 of their {content})",
    "duplicate": "Copies of another item with the same label (by the SHA-256 of their {content})",
    "leak-content": "{items} that are in the test data too",
    "leak-subject": "{Labels} that are in the training and in the test data",
    "no-label": "{items} without a label",
    "folder-label": "Folders that are taken for {labels}, but {why}",
    "one-label": "Labels in all",
    "alike-labels": "Groups of labels that differ only in case, blanks, _ or -",
    "few-items": f"{{Labels}} with {FEW} items or fewer",
    "one-session": "{Labels} with one session only",
    "goes-with-label": "{Labels} that their {what} gives away",
    "clipped": f"Recordings of which {100 * CLIPPED_SHARE:g} % of the samples or more are clipped",
    "near-duplicate": f"Items with a cosine of {NEAR} or more to another one",
    "wrong-label": "Items that look like another {label} than the label says",
}
# What to do.
_REMEDIES = {
    "name": "Rename them: they are left out.",
    "missing": "Correct the paths, or say with --root where they start.",
    "unreadable": "Write or fetch them again, or leave them out.",
    "cut": "Fetch them again.",
    "empty": "Leave them out.",
    "doubtful": "Look at them. They can be trained on, and are kept.",
    "conflict": "At most one of the labels is right: correct or remove the others.",
    "duplicate": "Keep one of each.",
    "leak-content": "A test on what was trained on measures nothing: remove them from one side.",
    "leak-subject": "A test needs subjects that were never trained on: give each to one side.",
    "no-label": "Put each into a folder of its {label}, or take the labels from names by --label.",
    "folder-label": "If the names are the {labels}, --label '{pattern}' gives {suggested}.",
    "one-label": f"Training needs {LEAST_LABELS} {{labels}}: say by --label where they stand.",
    "alike-labels": "If they are one {label}, write them alike: training would drive them apart.",
    "few-items": "Nothing can be learnt of what varies within one: collect more, or expect little.",
    "one-session": "Microphone, room and light tell them apart too: collect a second session, and "
    "test by `likeness lists --cross-session`.",
    "goes-with-label": "A model may learn it, not the {label} ({measured}): collect each {label} "
    "in several.",
    "clipped": "Record with less gain. They can be trained on, and are kept.",
    "near-duplicate": "Look whether they are copies and keep one of each; --clean keeps the first.",
    "wrong-label": "Look at them, the surest first, and correct the labels; --clean omits them.",
}
_PROBLEMS = ("missing", "unreadable", "cut", "empty")
_LEFT_OUT = (*_PROBLEMS, "conflict", "duplicate", "leak-content")
_LEFT_OUT_IF_CLEAN = ("near-duplicate", "wrong-label")


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong.

    Attributes:
        kind: A short name, such as "duplicate", which stays the same between versions.
        count: How many items, labels or groups it concerns.
        text: A sentence that says what was found, with the count.
        remedy: A sentence that says what to do.
        groups: The items or labels. Those of one group belong together, as copies of one file do.
        details: A text for some of the items, such as the sentence of the reader.
        of: "items", whose ids the groups hold, or "labels".
    """

    kind: str
    count: int
    text: str
    remedy: str
    groups: tuple[tuple[str, ...], ...]
    details: Mapping[str, str] = field(default_factory=dict)
    of: str = "items"


@dataclass
class Checked:
    """A data set and what was found in it.

    Attributes:
        data: What was checked, as it was given.
        modality: "speaker", "face" or "image".
        items: All N items.
        files: (N,) what was seen of the file of each.
        decoded: Whether their content was decoded.
        clean: Whether items whose label is likely wrong, and near copies, are left out too.
        findings: What looks wrong, the gravest first.
        notes: What could not be checked, and why.
        left_out: (N,) why an item is not to be trained on; "" where it is.
    """

    data: str
    modality: Modality
    items: Items
    files: Sequence[Seen] = ()
    decoded: bool = False
    clean: bool = False
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(init=False)
    _words: dict[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.left_out = [""] * len(self.items)
        self._ids, self._labels = list(self.items.ids), list(self.items.labels)
        label, labels, items, nothing = _WORDS[self.modality]
        self._words = {"label": label, "labels": labels, "items": items, "nothing": nothing}
        content = "decoded content" if self.decoded else "bytes"
        self._words |= {"Labels": labels.capitalize(), "content": content}

    def _add_all(
        self, root: Path | None, passed_over: Iterable[str], test: Items, tested: Sequence[Seen]
    ) -> None:
        """Add everything that is found without embeddings.

        Args:
            root: The folder of the data, where the labels are its sub-folders.
            passed_over: Names that cannot be used.
            test: The test data.
            tested: What was seen of the file of each.
        """
        names = dict.fromkeys(passed_over)
        self._add("name", [(name.encode("utf-8", "backslashreplace").decode(),) for name in names])
        self._add_problems()
        self._add_copies()
        self._add_leaks(test, tested)
        self._add_labels(root)
        self._add_confounds(self.items, self.files)
        self._add_sessions()
        self._add_clipped()
        if not self.decoded:
            self.notes.append(
                f"The files were not decoded: those that hold {self._words['nothing']}, that are "
                "clipped or copies in other formats are not known. --decode decodes them."
            )

    def _add(
        self,
        kind: str,
        groups: Iterable[Sequence[int | str]] | None = None,
        details: Mapping[Any, str] | None = None,
        count: int | None = None,
    ) -> None:
        """Add a finding, if there are groups.

        Items are given by their rows, labels by their names.

        Args:
            kind: Its short name, one of `_TEXTS`.
            groups: The items or labels; by default each of the details alone.
            details: A text for some of them. Where the kind is left out, these are left out, and
                the texts are the reasons.
            count: How many it concerns; by default one of each group.
        """
        details = details or {}
        groups = [(key,) for key in details] if groups is None else list(groups)
        if not groups:
            return
        chosen = tuple(tuple(map(self._name, group)) for group in groups)
        count = len(chosen) if count is None else count
        what, remedy = (text[kind].format(**self._words) for text in (_TEXTS, _REMEDIES))
        texts = {self._name(key): text for key, text in details.items()}
        of = "items" if isinstance(groups[0][0], int) else "labels"
        self.findings.append(Finding(kind, count, f"{what}: {count:,}.", remedy, chosen, texts, of))
        if kind in _LEFT_OUT or (kind in _LEFT_OUT_IF_CLEAN and self.clean):
            self._leave_out({row: f"{kind}: {text}" for row, text in details.items()})

    def _leave_out(self, reasons: Mapping[Any, str]) -> None:
        """Leave rows out of what is trained on; the first reason stays."""
        for row, reason in reasons.items():
            self.left_out[row] = self.left_out[row] or reason

    def _name(self, key: int | str) -> str:
        return self._ids[key] if isinstance(key, int) else key

    def _add_problems(self) -> None:
        """Add the files that cannot be used."""
        problems = {row: each.problem for row, each in enumerate(self.files) if each.problem}
        for kind in _PROBLEMS:
            of_kind = {row: each.reason for row, each in problems.items() if each.kind == kind}
            self._add(kind, details=of_kind)
        doubts = {row: each.content.doubt for row, each in enumerate(self.files) if each.content}
        self._add("doubtful", details={row: doubt for row, doubt in doubts.items() if doubt})

    def _add_copies(self) -> None:
        """Add the items that are copies of others."""
        rows_of = defaultdict(list)
        for row, each in enumerate(self.files):
            if each.same is not None:
                rows_of[each.same].append(row)
        several, same_label = [], []
        conflicts = dict[int, str]()
        for rows in rows_of.values():
            labels = sorted({str(self._labels[row] or "no label") for row in rows})
            if len(labels) > 1:
                several.append(rows)
                conflicts |= dict.fromkeys(rows, f"it is there under {' and '.join(labels)}")
            elif len(rows) > 1:
                same_label.append(rows)
        self._add("conflict", several, conflicts)
        self._add_same("duplicate", same_label)

    def _add_same(self, kind: str, groups: Sequence[Sequence[int]]) -> None:
        """Add groups of rows that are copies of their first, and are counted."""
        copies = {row: f"of {self._ids[rows[0]]}" for rows in groups for row in rows[1:]}
        self._add(kind, groups, copies, len(copies))

    def _add_leaks(self, test: Items, tested: Sequence[Seen]) -> None:
        """Add what is in the training and in the test data."""
        known = {each.same: name for each, name in zip(tested, test.ids, strict=True) if each.same}
        leaks = {row: known[each.same] for row, each in enumerate(self.files) if each.same in known}
        groups = [(row, f"test: {name}") for row, name in leaks.items()]
        reasons = {row: f"in the test data as {name}" for row, name in leaks.items()}
        self._add("leak-content", groups, reasons)
        there = {str(name).strip().casefold() for name in test.labels if name is not None}
        both = {name for name in self._labels if name and name.strip().casefold() in there}
        self._add("leak-subject", [(name,) for name in sorted(both)])
        for row, name in enumerate(self._labels):
            if name in both:
                self._leave_out({row: f"leak-subject: {name} is in the test data"})

    def _add_labels(self, root: Path | None) -> None:
        """Add the labels that look wrong."""
        counts = Counter(name for name in self._labels if name is not None)
        without = [row for row, name in enumerate(self._labels) if name is None]
        self._add("no-label", [(row,) for row in without])
        self._leave_out(dict.fromkeys(without, "no-label"))
        if self._add_suggested(counts, root):
            return  # what follows would be about labels that are none
        if len(counts) == 1:
            self._add("one-label", [tuple(counts)])
        self._add("alike-labels", alike(counts))
        few = sorted(name for name, count in counts.items() if count <= FEW)
        if len(counts) > 1:
            self._add("few-items", details={name: f"items: {counts[name]}" for name in few})

    def _add_suggested(self, counts: Collection[str] | NDArray[Any], root: Path | None) -> bool:
        """Add the finding that the folders are no subjects; returns whether they are none."""
        if root is None:
            return False
        before = (root / "x").as_posix()[:-1]
        folders, files = (self.items.table[name].to_pylist() for name in ("folder", "file"))
        paths = [path.removeprefix(before) for path in map(add, folders, files)]
        suggestion = suggest_labels(paths, are_voices=self.modality == "speaker")
        if suggestion is None:
            return False
        pattern, names, why = suggestion
        self._words |= {"why": why, "pattern": pattern}
        self._words["suggested"] = f"{len(names):,}, as {names[0]!r}"
        self._add("folder-label", [names], count=len(counts))
        return True

    def _add_confounds(self, items: Items, files: Sequence[Seen]) -> None:
        """Add what goes with the labels beside what they mean."""
        for each in _confounds.find(items, files):
            self._words |= {"what": each.what, "measured": each.measured}
            self._add("goes-with-label", details=each.labels)

    def _add_sessions(self) -> None:
        """Add the subjects of whom one session is known."""
        if self.modality == "image" or "session" not in self.items.further:
            return
        sessions = defaultdict(set)
        for name, session in zip(self._labels, self.items.column("session"), strict=True):
            if name is not None and session is not None:
                sessions[name].add(session)
        self._add("one-session", [(name,) for name in sorted(sessions) if len(sessions[name]) == 1])

    def _add_clipped(self) -> None:
        """Add the recordings that are clipped. They are kept."""
        shares = {row: of.content.clipped for row, of in enumerate(self.files) if of.content}
        clipped = {row: share for row, share in shares.items() if share >= CLIPPED_SHARE}
        texts = {row: f"{100 * share:.2g} % clipped" for row, share in clipped.items()}
        self._add("clipped", details=texts)

    def _add_similar(self, embeddings: Embeddings) -> None:
        """Add labels that are likely wrong and items that are nearly the same.

        Items that are left out already are not compared.
        """
        row_of = {id: row for row, id in enumerate(embeddings.ids)}
        kept = [row for row, reason in enumerate(self.left_out) if not reason]
        rows = [row for row in kept if self._ids[row] in row_of]
        if not kept:
            return
        if not rows:
            raise LikenessError(
                f"none of {len(kept)} items, such as {self._ids[kept[0]]!r}, has an embedding of "
                "its id; embed the same data by `likeness embed --items DATA`"
            )
        if len(rows) < len(kept):
            self.notes.append(
                f"{len(kept) - len(rows):,} of {len(kept):,} items have no embedding, and were "
                "compared with nothing."
            )
        unit = embeddings.unit()[[row_of[self._ids[row]] for row in rows]]
        pairs = near_pairs(unit, NEAR)
        parts = connected_groups(pairs[:, 0], pairs[:, 1], len(rows))
        groups = defaultdict(list)
        for place in np.unique(pairs).tolist():
            groups[int(parts[place])].append(rows[place])
        self._add_same("near-duplicate", list(groups.values()))
        self._add_wrong_labels(rows, unit)

    def _add_wrong_labels(self, rows: Sequence[int], unit: NDArray[np.float32]) -> None:
        labelled = [place for place, row in enumerate(rows) if self._labels[row] is not None]
        texts = [str(self._labels[rows[place]]) for place in labelled]
        names, numbers = np.unique(texts, return_inverse=True)
        if len(names) < 2:
            return
        fit = fit_of(unit[labelled], numbers)
        details = dict[int, str]()
        for place in suspects(fit).tolist():
            row = rows[labelled[place]]
            details[row] = (
                f"is called {self._labels[row]}, looks like {names[fit.looks_like[place]]} (cosine "
                f"{fit.other[place]:.3f} against {fit.own[place]:.3f})"
            )
        self._add("wrong-label", details=details)


# Its parameters are the options of the command.
def check(
    data: Annotated[File, Option("DATA")],
    modality: Modality | None = None,
    *,
    columns: str | Mapping[str, str] = "",
    label: Annotated[str, Option(metavar="PATTERN")] = "",
    root: str | Path | None = None,
    test: Annotated[File | None, Option(metavar="TEST_DATA")] = None,
    decode: Annotated[bool | None, Option("--decode/--headers")] = None,
    embeddings: Annotated[File | Embeddings | None, Option(path="file")] = None,
    clean: bool = False,
) -> Checked:
    """Say what is wrong with a data set before anything trains on it.

    Args:
        data: as in `likeness.checking.lists.items`.
        modality: as in `likeness.checking.lists.items`.
        columns: as in `likeness.checking.lists.items`.
        label: as in `likeness.checking.lists.items`.
        root: as in `likeness.checking.lists.items`.
        test: the data that a model will be tested on, to find what is in both.
        decode: decode every file, or read headers only (default: decode up to 5,000 files of up to
            10 hours in all).
        embeddings: embeddings of the items by their ids, to find labels that are likely wrong and
            near copies. Items without one are compared with nothing.
        clean: leave items whose label is likely wrong, and near copies, out too.

    Returns:
        The findings, and for each item why it is left out of training, if it is.

    Raises:
        LikenessError: the data does not exist, or it is no list or table that can be read. No item
            has an embedding.

    Example:
        >>> import likeness
        >>> checked = likeness.check("voices")
        >>> len(checked.items), [finding.kind for finding in checked.findings]
        (8, ['few-items'])
    """
    check_root(root, data, *([] if test is None else [test]), label=label)
    folder = Path(data)
    passed_over: list[str] = []
    list_of = partial(list_most, columns=columns, label=label, root=root, passed_over=passed_over)
    items, kind = list_of(folder, modality)
    tested = Items.of([]) if test is None else list_of(Path(test), kind)[0]
    vectors = None if embeddings is None else embeddings_of(embeddings)

    def is_by_folder(path: Path) -> bool:
        """Whether the first folders are the labels; shards have labels of their own."""
        return is_plain_folder(path, label) and not shards.are_at(path, suffixes_of(kind))

    for source, listed in ((data, items), (test, tested)):
        if source is not None and is_by_folder(Path(source)):
            check_levels(listed.ids, source)

    every = Items.of([*items, *tested]) if tested else items
    seen, decoded = look_at(every, inspection_of(kind), decode)
    result = Checked(str(data), kind, items, seen[: len(items)], decoded, clean)
    plain = folder if is_by_folder(folder) else None
    result._add_all(plain, passed_over, tested, seen[len(items) :])
    if vectors is not None:
        result._add_similar(vectors)
    return result


def check_labels(items: Items, modality: Modality, root: Path | None) -> list[Finding]:
    """Check whether the labels of items are subjects, and what goes with them by the headers.

    Args:
        items: N items, of which at most 2,000 are looked at: all items of some labels.
        modality: "speaker", "face" or "image".
        root: The folder of the data, where the labels are its sub-folders; None where a table, a
            list or a pattern states the labels.
    """
    numbers = items.numbers
    result = Checked("", modality, items)
    result._add_suggested(np.unique(numbers), root)
    some = items.take(np.argsort(numbers, kind="stable")[:_MOST_LOOKED_AT])
    result._add_confounds(some, read_headers(some, inspection_of(modality)))
    return result.findings
