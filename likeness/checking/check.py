"""Checks a data set before anything trains on it: its files, its labels, and what leaks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eval.types import Embeddings, name_first
from likeness.checking.files import Modality, inspection_of, look_at
from likeness.checking.findings import Checked, Finding
from likeness.checking.similar import similar_findings
from toolkit.data.inspection import Header
from toolkit.data.items import Items
from toolkit.data.label_checks import alike, suggest_labels

FEW = 2  # items of a label: with so many or fewer, hardly any pair of them can be drawn
LEAST_LABELS = 4  # that recipes which hold subjects out need: two to train on, two to test
CLIPPED_SHARE = 0.001  # of the samples of a recording, from which on it is called clipped
NEAR = 0.98  # the cosine from which on two items are called nearly the same
# The content is decoded without being asked for where there is no more than this.
DECODED_FILES, DECODED_SECONDS = 5_000, 36_000.0
OF = {"speaker": "speaker", "face": "subject", "image": "class"}


@dataclass(frozen=True)
class Settings:
    """How a data set is checked.

    Attributes:
        decode: Whether the content of the files is decoded; None decodes at most DECODED_FILES
            items of DECODED_SECONDS in all.
        near: The cosine from which on two items are called nearly the same.
        clean: Whether items whose label is likely wrong, and all but one of those that are nearly
            the same, are left out too.
        root: The folder of the data, where the labels are its sub-folders; None where a table, a
            list or a pattern states the labels.
    """

    decode: bool | None = None
    near: float = NEAR
    clean: bool = False
    root: Path | None = None


def check(
    items: Items,
    modality: Modality,
    *,
    data: str,
    test: Items | None = None,
    embeddings: Embeddings | None = None,
    settings: Settings | None = None,
) -> Checked:
    """Check items before anything trains on them.

    Args:
        items: N items, of which files may be missing.
        modality: "speaker", "face" or "image".
        data: What messages call the data.
        test: The items that a model will be tested on, which must have nothing in common with
            these.
        embeddings: Of the items, by their ids. Items without one are compared with nothing.
        settings: How they are checked.

    Returns:
        What was found. Nothing is written.

    Raises:
        LikenessError: No item has an embedding.

    Example:
        >>> from likeness.lists import items
        >>> checked = check(items("voices"), "speaker", data="voices")
        >>> len(checked.items), [finding.kind for finding in checked.findings]
        (8, ['few-items'])
    """
    settings = settings or Settings()
    every = items if test is None else Items.of([*items, *test])
    num = len(items)

    def decides(headers: list[Header | None]) -> bool:
        if settings.decode is not None:
            return settings.decode
        seconds = sum(header.seconds or 0.0 for header in headers if header is not None)
        return len(headers) <= DECODED_FILES and seconds <= DECODED_SECONDS

    files = look_at(every, inspection_of(modality), decides)
    result = _Result(items, modality, settings)
    result.add_problems(list(files.problems[:num]))
    result.add_copies(files.same[:num], files.was_decoded)
    if test is not None:
        result.add_leaks(test, files.same[:num], files.same[num:])
    result.add_labels()
    result.add_sessions()
    if modality == "speaker":
        result.add_clipped([None if c is None else c.clipped for c in files.contents[:num]])
    if not files.was_decoded:
        result.notes.append(
            f"The content of the {num:,} files was not decoded: whether recordings are silent or "
            "clipped, images of one colour, and copies in other formats are not known. --decode "
            "decodes it."
        )
    if embeddings is not None:
        similar = similar_findings(items, result.left_out, embeddings, settings.near, OF[modality])
        result.notes += similar.notes
        for finding, dropped in similar.findings:
            result.findings.append(finding)
            if settings.clean:
                result.leave_out(dropped)
    return Checked(data, modality, items, files, result.findings, result.notes, result.left_out)


class _Result:
    """What has been found so far."""

    def __init__(self, items: Items, modality: Modality, settings: Settings) -> None:
        self.items, self.modality, self.settings = items, modality, settings
        self.ids, self.labels = list(items.ids), list(items.labels)
        self.of = OF[modality]
        self.several = f"{self.of}es" if self.of.endswith("s") else f"{self.of}s"
        self.what = "recordings" if modality == "speaker" else "images"
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.left_out = [""] * len(items)

    def leave_out(self, reasons: dict[int, str]) -> None:
        """Leave items out, by their rows, unless they are left out already."""
        for row, reason in reasons.items():
            self.left_out[row] = self.left_out[row] or reason

    def add_problems(self, problems: Sequence[object]) -> None:
        """Add the files that cannot be used."""
        from likeness.checking.files import Problem

        silent = "are silent" if self.modality == "speaker" else "have one colour only"
        texts = {
            "missing": ("do not exist", "Correct the paths, or say with --root where they start."),
            "unreadable": ("cannot be read", "Write or fetch them again, or leave them out."),
            "cut": ("are cut short: they end before their header says", "Fetch them again."),
            "silent": (silent, "Leave them out."),
        }
        for kind, (text, remedy) in texts.items():
            rows = [
                row
                for row, problem in enumerate(problems)
                if isinstance(problem, Problem) and problem.kind == kind
            ]
            reasons = {self.ids[row]: getattr(problems[row], "reason", "") for row in rows}
            if not rows:
                continue
            groups = tuple((self.ids[row],) for row in rows)
            said = f"{_count(len(rows), self.what)} {text}."
            if len(rows) == 1:
                said = said.replace("do not", "does not").replace(" are ", " is ")
                said = said.replace("have one", "has one").replace("they end", "it ends")
                said = said.replace("before their", "before its")
                remedy = remedy.replace("them", "it").replace("the paths", "the path")
            self.findings.append(Finding(kind, len(rows), said, remedy, groups, reasons))
            self.leave_out({row: f"{kind}: {reasons[self.ids[row]]}" for row in rows})

    def add_copies(self, same: Sequence[object], was_decoded: bool) -> None:
        """Add the items that are copies of others."""
        rows_of = defaultdict(list)
        for row, key in enumerate(same):
            if key is not None:
                rows_of[key].append(row)
        groups = [rows for rows in rows_of.values() if len(rows) > 1]
        by = "decoded content" if was_decoded else "bytes"
        conflicting = [rows for rows in groups if len({self.labels[row] for row in rows}) > 1]
        plain = [rows for rows in groups if len({self.labels[row] for row in rows}) == 1]
        if conflicting:
            self.findings.append(
                Finding(
                    "conflict",
                    len(conflicting),
                    f"{_count(len(conflicting), self.what)} {_is(conflicting)} there with several "
                    f"labels (by the SHA-256 of their {by}).",
                    "At most one of the labels is right: correct or remove the others.",
                    self._ids_of(conflicting),
                    {self.ids[row]: str(self.labels[row]) for rows in conflicting for row in rows},
                )
            )
            for rows in conflicting:
                names = name_first(sorted({str(self.labels[row]) for row in rows}))
                self.leave_out(dict.fromkeys(rows, f"conflict: it is there under {names}"))
        if plain:
            extra = sum(len(rows) - 1 for rows in plain)
            self.findings.append(
                Finding(
                    "duplicate",
                    extra,
                    f"{_count(extra, self.what)} {_copies(extra)} of another one with "
                    f"the same label (by the SHA-256 of their {by}).",
                    "Keep one of each.",
                    self._ids_of(plain),
                )
            )
            for rows in plain:
                reason = f"duplicate: of {self.ids[rows[0]]}"
                self.leave_out(dict.fromkeys(rows[1:], reason))

    def _ids_of(self, groups: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(self.ids[row] for row in rows) for rows in groups)

    def add_leaks(self, test: Items, same: Sequence[object], tested: Sequence[object]) -> None:
        """Add what is in the training and in the test data."""
        ids = list(test.ids)
        known = {key: row for row, key in enumerate(tested) if key is not None}
        rows = [row for row, key in enumerate(same) if key is not None and key in known]
        if rows:
            groups = tuple((self.ids[row], f"test: {ids[known[same[row]]]}") for row in rows)
            self.findings.append(
                Finding(
                    "leak-content",
                    len(rows),
                    f"{_count(len(rows), self.what)} {_is(rows)} in the test data too.",
                    "A test on what was trained on measures nothing: remove them from one side.",
                    groups,
                )
            )
            self.leave_out(
                {row: f"leak-content: in the test data as {ids[known[same[row]]]}" for row in rows}
            )
        there = {str(name).strip().casefold() for name in test.labels if name is not None}
        both = sorted({n for n in self.labels if n and n.strip().casefold() in there})
        if both:
            self.findings.append(
                Finding(
                    "leak-subject",
                    len(both),
                    f"{_count(len(both), self.several)} {_is(both)} in the training and in the "
                    "test data.",
                    "Verification is tested on subjects that were never trained on: give each "
                    "subject to one side.",
                    tuple((name,) for name in both),
                    are_items=False,
                )
            )
            shared = set(both)
            self.leave_out(
                {
                    row: f"leak-subject: {name} is in the test data"
                    for row, name in enumerate(self.labels)
                    if name in shared
                }
            )

    def add_labels(self) -> None:
        """Add the labels that look wrong."""
        counts: dict[str, int] = defaultdict(int)
        for name in self.labels:
            if name is not None:
                counts[name] += 1
        unlabelled = [(self.ids[row],) for row, name in enumerate(self.labels) if name is None]
        if unlabelled:
            self.findings.append(
                Finding(
                    "no-label",
                    len(unlabelled),
                    f"{_count(len(unlabelled), self.what)} {_has(unlabelled)} no label.",
                    self._how_to_label() + ", or take them from the names with --label, as in "
                    "--label '{label}_*.wav'.",
                    tuple(unlabelled),
                )
            )
            reasons = {row: "no-label" for row, name in enumerate(self.labels) if name is None}
            self.leave_out(reasons)
        suggested = self._suggested()
        if len(counts) == 1 and suggested is None:
            self.findings.append(
                Finding(
                    "one-label",
                    1,
                    f"All items have the label {next(iter(counts))!r}.",
                    f"Training needs at least {LEAST_LABELS} {self.several}: say where the labels "
                    "are with --label or --columns.",
                    (tuple(counts),),
                    are_items=False,
                )
            )
        if suggested is not None:
            self.findings.append(suggested)
            return  # what follows would be about labels that are none
        groups = alike(counts)
        if groups:
            self.findings.append(
                Finding(
                    "alike-labels",
                    len(groups),
                    f"{_count(len(groups), 'groups')} of labels differ only in case, blanks, _ or "
                    "-.",
                    f"If they are one {self.of}, write them alike: training would drive them "
                    "apart.",
                    tuple(groups),
                    are_items=False,
                )
            )
        few = sorted(name for name, count in counts.items() if count <= FEW)
        if few and len(counts) > 1:
            self.findings.append(
                Finding(
                    "few-items",
                    len(few),
                    f"{_count(len(few), self.several)} of {len(counts):,} {_has(few)} {FEW} items "
                    "or fewer.",
                    "Nothing can be learnt about what varies within one of them; collect more, or "
                    "expect little.",
                    tuple((name,) for name in few),
                    {name: _count(counts[name], "items") for name in few},
                    are_items=False,
                )
            )

        self._note_what_train_refuses()

    def _how_to_label(self) -> str:
        """How items of this source get labels."""
        if self.settings.root is not None:
            return (
                f"Put each into the folder of its {self.of}, give a table with a column of labels"
            )
        return (
            "Fill them in: in a table in the column that --columns label=COLUMN names, in a Kaldi "
            "folder in utt2spk"
        )

    def _note_what_train_refuses(self) -> None:
        """Note that what is kept is too little to hold subjects out of the training."""
        kept = Counter(
            name
            for name, reason in zip(self.labels, self.left_out, strict=True)
            if name is not None and not reason
        )
        if 1 < len(kept) < LEAST_LABELS:
            self.notes.append(
                f"{len(kept)} {self.several} are too few for `likeness train`: it holds two out, "
                f"and trains on two or more. Add {self.several}; `likeness lists --split all` "
                "makes trials for a model that was trained elsewhere."
            )
        elif len(kept) > 1 and max(kept.values()) == 1:
            self.notes.append(
                f"Each {self.of} has a single item, so that no two items are of one {self.of}: "
                f"`likeness train` could not test, and refuses them. Add items of the same "
                f"{self.several}."
            )

    def _suggested(self) -> Finding | None:
        """The finding that the folders are no subjects."""
        root = self.settings.root
        if root is None:
            return None
        before = (root / "x").as_posix()[:-1]
        paths = [item.path.as_posix().removeprefix(before) for item in self.items]
        found = suggest_labels(paths, are_voices=self.modality == "speaker")
        if found is None:
            return None
        num = len({name for name in self.labels if name is not None})
        folders = name_first(sorted({str(name) for name in self.labels if name is not None}))
        text = {
            "parent": f"All items lie in the folder {folders}, which is taken for one {self.of}.",
            "split": f"The folders {folders} are parts of a data set, and are taken for "
            f"{_count(num, self.several)}.",
            "word": f"The {num:,} folders ({folders}) are taken for {self.several}, but the same "
            f"names ({name_first(found.names)}) return in {found.num_labels:.3g} folders each.",
        }[found.kind]
        return Finding(
            "folder-label",
            num,
            text,
            f"If the names are the {self.several}, take them as the labels: --label "
            f"'{found.pattern}' gives {len(found.names):,} ({name_first(found.names)}).",
            (found.names,),
            are_items=False,
            pattern=found.pattern,
        )

    def add_sessions(self) -> None:
        """Add the subjects of whom one session is known."""
        if self.modality == "image":
            return
        if "session" not in self.items.further:
            self.notes.append(
                "The sessions are not known, so that nobody can say whether a model learns the "
                f"{self.of} or the session. A column session, or {{session}} in --label, states "
                "them."
            )
            return
        sessions = defaultdict(set)
        for name, session in zip(self.labels, self.items.column("session"), strict=True):
            if name is not None and session is not None:
                sessions[name].add(session)
        single = sorted(name for name, known in sessions.items() if len(known) == 1)
        if single:
            self.findings.append(
                Finding(
                    "one-session",
                    len(single),
                    f"{_count(len(single), self.several)} of {len(sessions):,} {_has(single)} one "
                    "session only.",
                    "Microphone, room and light then tell them apart as well as they do "
                    "themselves: collect a second session, and test with `likeness lists "
                    "--cross-session`.",
                    tuple((name,) for name in single),
                    are_items=False,
                )
            )

    def add_clipped(self, shares: Sequence[float | None]) -> None:
        """Add the recordings that are clipped. They are kept."""
        rows = [row for row, share in enumerate(shares) if share and share >= CLIPPED_SHARE]
        if rows:
            self.findings.append(
                Finding(
                    "clipped",
                    len(rows),
                    f"{_count(len(rows), self.what)} {_is(rows)} clipped: at least "
                    f"{100 * CLIPPED_SHARE:g} % of the samples lie in runs of 3 or more at full "
                    "scale.",
                    "Record with less gain. They can be trained on, and are kept.",
                    tuple((self.ids[row],) for row in rows),
                    {self.ids[row]: f"{100 * (shares[row] or 0):.2g} % clipped" for row in rows},
                )
            )


def _count(number: int, what: str) -> str:
    """A number and what it counts, in the plural or not.

    Example:
        >>> _count(1, "classes"), _count(1, "images"), _count(2000, "images")
        ('1 class', '1 image', '2,000 images')
    """
    if number == 1:
        what = what.removesuffix("es") if what.endswith("sses") else what.removesuffix("s")
    return f"{number:,} {what}"


def _copies(number: int) -> str:
    return "is a copy" if number == 1 else "are copies"


def _is(values: Sequence[object]) -> str:
    return "is" if len(values) == 1 else "are"


def _has(values: Sequence[object]) -> str:
    return "has" if len(values) == 1 else "have"


def duration_quantiles(headers: Sequence[Header | None]) -> dict[str, float]:
    """Return the quantiles of the durations in seconds; nothing where there are none.

    Example:
        >>> duration_quantiles([Header("WAV", 9, 1.0), Header("WAV", 9, 3.0)])["50 %"]
        2.0
    """
    seconds = [header.seconds for header in headers if header and header.seconds is not None]
    if not seconds:
        return {}
    shares = (0, 5, 25, 50, 75, 95, 100)
    values = np.percentile(seconds, shares).tolist()
    return {f"{share} %": value for share, value in zip(shares, values, strict=True)}
