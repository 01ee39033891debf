"""What a check found: values that the table, the page and the JSON file are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from likeness.checking.files import Files, Modality
from toolkit.data.items import Items


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
        are_items: Whether the groups hold ids of items, not labels.
        pattern: A value of --label that would fit, or "".
    """

    kind: str
    count: int
    text: str
    remedy: str
    groups: tuple[tuple[str, ...], ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    are_items: bool = True
    pattern: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All items or labels, one after the other."""
        return tuple(name for group in self.groups for name in group)


@dataclass(frozen=True)
class Checked:
    """A data set and what was found in it.

    Attributes:
        data: What was checked, as it was given.
        modality: "speaker", "face" or "image".
        items: All N items.
        files: What was seen of their files.
        findings: What looks wrong, the gravest first.
        notes: What could not be checked, and why.
        left_out: (N,) why an item is not to be trained on; "" where it is.
    """

    data: str
    modality: Modality
    items: Items
    files: Files
    findings: Sequence[Finding]
    notes: Sequence[str]
    left_out: Sequence[str]
