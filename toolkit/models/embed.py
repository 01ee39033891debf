"""`embed` turns items into Embeddings, with an embedder of torch or of ONNX Runtime.

It batches inputs of about equal length and gives the embeddings in the order of the items. Nothing
here imports torch.
"""

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError, is_tensor
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.items.items import Item
from likeness.eval.progress import report
from likeness.eval.types import name_first
from likeness.toolkit.data.readers import read_beside
from likeness.toolkit.data.reading import (
    Array,
    Bad,
    Floats,
    Read,
    Remark,
    as_input,
    name_of,
    pad,
    remarked,
    with_settings_of,
)
from likeness.toolkit.models.loaded import Embedder, ReadParts

# Inputs are read ahead and sorted by length. The two bounds (inputs; numbers, 256 MB of them) keep
# the memory small and the lengths within a batch near each other.
_WINDOW = 256
_WINDOW_VALUES = 2**26
# Larger batches are slower on a CPU, because they do not fit its cache: a ResNet34 embeds 13
# utterances of 3 s a second one by one, 12 in batches of 4, and 7 to 11 in batches of 16.
_CPU_BATCH_SAMPLES = 2**14
# A batch of long inputs has fewer of them, because what a network keeps grows with their length.
_BATCH_VALUES = 2**24
# Within a batch, the longest input is at most this many times as long as the shortest.
_LONGEST_PADDING = 1.2

_LEAST_COMPARED, _ALIKE = 8, 0.9  # items, and the mean cosine from which on they are alike

NO_NUMBERS = "the network gives NaN or infinity for it"  # the reason in the Bad of such an item

# Position of an item -> the sum of length times embedding over its inputs, and of their lengths.
_Sums = dict[int, tuple[NDArray[np.float64], int]]


class Diverged(LikenessError):
    """A network gives embeddings, or learns weights, that are NaN or infinite."""


def embed(
    embedder: Embedder,
    items: Sequence[Item],
    read: Read | ReadParts,
    *,
    batch_size: int = 16,
    workers: int = 0,
    meta: dict[str, str] | None = None,
) -> tuple[Embeddings, list[Bad]]:
    """Embed every readable item, in the items' order, and name the others with their reasons.

    The others are the items that cannot be read, and those whose embedding is NaN or infinite while
    most embeddings are finite (then these items are out of bounds, and not the network).

    Inputs are batched with others of about their length. The company in its batch changes an
    embedding by no more than float rounding (about 1e-6). Where `read` gives an item in several
    inputs (ReadParts), its embedding is the mean of theirs, weighted by length; no more than 256 MB
    of inputs are in memory.

    Args:
        embedder: The network, on the device where it is to run.
        items: What to embed.
        read: Gives an item's input, or several of them.
        batch_size: The largest number of inputs in a batch.
        workers: The number of processes that read; 0 reads in this one.
        meta: What the Embeddings carry along in their file.

    Returns:
        The embeddings (one row per readable item), and a Bad for every other item.

    Raises:
        LikenessError: No item can be read, or the network refuses an input; then the items of its
            batch are named.
        Diverged: Most embeddings are NaN or infinite.
    """
    made, bad = embed_where_readable(embedder, items, read, batch_size=batch_size, workers=workers)
    if made is None:
        raise LikenessError(
            f"none of {len(items)} items could be read; the first: {bad[0].id}: {bad[0].reason}"
            if bad
            else "there are no items to embed"
        )
    return Embeddings(made.ids, made.matrix, meta or {}), bad


def embed_where_readable(
    embedder: Embedder,
    items: Sequence[Item],
    read: Read | ReadParts,
    *,
    batch_size: int = 16,
    workers: int = 0,
    part: bool = False,
    remarks: dict[int, str] | None = None,
) -> tuple[Embeddings | None, list[Bad]]:
    """Embed as `embed` does, but return None in place of embeddings where nothing can be read.

    Args:
        embedder: The network.
        items: What to embed.
        read: Gives an item's input, or several of them.
        batch_size: The largest number of inputs in a batch.
        workers: The number of processes that read.
        part: Whether the items are a part of a longer list. Then nothing is raised for a network
            that diverged: the caller asks `refuse_diverged` about the whole list.
        remarks: Gets what was remarked of items, by their positions.
    """
    sizes: Any = {"batch_size": batch_size, "workers": workers}
    rows, bad = embedded_rows(embedder, items, read, remarks=remarks, **sizes)
    if not part:
        refuse_diverged(bad, len(rows))
    if not rows:
        return None, bad
    order = sorted(rows)
    return Embeddings(tuple(items[i].id for i in order), np.stack([rows[i] for i in order])), bad


