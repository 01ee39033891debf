"""Margin softmax over the batch and a queue of past embeddings."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from likeness.toolkit.losses.classes import class_rows
from likeness.toolkit.losses.common import checked, positive, radians
from likeness.toolkit.losses.margin import angular_margin_softmax
from likeness.toolkit.losses.softmax import NormFace, norms
from likeness.toolkit.vmf.rows import unit


@checked
class BroadFace(NormFace):
    """ArcFace over the batch and a queue of past embeddings. Kim et al. 2020.

    The queue teaches the proxies but not the encoder: the loss is the mean of ArcFace over batch
    and queue, whose gradient moves the proxies, and the encoder gets the gradient of the batch's
    own mean. A past embedding e of class y, seen when the proxy was w_old, enters as e + (|e| /
    |w_old|) (w_y - w_old), a constant: it follows its proxy. The queue is filled in training mode,
    after the loss; in evaluation the batch stands alone. Both sides are normalised.

    Args:
        margin: Radians in [0, pi).
        scale: Factor of the cosine, positive.
        queue_size: Number of past embeddings.

    Raises:
        LikenessError: A setting is outside its range.
    """

    past: Tensor  # (Q, D) raw embeddings
    past_proxies: Tensor  # (Q, D) their classes' proxies when they were seen
    past_labels: Tensor  # (Q,) -1 = empty slot
    pointer: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.5,
        scale: float = 64.0,
        queue_size: int = 32768,
    ):
        super().__init__(dim, num_classes, scale=scale)
        radians(self, margin=margin)
        positive(self, queue_size=queue_size)
        self.margin = margin
        self.register_buffer("past", torch.zeros(queue_size, dim))
        self.register_buffer("past_proxies", torch.zeros(queue_size, dim))
        self.register_buffer("past_labels", torch.full((queue_size,), -1, dtype=torch.int64))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def reads(self, y: Tensor) -> Tensor:
        """Name the labels whose proxies a step reads: the batch's and, in training, the queue's.

        likeness.toolkit.parallel.spread keeps them among the classes that it samples.

        Args:
            y: Labels of the batch (B,).

        Returns:
            Labels (N,), with repetitions.
        """
        return torch.cat([y, self.past_labels[self.past_labels >= 0]]) if self.training else y

    @torch.no_grad()
    def compensated(self) -> tuple[Tensor, Tensor]:
        """Move the queue's embeddings along with their proxies.

        Returns:
            The N filled slots: embeddings (N, D) and labels (N,), without gradient.
        """
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

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        rows, labels = unit(z), y
        if self.training:
            e, past = self.compensated()
            # This adds 0, and makes the encoder's gradient that of the batch's own mean.
            rows = rows + len(past) / max(len(y), 1) * (rows - rows.detach())
            rows, labels = torch.cat([rows, unit(e).to(rows.dtype)]), torch.cat([y, past])
        logits = linear(self.scale * rows, unit(self.proxies).to(rows.dtype))
        value = angular_margin_softmax(logits, labels, self.scale, self.margin, "monotone")
        if self.training:
            self._enqueue(z, y)
        return value
