"""Batch norm over the batch of all processes, so that any number of them trains as one would."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from toolkit.parallel import distributed


def synced(network: nn.Module, device: torch.device) -> nn.Module:
    """The network with every batch norm taking its statistics from the batches of all processes;
    names in the state_dict stay.

    On GPUs torch.nn.SyncBatchNorm, which has no version for CPUs: there the same sums in a forward
    pass of our own.
    """
    if device.type == "cuda":
        return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(network))  # type: ignore[no-untyped-call]
    for module in network.modules():
        if (
            isinstance(module, nn.modules.batchnorm._BatchNorm)
            and type(module) is not nn.SyncBatchNorm
        ):
            module.__class__ = _OnCPU
    return network


class _OnCPU(nn.modules.batchnorm._BatchNorm):
    """A batch norm whose mean and variance are those of all processes' rows: two sums and a count,
    added up with their gradient.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        rows = torch.tensor([x.numel() / x.shape[1]], dtype=torch.float64)
        wide = x.double()  # the second pass over centred values is saved by summing in float64
        sums = distributed.total(torch.cat([wide.sum(axes), wide.square().sum(axes), rows]))
        first, second, count = sums[: x.shape[1]], sums[x.shape[1] : -1], sums[-1]
        mean = first / count
        variance = (second / count - mean.square()).clamp(min=0.0)
        if (
            self.track_running_stats
            and self.running_mean is not None
            and self.running_var is not None
        ):
            with torch.no_grad():
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
                share = (
                    1 / float(self.num_batches_tracked or 1)
                    if self.momentum is None
                    else self.momentum
                )
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
                self.running_var.lerp_(
                    (variance * count / (count - 1).clamp(min=1)).to(self.running_var.dtype), share
                )
        scale = (variance + self.eps).rsqrt()
        if self.affine:
            scale = scale * self.weight.double()
        shift = -mean * scale
        if self.affine:
            shift = shift + self.bias.double()
        return (wide * scale.view(shape) + shift.view(shape)).to(x.dtype)
