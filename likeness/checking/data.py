"""Checks whatever a person has: a folder, a list or a table of recordings or images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likeness.checking.check import NEAR, Checked, Settings, check_items
from likeness.checking.files import Modality
from likeness.files import File, embeddings_of
from likeness.lists import modality_of
from likeness.modalities.folders import suffixes_of
from likeness.toolkit.data.listing import is_kaldi_folder, list_items

if TYPE_CHECKING:
    from likeness.eval.types import Embeddings
    from likeness.model import Model


def check(
    data: File,
    modality: Modality | None = None,
    *,
    columns: str | Mapping[str, str] = "",
    label: str = "",
    root: str | Path | None = None,
    test: File | None = None,
    decode: bool | None = None,
    embeddings: File | Embeddings | None = None,
    model: Model | None = None,
    near: float = NEAR,
    clean: bool = False,
) -> Checked:
    """Say what is wrong with a data set before anything trains on it.

    Args:
        data: what `likeness.items` takes; columns, label and root are those of it, too.
        modality: what the items are; by default what most files are, recordings or images.
        test: the data that a model will be tested on, to find what is in both.
        decode: whether every file is decoded, or only its header read; by default up to 5,000 files
            of up to 10 hours in all are decoded.
        embeddings: embeddings of the items by their ids, or their file, to find labels that are
            likely wrong and near copies.
        model: what embeds the items here, in place of `embeddings`.
        near: the cosine from which on two items are called near copies.
        clean: whether items whose label is likely wrong, and near copies, are left out too.

    Returns:
        The findings, and for each item why it is left out of training, if it is.

    Raises:
        LikenessError: the data does not exist, or it is no list or table that can be read.

    Example:
        >>> import likeness
        >>> checked = likeness.check("voices")
        >>> len(checked.items), [finding.kind for finding in checked.findings]
        (8, ['few-items'])
    """
    folder = Path(data)
    listing: dict[str, Any] = {"columns": columns, "label": label, "root": root}
    kind = modality or modality_of(folder, **listing)
    passed_over: list[str] = []
    listing |= {"missing": "leave", "passed_over": passed_over, "suffixes": suffixes_of(kind)}
    items = list_items(folder, **listing)
    plain = folder.is_dir() and not label and not is_kaldi_folder(folder)
    vectors = None if embeddings is None else embeddings_of(embeddings)
    if model is not None:
        vectors = model.embed([item for item in items if item.path.is_file()])
    return check_items(
        items,
        kind,
        data=str(data),
        test=None if test is None else list_items(Path(test), **listing),
        embeddings=vectors,
        settings=Settings(decode, near, clean, folder if plain else None),
        passed_over=list(dict.fromkeys(passed_over)),
    )
