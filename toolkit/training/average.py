"""An average of a run's weights, which is measured and saved as the model."""

import copy
from typing import cast

import torch
from torch import Tensor, nn

from likeness.toolkit.losses.contract import Keyed
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.training.memory import momentum_encoder, update_encoder


class Average(nn.Module):
    """The average of a network, and of its loss where the model file keeps the loss.

    It is an exponential average (decay > 0), or the mean over the last checkpoints (last > 0).
    Running statistics of batch norm are averaged as weights are, as timm's ModelEmaV2 and
    WeSpeaker's average_model.py do. Counters are those of the newest weights.

    Args:
        embedder: The network that is trained.
        loss: Its loss; None where the model does not need one.
        decay: As Tuning.ema.
        last: As Tuning.average_last.

    Attributes:
        checkpoints: The tensors of the last checkpoints, oldest first.
    """

    def __init__(
        self, embedder: TorchEmbedder, loss: nn.Module | None, *, decay: float, last: int
    ) -> None:
        super().__init__()
        self.decay, self.last = decay, last
        self.embedder = cast(TorchEmbedder, momentum_encoder(embedder).eval())
        self.loss = None if loss is None else _without_bank(loss).eval()
        self.checkpoints: list[dict[str, Tensor]] = []

    def begin(self, embedder: TorchEmbedder, loss: nn.Module) -> None:
        """Start from the weights as they are before the first step."""
        self._update(embedder, loss, 0.0)

    def follow(self, embedder: TorchEmbedder, loss: nn.Module, step: int) -> None:
        """Move towards the weights after a step; `step` is the number of steps so far."""
        if self.decay:
            self._update(embedder, loss, min(self.decay, (1 + step) / (10 + step)))

    def take(self, embedder: TorchEmbedder, loss: nn.Module) -> None:
        """Take the weights as they are as a checkpoint, and let go of the oldest one."""
        if self.last:
            self._update(embedder, loss, 0.0)
            taken = {name: value.to("cpu", copy=True) for name, value in self.state_dict().items()}
            self.checkpoints = [*self.checkpoints, taken][-self.last :]
            self.mean()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take a mean of yet."""
        return bool(self.last and not self.checkpoints)

    @torch.no_grad()
    def mean(self) -> None:
        """Set the weights to the mean over the checkpoints."""
        for name, value in self.state_dict(keep_vars=True).items() if self.checkpoints else ():
            if value.is_floating_point():
                total = sum(taken[name].double() for taken in self.checkpoints)
                value.copy_(torch.as_tensor(total) / len(self.checkpoints))
            else:
                value.copy_(self.checkpoints[-1][name])

    def make_room(self, num: int) -> None:
        """Make `num` empty checkpoints, which are read from a file next."""
        state = self.state_dict()
        self.checkpoints = [
            {name: torch.zeros_like(value, device="cpu") for name, value in state.items()}
            for _ in range(num)
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Return what a resume folder keeps: the average itself, or the checkpoints behind it."""
        if not self.last:
            return {f"average.{name}": value for name, value in self.state_dict().items()}
        return {
            f"average.{place}.{name}": value
            for place, taken in enumerate(self.checkpoints)
            for name, value in taken.items()
        }

    def _update(self, embedder: TorchEmbedder, loss: nn.Module, decay: float) -> None:
        update_encoder(self.embedder, embedder, decay)
        if self.loss is not None:
            update_encoder(self.loss, loss, decay)


def _without_bank(loss: nn.Module) -> nn.Module:
    """Return a copy of a loss without its bank of keys, which no model needs."""
    if not isinstance(loss, Keyed) or loss.bank is None:
        return momentum_encoder(loss)
    bank, loss.bank = loss.bank, None
    try:
        return copy.deepcopy(loss).requires_grad_(False)
    finally:
        loss.bank = bank
