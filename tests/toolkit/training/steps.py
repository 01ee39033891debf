"""Steps of training that do something else as well at one of them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from likeness.toolkit.data.batch import Batch
from likeness.toolkit.training.recipe import Recipe
from likeness.toolkit.training.run import Run
from likeness.toolkit.training.train import Step, step


def stop_at(where: int, what: Callable[[], object]) -> Step:
    """Steps that call `what` before the one with the number `where`."""

    def stopping(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
        if run.step == where:
            what()
        return step(run, batch, recipe)

    return stopping


def raising_at(where: int, error: BaseException) -> Step:
    """Steps of which the one with the number `where` raises."""

    def raises() -> None:
        raise error

    return stop_at(where, raises)