def refuse_diverged(bad: Sequence[Bad], num_finite: int) -> None:
    """Raise Diverged if more embeddings are NaN or infinite than are finite.

    Args:
        bad: The items without an embedding; those whose reason is NO_NUMBERS count.
        num_finite: The number of finite embeddings.
    """
    wrong = [item.id for item in bad if item.reason == NO_NUMBERS]
    if len(wrong) > num_finite:
        raise Diverged(
            f"the network gives NaN or infinity for {len(wrong)} of {len(wrong) + num_finite} "
            f"items ({name_first(wrong)}); take an earlier checkpoint, or lower optim.lr"
        )


def warn_if_alike(embeddings: Embeddings) -> None:
    """Warn where different items have nearly the same embedding, of 8 items or more.

    So it is with a network that gets other inputs than it was trained on, or has no weights.

    Warns:
        UserWarning: The mean cosine between two items is above .9.
    """
    num = len(embeddings.ids)
    if num < _LEAST_COMPARED:
        return
    total = embeddings.unit().sum(axis=0, dtype=np.float64)
    cosine = (float(total @ total) - num) / (num * (num - 1))
    if cosine > _ALIKE:
        warnings.warn(
            f"the embeddings of {num:,} items are nearly the same (their mean cosine is "
            f"{cosine:.2f}): is this what the network was trained on? Look at its weights and "
            "input, unless all items are of one person or thing",
            stacklevel=3,
        )


def embedded_rows(
    embedder: Embedder,
    items: Sequence[Item],
    read: Read | ReadParts,
    *,
    batch_size: int = 16,
    workers: int = 0,
    remarks: dict[int, str] | None = None,
) -> tuple[dict[int, Floats], list[Bad]]:
    """Return position -> embedding of every readable item, and the items that have none.

    `embed` says what the arguments are.
    """
    sums: _Sums = {}
    bad: list[tuple[int, Bad]] = []
    share = partial(inputs_of, items, with_settings_of(read))
    reader = read_beside(share, workers) if workers else share()
    before: tuple[_Batch, Callable[[], Floats]] | None = None
    try:
        with closing(reader):
            # A GPU embeds one batch while the next one is read.
            noted = {} if remarks is None else remarks
            batches = _batches(reader, sums, bad, noted, embedder, len(items), batch_size)
            for batch in chain(batches, [None]):
                begun = None
                if batch is not None:
                    try:
                        begun = batch, embedder.begin_batch(batch.inputs, batch.lengths)
                    except ValueError as error:
                        ids = dict.fromkeys(items[position].id for position in batch.positions)
                        raise LikenessError(
                            f"{error}; it is among ({name_first(ids)}), which {name_of(read)} "
                            "reads: remove it, or change how it is read (min_seconds lengthens "
                            "recordings)"
                        ) from error
                if before is not None:
                    _add(sums, *before)
                    report("embedding", len(sums), len(items))
                before = begun
    finally:
        report("embedding", len(items), len(items))
    # A file may turn out to be damaged after its first chunks were embedded.
    refused = {position for position, _ in bad}
    rows: dict[int, Floats] = {}
    for position, (total, weight) in sums.items():
        with np.errstate(over="ignore", invalid="ignore"):
            row = (total / weight).astype(np.float32)
        if position not in refused and np.isfinite(row).all():
            rows[position] = row
        elif position not in refused:
            bad.append((position, Bad(items[position].id, NO_NUMBERS)))
    return rows, [item for _, item in sorted(bad, key=lambda pair: pair[0])]


class _Batch(NamedTuple):
    """Inputs of nearly equal length.

    Attributes:
        positions: Which of the items each of the B inputs is of.
        sizes: Their lengths (B,) as they were read.
        inputs: (B, ..., T), padded.
        lengths: Their relative lengths (B,); None where nothing is padded.
    """

    positions: list[int]
    sizes: list[int]
    inputs: Array
    lengths: NDArray[np.float64] | None


