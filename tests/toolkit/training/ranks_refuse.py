"""What tests/toolkit/training/test_train_many.py runs under torchrun: fits that every
process must refuse. ranks_refuse.py DATA OUT.

Process N writes OUT/N.txt, a line for each fit: how it ended.
"""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from likeness.modalities import folders
from likeness.recipe import Recipe, Schedule, fit
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.parallel import distributed
from likeness.toolkit.training.lock import only_writer
from likeness.toolkit.training.run import Run
from likeness.toolkit.training.start import Initial, read_initial
from tests import tiny
from tests.toolkit.training.tiny_runs import before


def spoil(run: Run, batch: Batch) -> None:
    """The running statistics of the second process alone, which training does not see."""
    if distributed.rank() == 1:
        dict(run.embedder.named_buffers())["backbone.bn1.running_mean"][0] = math.nan


def unread_by_the_second(init: str) -> Initial:
    if distributed.rank() == 1:
        raise ValueError("this machine has no such file")
    return read_initial(init)


def main(data: Path, out: Path) -> None:
    torch.set_num_threads(1)
    distributed.start()
    recipe = replace(
        tiny.BASE,
        schedule=Schedule(steps=6, save_every=2),
        measure=None,
        parallel=replace(tiny.BASE.parallel, sync_batch_norm=False),
    )
    ended = []

    def attempt(recipe: Recipe, name: str, **more: Any) -> None:
        try:
            fit(recipe, data=data, out=out / name, **more)
            ended.append(f"{name}: trained")
        except ValueError as error:
            ended.append(f"{name}: {type(error).__name__}: {error}")

    attempt(recipe, "statistics", step=before(3, spoil))
    initial = replace(recipe, init=str(out / "statistics"))
    attempt(initial, "unread", read_initial=unread_by_the_second)
    with ExitStack() as stack:
        distributed.run_on_main(lambda: stack.enter_context(only_writer(out / "locked")))
        attempt(recipe, "locked")
        distributed.wait()
    # the second is read by the second process
    item = folders.trials(data, split="test", test_share=0.25)[0][1]
    if distributed.is_main():
        item.path.write_bytes(b"no audio")
    distributed.wait()
    attempt(replace(recipe, measure=tiny.BASE.measure), "unreadable")
    (out / f"{distributed.rank()}.txt").write_text("\n".join(ended), encoding="utf-8")
    distributed.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
