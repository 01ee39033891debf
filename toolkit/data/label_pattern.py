"""Labels from the paths of files, by a pattern such as {word}/{label}_NO_*.wav."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from eval.errors import LikenessError
from eval.formats.column_names import FURTHER
from eval.types import name_first
from toolkit.data.items import Items, ItemsBuilder

_FURTHER = tuple(name for name in FURTHER if name not in ("start", "end"))
_MAX_PATH = 4096  # characters


@dataclass(frozen=True)
class LabelPattern:
    """A pattern of paths, in which {label} stands for the label.

    A name in braces stands for one character or more, but for no slash, and for as few as there may
    be. {sex}, {age}, {session} and {group} are kept as columns; every other name may stand for
    anything. `*` stands for any characters but a slash, `**` for any, and `?` for one.

    Attributes:
        text: The pattern.

    Raises:
        LikenessError: It has no {label}, or a brace without its partner.

    Example:
        >>> LabelPattern("{word}/{label}_NO_*.wav").fields("yes/ann_NO_3.wav")
        {'label': 'ann'}
    """

    text: str

    def __post_init__(self) -> None:
        bare = re.sub(r"\{[A-Za-z_]\w*\}", "", self.text)
        if "{label}" not in self.text or "{" in bare or "}" in bare:
            raise LikenessError(
                f"the pattern {self.text!r} of labels needs {{label}} where the label is, and may "
                "have other names in braces, as in '{word}/{label}_NO_*.wav'"
            )

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        parts, seen = [], set[str]()
        for part in re.split(r"(\{\w+\}|\*\*/|\*\*|\*|\?)", self.text):
            if part.startswith("{"):
                name = part[1:-1]
                parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>[^/]+?)")
                seen.add(name)
            else:
                marks = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
                parts.append(marks.get(part) or re.escape(part))
        return re.compile("".join(parts), re.DOTALL)

    def fields(self, path: str) -> dict[str, str] | None:
        """Returns the label and the further columns of a path; None where it does not fit.

        Args:
            path: The path below the folder of the data, with slashes.
        """
        matched = self._expression.fullmatch(path) if len(path) <= _MAX_PATH else None
        if matched is None:
            return None
        return {name: matched[name] for name in ("label", *_FURTHER) if f"{{{name}}}" in self.text}

    def relabelled(self, items: Items, root: Path, where: str) -> Items:
        """Returns the items whose paths fit, with their labels.

        Args:
            items: The items.
            root: The folder below which their paths are matched.
            where: The data set, with which messages begin.

        Raises:
            LikenessError: No item fits. A warning counts those that do not, if others do.
        """
        before = (root / "x").as_posix()[:-1]
        texts = [item.path.as_posix().removeprefix(before) for item in items]
        fields = [self.fields(text) for text in texts]
        other = [text for text, values in zip(texts, fields, strict=True) if values is None]
        if len(other) == len(texts):
            raise LikenessError(
                f"{where}: none of {len(texts)} paths fits the pattern {self.text!r} of labels "
                f"({name_first(other)}); correct it, as in '{{word}}/{{label}}_NO_*.wav', where * "
                "stands for anything but a slash"
            )
        if other:
            warnings.warn(
                f"{where}: {len(other)} of {len(texts)} files do not fit the pattern {self.text!r} "
                f"of labels and are left out ({name_first(other)})",
                stacklevel=4,
            )
        kept = [place for place, values in enumerate(fields) if values is not None]
        values = [fields[place] or {} for place in kept]
        chosen = items.take(np.array(kept, dtype=np.int64))
        named = [name for name in _FURTHER if f"{{{name}}}" in self.text]
        return with_columns(
            chosen,
            [value["label"] for value in values],
            {name: [value[name] for value in values] for name in named},
        )


def with_columns(
    items: Items, labels: Sequence[str | None] | None, further: dict[str, list[str]]
) -> Items:
    """Returns items with these labels, unless they are None, and these further columns."""
    made = ItemsBuilder()
    made.add([""] * len(items), [""] * len(items), labels, further=further)
    built = made.build()
    return replace(
        items,
        labels=items.labels if labels is None else built.labels,
        further={**items.further, **built.further},
    )
