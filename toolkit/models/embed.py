"""The torch embedder (front-end + backbone) and embed(): items -> Embeddings, in length buckets, in
item order.
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

from eval.types import Embeddings, name_first
from toolkit.console import bar, ignore_ctrl_c
from toolkit.data.batch import (
    NOT_FINITE,
    Bad,
    Floats,
    Item,
    Read,
    collate,
    is_finite,
    make_room_for_sockets,
)
from toolkit.losses.simple import polarlike
from toolkit.parallel import distributed

Flip = Literal["none", "sum", "mean", "concat"]
ReadParts = Callable[
    [Item], Iterator[Floats]
]  # an item in several inputs: crops, or the chunks of a long recording
_WINDOW = 256  # inputs read ahead and sorted by length: bounds memory, keeps buckets tight
_WINDOW_VALUES = 2**26  # and so many numbers: 256 MB
# on a CPU a ResNet34 takes 13 utterances of 3 s a second one by one, 12 in batches of 4, 7 to 11 in
# batches of 16 (cache)
_CPU_BATCH_SAMPLES = 2**14
_BATCH_VALUES = 2**24  # a batch of long inputs is smaller: what a network keeps grows with them
_LONGEST_PADDING = 1.2  # a batch holds no input this much shorter than its longest


NO_NUMBERS = "the network gives NaN or infinity for it"  # the reason of such an item


class Diverged(ValueError):
    """A network gives embeddings, or learns weights, that are no numbers."""


class TorchEmbedder(nn.Module):
    """Front-end and backbone as one module: inputs (B, ...), lengths (B,) relative -> (B, dim) raw
    embeddings.

    encode() is what losses see. The module itself gives what is scored and stored: the same, or
    with features="polarlike" (SimPLE as released) its transform.
    flip: of images, joins it with that of the mirror image: their sum, their mean, or both side by
    side (concat, twice as many dimensions).
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
        backbone_dim = cast(int, backbone.dim)
        self.dim = (backbone_dim - 1 if features == "polarlike" else backbone_dim) * (
            2 if flip == "concat" else 1
        )

    @property
    def trains_frontend(self) -> bool:
        """Whether the front-end has parameters that are trained."""
        return any(parameter.requires_grad for parameter in self.frontend.parameters())

    @property
    def pads_exactly(self) -> bool:
        """Whether padding leaves embeddings unchanged; if not, batches hold equal lengths only."""
        return bool(getattr(self.backbone, "pads_exactly", False))

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, backbone.dim) raw outputs."""
        features, frames = self.frontend(inputs, lengths)
        return cast(
            Tensor, self.backbone(features, None if lengths is None else frames)
        )  # nothing is padded: no masks to apply

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        z = self._view(inputs, lengths)
        if self.flip == "none":
            return z
        mirrored = self._view(inputs.flip(-1), lengths)
        if self.flip == "concat":
            return torch.cat((z, mirrored), dim=1)
        return z + mirrored if self.flip == "sum" else (z + mirrored) / 2

    def _view(self, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        z = self.encode(inputs, lengths).float()
        return polarlike(z) if self.features == "polarlike" else z


def pick_device() -> torch.device:
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
    """Embed every readable item, in the items' order; the others come back with their reasons.

    These are items that cannot be read, and those whose embedding is NaN or infinite while most are
    finite: then it is they that are out of bounds.

    Inputs are batched with others of about their length; what is in a batch with what never changes
    an embedding beyond float rounding (about 1e-6). Where `read` gives an item in several inputs
    (ReadParts), its embedding is the mean of theirs, weighted by length; no more than 256 MB of
    them are held. The embedder's training mode is restored. ValueError if no item can be read, or
    the network refuses an input: the items of its batch are named. Diverged if most embeddings are
    NaN or infinite.
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
    progress: bool = False,
    part: bool = False,
) -> tuple[Embeddings | None, list[Bad]]:
    """As embed, but None where nothing can be read. part: of a longer list, of all of which the
    caller then asks refuse_diverged.
    """
    rows, bad = _rows(
        embedder, items, read, batch_size=batch_size, workers=workers, progress=progress
    )
    if not part:
        refuse_diverged(bad, len(rows))
    return (_stacked(rows, items, None) if rows else None), bad


