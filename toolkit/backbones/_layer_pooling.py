"""Pooling for pretrained networks: over the layers and frames of speech, over the places of images.

A self-supervised speech network keeps what tells speakers apart in its lower and middle layers, so
four of the poolings for speech look at all layers. Padded frames count in none of them.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from likeness.toolkit.backbones.pooling import pool, precise

LayerPooling = Literal["mean", "weighted", "MHFA", "MFA", "AdapterMFA"]
# The heads of _speaker_heads.py, which were published with a network.
SpeechPooling = Literal[LayerPooling, "xvector", "ECAPA", "ECAPA_GLOB"]
_SMALLEST = 1e-6  # GeM's floor under what is raised to a power


def pool_layers(
    name: LayerPooling,
    num_layers: int,
    channels: int,
    *,
    heads: int = 32,
    compressed: int = 128,
) -> tuple[nn.Module, int]:
    """Return the pooling of this name, and the size of what it gives.

    Call the module with (layers, mask). `layers` are L tensors (B, T, C): the input of the first
    block of the network, and what every block gives, the last one last. `mask` is (B, T) bool, or
    None if all frames are valid.

    - mean: the mean of the last layer over the valid frames (C). It has no parameters.
    - weighted: a learned weighting of all layers, and of its sum mean and deviation under attention
      (2C); `_Weighted` has the equations.
    - MHFA: multi-head factorised attentive pooling (heads * compressed); see `_MHFA`.
    - MFA: multi-layer feature aggregation, all blocks side by side (2 (L - 1) C); see `_MFA`.
    - AdapterMFA: an adapter for each layer, and all of them side by side (2 L compressed); see
      `_AdapterMFA`.

    Args:
        name: One of the five.
        num_layers: L, at least 2.
        channels: C.
        heads: For MHFA: the number of attention heads.
        compressed: For MHFA: the size of keys and values. For AdapterMFA: that of an adapter.

    Example:
        >>> module, size = pool_layers("MHFA", 3, 8, heads=4, compressed=5)
        >>> layers = [torch.randn(2, 7, 8) for _ in range(3)]
        >>> module(layers, None).shape, size
        (torch.Size([2, 20]), 20)
    """
    if name == "mean":
        return _LastMean(), channels
    if name == "weighted":
        return _Weighted(num_layers, channels), 2 * channels
    if name == "MHFA":
        return _MHFA(num_layers, channels, heads, compressed), heads * compressed
    if name == "AdapterMFA":
        return _AdapterMFA(num_layers, channels, compressed), 2 * num_layers * compressed
    assert name == "MFA", name
    return _MFA(num_layers, channels), 2 * (num_layers - 1) * channels


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over the valid frames: (B, T, C) -> (B, C), in float32 at least.

    Args:
        x: (B, T, C).
        mask: (B, T) bool, True for valid frames; None if all are valid.

    Example:
        >>> x = torch.tensor([[[1.0], [3.0], [50.0]]])
        >>> masked_mean(x, torch.tensor([[True, True, False]])).tolist()
        [[2.0]]
    """
    x = precise(x)
    if mask is None:
        return x.mean(dim=1)
    valid = mask[..., None].to(x.dtype)
    return (x * valid).sum(dim=1) / valid.sum(dim=1)


