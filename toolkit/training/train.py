"""fit(): the training loop, one for every recipe, in one process or many. Its one extension point
is step().
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from likeness.eval.formats.runs import find_model
from likeness.eval.items.items import Item
from likeness.eval.types import counted
from likeness.toolkit.console import say, shown
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.losses.contract import Scheduled
from likeness.toolkit.parallel import distributed, spread
from likeness.toolkit.training._keeper import Keeper
from likeness.toolkit.training.build import half, least_rows, thaw
from likeness.toolkit.training.listed import Data
from likeness.toolkit.training.loading import killed_workers_named, loader_of, part_of
from likeness.toolkit.training.lock import only_writer
from likeness.toolkit.training.log import check_loggers
from likeness.toolkit.training.measure import Embedded
from likeness.toolkit.training.memory import update_encoder
from likeness.toolkit.training.plan import CheckHeldOut, Plan, plan
from likeness.toolkit.training.recipe import Recipe, Schedule
from likeness.toolkit.training.run import Run
from likeness.toolkit.training.start import ReadInitial, read_initial, start
from likeness.toolkit.vmf.rows import full, unit

Step = Callable[[Run, Batch, Recipe], Tensor]


def step(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
    """One forward pass: the loss of the whole batch, of which this process has `batch`.

    With a memory, the momentum encoder moves, encodes the same batch and gives z_key (SimPLE paper,
    Sec. 3). Momentum 0 has no second encoder: the keys are the batch's own embeddings (cross-batch
    memory). Front-ends without parameters run once for both encoders, which then see the same
    masks. Losses run in float32.

    Args:
        run: The run, at the step that is taken.
        batch: inputs (B, ...), labels (B,), lengths (B,) and places (B,) on the run's device.
        recipe: The run's recipe.

    Returns:
        The loss, a tensor () with gradient.
    """
    inputs, lengths = batch.inputs, batch.lengths
    shared = not run.embedder.trains_frontend
    if shared:
        with torch.no_grad():
            inputs, frames = run.embedder.frontend(inputs, lengths)
            inputs = inputs if recipe.mask is None else recipe.mask(inputs, frames)
            lengths = None if lengths is None else frames
    z_key = None
    if run.encoder is not None:
        assert recipe.memory is not None
        update_encoder(run.encoder, run.embedder, recipe.memory.momentum)
        with torch.no_grad():
            z_key = full((run.encoder.backbone if shared else run.encoder.encode)(inputs, lengths))
    z = run.network(inputs, lengths)
    assert z.shape == (len(batch.labels), run.embedder.backbone.dim), "no embeddings (B, dim)"
    if recipe.memory is not None and recipe.memory.momentum == 0:
        z_key = full(z.detach())
    # what a loss draws is the same in every process
    with drawing_from(recipe.seed + 7_919 * run.step, z.device):
        return spread.loss_of(
            run.loss,
            z,
            batch.labels,
            z_key,
            layout=run.layout,
            rate=recipe.parallel.class_rate,
            seed=recipe.seed,
            step=run.step,
        )


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Draw random numbers on the CPU and on a device from a seed; then go on as before.

    torch.manual_seed takes .16 ms, to look at GPUs that no process has used yet.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index])
    before = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def fit(
    recipe: Recipe,
    *,
    data: Data,
    out: Path,
    resume: bool = False,
    loggers: Sequence[str] = (),
    items: Sequence[Item] | None = None,
    step: Step = step,
    read_initial: ReadInitial = read_initial,
    check_held_out: CheckHeldOut | None = None,
    embedded: Embedded | None = None,
) -> Path:
    """Train a recipe.

    On a CPU, the weights of a run that was stopped and resumed equal an uninterrupted run's bit for
    bit. A run that was stopped or killed goes on from its last checkpoint, or starts again if there
    is none. Under torchrun every
    process calls this with the same arguments. Nothing else may write into `out` meanwhile
    (likeness.toolkit.training.lock).

    Args:
        recipe: What is trained, and how.
        data: The data set, perhaps with its items.
        out: The run's folder: checkpoints, log.jsonl and recipe.json.
        resume: Whether to go on from the checkpoint in `out` of a finished training, too.
        loggers: "tensorboard" and "wandb", which get the numbers of log.jsonl as well.
        items: What is trained on, instead of the recipe's own items.
        step: What makes the loss of a batch.
        read_initial: Reads the network that recipe.init names.
        check_held_out: As in `plan`.
        embedded: Gets what the model to use embedded when it was evaluated, for whoever measures it
            next (measure.load_model).

    Returns:
        The model file to use: the best where a metric is watched, otherwise the last.

    Raises:
        LikenessError: Anything wrong with recipe, data or folder, before the first step. Later only
            for what cannot be measured; the run is saved then.
        Diverged: Losses, embeddings, gradients or weights are no longer finite. The last checkpoint
            is kept.
        Interrupted: After Ctrl-C, when the step is finished and saved.
    """
    check_loggers(loggers)
    distributed.start()
    with ExitStack() as stack:
        stack.enter_context(shown())
        again = (
            f"the last checkpoint in {out} is whole, start all processes again by the same command"
        )
        stack.enter_context(distributed.lost_named(again))
        stack.enter_context(killed_workers_named())
        # before anything is written, and before what takes its time
        distributed.run_on_main(lambda: stack.enter_context(only_writer(out)))
        planned = plan(recipe, data, items=items, check_held_out=check_held_out)
        run = start(planned, out, resume=resume, read_initial=read_initial)
        if distributed.is_main():
            schedule, batch_size = planned.recipe.schedule, planned.recipe.sampling.batch_size
            processes = f", {distributed.world()} processes" if distributed.world() > 1 else ""
            say(
                f"{counted(len(planned.items), 'item')} of {len(planned.classes):,} classes, "
                f"{_size(run)}, {counted(schedule.steps, 'step')} of {counted(batch_size, 'item')} "
                f"on {run.device.type}{processes}",
                error=True,
            )
        keeper = Keeper(run, planned, out, loggers=loggers, embedded=embedded)
        if not keeper.ended:
            train(run, planned, keeper, step)
        model = distributed.run_on_all(lambda: find_model(out) if distributed.is_main() else out)
        return distributed.gather_objects(model)[0]


def train(run: Run, planned: Plan, keeper: Keeper, step: Step = step) -> None:
    """Take the steps that are left of a run.

    Args:
        run: Where training stands; it moves on.
        planned: The run's plan.
        keeper: What logs, evaluates, saves and stops.
        step: What makes the loss of a batch.
    """
    recipe, device = planned.recipe, run.device
    order = planned.draws(start=run.step, stop=recipe.schedule.steps)
    least = least_rows(recipe.compute, recipe.parallel)
    precision = half(recipe.compute, device)
    autocast = torch.autocast(device.type, dtype=precision, enabled=precision is not torch.float32)
    with keeper.running():
        if keeper.repeat_failed_evaluation():
            return
        run.embedder.train()
        parts = planned.views, part_of(order), recipe.compute, device
        # No name holds the loader, so that its processes end where a step fails.
        for batch in keeper.batches(loader_of(*parts, seed=recipe.seed)):
            thaw(run, recipe.tuning.freeze_until, recipe.compute, recipe.mask)
            _set_rates(run, recipe.schedule)
            # margins and annealings that move
            if isinstance(run.loss, Scheduled):
                run.loss.at_step(run.step)
            if recipe.optim.unit_proxies:
                proxies = cast(Tensor, run.loss.proxies).data
                proxies.copy_(unit(proxies))
            # where too little could be read, all processes leave the step out
            if distributed.any_rank(batch is None or len(batch.labels) < least):
                keeper.left_out += 1
            else:
                assert batch is not None
                run.optimizer.zero_grad(set_to_none=True)
                with autocast:
                    loss = step(run, batch, recipe)
                assert not loss.ndim, "the loss is not one number"
                assert loss.requires_grad, "the loss has no gradient"
                run.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                spread.average_gradients(run.loss, run.layout)
                norm = None
                if grad_clip := recipe.optim.grad_clip:
                    run.scaler.unscale_(run.optimizer)
                    norm = spread.clip_gradients(run.trained, grad_clip, run.loss, run.layout)
                keeper.nan_check.add_step(loss, norm)  # and gradients: all are finite
                run.scaler.step(run.optimizer)
                run.scaler.update()
            run.step += 1
            if keeper.log_evaluate_save():
                break
    keeper.report()


def _set_rates(run: Run, schedule: Schedule) -> None:
    """Set every group's rate for this step."""
    warmup = min(1.0, (run.step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    run.factor = warmup * schedule.decay(run.step / schedule.steps) * 0.5**run.plateau.halvings
    for group in run.optimizer.param_groups:
        group["lr"] = group["base_lr"] * run.factor


def _size(run: Run) -> str:
    """The parameters of the network, and how many of them are trained."""
    size = sum(parameter.numel() for parameter in run.embedder.parameters())
    trained = sum(value.numel() for value in run.embedder.parameters() if value.requires_grad)
    part = f" ({trained:,} of them trained)" if trained < size else ""
    return f"{size:,} parameters{part}"
