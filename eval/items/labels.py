"""Labels from the paths of files by a pattern, such as {word}/{label}_NO_*.wav."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import FURTHER
from likeness.eval.items.items import Items
from likeness.eval.types import name_first

_COLUMNS = {"label", *FURTHER} - {"start", "end"}
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
            needs = "{label}, and other names in braces alone, as in '{word}/{label}_*'"
            raise LikenessError(f"the pattern {self.text!r} needs {needs}; correct it")

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
        return {name: text for name, text in matched.groupdict().items() if name in _COLUMNS}

    def relabelled(self, items: Items, root: Path, where: str) -> Items:
        """Returns the items whose paths fit, with their labels.

        Args:
            items: The items.
            root: The folder below which their paths are matched; of shards, their ids are.
            where: The data set, with which messages begin.

        Raises:
            LikenessError: No item fits. A warning counts those that do not, if others do.
        """
        before = (root / "x").as_posix()[:-1]
        texts = [
            item.path.as_posix().removeprefix(before)
            if item.span is None
            else item.id.removesuffix(item.suffix) + item.suffix
            for item in items
        ]
        fields = [self.fields(text) for text in texts]
        fitting = [values for values in fields if values is not None]
        if len(fitting) < len(texts):
            other = [text for text, values in zip(texts, fields, strict=True) if values is None]
            problem = (
                f"{where}: {len(other)} of {len(texts)} files do not fit the pattern {self.text!r} "
                f"of labels ({name_first(other)}), where * stands for anything but a slash"
            )
            if not fitting:
                raise LikenessError(f"{problem}; correct it, as in '{{word}}/{{label}}_NO_*.wav'")
            warnings.warn(f"{problem}, and are left out", stacklevel=4)
        chosen = items.take(np.flatnonzero([values is not None for values in fields]))
        columns = {name: [values[name] for values in fitting] for name in fitting[0]}
        return chosen.relabelled(columns.pop("label"), columns)
