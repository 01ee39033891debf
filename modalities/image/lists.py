"""Lists of images that come with data sets for retrieval.

Lists of `id path [label]` are read by likeness.toolkit.data.item_lists.read_items.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import text_lines
from likeness.eval.types import name_first, quoted
from likeness.toolkit.data.items import Item, check_unique


def rows(path: Path, num_fields: int, fetch: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of a data set's own list, split at white space.

    Args:
        path: The list.
        num_fields: The number of fields of each line; the last is a path inside the data set.
        fetch: What an error says about where the data set comes from.

    Raises:
        LikenessError: There is no such file, or a line has another number of fields.
    """
    if not path.is_file():
        raise LikenessError(f"{path}: no such file; {fetch}")
    for number, line in text_lines(path):
        fields = line.split()
        if len(fields) != num_fields:
            raise LikenessError(
                f"{path}: line {number} is {quoted(line)}; {num_fields} fields are needed; {fetch}"
            )
        yield number, fields


def check_whole(
    items: Sequence[Item], root: Path, num_images: int, whole: bool, fetch: str
) -> list[Item]:
    """Return the items whose files exist; if `whole`, all of them must.

    Args:
        items: The listed items.
        root: The folder that errors name.
        num_images: The number of images of the whole data set.
        whole: Whether the data set must be complete.
        fetch: What an error says about where the data set comes from.

    Raises:
        LikenessError: An id is repeated, none of the images is there, or, if `whole`, the list has
            another number of images than the data set, or files are missing.
    """
    check_unique(items, str(root))
    # Path.is_file raises an error where a name is too long; os.path.isfile is then false.
    there = [item for item in items if os.path.isfile(item.path)]
    if not there or (whole and not len(there) == len(items) == num_images):
        known = set(there)
        missing = name_first(item.id for item in items if item not in known)
        raise LikenessError(
            f"{root}: {len(there)} of {len(items)} listed images are there (without {missing}); "
            f"the data set has {num_images}; {fetch}"
        )
    return there
