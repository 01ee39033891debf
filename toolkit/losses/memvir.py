"""Proxy losses over the classes of earlier steps, which count as classes of their own."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.toolkit.losses.classes import cross_entropy
from likeness.toolkit.losses.common import checked, positive, proxies
from likeness.toolkit.losses.proxy import anchor_proxies
from likeness.toolkit.losses.softmax import scaled_cosine
from likeness.toolkit.vmf.rows import unit


@checked
class MemVir(nn.Module):
    """A proxy loss over the batch's classes and memory-based virtual classes. Ko et al. 2021.

    A class as it was some steps ago is a virtual class: an additional class, whose proxy and whose
    embeddings are those of that step. Step t takes the steps t - k (step_gap + 1), for k = 1 ..
    num_steps, as far as training has come, so that the loss compares up to (num_steps + 1) C
    classes. The embeddings of step t - k (step_gap + 1) are members of the virtual classes of the
    same step. With z^ and w^ for unit rows, the loss of base="softmax" is

        mean over (z, y) of -log(e^{scale z^.w^_y} / sum over all proxies w of e^{scale z^.w^}),

    where (z, y) are the batch and the embeddings that are remembered. base="proxy_anchor" is the
    loss of ProxyAnchor over the same embeddings and proxies. Proxies and embeddings of earlier
    steps are constants, which act as wrong classes: old proxies push embeddings away, and old
    embeddings push the current proxies away.

    The number of classes grows in the course of training: virtual classes come one step at a time,
    the first of them step_gap + 1 steps after the warm-up. Steps are remembered in training mode
    only; in evaluation the batch stands alone. The memory holds num_steps (step_gap + 1) steps with
    all C proxies of each, which is much where classes are many: 55 steps of 1,000 classes in 512
    dimensions take 113 MB beside the embeddings.

    Args:
        base: "softmax": the normalised softmax, which is also ProxyNCAPlusPlus of temperature 2 /
            scale. "proxy_anchor": ProxyAnchor with `margin`.
        scale: Factor of the cosine, positive. The release's command for Cars196 takes 23 for
            "softmax"; ProxyAnchor's paper takes 32.
        margin: Of the cosine, for "proxy_anchor" alone.
        num_steps: How many earlier steps give virtual classes, N in the paper.
        step_gap: How many steps lie between two of them, M in the paper. The release's commands for
            Cars196 take N = 45, M = 10 (softmax) and N = 20, M = 25 (ProxyNCA).
        warmup_steps: So many steps are neither remembered nor have virtual classes (40 epochs in
            the release's commands). `at_step` says which step it is. Where nothing calls it, the
            warm-up counts as over.
        batch_size: The most rows of a batch that the memory can hold.

    Raises:
        LikenessError: A setting is outside its range.

    Example:
        >>> loss = MemVir(8, 10, num_steps=2, step_gap=0)
        >>> for step in range(3):
        ...     value = loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1]))
        >>> [len(rows) for rows in loss.virtual()]  # of 2 steps: 20 proxies, 8 rows, 8 labels
        [20, 8, 8]
    """

    past: Tensor  # (S, batch_size, D) unit embeddings of S = num_steps (step_gap + 1) steps
    past_labels: Tensor  # (S, batch_size)
    past_proxies: Tensor  # (S, C, D)
    # These two stay on the CPU, so that reading them waits for no GPU.
    sizes: Tensor  # (S,) the number of rows of each of these steps
    remembered: Tensor  # the number of steps that were remembered; step n is in place n modulo S

    # many parameters: each is a setting of the paper or of its release
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        base: Literal["softmax", "proxy_anchor"] = "softmax",
        scale: float = 23.0,
        margin: float = 0.1,
        num_steps: int = 5,
        step_gap: int = 10,
        warmup_steps: int = 0,
        batch_size: int = 256,
    ):
        super().__init__()
        positive(self, scale=scale, num_steps=num_steps, batch_size=batch_size)
        self.dim, self.num_classes, self.base = dim, num_classes, base
        self.scale, self.margin = scale, margin
        self.num_steps, self.step_gap, self.warmup_steps = num_steps, step_gap, warmup_steps
        self.step = warmup_steps
        self.proxies = proxies(num_classes, dim)
        places = num_steps * (step_gap + 1)
        self.register_buffer("past", torch.zeros(places, batch_size, dim))
        self.register_buffer("past_labels", torch.zeros(places, batch_size, dtype=torch.int64))
        self.register_buffer("past_proxies", torch.zeros(places, num_classes, dim))
        for name, shape in (("sizes", (places,)), ("remembered", ())):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int64, device="cpu"))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
        """Move and cast everything but `sizes` and `remembered`."""
        numbers = {name: self._buffers[name] for name in ("sizes", "remembered")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._buffers.update(numbers)
        return self

    def at_step(self, step: int) -> None:
        """Say which step comes next; before step warmup_steps nothing is remembered."""
        self.step = step

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): scale * cosine with the current proxies."""
        return scaled_cosine(z, self.proxies, self.scale)

    def virtual(self) -> tuple[Tensor, Tensor, Tensor]:
        """Collect what the next step takes from memory.

        Returns:
            The proxies of n steps (n C, D), the latest step first; the N embeddings of these steps
            (N, D), of norm 1; and their classes (N,), which count on from C.
        """
        now, every = int(self.remembered), self.step_gap + 1
        steps = range(now - every, max(now - every * self.num_steps, 0) - 1, -every)
        places = [step % len(self.past) for step in steps]
        sizes = self.sizes.tolist()
        old = [self.past_proxies[place] for place in places]
        rows = [self.past[place, : sizes[place]] for place in places]
        labels = [
            self.past_labels[place, : sizes[place]] + number * self.num_classes
            for number, place in enumerate(places, 1)
        ]
        # The empty slices stand for all while no step is remembered.
        return (
            torch.cat([self.past_proxies[0, :0], *old]),
            torch.cat([self.past[0, :0], *rows]),
            torch.cat([self.past_labels[0, :0], *labels]),
        )

    @torch.no_grad()
    def _remember(self, rows: Tensor, y: Tensor) -> None:
        place = int(self.remembered) % len(self.past)
        self.past[place, : len(y)] = rows.to(self.past.dtype)
        self.past_labels[place, : len(y)] = y
        self.sizes[place] = len(y)
        self.past_proxies[place] = self.proxies.to(self.past_proxies.dtype)
        self.remembered += 1

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        remembers = self.training and self.step >= self.warmup_steps
        rows, labels, vectors = unit(z), y, self.proxies.to(z.dtype)
        if remembers:
            if len(y) > self.past.shape[1]:
                raise LikenessError(
                    f"MemVir remembers batches of at most {self.past.shape[1]} items, and this one "
                    f"has {len(y)}; set loss.batch_size to sampling.batch_size"
                )
            past_proxies, past, past_labels = self.virtual()
            self._remember(rows, y)
            rows = torch.cat([rows, past.to(z.dtype)])
            labels = torch.cat([labels, past_labels])
            vectors = torch.cat([vectors, past_proxies.to(z.dtype)])
        logits = scaled_cosine(rows, vectors, self.scale)
        if self.base == "softmax":
            return cross_entropy(logits, labels)
        return anchor_proxies(logits, labels, self.scale * self.margin)
