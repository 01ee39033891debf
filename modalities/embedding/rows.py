"""An embeddings file as a data set: its rows as items, a split by subject, and trials.

Any model makes such a file (`likeness embed`), in any format of eval/formats/embeddings.py. An item
is a row: its id is that of the row, and its path is the file. The file is read once in a process,
and not for each item.

The subject of a row comes from a list of lines `id subject` (Kaldi's utt2spk), or from an id such
as SUBJECT/recording, whose first part it is.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.eval.formats import embeddings
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.subjects import read_mapping
from likeness.eval.intervals.subjects import labels_of
from likeness.eval.items.items import Item, Items
from likeness.eval.items.pairs import draw_pairs
from likeness.eval.types import Trials, name_first
from likeness.toolkit.data.splits import hold_out
from likeness.toolkit.sources import Source, source_of

Split = Literal["train", "test", "all"]
SUBJECTS = ("subjects.txt", "utt2spk")  # a list of this name beside the embeddings is taken
_SUFFIXES = (".npz", ".ark", ".parquet")
# Embeddings that were joined or averaged are not what the network gives for one input, so that a
# head of theirs does not fit behind the network.
_JOINED = ("flip", "crops", "chunks")
_GIVE_A_LIST = (
    "put a list of lines `id subject` beside the embeddings as subjects.txt and give the folder, "
    "or set items.subjects=FILE and measure.trials.subjects=FILE"
)


def items(
    data: str | Path,
    *,
    split: Split = "train",
    test_share: float = 0.2,
    seed: int = 0,
    subjects: str = "",
) -> Items:
    """List the embeddings of the subjects of one split, in the order of the file.

    The subjects are divided, never the embeddings of one subject.

    Args:
        data: The embeddings file, or a folder that holds one and perhaps a list of subjects,
            subjects.txt or utt2spk.
        split: "train", "test", or "all" for everyone.
        test_share: The share of the subjects that are held out for "test". round(test_share x
            subjects), at least 2, are held out; with 0, nobody is.
        seed: The seed of the draw of these subjects.
        subjects: A list of lines `id subject`. "" takes the one in the folder, and without one the
            first part of ids such as SUBJECT/1.

    Returns:
        Items whose label is the subject.

    Raises:
        FileNotFoundError: There is no such file.
        LikenessError: The file is no embeddings file or does not state its model, rows are zero,
            ids have no subject, or there are too few subjects.
    """
    file, table = _opened(data)
    listed = _list_of(Path(data), subjects)
    mapping = None if listed is None else read_mapping(listed)
    labels = labels_of(str(listed or data), table.ids, mapping, remedy=_GIVE_A_LIST)
    classes = sorted(set(labels))
    needed = 4 if test_share > 0 and split != "all" else 2
    if len(classes) < needed:
        source = f"by {listed}" if listed else f"the first part of ids such as {table.ids[0]!r}"
        remedy = "add others" if listed else f"if that is none, {_GIVE_A_LIST}"
        raise LikenessError(
            f"{file}: the {len(table)} embeddings are of {len(classes)} "
            f"subject{'s' * (len(classes) > 1)} ({name_first(classes)}), {source}; at least "
            f"{needed} subjects are needed, 2 of them to train: {remedy}"
        )
    return hold_out(
        Items.of(Item(id, file, label) for id, label in zip(table.ids, labels, strict=True)),
        split=split,
        test_share=test_share,
        seed=seed,
        where=file,
    )


def every(data: Path) -> Items:
    """List all embeddings of a file, whoever they are of.

    Args:
        data: The embeddings file, or the folder of one.

    Raises:
        FileNotFoundError: There is no such file.
        LikenessError: As items(), but ids need no subject.
    """
    file, table = _opened(data)
    return Items.of(Item(id, file) for id in table.ids)


def trials(
    data: str | Path,
    *,
    split: Split = "test",
    num_trials: int = 20_000,
    test_share: float = 0.2,
    seed: int = 0,
    subjects: str = "",
) -> tuple[Items, Trials]:
    """List the embeddings of a split and trials among them.

    All pairs are trials if there are at most num_trials. Otherwise the trials are a seeded draw,
    half target and half nontarget, none of them twice.

    Args:
        data: As in items(). So are split, test_share, seed and subjects.
        num_trials: The most trials that are made, at least 2.

    Returns:
        The items, and the labelled trials.

    Raises:
        FileNotFoundError: There is no such file.
        LikenessError: No subject has two embeddings, or items() refuses the data.
    """
    chosen = items(data, split=split, test_share=test_share, seed=seed, subjects=subjects)
    try:
        return chosen, draw_pairs(chosen, num_trials, np.random.default_rng(seed))
    except LikenessError as error:
        raise LikenessError(f"{data}: {error}") from None


def read(item: Item) -> NDArray[np.float32]:
    """Read one row of an embeddings file.

    Args:
        item: Its id is that of a row, and its path is the file.

    Returns:
        (D,) float32, as the file has it: nothing is normalised.

    Raises:
        LikenessError: The file has no such row, or is no embeddings file.
        FileNotFoundError: There is no such file.
    """
    table = _table(item.path)
    try:
        row = int(table.rows([item.id])[0])
    except LikenessError:
        raise LikenessError(
            f"{item.path}: it has no embedding of {item.id!r}; a head reads the rows of an "
            "embeddings file: list these"
        ) from None
    vector: NDArray[np.float32] = table.matrix[row]
    return vector


class Vectors(nn.Module):
    """The front-end of a head: it passes embeddings on, and states which model made them.

    A recipe leaves its settings out; they follow from the data (`of_data`).

    Args:
        dim: The size of the embeddings.
        model: The digest of the model that made them.

    Raises:
        LikenessError: In a call: the embeddings have another size.

    Example:
        >>> import torch
        >>> Vectors(dim=2)(torch.tensor([[3.0, 4.0]]))
        (tensor([[3., 4.]]), None)
    """

    def __init__(self, *, dim: int = 1, model: str = "") -> None:
        super().__init__()
        self.dim, self.model = dim, model

    @staticmethod
    def of_data(data: Path) -> dict[str, Any]:
        """Return the settings that follow from an embeddings file.

        Args:
            data: As in items().

        Raises:
            LikenessError: As items().
            FileNotFoundError: There is no such file.
        """
        _, table = _opened(data)
        return {"dim": table.matrix.shape[1], "model": table.meta["model"]}

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the embeddings (B, dim) as they are."""
        if inputs.ndim != 2 or inputs.shape[1] != self.dim:
            raise LikenessError(
                f"Vectors: the embeddings have shape {tuple(inputs.shape)}; (B, {self.dim}) is "
                "needed: give those of the model that the head was made for"
            )
        return inputs, lengths


