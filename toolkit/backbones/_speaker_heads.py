"""Heads that were published with a pretrained speech network, over all of its layers."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from likeness.eval.errors import LikenessError
from likeness.toolkit.backbones._layer_pooling import mix
from likeness.toolkit.backbones.ecapa import WeSpeakerECAPA
from likeness.toolkit.backbones.pooling import keep, precise

_SMALLEST = 1e-20  # variance, so that a constant channel has no gradient instead of NaN


def published_head(
    name: Literal["xvector", "ECAPA", "ECAPA_GLOB"], num_layers: int, channels: int, config: Any
) -> tuple[nn.Module, int]:
    """Return the head of this name, and the size of what it gives.

    Call the module with (layers, mask), as those of `pool_layers`.

    Args:
        name: "xvector" is that of transformers' WavLMForXVector and its kin, "ECAPA" UniSpeech's,
            and "ECAPA_GLOB" WeSpeaker's ECAPA_TDNN_GLOB_c512 over WavLM.
        num_layers: The layers that it is given.
        channels: The size of each.
        config: The network's configuration of transformers, for "xvector".

    Example:
        >>> module, size = published_head("ECAPA", 3, 8, None)
        >>> module.eval()([torch.randn(1, 9, 8) for _ in range(3)], None).shape, size
        (torch.Size([1, 256]), 256)
    """
    if name == "xvector":
        return _XVector(num_layers, channels, config), int(config.xvector_output_dim)
    if name == "ECAPA":
        network = WeSpeakerECAPA(channels, dim=256, global_context=False, floor=1e-9)
    else:
        network = WeSpeakerECAPA(channels)
    return _ECAPA(num_layers, network, scales=name == "ECAPA"), network.dim


class _XVector(nn.Module):
    """The x-vector of transformers' WavLMForXVector and its kin, with their names.

    A linear layer, convolutions over time without padding, mean and unbiased deviation over the
    frames, and a linear layer, which gives the embedding.

    Args:
        num_layers: The layers that it is given.
        channels: The size of each.
        config: A configuration of transformers: tdnn_dim, tdnn_kernel, tdnn_dilation,
            xvector_output_dim and use_weighted_layer_sum count.
    """

    def __init__(self, num_layers: int, channels: int, config: Any):
        super().__init__()
        widths, sizes = list(config.tdnn_dim), list(config.tdnn_kernel)
        self.only_last = not config.use_weighted_layer_sum
        if not self.only_last:
            self.layer_weights = nn.Parameter(torch.ones(num_layers) / num_layers)
        self.projector = nn.Linear(channels, widths[0])
        self.tdnn = nn.ModuleList(
            nn.ModuleDict({"kernel": nn.Linear(before * size, after)})
            for before, size, after in zip([widths[0], *widths], sizes, widths, strict=False)
        )
        self.feature_extractor = nn.Linear(2 * widths[-1], config.xvector_output_dim)
        self.sizes, self.dilations = sizes, list(config.tdnn_dilation)

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        x = layers[-1] if self.only_last else mix(layers, self.layer_weights)
        x = self.projector(x).transpose(1, 2)
        span = sum((n - 1) * d for n, d in zip(self.sizes, self.dilations, strict=True))
        frames = x.shape[2] if mask is None else int(mask.sum(1).min())
        if not torch.compiler.is_compiling() and frames < span + 2:
            raise LikenessError(
                f"the x-vector takes at least {span + 2} frames, and a recording has {frames}; "
                "give longer audio"
            )
        for layer, size, dilation in zip(self.tdnn, self.sizes, self.dilations, strict=True):
            kernel: Any = layer["kernel"]  # type: ignore[index]
            weight = kernel.weight.unflatten(1, (size, -1)).transpose(1, 2)
            x = functional.conv1d(x, weight, kernel.bias, dilation=dilation).relu()
        x = precise(x)
        if mask is None:
            mean, deviation = x.mean(dim=2), x.std(dim=2)
        else:
            valid = mask[:, None, span:]
            num = valid.sum(dim=2)
            mean = keep(x, valid).sum(dim=2) / num
            square = keep(x - mean[..., None], valid).square().sum(dim=2)
            deviation = (square / (num - 1)).clamp(min=_SMALLEST).sqrt()
        return torch.as_tensor(self.feature_extractor(torch.cat([mean, deviation], dim=1)))


class _ECAPA(nn.Module):
    """An ECAPA-TDNN over the sum of all layers by learned weights.

    UniSpeech's (Chen et al. 2021, downstreams/speaker_verification/models/ecapa_tdnn.py) takes
    every channel with zero mean and unit variance over the frames, and gives 256 numbers.
    WeSpeaker's (frontend/s3prl.py with models/ecapa_tdnn.py) subtracts the mean alone, and gives
    192.

    Args:
        num_layers: The layers that it is given.
        network: The ECAPA-TDNN.
        scales: Whether channels are divided by their deviation.
    """

    only_last = False

    def __init__(self, num_layers: int, network: WeSpeakerECAPA, *, scales: bool):
        super().__init__()
        self.feature_weight = nn.Parameter(torch.zeros(num_layers))
        self.network, self.scales = network, scales

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        x = precise(mix(layers, self.feature_weight))
        valid = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        num = valid.sum(dim=1)[:, None, None]
        mean = keep(x, valid[..., None]).sum(dim=1, keepdim=True) / num
        centred = keep(x - mean, valid[..., None])
        if self.scales:
            variance = centred.square().sum(dim=1, keepdim=True) / num
            centred = centred / (variance + 1e-5).sqrt()
        lengths = None if mask is None else valid.sum(dim=1) / valid.shape[1]
        return torch.as_tensor(self.network(centred, lengths))