def _batches(
    reader: Iterable[tuple[int, Array | Bad | Remark | None]],
    sums: _Sums,
    bad: list[tuple[int, Bad]],
    remarks: dict[int, str],
    embedder: Embedder,
    num_items: int,
    batch_size: int,
) -> Iterator[_Batch]:
    """Yield what is read in batches of about equal length, and collect the items in `bad` that
    cannot be read, and `remarks` on others. `sums` says what is embedded meanwhile.
    """
    window: list[tuple[int, Array]] = []
    num_values = num_read = 0
    for position, value in reader:
        if isinstance(value, Remark):
            remarks.setdefault(position, value.text)
            continue
        if isinstance(value, Bad):
            bad.append((position, value))
        elif value is not None:
            value = value if value.dtype == np.uint8 else value.astype(np.float32, copy=False)
            window.append((position, value))
            num_values += value.size
        if value is None or isinstance(value, Bad):
            num_read += 1
            report("embedding", len(sums), num_items, note=f"{num_read:,} read")
        if num_read == num_items or len(window) >= _WINDOW or num_values >= _WINDOW_VALUES:
            for group in _groups([value for _, value in window], batch_size, embedder):
                positions = [window[place][0] for place, _ in group]
                sizes = [window[place][1].shape[-1] for place, _ in group]
                yield _Batch(positions, sizes, *pad([value for _, value in group]))
            window, num_values = [], 0


def _add(sums: _Sums, batch: _Batch, embeddings: Callable[[], Floats]) -> None:
    """Add the embeddings of a batch to the sums of their items."""
    rows = embeddings().astype(np.float64)
    for position, size, row in zip(batch.positions, batch.sizes, rows, strict=True):
        total, weight = sums.get(position, (np.zeros(1), 0))
        sums[position] = total + size * row, weight + size


def inputs_of(
    items: Sequence[Item], read: Read | ReadParts, first: int = 0, step: int = 1
) -> Generator[tuple[int, Array | Bad | Remark | None]]:
    """Yield every input of every `step`-th item as (position, input), and (position, None) after
    an item's last; before these what was remarked of it.

    An item that cannot be read gives (position, Bad) instead.
    """
    for position in range(first, len(items), step):
        item = items[position]
        try:
            with remarked() as remarks:
                value = read(item)
            yield from ((position, remark) for remark in remarks)
            for part_read in value if _is_in_parts(value) else [value]:
                part = as_input(part_read, read, item.id)
                yield position, part
            yield position, None
        except (ValueError, OSError) as error:
            yield position, Bad(item.id, str(error))


def _is_in_parts(value: object) -> bool:
    """Whether a reading gives an item in several inputs."""
    if isinstance(value, list | tuple):
        return all(isinstance(part, np.ndarray) or is_tensor(part) for part in value)
    return isinstance(value, Iterator)


def _groups(
    inputs: list[Array], batch_size: int, embedder: Embedder
) -> Iterator[list[tuple[int, Array]]]:
    """Yield (place, input) in groups of nearly equal length.

    The lengths in a group are equal for a backbone whose embeddings padding would change.
    """
    if not embedder.pads_exactly:
        # Samples past the last whole frame change nothing. Without them, more lengths are equal.
        inputs = [value[..., : embedder.used_length(value.shape[-1])] for value in inputs]
    longest_padding = _LONGEST_PADDING if embedder.pads_exactly else 1.0
    group: list[tuple[int, Array]] = []
    for place, value in sorted(enumerate(inputs), key=lambda pair: pair[1].shape[-1]):
        most = _CPU_BATCH_SAMPLES if embedder.is_on_cpu and value.ndim == 1 else _BATCH_VALUES
        full = len(group) == batch_size or (len(group) + 1) * value.size > most
        if group and (
            full
            or value.shape[-1] > longest_padding * group[0][1].shape[-1]
            or value.shape[:-1] != group[0][1].shape[:-1]
        ):
            yield group
            group = []
        group.append((place, value))
    if group:
        yield group
