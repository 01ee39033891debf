"""NaN and infinity in a run: found in losses, embeddings, gradients and weights before anything is
measured or saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from likeness.eval.formats.runs import LOG
from likeness.eval.items.items import Items
from likeness.toolkit.models.embed import Diverged
from likeness.toolkit.parallel import distributed
from likeness.toolkit.training.log import Log
from likeness.toolkit.training.plan import Draws
from likeness.toolkit.training.run import Run

# of float16's gradients: from 2^16 on, each step that is left out halves it
_LEAST_SCALE = 2.0**-14


class TerminateOnNaN:
    """Sees each step's loss, embeddings and gradients, and stops the run when one is NaN or
    infinite.

    A loss alone would not do: of embeddings that are NaN, mined pairs make 0. The numbers of a CPU
    are looked at before the weights change. Those of a GPU wait for `every` steps and for
    `check_all`, so that no step waits for them. Gradients are judged by the norm by which they
    were clipped. Without one, a GPU looks at them in one of `every` steps, since in the others
    they show in the embeddings of the next step. Under float16, gradients may be infinite:
    GradScaler leaves such steps out, and the run stops only when it has left out some 30 more than
    it could make up for.

    All processes stop together, and the one that logs writes down the items of the step's batch.
    """

    def __init__(self, run: Run, draws: Draws, items: Items, log: Log):
        self.run, self.draws, self.items, self.log = run, draws, items, log
        self.every = 1 if run.device.type == "cpu" else 16
        self.value = math.nan  # the latest loss that was read
        # step, rate, (4,): loss, and whether embeddings, loss and gradients are finite
        self.pending: list[tuple[int, float, Tensor]] = []
        self.embeddings: Tensor | None = None
        self._hook = run.loss.register_forward_pre_hook(self._record_inputs)
        for part in run.loss.modules():
            part.checks_nan = False  # type: ignore[assignment]

    def __enter__(self) -> TerminateOnNaN:
        return self

    def __exit__(self, *_: object) -> None:
        # through it the run would hold itself, and its memory until the garbage collector comes
        self._hook.remove()
        for part in self.run.loss.modules():
            del part.checks_nan

    def _record_inputs(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Note whether the loss gets finite numbers: embeddings of the whole batch, and keys."""
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        before = self.embeddings
        self.embeddings = all_finite(tensors) if before is None else before & all_finite(tensors)

    def add_step(self, loss: Tensor, norm: Tensor | None = None) -> None:
        """Take the run's step, after its gradients are there and before the weights change.

        Args:
            loss: The step's loss.
            norm: The norm of its gradients before they were clipped, if they were.
        """
        true = torch.ones((), dtype=torch.bool, device=loss.device)
        gradients = true
        if not self.run.scaler.is_enabled():
            if norm is not None:
                gradients = norm.isfinite()
            elif self.run.step % self.every == 0:
                gradients = all_finite(
                    value.grad for value in self.run.trained if value.grad is not None
                )
        finite = (
            true if self.embeddings is None else self.embeddings,
            loss.isfinite(),
            gradients,
        )
        numbers = [loss.detach().float(), *(flag.to(loss.device).float() for flag in finite)]
        self.pending.append((self.run.step, self.run.rate, torch.stack(numbers)))
        self.embeddings = None
        if len(self.pending) >= self.every:
            self.latest_loss()

    def latest_loss(self) -> float:
        """The latest loss.

        Diverged names the first step that was not finite, and its items. All processes call it.
        """
        if not self.pending:
            return self.value
        rows = torch.stack([row for _, _, row in self.pending]).cpu()
        wrong = distributed.largest((rows[:, 1:] == 0).to(torch.int64)).bool()
        for (step, rate, _), flags in zip(self.pending, wrong.tolist(), strict=True):
            if any(flags):
                kinds = zip(("embeddings are", "the loss is", "gradients are"), flags, strict=True)
                what = next(kind for kind, flag in kinds if flag)
                self.stop(step, rate, f"{what} NaN or infinite")
        self.value = rows[-1, 0].item()
        step, rate, _ = self.pending[-1]
        self.pending = []
        scale = self.run.scaler.get_scale()  # 1 where the loss is not scaled
        if scale < _LEAST_SCALE:
            what = f"gradients are infinite in float16 even at a loss scale of {scale:.2g}"
            self.stop(step, rate, what)
        return self.value

    def check_all(self) -> None:
        """Before anything is measured or saved: all steps so far, and every number of the run's
        state. All processes call it.
        """
        self.latest_loss()
        wrong = not_finite(
            {
                name: value.to_local() if isinstance(value, DTensor) else value
                for name, value in self.run.tensors().items()
            }
        )
        if distributed.any_rank(bool(wrong)):
            named = wrong[0] if wrong else "a tensor of another process"
            self.stop(max(0, self.run.step - 1), self.run.rate, f"{named} holds NaN or infinity")

    def stop(self, step: int, rate: float, what: str) -> NoReturn:
        """Log the items of a step's batch, and raise Diverged.

        On a GPU these are followed by the items of the step before, whose gradients may be the
        cause.

        Args:
            step: The step.
            rate: Its learning rate.
            what: What is not finite.
        """
        first = step if self.every == 1 else max(0, step - 1)
        batches = reversed(list(self.draws(start=first, stop=step + 1)))
        ids = [self.items[draw.item].id for batch in batches for draw in batch]
        self.log.write(step, error=what, lr=rate, items=ids)
        raise Diverged(
            f"step {step}: {what} at lr {rate:.3g}, for the items in {LOG}, such as {ids[0]!r}; "
            "the last checkpoint is kept. Look at these items, lower optim.lr or set "
            "optim.grad_clip"
        )


@torch.no_grad()
def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """A tensor () bool on the device of the first: whether every number of all is finite.

    It is read off sums, in which NaN and infinity remain: one pass at the speed of the memory. A
    sum of finite numbers that overflows (they are above 1e30 then) counts as infinite.
    """
    every = [tensor.detach() for tensor in tensors]
    numbers = [tensor for tensor in every if tensor.is_floating_point() and tensor.numel()]
    if not numbers:
        return torch.ones((), dtype=torch.bool, device=every[0].device if every else None)
    if numbers[0].is_cuda:  # few launches for all; on a CPU plain sums take half the time of norms
        return nn.utils.get_total_norm(numbers, 1.0).isfinite()
    first = numbers[0].device
    wide = [torch.promote_types(tensor.dtype, torch.float32) for tensor in numbers]
    sums = [tensor.sum(dtype=kind) for tensor, kind in zip(numbers, wide, strict=True)]
    return torch.stack([value.to(first, torch.float32) for value in sums]).sum().isfinite()


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that hold NaN or infinity."""
    if bool(all_finite(tensors.values())):
        return []
    return [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