def _opened(data: str | Path) -> tuple[Path, Embeddings]:
    """Return the embeddings file of a data set, and what is in it."""
    file = _file(data)
    table = _table(file)
    others = [f"{name} ({table.meta[name]})" for name in _JOINED if name in table.meta]
    if not len(table) or not table.meta.get("model") or others:
        raise LikenessError(
            f"{file}: {len(table)} embeddings of the model {table.meta.get('model') or 'unknown'}"
            f"{', joined from several of an item by ' if others else ''}{', '.join(others)}; a "
            "head needs some of one model that it can be joined with, each of one input: make "
            "them with `likeness embed`"
        )
    zero = [table.ids[row] for row in np.flatnonzero(table.norms == 0)]
    if zero:
        raise LikenessError(
            f"{file}: {len(zero)} of {len(table)} embeddings are zero ({name_first(zero)}), which "
            "have no direction; leave these items out"
        )
    return file, table


def _file(data: str | Path) -> Path:
    """Return the embeddings file that a path means: itself, or the only one in a folder."""
    path = Path(data)
    if not path.is_dir():
        return path
    inside = sorted(inner for inner in path.iterdir() if inner.suffix.lower() in _SUFFIXES)
    if len(inside) != 1:
        raise LikenessError(
            f"{path}: {len(inside)} embeddings files are in this folder "
            f"({name_first(inner.name for inner in inside) if inside else 'none'}); name one, "
            f"with one of the endings {', '.join(_SUFFIXES)}"
        )
    return inside[0]


def _table(file: Path) -> Embeddings:
    """Return the embeddings of a file, which is read once while it does not change."""
    return _cached(str(file), source_of(file))


@lru_cache(maxsize=2)
def _cached(file: str, source: Source) -> Embeddings:
    """Read a file of embeddings in a certain state."""
    return embeddings.read_embeddings(file)


def _list_of(data: Path, subjects: str) -> Path | None:
    """Return the list of subjects: the one that is named, or the one in the folder, if any."""
    if subjects:
        return Path(subjects)
    return next((data / name for name in SUBJECTS if (data / name).is_file()), None)