def mix(layers: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return the sum of the layers (B, T, C), weighted by the softmax of `weights` (L,)."""
    shares = weights.softmax(dim=0)
    mixed = shares[0] * layers[0]
    for share, layer in zip(shares[1:], layers[1:], strict=True):
        mixed = mixed + share * layer
    return mixed


class _LastMean(nn.Module):
    """The mean of the last layer over the valid frames."""

    only_last = True  # the other layers need not be kept

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        return masked_mean(layers[-1], mask)


class _Weighted(nn.Module):
    """A learned weighting of all layers, and attentive statistics of the weighted sum.

    x_t = sum_l softmax(w)_l h_t^l (Yang et al. 2021, SUPERB, Sec. 3), with one weight for each
    layer. Then mean and deviation under channel-wise attention over the frames (Okabe et al. 2018,
    Eq 5 and 6), which is ASTP of toolkit/backbones/pooling.py.
    """

    def __init__(self, num_layers: int, channels: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.attentive, _ = pool("ASTP", channels)

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        mixed = mix(layers, self.weights).transpose(1, 2)
        return torch.as_tensor(self.attentive(mixed, mask))


class _MHFA(nn.Module):
    """Multi-head factorised attentive pooling (Peng et al. 2022, Sec. 2.2).

    Keys and values are two weightings of all layers, each compressed by a linear layer:
    k_t = S_k sum_l softmax(w_k)_l h_t^l and v_t = S_v sum_l softmax(w_v)_l h_t^l. Head i attends
    with a_it = softmax_t(q_i . k_t), and gives c_i = sum_t a_it v_t; the heads are put side by
    side. The names are those of the authors' release, whose last layer, pooling_fc, is the
    `project` of the backbone here.
    """

    def __init__(self, num_layers: int, channels: int, heads: int, compressed: int):
        super().__init__()
        self.weights_k = nn.Parameter(torch.ones(num_layers))
        self.weights_v = nn.Parameter(torch.ones(num_layers))
        self.cmp_linear_k = nn.Linear(channels, compressed)
        self.cmp_linear_v = nn.Linear(channels, compressed)
        self.att_head = nn.Linear(compressed, heads)

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        keys = self.cmp_linear_k(mix(layers, self.weights_k))
        values = precise(self.cmp_linear_v(mix(layers, self.weights_v)))
        scores = precise(self.att_head(keys))
        if mask is not None:
            scores = scores.masked_fill(~mask[..., None], -torch.inf)
        attention = scores.softmax(dim=1)  # (B, T, heads)
        with torch.autocast(values.device.type, enabled=False):  # which would multiply in 16 bits
            return torch.matmul(attention.transpose(1, 2), values).flatten(1)


class _MFA(nn.Module):
    """Multi-layer feature aggregation (Zhang et al. 2022, MFA-Conformer, Sec. 2.3).

    What all blocks give is put side by side, H_t = LayerNorm([h_t^1; ...; h_t^(L-1)]), and pooled
    to mean and deviation under channel-wise attention (ASTP of toolkit/backbones/pooling.py); batch
    norm follows. The input of the first block is left out, as there.
    """

    only_last = False

    def __init__(self, num_layers: int, channels: int):
        super().__init__()
        size = (num_layers - 1) * channels
        self.norm = nn.LayerNorm(size)
        self.attentive, _ = pool("ASTP", size)
        self.normalise = nn.BatchNorm1d(2 * size)

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        joined = self.norm(torch.cat(list(layers[1:]), dim=2))
        return torch.as_tensor(self.normalise(self.attentive(joined.transpose(1, 2), mask)))


class _AdapterMFA(nn.Module):
    """An adapter for each layer, whose outputs are pooled side by side (Li et al. 2025, Sec. 2).

    a_t^l = V_l ReLU(LayerNorm(U_l h_t^l)) for every layer, the input of the first block included;
    then mean and deviation of [a_t^0; ...; a_t^(L-1)] under attention (ASP of
    toolkit/backbones/pooling.py). The names are those of WeSpeaker's models/w2vbert_adapter_mfa.py,
    whose last layer, bottleneck, is the `project` of the backbone here.
    """

    def __init__(self, num_layers: int, channels: int, compressed: int):
        super().__init__()
        self.adapter_layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(channels, compressed),
                nn.LayerNorm(compressed),
                nn.ReLU(),
                nn.Linear(compressed, compressed),
            )
            for _ in range(num_layers)
        )
        self.pooling, _ = pool("ASP", num_layers * compressed)

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        adapted = [
            adapter(layer) for adapter, layer in zip(self.adapter_layers, layers, strict=True)
        ]
        return torch.as_tensor(self.pooling(torch.cat(adapted, dim=2).transpose(1, 2), mask))


def pool_places(name: Literal["mean", "GeM"]) -> nn.Module:
    """Return the pooling over the N places of an image: it takes (B, N, C) and gives (B, C).

    GeM is the generalised mean (Radenovic et al. 2019, Eq 3), (mean_n max(x_n, 1e-6)^p)^(1/p), with
    one learned p for all channels, 3 at first. p = 1 is the mean of the values, of which those
    below the floor are raised to it, and a large p nears the maximum.

    Example:
        >>> x = torch.tensor([[[1.0], [2.0]]])
        >>> round(pool_places("GeM")(x).item() ** 3, 5)
        4.5
    """
    return _GeM() if name == "GeM" else _PlacesMean()


class _PlacesMean(nn.Module):
    """The mean over all places."""

    def forward(self, x: Tensor) -> Tensor:
        return masked_mean(x, None)


class _GeM(nn.Module):
    """The generalised mean over all places."""

    def __init__(self) -> None:
        super().__init__()
        self.power = nn.Parameter(torch.tensor([3.0]))

    def forward(self, x: Tensor) -> Tensor:
        raised = precise(x).clamp(min=_SMALLEST).pow(self.power)
        return raised.mean(dim=1).pow(1.0 / self.power)
