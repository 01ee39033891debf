"""The torch embedder (front-end + backbone) and embed(): items -> Embeddings, in length buckets, in item order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from eval.types import Embeddings
from toolkit.batch import Bad, Floats, Item, Read, Whole, collate
from toolkit.losses.simple import polarlike

_WINDOW = 256  # items read ahead and sorted by length: bounds memory, keeps buckets tight
_LONGEST_PADDING = 1.2  # a batch holds no input this much shorter than its longest


class TorchEmbedder(nn.Module):
    """Front-end and backbone as one module: inputs (B, ...), lengths (B,) relative -> (B, dim) raw embeddings.

    encode() is what losses see. The module itself gives what is scored and stored: the same, or with features="polarlike" (SimPLE as released) its transform.
    """

    def __init__(self, frontend: nn.Module, backbone: nn.Module, *, features: Literal["raw", "polarlike"] = "raw"):
        super().__init__()
        self.frontend, self.backbone, self.features = frontend, backbone, features
        backbone_dim = cast(int, backbone.dim)
        self.dim = backbone_dim - 1 if features == "polarlike" else backbone_dim

    @property
    def pads_exactly(self) -> bool:
        """Whether padding leaves embeddings unchanged; if not, batches hold equal lengths only."""
        return bool(getattr(self.backbone, "pads_exactly", False))

    def encode(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, backbone.dim) raw outputs."""
        features, frames = self.frontend(inputs, lengths)
        return cast(Tensor, self.backbone(features, None if lengths is None else frames))  # nothing is padded: no masks to apply

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        z = self.encode(inputs, lengths).float()
        return polarlike(z) if self.features == "polarlike" else z


def pick_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@torch.no_grad()
def embed(
    embedder: TorchEmbedder,
    items: Sequence[Item],
    read: Read,
    *,
    batch_size: int = 16,
    workers: int = 0,
    meta: dict[str, str] | None = None,
    progress: bool = False,
) -> tuple[Embeddings, list[Bad]]:
    """Embed every readable item, in the items' order; the unreadable ones come back with their reasons.

    Inputs are batched with others of about their length; what is in a batch with what never changes an embedding beyond float rounding (about 1e-6).
    The embedder's training mode is restored. ValueError if no item can be read.
    """
    from rich.progress import track

    device = next(iter(embedder.parameters())).device
    was_training = embedder.training
    embedder.eval()
    rows: dict[int, Floats] = {}
    bad: list[Bad] = []
    reader = torch.utils.data.DataLoader(Whole(items, read), batch_size=None, num_workers=workers)
    window: list[tuple[int, Floats]] = []
    try:
        for count, one in enumerate(track(reader, "embedding", total=len(items), disable=not progress, transient=True), 1):
            if isinstance(one, Bad):
                bad.append(one)
            else:
                window.append((int(one[0]), np.asarray(one[1], dtype=np.float32)))
            if window and (len(window) == _WINDOW or count == len(items)):
                for positions, inputs, lengths in _buckets(window, batch_size, embedder):
                    z = embedder(inputs.to(device), None if lengths is None else lengths.to(device))
                    rows.update(zip(positions, z.float().cpu().numpy(), strict=True))
                window = []
    finally:
        embedder.train(was_training)
    if not rows:
        raise ValueError(f"none of {len(items)} items could be read; the first: {bad[0].id}: {bad[0].reason}" if bad else "there are no items to embed")
    order = sorted(rows)
    return Embeddings(tuple(items[i].id for i in order), np.stack([rows[i] for i in order]), meta or {}), bad


def _buckets(window: list[tuple[int, Floats]], batch_size: int, embedder: TorchEmbedder) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:
    """Batches of inputs of nearly equal length (equal length for a backbone that padding would change)."""
    trim = getattr(embedder.frontend, "trim", None)
    if trim is not None and not embedder.pads_exactly:  # samples past the last whole frame change nothing: dropping them makes more lengths equal
        window = [(position, value[..., : trim(value.shape[-1])]) for position, value in window]
    longest_padding = _LONGEST_PADDING if embedder.pads_exactly else 1.0
    window = sorted(window, key=lambda one: one[1].shape[-1])
    group: list[tuple[int, Floats]] = []
    for one in window:
        if group and (len(group) == batch_size or one[1].shape[-1] > longest_padding * group[0][1].shape[-1] or one[1].shape[:-1] != group[0][1].shape[:-1]):
            yield _group(group)
            group = []
        group.append(one)
    if group:
        yield _group(group)


def _group(group: list[tuple[int, Floats]]) -> tuple[list[int], Tensor, Tensor | None]:
    batch = collate([value for _, value in group])
    return [position for position, _ in group], batch.inputs, batch.lengths
