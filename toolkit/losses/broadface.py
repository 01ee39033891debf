"""Margin softmax over the batch and a queue of past embeddings."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from toolkit.losses.common import Rates, checked, class_rows, in_full, known_settings, proxy_groups
from toolkit.losses.margin import Wrap, angular_margin_softmax
from toolkit.losses.softmax import norms, scaled_cosine
from toolkit.vmf.precision import unit


class BroadFace(nn.Module):
    """ArcFace over the batch and a queue of past embeddings, which teach the proxies but not the
    encoder. Kim et al. 2020.

    L = mean of ArcFace over batch and queue, whose gradient moves the proxies; the encoder gets the
    gradient of the batch's own mean. A past embedding e of class y, seen when the proxy was w_old,
    enters as e + (|e| / |w_old|) (w_y - w_old), a constant: it follows its proxy. z (B, dim) raw, y
    (B,) int64 -> scalar; both sides normalised. margin .5, scale 64, queue_size 32768. The queue is
    filled in training mode, after the loss; in evaluation the batch stands alone.
    """

    PAPER: ClassVar[str] = "Kim et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "loops over batch and queue"
    NOTES: ClassVar[str] = (
        "no release; the gradient that reaches z is that of ArcFace on the batch, whatever the "
        "queue holds"
    )

    proxies: nn.Parameter  # (C, D)
    past: Tensor  # (Q, D) raw embeddings
    past_proxies: Tensor  # (Q, D) their classes' proxies when they were seen
    past_labels: Tensor  # (Q,) -1 = empty slot
    pointer: Tensor

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.5,
        scale: float = 64.0,
        queue_size: int = 32768,
        wrap: Wrap = "monotone",
    ):
        super().__init__()
        if not 0 <= margin < math.pi or scale <= 0 or queue_size < 1:
            raise ValueError(
                f"BroadFace: margin={margin} must be radians in [0, pi), scale={scale} and "
                f"queue_size={queue_size} positive"
            )
        self.dim, self.num_classes, self.margin, self.scale, self.wrap = (
            dim,
            num_classes,
            margin,
            scale,
            wrap,
        )
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)
        self.register_buffer("past", torch.zeros(queue_size, dim))
        self.register_buffer("past_proxies", torch.zeros(queue_size, dim))
        self.register_buffer("past_labels", torch.full((queue_size,), -1, dtype=torch.int64))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * cosine, without a margin: what prediction uses."""
        return scaled_cosine(z, self.proxies, self.scale)

    def reads(self, y: Tensor) -> Tensor:
        """The labels whose proxies a step with labels y reads: the batch's and the queue's.

        Sampled classes (toolkit.parallel.spread) must hold them.
        """
        return torch.cat([y, self.past_labels[self.past_labels >= 0]]) if self.training else y

    @torch.no_grad()
    def compensated(self) -> tuple[Tensor, Tensor]:
        """The queue's filled slots: (N, D) embeddings moved along with the proxies, (N,) labels."""
        filled = self.past_labels >= 0
        e, old, y = self.past[filled], self.past_proxies[filled], self.past_labels[filled]
        share = norms(e) / norms(old).clamp(min=1e-12)
        return e + share[:, None] * (class_rows(self.proxies, y).to(e.dtype) - old), y

    @torch.no_grad()
    def _enqueue(self, z: Tensor, y: Tensor) -> None:
        size = len(self.past)
        z, y = z[-size:], y[-size:]  # a batch larger than the queue leaves its last rows
        slots = (self.pointer + torch.arange(len(y), device=y.device)) % size
        self.past[slots], self.past_labels[slots] = z.to(self.past.dtype), y
        self.past_proxies[slots] = class_rows(self.proxies, y).to(self.past.dtype)
        self.pointer.copy_((self.pointer + len(y)) % size)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        rows, labels = unit(z), y
        if self.training:
            e, past = self.compensated()
            rows = rows + len(past) / max(len(y), 1) * (
                rows - rows.detach()
            )  # + 0: the encoder's gradient is that of the batch's own mean
            rows, labels = torch.cat([rows, unit(e).to(rows.dtype)]), torch.cat([y, past])
        value = angular_margin_softmax(
            linear(self.scale * rows, unit(self.proxies).to(rows.dtype)),
            labels,
            self.scale,
            self.margin,
            self.wrap,
            "exact",
        )
        if self.training:
            self._enqueue(z, y)
        return value

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)
