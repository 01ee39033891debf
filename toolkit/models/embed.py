"""The torch embedder (front-end and backbone), and `embed`, which turns items into Embeddings.

`embed` batches inputs of about equal length and gives the embeddings in the order of the items.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eval.progress import as_part, report
from eval.types import Embeddings, name_first
from toolkit.console import ignore_ctrl_c
from toolkit.data.batch import (
    NOT_FINITE,
    Array,
    Bad,
    Floats,
    Read,
    collate,
    is_finite,
    make_room_for_sockets,
)
from toolkit.data.forms import reading_for
from toolkit.data.items import Item
from toolkit.losses.simple import polarlike
from toolkit.models.parts import HOMES
from toolkit.parallel import distributed
from toolkit.part_checks import as_input, check_features, name_of

Flip = Literal["none", "sum", "mean", "concat"]
# A reading that gives an item in several inputs: crops, or the chunks of a long recording.
ReadParts = Callable[[Item], Iterator[Array]]
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

NO_NUMBERS = "the network gives NaN or infinity for it"  # the reason in the Bad of such an item

# Position of an item -> the sum of length times embedding over its inputs, and of their lengths.
_Sums = dict[int, tuple[NDArray[np.float64], int]]


class Diverged(ValueError):
    """A network gives embeddings, or learns weights, that are NaN or infinite."""


class TorchEmbedder(nn.Module):
    """Front-end and backbone as one module that gives raw embeddings.

    Inputs are (B, ...) and relative lengths are (B,); embeddings are (B, dim). `encode` gives what
    losses see. The module itself gives what is scored and stored: the same, or with
    features="polarlike" its transform.

    Args:
        frontend: Takes (inputs, lengths) and gives (features, relative lengths of the features).
        backbone: Takes these and gives (B, backbone.dim).
        features: "raw", or "polarlike" for the transform that SimPLE's release applies.
        flip: For images: how the embedding of the mirror image is joined to the image's own. "sum"
            and "mean" keep the dimensions; "concat" puts both side by side, which doubles them.

    Attributes:
        still: The names of modules that stay in evaluation mode while the rest is trained.
    """

    def __init__(
        self,
        frontend: nn.Module,
        backbone: nn.Module,
        *,
        features: Literal["raw", "polarlike"] = "raw",
        flip: Flip = "none",
    ):
        super().__init__()
        self.frontend, self.backbone, self.features, self.flip = frontend, backbone, features, flip
        dim = cast(int, backbone.dim)
        if features == "polarlike":
            dim -= 1
        self.dim = 2 * dim if flip == "concat" else dim
        self.still: tuple[str, ...] = ()

    def train(self, mode: bool = True) -> TorchEmbedder:
        """Set the mode as nn.Module does, but leave the modules that are held still as they are."""
        super().train(mode)
        for name in self.still:
            self.get_submodule(name).eval()
        return self

    @property
    def trains_frontend(self) -> bool:
        """Whether the front-end has parameters that are trained."""
        return any(parameter.requires_grad for parameter in self.frontend.parameters())

    @property
    def pads_exactly(self) -> bool:
        """Whether padding leaves embeddings unchanged; if not, batches hold equal lengths only."""
        return bool(getattr(self.backbone, "pads_exactly", False))

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the backbone's raw outputs (B, backbone.dim), which losses are computed on."""
        features, frames = check_features(self.frontend(inputs, lengths), self.frontend)
        if lengths is None:  # nothing is padded, so the backbone has no masks to apply
            frames = None
        return cast(Tensor, self.backbone(features, frames))

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, dim) that are scored and stored."""
        z = self._view(inputs, lengths)
        if self.flip == "none":
            return z
        mirrored = self._view(inputs.flip(-1), lengths)
        if self.flip == "concat":
            return torch.cat((z, mirrored), dim=1)
        return z + mirrored if self.flip == "sum" else (z + mirrored) / 2

    def _view(self, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the embeddings of these inputs alone, without those of their mirror images."""
        z = self.encode(inputs, lengths).float()
        return polarlike(z) if self.features == "polarlike" else z


def pick_device() -> torch.device:
    """Return the GPU where there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def embed(
    embedder: TorchEmbedder,
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
    of inputs are in memory. The embedder's training mode is restored at the end.

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
        ValueError: No item can be read, or the network refuses an input; then the items of its
            batch are named.
        Diverged: Most embeddings are NaN or infinite.
    """
    rows, bad = _rows(embedder, items, read, batch_size=batch_size, workers=workers)
    return _collect(rows, items, bad, meta)