def refuse_diverged(bad: Sequence[Bad], num_finite: int) -> None:
    """Diverged if more embeddings are NaN or infinite, as `bad` says, than the num_finite that are
    finite.
    """
    wrong = [one.id for one in bad if one.reason == NO_NUMBERS]
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
    """As embed_on_all_ranks, of items of which none may be missing: ValueError counts those that
    cannot be read. what: what the error calls them.
    """
    embeddings, bad = embed_on_all_ranks(embedder, items, read, workers=workers)
    if bad:
        raise ValueError(
            f"{len(bad)} of {len(items)} {what} items cannot be read "
            f"({name_first(one.id for one in bad)}): {bad[0].reason}"
        )
    return embeddings


def embed_on_all_ranks(
    embedder: TorchEmbedder, items: Sequence[Item], read: Read | ReadParts, *, workers: int = 0
) -> tuple[Embeddings, list[Bad]]:
    """As embed, each process taking its part of the items; all of them get the whole result, the
    same in the same order.
    """
    rank, world = distributed.rank(), distributed.world()
    if world == 1:
        return embed(embedder, items, read, workers=workers)
    first = len(items) * rank // world
    rows, bad = _rows(
        embedder, items[first : len(items) * (rank + 1) // world], read, workers=workers
    )
    matrix = torch.from_numpy(
        np.stack([rows[i] for i in sorted(rows)])
        if rows
        else np.zeros((0, embedder.dim), np.float32)
    )
    places = torch.tensor([first + i for i in sorted(rows)], dtype=torch.int64)
    told = torch.frombuffer(bytearray(json.dumps(bad).encode() + b"\n"), dtype=torch.uint8)
    matrix, places, told = (distributed.gather_plain(one) for one in (matrix, places, told))
    everywhere = [
        Bad(*one) for line in bytes(told.tolist()).decode().splitlines() for one in json.loads(line)
    ]
    return _collect(
        dict(zip(places.tolist(), matrix.numpy(), strict=True)), items, everywhere, None
    )


@torch.no_grad()
def _rows(
    embedder: TorchEmbedder,
    items: Sequence[Item],
    read: Read | ReadParts,
    *,
    batch_size: int = 16,
    workers: int = 0,
    progress: bool = False,
) -> tuple[dict[int, Floats], list[Bad]]:
    """Position -> embedding of every readable item, and the others."""
    device = next(
        itertools.chain(embedder.parameters(), embedder.buffers(), (torch.zeros(0),))
    ).device  # an ONNX network has neither
    was_training = embedder.training
    embedder.eval()
    sums: dict[
        int, tuple[NDArray[np.float64], int]
    ] = {}  # position -> sum of length x embedding, sum of lengths
    bad: list[tuple[int, Bad]] = []
    make_room_for_sockets()
    reader = torch.utils.data.DataLoader(
        _Inputs(items, read),
        batch_size=None,
        num_workers=workers,
        worker_init_fn=ignore_ctrl_c,
        generator=torch.Generator(),
    )
    window: list[tuple[int, Floats]] = []
    held = 0

    def flush() -> None:
        sizes = [value.shape[-1] for _, value in window]
        for places, inputs, lengths in _buckets(
            [(place, value) for place, (_, value) in enumerate(window)],
            batch_size,
            embedder,
            device,
        ):
            try:
                z = (
                    embedder(inputs.to(device), None if lengths is None else lengths.to(device))
                    .double()
                    .cpu()
                    .numpy()
                )
            except ValueError as error:  # an input that the network cannot take, the shortest first
                named = name_first(dict.fromkeys(items[window[place][0]].id for place in places))
                remedy = (
                    ": remove it, or read with a larger min_seconds" if inputs.ndim == 2 else ""
                )  # waves, which are refused for being short
                raise ValueError(f"{error}; it is among ({named}){remedy}") from error
            for place, row in zip(places, z, strict=True):
                total, weight = sums.get(window[place][0], (np.zeros(1), 0))
                sums[window[place][0]] = total + sizes[place] * row, weight + sizes[place]

    try:
        with bar(show=progress) as shown:
            task = shown.add_task("embedding", total=len(items))
            for position, value in reader:
                if isinstance(value, Bad):
                    bad.append((position, value))
                elif value is not None:
                    window.append((position, np.asarray(value, dtype=np.float32)))
                    held += window[-1][1].size
                if value is None or isinstance(value, Bad):
                    shown.advance(task)
                if len(window) >= _WINDOW or held >= _WINDOW_VALUES:
                    flush()
                    window, held = [], 0
            if window:
                flush()
    finally:
        embedder.train(was_training)
    refused = {
        position for position, _ in bad
    }  # a file may turn out damaged after its first chunks
    rows: dict[int, Floats] = {}
    for position, (total, weight) in sums.items():
        with np.errstate(over="ignore", invalid="ignore"):
            row = (total / weight).astype(np.float32)
        if position not in refused and np.isfinite(row).all():
            rows[position] = row
        elif position not in refused:
            bad.append((position, Bad(items[position].id, NO_NUMBERS)))
    return rows, [one for _, one in sorted(bad, key=lambda one: one[0])]


class _Inputs(torch.utils.data.IterableDataset[tuple[int, Floats | Bad | None]]):
    """(position, input) for every input of every item, then (position, None), or (position, Bad)
    where it cannot be read. Workers take every n-th item.
    """

    def __init__(self, items: Sequence[Item], read: Read | ReadParts):
        self.items, self.read = items, read

    def __iter__(self) -> Iterator[tuple[int, Floats | Bad | None]]:
        worker = torch.utils.data.get_worker_info()
        for position in range(
            worker.id if worker else 0, len(self.items), worker.num_workers if worker else 1
        ):
            try:
                value = self.read(self.items[position])
                for part in [value] if isinstance(value, np.ndarray) else value:
                    if not is_finite(part):
                        raise ValueError(NOT_FINITE)
                    yield position, part
                yield position, None
            except (ValueError, OSError) as error:
                yield position, Bad(self.items[position].id, str(error))


def _collect(
    rows: dict[int, Floats], items: Sequence[Item], bad: list[Bad], meta: dict[str, str] | None
) -> tuple[Embeddings, list[Bad]]:
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
    order = sorted(rows)
    return Embeddings(
        tuple(items[i].id for i in order), np.stack([rows[i] for i in order]), meta or {}
    )


def _buckets(
    window: list[tuple[int, Floats]], batch_size: int, embedder: TorchEmbedder, device: torch.device
) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:
    """Batches of inputs of nearly equal length (equal length for a backbone that padding would
    change).
    """
    trim = getattr(embedder.frontend, "trim", None)
    if (
        trim is not None and not embedder.pads_exactly
    ):  # samples past the last whole frame change nothing: dropping them makes more lengths equal
        window = [(position, value[..., : trim(value.shape[-1])]) for position, value in window]
    longest_padding = _LONGEST_PADDING if embedder.pads_exactly else 1.0
    window = sorted(window, key=lambda one: one[1].shape[-1])
    group: list[tuple[int, Floats]] = []
    for one in window:
        most = _CPU_BATCH_SAMPLES if device.type == "cpu" and one[1].ndim == 1 else _BATCH_VALUES
        full = len(group) == batch_size or (len(group) + 1) * one[1].size > most
        if group and (
            full
            or one[1].shape[-1] > longest_padding * group[0][1].shape[-1]
            or one[1].shape[:-1] != group[0][1].shape[:-1]
        ):
            yield _group(group)
            group = []
        group.append(one)
    if group:
        yield _group(group)


def _group(group: list[tuple[int, Floats]]) -> tuple[list[int], Tensor, Tensor | None]:
    batch = collate([value for _, value in group])
    return [position for position, _ in group], batch.inputs, batch.lengths
