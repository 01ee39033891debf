"""Softmax cross-entropy on raw embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from toolkit.losses.common import Rates, checked, full, proxy_groups


class Softmax(nn.Module):
    """Cross-entropy of z W^T, nothing normalised and no bias: STANDARD, Eq 1 of the vMF paper (bias=True: the usual linear classifier).

    z (B, dim) raw, y (B,) int64 -> scalar mean. Retrieval by Euclidean distance, or by cosine "at test" as the paper's second variant does.
    """

    proxies: nn.Parameter  # (C, D)

    def __init__(self, dim: int, num_classes: int, *, bias: bool = False):
        super().__init__()
        self.dim, self.num_classes = dim, num_classes
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.normal_(self.proxies, std=dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(num_classes)) if bias else None

    def logits(self, z: Tensor) -> Tensor:
        """(B, C)"""
        z = full(z)
        return nn.functional.linear(z, self.proxies.to(z.dtype), None if self.bias is None else self.bias.to(z.dtype))

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return nn.functional.cross_entropy(self.logits(z), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)