def embed_where_readable(
    embedder: TorchEmbedder,
    items: Sequence[Item],
    read: Read | ReadParts,
    *,
    batch_size: int = 16,
    workers: int = 0,
    part: bool = False,
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
    """
    rows, bad = _rows(embedder, items, read, batch_size=batch_size, workers=workers)
    if not part:
        refuse_diverged(bad, len(rows))
    return (_stacked(rows, items, None) if rows else None), bad


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
            f"items ({name_first(wrong)}): its weights have diverged; "
            "take an earlier checkpoint, and lower optim.lr or set optim.grad_clip where it is "
            "trained"
        )


def embed_all(
    embedder: TorchEmbedder,
    items: Sequence[Item],
    read: Read | ReadParts,
    *,
    what: str,
    workers: int = 0,
) -> Embeddings:
    """Embed as `embed_on_all_ranks` does, where no item may be missing.

    Args:
        embedder: The network, the same in every process.
        items: All items, the same in every process.
        read: Gives an item's input, or several of them.
        what: What the error calls the items, such as "validation".
        workers: The number of processes that read.

    Raises:
        ValueError: Some items cannot be read. They are counted and the first are named.
    """
    embeddings, bad = embed_on_all_ranks(embedder, items, read, workers=workers)
    if bad:
        raise ValueError(
            f"{len(bad)} of {len(items)} {what} items cannot be read "
            f"({name_first(item.id for item in bad)}): {bad[0].reason}"
        )
    return embeddings


def embed_on_all_ranks(
    embedder: TorchEmbedder, items: Sequence[Item], read: Read | ReadParts, *, workers: int = 0
) -> tuple[Embeddings, list[Bad]]:
    """Embed as `embed` does, while each process of the run takes its part of the items.

    Every process gets the whole result, the same in the same order.
    """
    rank, world = distributed.rank(), distributed.world()
    if world == 1:
        return embed(embedder, items, read, workers=workers)
    first, stop = len(items) * rank // world, len(items) * (rank + 1) // world
    rows, bad = _rows(embedder, items[first:stop], read, workers=workers)
    own = [rows[i] for i in sorted(rows)]
    matrix = torch.from_numpy(np.stack(own) if own else np.zeros((0, embedder.dim), np.float32))
    positions = torch.tensor([first + i for i in sorted(rows)], dtype=torch.int64)
    # The collectives join tensors only, so each process writes its Bads as one line of JSON.
    text = torch.frombuffer(bytearray(json.dumps(bad).encode() + b"\n"), dtype=torch.uint8)
    matrix, positions, text = map(distributed.gather_plain, (matrix, positions, text))
    lines = bytes(text.tolist()).decode().splitlines()
    all_bad = [Bad(*fields) for line in lines for fields in json.loads(line)]
    all_rows = dict(zip(positions.tolist(), matrix.numpy(), strict=True))
    return _collect(all_rows, items, all_bad, None)


@torch.no_grad()
def _rows(
    embedder: TorchEmbedder,
    items: Sequence[Item],
    read: Read | ReadParts,
    *,
    batch_size: int = 16,
    workers: int = 0,
) -> tuple[dict[int, Floats], list[Bad]]:
    """Return position -> embedding of every readable item, and the items that have none."""
    was_training = embedder.training
    embedder.eval()
    sums: _Sums = {}
    bad: list[tuple[int, Bad]] = []
    window: list[tuple[int, Array]] = []
    num_values = 0
    make_room_for_sockets()
    num_read = num_done = 0  # items
    report("embedding", num_done, len(items))
    reader = torch.utils.data.DataLoader(
        _Inputs(items, reading_for(read)),
        batch_size=None,
        num_workers=workers,
        worker_init_fn=ignore_ctrl_c,
        generator=torch.Generator(),
    )
    try:
        for position, value in reader:
            if isinstance(value, Bad):
                bad.append((position, value))
            elif value is not None:
                window.append((position, _as_input(value)))
                num_values += window[-1][1].size
            if value is None or isinstance(value, Bad):
                num_read += 1
                report("embedding", num_done, len(items), note=f"{num_read:,} read")
            if len(window) >= _WINDOW or num_values >= _WINDOW_VALUES:
                with as_part(num_done, len(items)):
                    _add_window(sums, window, embedder, items, batch_size, read)
                num_done, window, num_values = num_read, [], 0
        if window:
            with as_part(num_done, len(items)):
                _add_window(sums, window, embedder, items, batch_size, read)
        num_done = num_read
    finally:
        embedder.train(was_training)
        report("embedding", num_done, num_done)
    return _means(sums, bad, items)


def _as_input(value: object) -> Array:
    """Return what a process has read as an array: uint8 stays, and the rest becomes float32."""
    array = np.asarray(value)
    return array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)


def _add_window(
    sums: _Sums,
    window: list[tuple[int, Array]],
    embedder: TorchEmbedder,
    items: Sequence[Item],
    batch_size: int,
    read: Read | ReadParts,
) -> None:
    """Embed a window of inputs and add them to the sums of their items."""
    # An ONNX network has neither parameters nor buffers; it takes inputs on the CPU.
    tensors = itertools.chain(embedder.parameters(), embedder.buffers(), (torch.zeros(0),))
    device = next(tensors).device
    sizes = [value.shape[-1] for _, value in window]
    numbered = [(place, value) for place, (_, value) in enumerate(window)]
    done, last = 0, {position: place for place, (position, _) in enumerate(window)}
    ends = set(last.values())  # where the last input of an item stands
    for places, inputs, lengths in _buckets(numbered, batch_size, embedder, device):
        lengths = None if lengths is None else lengths.to(device)
        try:
            z = embedder(inputs.to(device).float(), lengths).double().cpu().numpy()
        except ValueError as error:  # the network cannot take one of these inputs
            ids = dict.fromkeys(items[window[place][0]].id for place in places)
            # Inputs of two axes are waves, which networks refuse because they are short.
            remedy = ": remove it, or read with a larger min_seconds" if inputs.ndim == 2 else ""
            name = name_of(read)
            whose = "" if name.partition(".")[0] in HOMES else f" (items are read by {name})"
            raise ValueError(f"{error}; it is among ({name_first(ids)}){remedy}{whose}") from error
        for place, row in zip(places, z, strict=True):
            position, size = window[place][0], sizes[place]
            total, weight = sums.get(position, (np.zeros(1), 0))
            sums[position] = total + size * row, weight + size
        done += sum(place in ends for place in places)
        report("embedding", done, None)


def _means(
    sums: _Sums, bad: list[tuple[int, Bad]], items: Sequence[Item]
) -> tuple[dict[int, Floats], list[Bad]]:
    """Return position -> embedding where it is finite, and the items that have none, in order."""
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


class _Inputs(torch.utils.data.IterableDataset[tuple[int, Array | Bad | None]]):
    """Every input of every item as (position, input), and (position, None) after an item's last.

    An item that cannot be read gives (position, Bad) instead. With n workers, each of them takes
    every n-th item.
    """

    def __init__(self, items: Sequence[Item], read: Read | ReadParts):
        self.items, self.read = items, read

    def __iter__(self) -> Iterator[tuple[int, Array | Bad | None]]:
        worker = torch.utils.data.get_worker_info()
        for position in range(
            worker.id if worker else 0, len(self.items), worker.num_workers if worker else 1
        ):
            item = self.items[position]
            try:
                value = self.read(item)
                for given in value if _is_in_parts(value) else [value]:
                    part = as_input(given, self.read, item.id)
                    if not is_finite(part):
                        raise ValueError(NOT_FINITE)
                    yield position, part
                yield position, None
            except (ValueError, OSError) as error:
                yield position, Bad(item.id, str(error))


def _is_in_parts(value: object) -> bool:
    """Whether a reading gives an item in several inputs."""
    if isinstance(value, list | tuple):
        return all(isinstance(part, np.ndarray | Tensor) for part in value)
    return isinstance(value, Iterator)


def _collect(
    rows: dict[int, Floats], items: Sequence[Item], bad: list[Bad], meta: dict[str, str] | None
) -> tuple[Embeddings, list[Bad]]:
    """Return the embeddings and the items without one; raise where there is no embedding at all."""
    refuse_diverged(bad, len(rows))
    if not rows:
        raise ValueError(
            f"none of {len(items)} items could be read; the first: {bad[0].id}: {bad[0].reason}"
            if bad
            else "there are no items to embed"
        )
    return _stacked(rows, items, meta), bad


def _stacked(
    rows: dict[int, Floats], items: Sequence[Item], meta: dict[str, str] | None
) -> Embeddings:
    """Return the rows as Embeddings in the order of the items."""
    order = sorted(rows)
    return Embeddings(
        tuple(items[i].id for i in order), np.stack([rows[i] for i in order]), meta or {}
    )


def _buckets(
    window: list[tuple[int, Array]], batch_size: int, embedder: TorchEmbedder, device: torch.device
) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:
    """Yield batches of inputs of nearly equal length.

    The lengths in a batch are equal for a backbone whose embeddings padding would change.

    Yields:
        The numbers of the inputs, the batch (B, ..., T), and the relative lengths (B,) or None.
    """
    trim = getattr(embedder.frontend, "trim", None)
    if trim is not None and not embedder.pads_exactly:
        # Samples past the last whole frame change nothing. Without them, more lengths are equal.
        window = [(position, value[..., : trim(value.shape[-1])]) for position, value in window]
    longest_padding = _LONGEST_PADDING if embedder.pads_exactly else 1.0
    group: list[tuple[int, Array]] = []
    for position, value in sorted(window, key=lambda pair: pair[1].shape[-1]):
        most = _CPU_BATCH_SAMPLES if device.type == "cpu" and value.ndim == 1 else _BATCH_VALUES
        full = len(group) == batch_size or (len(group) + 1) * value.size > most
        if group and (
            full
            or value.shape[-1] > longest_padding * group[0][1].shape[-1]
            or value.shape[:-1] != group[0][1].shape[:-1]
        ):
            yield _group(group)
            group = []
        group.append((position, value))
    if group:
        yield _group(group)


def _group(group: list[tuple[int, Array]]) -> tuple[list[int], Tensor, Tensor | None]:
    """Pad the inputs of one batch to one length."""
    batch = collate([value for _, value in group])
    return [position for position, _ in group], batch.inputs, batch.lengths
