"""What tests/toolkit/training/test_train_many.py runs under torchrun: ranks.py DATA OUT WHAT...

Trains the variants below in float64, one after the other. WHAT is VARIANT, VARIANT:EVENT, or
"refuse" alone, for what all must refuse. The
process that is killed by the event "die" leaves no others, so it comes last; out/before-the-death
shows that all before it went well.
"""

import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from likeness.losses import ArcFace, NTXent
from likeness.modalities.speaker.features import KaldiFbank
from likeness.recipe import Memory, Optim, Recipe, Sampling, Schedule, Step, Tuning, constant, fit
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.parallel import distributed
from likeness.toolkit.training.fine_tuning import LoRA
from likeness.toolkit.training.lock import only_writer
from likeness.toolkit.training.run import Run
from likeness.toolkit.training.start import Initial, read_initial
from tests import tiny
from tests.toolkit.training.tiny_runs import before

# Without dither and wraps nothing differs between 1 and N processes but the order of sums; momentum
# SGD is linear in the gradients and does not make rounding grow as Adam does. 9 items: the
# processes get unequal parts.
BASE: Recipe = replace(
    tiny.BASE,
    frontend=partial(KaldiFbank, num_mels=16),
    loss=partial(ArcFace, scale=8.0, wrap="none"),
    measure=None,
    sampling=Sampling(batch_size=9),
    optim=Optim(lr=0.005, grad_clip=0.5),
    schedule=Schedule(steps=6, save_every=3, decay=constant),
)
SIMPLE, PAIRS = tiny.RECIPES["simple"], Sampling(batch_size=10, items_per_class=2)
SPREAD = replace(BASE.parallel, spread_classes=True)
VARIANTS: dict[str, Recipe] = {
    "whole": replace(BASE, measure=tiny.BASE.measure),
    "sharded": replace(BASE, measure=tiny.BASE.measure, parallel=SPREAD),
    "unit": replace(BASE, optim=replace(BASE.optim, unit_proxies=True)),
    "simple": replace(BASE, loss=SIMPLE.loss, memory=SIMPLE.memory),
    "memory": replace(BASE, loss=NTXent, memory=Memory(30, momentum=0.0), sampling=PAIRS),
    "pieces": replace(BASE, compute=replace(BASE.compute, accumulate=2)),
    "means": replace(BASE, start_at_means=True),
    "means_sharded": replace(BASE, start_at_means=True, parallel=SPREAD),
    # DDP refuses a network of which nothing is trained, and is there from the fourth step on
    "thawed": replace(BASE, tuning=Tuning(freeze=("backbone",), freeze_until=3, average_last=1)),
    "adapted": replace(BASE, tuning=Tuning(lora=LoRA(rank=2, targets=("conv1", "conv2")))),
}


@contextmanager
def in_float64() -> Iterator[None]:
    """Networks, losses and front-ends that are made inside compute in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def keep_the_start(file: Path) -> Step:
    """A step that writes to a file what this process has of the class vectors before step 0, and of
    the network's tensors.
    """

    def keep(run: Run, batch: Batch) -> None:
        vectors = {"proxies": run.loss.proxies.detach().clone()}  # type: ignore[operator]
        save_file({**vectors, **run.embedder.state_dict()}, file)

    return before(0, keep)


def power_cut(run: Run, batch: Batch) -> None:
    raise RuntimeError("power cut")


def die(run: Run, batch: Batch) -> None:
    if distributed.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def spoil(run: Run, batch: Batch) -> None:
    """The running statistics of the second process alone, which training does not see."""
    if distributed.rank() == 1:
        dict(run.embedder.named_buffers())["backbone.bn1.running_mean"][0] = math.nan


def unread_by_the_second(init: str) -> Initial:
    if distributed.rank() == 1:
        raise ValueError("this machine has no such file")
    return read_initial(init)


def refuse(data: Path, out: Path) -> None:
    """Fits that every process must refuse; process N writes OUT/N.txt, how each of them ended."""
    ended = []

    def attempt(recipe: Recipe, name: str, **more: Any) -> None:
        try:
            fit(recipe, data=data, out=out / name, **more)
            ended.append(f"{name}: trained")
        except ValueError as error:
            ended.append(f"{name}: {type(error).__name__}: {error}")

    parallel = replace(tiny.BASE.parallel, sync_batch_norm=False)
    schedule = Schedule(steps=6, save_every=2)
    recipe = replace(tiny.BASE, schedule=schedule, measure=None, parallel=parallel)
    attempt(recipe, "statistics", step=before(3, spoil))
    initial = replace(recipe, init=str(out / "statistics"))
    attempt(initial, "unread", read_initial=unread_by_the_second)
    with ExitStack() as stack:
        distributed.run_on_main(lambda: stack.enter_context(only_writer(out / "locked")))
        attempt(recipe, "locked")
        distributed.wait()
    (out / f"{distributed.rank()}.txt").write_text("\n".join(ended), encoding="utf-8")


def main(data: Path, out: Path, what: list[str]) -> None:
    torch.set_num_threads(1)
    if what == ["refuse"]:
        distributed.start()
        refuse(data, out)
        what = []
    for name in what:
        variant, _, event = name.partition(":")
        recipe = VARIANTS[variant]
        if event == "cut":
            try:
                fit(recipe, data=data, out=out / variant, step=before(5, power_cut))
            except RuntimeError as error:
                assert str(error) == "power cut"  # noqa: PT017
        elif event == "die":
            distributed.wait()
            (out / "before-the-death").touch()
            # torchrun's, which may come while the sentence is printed
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            fit(recipe, data=data, out=out / "die", step=before(5, die))
        elif event == "start":
            distributed.start()
            file = out / f"{variant}-{distributed.rank()}.safetensors"
            fit(recipe, data=data, out=out / f"{variant}-start", step=keep_the_start(file))
        elif event == "seeds":
            distributed.start()
            try:
                fit(replace(recipe, seed=distributed.rank()), data=data, out=out / "seeds")
            except ValueError as error:
                (out / f"seeds-{distributed.rank()}.txt").write_text(str(error), encoding="utf-8")
        else:
            fit(recipe, data=data, out=out / variant)
    distributed.end()


if __name__ == "__main__":
    with in_float64():
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
