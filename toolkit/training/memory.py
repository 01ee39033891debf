"""The FIFO bank of keys and the momentum encoder, for SimPLE and every loss that takes z_key."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


@dataclass(frozen=True)
class Memory:
    """How many keys a loss compares with the batch, and what encodes them.

    Attributes:
        size: The number of keys in the bank, those of the batch of all processes included.
        momentum: eta of theta_q <- eta theta_q + (1 - eta) theta. 0 uses no second encoder: the
            keys are the batch's own embeddings (cross-batch memory, Wang et al. 2020).
    """

    size: int
    momentum: float = 0.999


class Bank(nn.Module):
    """Past keys with their labels, of which the oldest are overwritten first.

    Attributes:
        keys: (size, dim), float32.
        labels: (size,), int64; -1 for an empty slot.
        pointer: (), the slot that is written next.
    """

    keys: Tensor
    labels: Tensor
    pointer: Tensor

    def __init__(self, size: int, dim: int):
        super().__init__()
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("labels", torch.full((size,), -1, dtype=torch.int64))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def enqueue(self, z_key: Tensor, y: Tensor) -> Tensor:
        """Write (B, dim) keys and their labels (B,); returns the (B,) slots written."""
        size, num = len(self.labels), len(y)
        assert num <= size, "plan.check_settings refuses such a recipe"
        slots = (self.pointer + torch.arange(num, device=self.keys.device)) % size
        self.keys[slots] = z_key.to(self.keys.dtype)
        self.labels[slots] = y
        self.pointer.copy_((self.pointer + num) % size)
        return slots


def momentum_encoder(network: nn.Module) -> nn.Module:
    """A copy of the network that takes no gradient.

    It stays in training mode, as in MoCo and the SimPLE release: its keys come from batch
    statistics.
    """
    encoder = copy.deepcopy(network)
    return encoder.requires_grad_(False)


@torch.no_grad()
def update_encoder(encoder: nn.Module, network: nn.Module, momentum: float) -> None:
    """theta_q <- momentum theta_q + (1 - momentum) theta, for parameters and floating-point buffers
    (batch-norm statistics); counters are copied.
    """
    ours, theirs = encoder.state_dict(keep_vars=True), network.state_dict(keep_vars=True)
    # a joint loss has one tensor under two names, which must move once
    once = {id(tensor): (tensor, theirs[name]) for name, tensor in ours.items()}
    moving: list[tuple[Tensor, Tensor]] = []
    counters: list[tuple[Tensor, Tensor]] = []
    for pair in once.values():
        (moving if pair[0].is_floating_point() else counters).append(pair)
    # few launches for all
    average = get_ema_multi_avg_fn(momentum)  # type: ignore[no-untyped-call]
    average(*map(list, zip(*moving, strict=True)), 0)
    if counters:
        torch._foreach_copy_([pair[0] for pair in counters], [pair[1] for pair in counters])
