"""The images and recordings that a page shows, of whatever a person has them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from eval.reports.media import (
    IMAGES,
    SOUNDS,
    Media,
    Source,
    Stretch,
    media_of_folder,
)
from toolkit.data.items import Item
from toolkit.data.listing import is_kaldi_folder, list_items


def media_of(source: str | PathLike[str] | Mapping[str, Path] | None) -> Media:
    """The media in a folder, of a list or of a table.

    Args:
        source: a folder, as `media_of_folder` takes it; or a list, a table, a Kaldi folder or an
            .rttm file (see `toolkit.data.listing`), whose items may be stretches of recordings; a
            mapping from ids to files; or None for no media.

    Raises:
        LikenessError: there is no such file or folder. The list or table cannot be understood.
    """
    if source is None or isinstance(source, Mapping):
        return Media((source or {}).get)
    source = Path(source)
    if source.is_dir() and not is_kaldi_folder(source):
        return media_of_folder(source)
    return media_of_items(list_items(source, suffixes=[*SOUNDS, *IMAGES], missing="leave"))


def media_of_items(items: Sequence[Item]) -> Media:
    """The media of items by their ids. Those inside tar shards have none.

    Example:
        >>> item = Item("ann/1", Path("ann.wav"), "ann", stretch=(1.0, 2.5))
        >>> media_of_items([item]).show("ann/2")
        Markup('')
    """
    rows = {item.id: row for row, item in enumerate(items)}

    def find(id: str) -> Source:
        return source_of(items[rows[id]]) if id in rows else None

    return Media(find)


def source_of(item: Item) -> Source:
    """Where the picture or sound of an item is; None inside a tar shard."""
    if item.span is not None:
        return None
    return item.path if item.stretch is None else Stretch(item.path, *item.stretch)
