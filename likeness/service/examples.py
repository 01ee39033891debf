"""Files of the user's own that the page offers to try.

They are read when the server starts, within bounds, and are given out by their number. No request
names a path, and nothing that is put into the folder later is given out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from eval.errors import LikenessError
from eval.types import name_first
from likeness.signatures import suffix_of
from toolkit.data.images import BadImage, decode_bytes, encode

MAX_EXAMPLES = 24
MAX_TOTAL = 32 << 20  # bytes of all examples
_MAX_FILES = 10_000  # that are looked at
_SOUNDS = {
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".mp3": "audio/mpeg",
    ".m4a": "audio/mp4",
}
_IMAGES = {
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".gif": "image/gif",
}
_AS_PNG = (".ppm", ".tif")  # which browsers do not show; a PNG has the same pixels


class Example(NamedTuple):
    """One file.

    Attributes:
        name: Its path below the folder, with `/`.
        content: The file.
    """

    name: str
    content: bytes

    @property
    def media_type(self) -> str:
        """By the first bytes of the file, not by its name."""
        return {**_SOUNDS, **_IMAGES}[suffix_of(self.content[:64])]


def read_examples(folder: Path, modality: str, max_bytes: int) -> tuple[list[Example], str]:
    """Read the examples in a folder and the folders below it.

    Links are passed over, and so are hidden files and files of another kind than the model takes.
    Of each folder, which may be that of a subject, two files are taken in turn.

    Args:
        folder: The folder.
        modality: Of the model.
        max_bytes: Of one file; larger ones are passed over.

    Returns:
        At most 24 examples of at most 32 MiB together, by their names; and a sentence on what was
        left out, or "".

    Raises:
        LikenessError: There is no such folder. There is nothing to take in it.
    """
    if not folder.is_dir():
        raise LikenessError(f"{folder}: there is no such folder of examples; correct the path")
    examples: list[Example] = []
    known = (*_SOUNDS,) if modality == "speaker" else (*_IMAGES, *_AS_PNG)
    total, others = 0, 0
    left_out: list[str] = []
    for path in _in_turn(list(islice(_files(folder), _MAX_FILES))):
        name = path.relative_to(folder).as_posix()
        with path.open("rb") as file:
            content = file.read(64)
            kind = suffix_of(content)
            if kind not in known or not name.isprintable():
                others += 1
                continue
            if len(examples) == MAX_EXAMPLES:
                left_out.append(name)
                continue
            content += file.read(max_bytes + 1)
        if kind in _AS_PNG and len(content) <= max_bytes:
            content = _as_png(content, name)
        if not 0 < len(content) <= min(max_bytes, MAX_TOTAL - total):
            left_out.append(name)
            continue
        total += len(content)
        examples.append(Example(name, content))
    if not examples:
        raise LikenessError(
            f"{folder}: there are no examples for a {modality} model in it ({others} other "
            f"files, {len(left_out)} that are too large or damaged); name a folder with "
            "recordings or images"
        )
    text = ""
    if left_out:
        text = (
            f"{len(left_out)} files are left out ({name_first(left_out)}): the page offers at most "
            f"{MAX_EXAMPLES}, of {max_bytes / 1e6:.3g} MB each and {MAX_TOTAL >> 20} MiB together"
        )
    return sorted(examples), text


def _as_png(content: bytes, name: str) -> bytes:
    """An image as PNG; nothing for one that cannot be read."""
    try:
        return encode(decode_bytes(content, name))
    except BadImage:
        return b""


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):  # which follows no links to folders
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place) / name
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _in_turn(paths: list[Path]) -> list[Path]:
    """Two files of each folder, which are two of one subject, then the next two, and so on."""
    rank: dict[Path, int] = {}
    order = []
    for path in paths:
        rank[path.parent] = rank.get(path.parent, -1) + 1
        order.append((rank[path.parent] // 2, path))
    return [path for _, path in sorted(order)]
