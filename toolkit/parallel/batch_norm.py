"""Batch norm over the batch of all processes, so that any number of them trains as one would."""

from typing import cast

import torch
from torch import Tensor, nn

from likeness.toolkit.parallel import distributed


def sync_batch_norms(network: nn.Module, device: torch.device) -> nn.Module:
    """Let every batch norm of a network take its statistics from the batches of all processes.

    Names in the state_dict stay. On GPUs this is torch.nn.SyncBatchNorm. It refuses tensors on
    CPUs, where that processes give what one does is tested; there we compute the same sums.

    Args:
        network: The network. On a CPU it is changed in place.
        device: Where the network runs.

    Returns:
        The network to use.
    """
    if device.type == "cuda":
        return cast(nn.Module, nn.SyncBatchNorm.convert_sync_batchnorm(network))  # type: ignore[no-untyped-call]
    for module in network.modules():
        is_sync = isinstance(module, nn.SyncBatchNorm)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not is_sync:
            module.__class__ = _OnCPU
    return network


class _OnCPU(nn.modules.batchnorm._BatchNorm):
    """A batch norm whose mean and variance are those of all processes' rows.

    Two sums and a count are added up over the processes, with their gradient.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        rows = torch.tensor([x.numel() / x.shape[1]], dtype=torch.float64)
        wide = x.double()  # sums in float64 save a second pass over centred values
        sums = distributed.total(torch.cat([wide.sum(axes), wide.square().sum(axes), rows]))
        first, second, count = sums[: x.shape[1]], sums[x.shape[1] : -1], sums[-1]
        mean = first / count
        variance = (second / count - mean.square()).clamp(min=0.0)
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                seen = self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
                # without a momentum, the running statistics are the means over all batches
                share = 1 / float(seen) if self.momentum is None else self.momentum
                unbiased = variance * count / (count - 1).clamp(min=1)
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        scale = (variance + self.eps).rsqrt()
        shift = -mean * scale
        if self.affine:
            scale = scale * self.weight.double()
            shift = self.bias.double() - mean * scale
        return (wide * scale.view(shape) + shift.view(shape)).to(x.dtype)
