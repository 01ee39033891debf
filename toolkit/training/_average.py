"""The mean of a run's weights over its last checkpoints: the model that is measured and saved."""

from typing import cast

import torch
from torch import Tensor, nn

from likeness.toolkit.losses.contract import Keyed
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.training.memory import momentum_encoder


class Average(nn.Module):
    """The mean of a network, and of its loss where the model file keeps the loss.

    Running statistics of batch norm are averaged as weights are, as WeSpeaker's average_model.py
    does. Counters are those of the newest weights.

    Args:
        embedder: The network that is trained.
        loss: Its loss; None where the model does not need one.
        last: As Tuning.average_last.

    Attributes:
        checkpoints: The tensors of the last checkpoints, oldest first.
    """

    def __init__(self, embedder: TorchEmbedder, loss: nn.Module | None, *, last: int) -> None:
        super().__init__()
        self.last = last
        self.embedder = cast(TorchEmbedder, momentum_encoder(embedder).eval())
        self.loss = None if loss is None else momentum_encoder(loss).eval()
        if isinstance(self.loss, Keyed):
            self.loss.bank = None  # no model needs it
        self.checkpoints: list[dict[str, Tensor]] = []

    def take(self, embedder: TorchEmbedder, loss: nn.Module) -> None:
        """Take the weights as they are as a checkpoint, and let go of the oldest one."""
        state = nn.ModuleDict({"embedder": embedder, "loss": loss}).state_dict()
        taken = {name: state[name].to("cpu", copy=True) for name in self.state_dict()}
        self.checkpoints = [*self.checkpoints, taken][-self.last :]
        self.mean()

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
        """Return what a resume folder keeps: the checkpoints."""
        return {
            f"average.{place}.{name}": value
            for place, taken in enumerate(self.checkpoints)
            for name, value in taken.items()
        }
