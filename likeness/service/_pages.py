"""The pages of `likeness serve`, made from templates/, what they show beside answers, and the
policy under which a browser shows them: nothing comes from elsewhere, and no script runs but the
page's own.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from likeness.eval.errors import LikenessError
from likeness.eval.items.suffixes import suffix_of
from likeness.eval.scoring.thresholds import LEAST_ERRORS, Thresholds

# The script of the page, in files by subject, in the order in which they run. They share their
# names: each may use those of the files before it, and within functions those of all.
_FILES = ("basics", "turns", "sound", "faces", "inputs", "threshold", "answers", "gallery", "start")
MAX_EXAMPLES = 24
MAX_TOTAL = 32 << 20  # bytes of all examples
_SOUNDS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a", ".webm")
_IMAGES = (".jpg", ".png", ".webp", ".bmp", ".gif")


@cache
def environment() -> Environment:
    """The templates of this package, which escape every value that is written in them.

    All of them know the style and the script of the page.
    """
    blanks: Any = {"trim_blocks": True, "lstrip_blocks": True}
    loader = PackageLoader("likeness.service")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **blanks)
    made.globals["style"] = Markup(_source("page.css"))
    made.globals["script"] = Markup("\n".join(_source(f"{name}.js") for name in _FILES))
    return made


def _source(name: str) -> str:
    return Path(__file__).with_name("templates").joinpath(name).read_text(encoding="utf-8")


def page(name: str, **values: Any) -> str:
    """A page by the name of its template, and the values that it shows."""
    return environment().get_template(name).render(values)


def content_policy() -> str:
    """The Content-Security-Policy of both pages.

    It allows what the page itself holds, its script and its style by their digests, and requests to
    this server.
    """

    def digest(name: str) -> str:
        content = str(environment().globals[name]).encode()
        return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {digest('script')}; style-src {digest('style')}; "
        "connect-src 'self'; img-src 'self' blob: data:; media-src blob:; "
        "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    )


def slider(thresholds: Thresholds | None, reason: str) -> dict[str, Any]:
    """What a browser needs to say of any threshold how many errors it makes.

    Args:
        thresholds: Those that hold for the model; None where there are none.
        reason: Why there are none.

    Returns:
        A JSON object: `reason`, which is "" where there are thresholds; `data`, `subjects`,
        `targets`, `nontargets` and `date` of the measurement; `marks`, the thresholds that were
        asked for, with their names; `places`, all thresholds by rising value as [threshold, FAR,
        FRR], no rate below ten trials' share; and these shares, `least_far` and `least_frr`.

    Example:
        >>> slider(None, "no threshold is stored")["places"]
        []
    """
    if thresholds is not None and thresholds.unlabelled:
        thresholds, reason = None, "of thresholds from unlabelled items nobody knows the errors"
    if thresholds is None:
        return {"reason": reason, "marks": [], "places": []}
    least_far, least_frr = (
        min(1.0, LEAST_ERRORS / count) for count in (thresholds.nontargets, thresholds.targets)
    )
    rows = {place.value: (place.far, place.frr) for place in thresholds.curve}
    for point in thresholds.points:
        # A guaranteed rate is a bound; beside the curve stands what was measured.
        far = point.far if point.guarantee is None else point.guarantee.measured_far
        rows.setdefault(point.value, (max(far, least_far), max(point.frr or 0.0, least_frr)))
    return {
        "reason": "",
        "data": thresholds.data,
        "subjects": thresholds.subjects,
        "targets": thresholds.targets,
        "nontargets": thresholds.nontargets,
        "date": thresholds.date,
        "marks": [{"name": point.name, "threshold": point.value} for point in thresholds.points],
        "places": [[value, *rows[value]] for value in sorted(rows)],
        "least_far": least_far,
        "least_frr": least_frr,
    }


class Example(NamedTuple):
    """One file of the user's own that the page offers to try.

    Attributes:
        name: Its path below the folder, with `/`.
        content: The file.
    """

    name: str
    content: bytes

    @property
    def media_type(self) -> str:
        """By the first bytes of the file, not by its name."""
        ending = suffix_of(self.content[:64])
        return f"{'image' if ending in _IMAGES else 'audio'}/{ending[1:]}"


def read_examples(folder: Path, modality: str, max_bytes: int) -> list[Example]:
    """Read the examples in a folder and the folders below it, which happens at the start alone.

    Links are passed over, and so are hidden files and files of another kind than the model takes.
    Of each folder, which may be that of a subject, two files are taken in turn.

    Args:
        folder: The folder.
        modality: Of the model.
        max_bytes: Of one file; larger ones are passed over.

    Returns:
        At most 24 examples of at most 32 MiB together, by their names.

    Raises:
        LikenessError: There is nothing to take in it.
    """
    known = _SOUNDS if modality == "speaker" else _IMAGES
    examples: list[Example] = []
    left = MAX_TOTAL
    for path in _in_turn(folder):
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
        if suffix_of(content) in known and len(content) <= min(max_bytes, left):
            left -= len(content)
            examples.append(Example(path.relative_to(folder).as_posix(), content))
        if len(examples) == MAX_EXAMPLES:
            break
    if not examples:
        raise LikenessError(f"{folder} has no examples for a {modality} model; name another folder")
    return sorted(examples)


def _in_turn(folder: Path) -> list[Path]:
    """Two files of each folder, which are two of one subject, then the next two, and so on."""
    order: list[tuple[int, Path]] = []
    seen: Counter[Path] = Counter()  # files of each folder
    for path in sorted(folder.rglob("*")):  # which follows no links to folders
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not path.is_symlink() and not is_hidden:
            order.append((seen[path.parent] // 2, path))
            seen[path.parent] += 1
    return [path for _, path in sorted(order)]
