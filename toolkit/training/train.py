"""fit(): THE training loop.

One readable loop for every recipe, one process or many; its one extension point is step().
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from eval.formats.provenance import digest
from eval.similarity import score_trials
from eval.types import Trials, name_first
from toolkit.console import BadItems, Bar, Interrupted, console, interruptible
from toolkit.data.batch import Batch, Draw, Item, check_unique, label_numbers
from toolkit.data.sampling import check as check_sampling
from toolkit.data.sampling import draws
from toolkit.data.shards import shard_numbers
from toolkit.models import checkpoint
from toolkit.models.embed import Diverged, TorchEmbedder, embed_all, pick_device
from toolkit.models.parts import describe
from toolkit.parallel import distributed, spread
from toolkit.training import measure
from toolkit.training.build import build, half, least_rows, start_from
from toolkit.training.finite import Watch
from toolkit.training.loading import (
    check_held_out,
    estimate,
    held_out,
    loader_of,
    on_device,
    part_of,
    views_of,
)
from toolkit.training.lock import only_writer
from toolkit.training.log import Clock, Log, check_loggers
from toolkit.training.memory import update_encoder
from toolkit.training.recipe import Recipe, Verification, check
from toolkit.training.run import Run, check_folder, is_finished, load_run, prepare_folder, save_run
from toolkit.vmf.precision import full


def step(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
    """One forward pass: the loss of the whole batch, of which this process has `batch`.

    With memory, the momentum encoder moves, encodes the same batch and gives z_key (SimPLE paper,
    Sec. 3); momentum 0 has no second encoder: the keys are the batch's own embeddings (cross-batch
    memory). Front-ends without parameters run once for both encoders. Losses run in float32.
    """
    inputs, lengths = batch.inputs, batch.lengths
    shared = not run.embedder.trains_frontend
    if shared:
        with torch.no_grad():
            inputs, frames = run.embedder.frontend(inputs, lengths)
            lengths = None if lengths is None else frames
    z_key = None
    if run.encoder is not None:
        assert recipe.memory is not None
        update_encoder(run.encoder, run.embedder, recipe.memory.momentum)
        with torch.no_grad():
            z_key = full((run.encoder.backbone if shared else run.encoder.encode)(inputs, lengths))
    z = run.network(inputs, lengths)
    if recipe.memory is not None and recipe.memory.momentum == 0:
        z_key = full(z.detach())
    with torch.random.fork_rng(devices=[z.device.index] if z.device.type == "cuda" else []):
        torch.manual_seed(
            recipe.seed + 7_919 * run.step
        )  # what a loss draws is the same in every process
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


def fit(
    recipe: Recipe,
    *,
    data: Path,
    out: Path,
    resume: bool = False,
    loggers: Sequence[str] = (),
    items: Sequence[Item] | None = None,
    step: Callable[[Run, Batch, Recipe], Tensor] = step,
) -> Path:
    """Train `recipe` on the data in folder `data` into folder `out`; returns the model file to use.

    resume=True goes on from out/resume; on CPU the weights then equal an uninterrupted run's bit
    for bit (a run killed before its first checkpoint starts again). Ctrl-C finishes the step,
    saves, and raises Interrupted. Under torchrun every process calls it with the same arguments.
    loggers: "tensorboard", "wandb" beside log.jsonl. items: instead of the recipe's own.
    Nothing else may write into `out` meanwhile (toolkit.training.lock); the items that it is
    measured on are read once before the first step. ValueError for anything wrong with recipe, data
    or folder, before the first step; also for what cannot be measured later, when the run is whole.
    Diverged, with the last checkpoint kept, where losses, embeddings, gradients or weights are no
    longer finite.
    """
    check(recipe)
    check_loggers(loggers)
    device = distributed.start() or pick_device()
    with ExitStack() as held:
        distributed.on_main(
            lambda: held.enter_context(only_writer(out))
        )  # before anything is written, and before what takes its time
        return _fit(
            recipe,
            data,
            out,
            resume,
            loggers,
            recipe.items(data) if items is None else items,
            step,
            device,
        )


def _fit(
    recipe: Recipe,
    data: Path,
    out: Path,
    resume: bool,
    loggers: Sequence[str],
    items: Sequence[Item],
    step: Callable[[Run, Batch, Recipe], Tensor],
    device: torch.device,
) -> Path:
    """fit, in a folder that is its own."""
    schedule, sampling = recipe.schedule, recipe.sampling
    description = describe(recipe)
    check_unique(items, "items")
    classes, labels = label_numbers(items)
    shards = shard_numbers(items) if recipe.sampling.open_shards else None
    check_sampling(labels, recipe.sampling, shards)
    trials: tuple[Sequence[Item], Trials] | None = (
        recipe.measure.trials(data) if isinstance(recipe.measure, Verification) else None
    )
    parallel = recipe.parallel
    if recipe.measures_items and (parallel.spread_classes or parallel.class_rate < 1):
        raise ValueError(
            f"parallel.spread_classes={parallel.spread_classes} and parallel.class_rate="
            f"{parallel.class_rate}, but classification and retrieval measure with all class "
            "vectors; leave them false and 1, or measure by Verification"
        )
    _check_watch(recipe, trials, classes)
    for settings in measure.settings_of(recipe):
        measure.check_settings(settings, data, classes)
    if recipe.compute.threads:
        torch.set_num_threads(recipe.compute.threads)
    main = distributed.is_main()
    listed = digest([f"{item.id}\0{item.label}" for item in items])
    distributed.agree(
        recipe=json.dumps(description, sort_keys=True),
        seed=recipe.seed,
        classes=len(classes),
        items=listed,
    )
    run = build(recipe, len(classes), device)
    views = views_of(recipe, items, labels, seed=recipe.seed)
    views[
        Draw(0, 0, 0)
    ]  # what an augmentation refuses (a missing folder of noise, say) it refuses here
    distributed.on_main(
        lambda: check_folder(out, description, resume)
    )  # before the held-out items are read, which may take long
    if not (resume and is_finished(out, schedule.steps, schedule.stop_after)):
        check_held_out(held_out(recipe, data, trials), recipe.read, workers=recipe.compute.workers)
    distributed.on_main(
        lambda: prepare_folder(out, description, resume)
    )  # after everything that may refuse the recipe: a refused run leaves no folder behind
    if not (resume and load_run(out, run, classes, listed)):
        taken = bool(recipe.init) and start_from(recipe, run, classes)
        estimate(run, recipe, items, labels, network=not recipe.init, loss=not taken)
    if main:
        checkpoint.remove_stale(out, run.plateau.kept)
    loader = loader_of(
        views,
        part_of(
            draws(
                labels,
                sampling,
                seed=recipe.seed,
                start=run.step,
                stop=schedule.steps,
                shards=shards,
            )
        ),
        recipe,
        device,
    )
    autocast = torch.autocast(
        device.type, dtype=half(recipe, device), enabled=half(recipe, device) is not torch.float32
    )
    bad = BadItems(recipe.max_bad_share)
    size = sum(parameter.numel() for parameter in run.embedder.parameters())
    if main:
        processes = f", {distributed.world()} processes" if distributed.world() > 1 else ""
        told = (
            f"{len(items)} items of {len(classes)} classes, {size:,} parameters, {schedule.steps} "
            f"steps on {device.type}{processes}"
        )
        console.print(told)
    if _stopped(run, recipe):
        return checkpoint.find_model(out)  # resumed after its early stop
    measured = trials is not None or recipe.measures_items
    left_out = 0
    clock = Clock()
    with (
        _lost_processes(run, out),
        interruptible() as interrupted,
        Bar(schedule.steps, run.step, quiet=not main) as bar,
        Log(out if main else None, step=run.step, loggers=loggers, description=description) as log,
        Watch(
            run, recipe, items, labels, shards, log, every=1 if device.type == "cpu" else 16
        ) as watch,
    ):
        look = partial(_look, run, recipe, out, classes, trials, data, log, bar)
        if run.owed:
            _make_up(look, run, recipe, out)
            _save(out, run, recipe, classes, listed)
            if _stopped(run, recipe):
                return checkpoint.find_model(out)
        run.embedder.train()
        for batch, unreadable in clock.waiting(loader):
            bad.count(unreadable, sampling.batch_size // distributed.world())
            rate = _set_rate(run, recipe)
            if (
                at_step := getattr(run.loss, "at_step", None)
            ) is not None:  # margins and annealings that move
                at_step(run.step)
            if distributed.any_rank(
                batch is None or len(batch.labels) < least_rows(recipe)
            ):  # too little could be read: all processes leave the step out
                left_out += 1
            else:
                assert batch is not None
                batch = on_device(batch, device, recipe)
                run.optimizer.zero_grad(set_to_none=True)
                try:
                    with autocast:
                        loss = step(run, batch, recipe)
                except ValueError as error:
                    watch.explain(run.step, rate, error)
                    raise
                run.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                spread.average_gradients(run.loss, run.layout)
                if recipe.optim.grad_clip:
                    run.scaler.unscale_(run.optimizer)
                    trained = [p for group in run.optimizer.param_groups for p in group["params"]]
                    spread.clip_gradients(trained, recipe.optim.grad_clip, run.loss, run.layout)
                watch.add(run.step, rate, loss)
                run.scaler.step(run.optimizer)
                run.scaler.update()
            run.step += 1
            clock.steps += 1
            last = run.step == schedule.steps
            stop = distributed.any_rank(interrupted())
            if run.step % max(1, schedule.steps // 200) == 0 or last:
                log.write(run.step, loss=watch.read(), lr=rate, **clock.read(sampling.batch_size))
            bar.show(run.step, watch.value, rate)
            if measured and (last or (schedule.eval_every and run.step % schedule.eval_every == 0)):
                watch.settle()
                try:
                    look()
                except Diverged:  # then the checkpoint before is the one to keep
                    raise
                except ValueError as error:  # what cannot be measured costs no training
                    run.owed = True
                    _save(out, run, recipe, classes, listed)
                    raise _owed(run, recipe, out, error) from error
                last = last or _stopped(run, recipe)
            if last or stop or run.step % schedule.save_every == 0:
                watch.settle()  # nothing that is not finite is saved
                _save(out, run, recipe, classes, listed)
            if last:
                break
            if stop:
                distributed.wait()
                raise Interrupted(
                    f"stopped after step {run.step} of {schedule.steps}; {out} is whole, go on "
                    "with --resume"
                )
    bad.report()
    if left_out and main:
        console.print(f"{left_out} steps were left out, as too few of their items could be read")
    if distributed.any_rank(interrupted()):
        raise Interrupted(f"stopped after the last step; {out} is whole")
    return checkpoint.find_model(out)


def evaluate(
    recipe: Recipe, embedder: TorchEmbedder, loss: nn.Module, trials: tuple[Sequence[Item], Trials]
) -> dict[str, float]:
    """Embed the trial items, score the trials with the recipe's similarity, and apply its metrics.

    All ranks share the work and get the same numbers.
    """
    trial_items, pairs = trials
    embeddings = embed_all(
        embedder, trial_items, recipe.read, what="trial", workers=recipe.compute.workers
    )
    scores = score_trials(pairs, embeddings, similarity=similarity_of(recipe, loss))
    assert pairs.target is not None
    return {
        name: float(metric(scores[pairs.target], scores[~pairs.target]))
        for name, metric in recipe.metrics.items()
    }


def _stopped(run: Run, recipe: Recipe) -> bool:
    """Whether the watched metric has not been better for so long that training ends."""
    return bool(recipe.schedule.stop_after and run.plateau.since_best >= recipe.schedule.stop_after)


def _make_up(look: Callable[[], None], run: Run, recipe: Recipe, out: Path) -> None:
    """The evaluation that failed before."""
    try:
        look()
    except Diverged:
        raise
    except ValueError as error:
        raise _owed(run, recipe, out, error) from error
    run.owed = False


def _owed(run: Run, recipe: Recipe, out: Path, error: ValueError) -> ValueError:
    """An error of an evaluation, with what became of the training and how to go on."""
    steps = recipe.schedule.steps
    return ValueError(
        f"the evaluation after step {run.step} of {steps} failed: {error}. The run in {out} is "
        "whole, and nothing of it is lost: repair this, "
        f"then --resume makes up the evaluation{'' if run.step == steps else ' and goes on'}"
    )


def _look(
    run: Run,
    recipe: Recipe,
    out: Path,
    classes: Sequence[str],
    trials: tuple[Sequence[Item], Trials] | None,
    data: Path,
    log: Log,
    bar: Bar,
) -> None:
    """Measure the model as it is, tell it, and keep it if it is the best."""
    metrics = _metrics(recipe, run, classes, trials, data)
    log.write(run.step, **metrics)
    bar.note(
        f"step {run.step}: " + ", ".join(f"{name} {number:.4f}" for name, number in metrics.items())
    )
    if recipe.schedule.watch:
        _keep(run, recipe, out, metrics, classes)


def _metrics(
    recipe: Recipe,
    run: Run,
    classes: Sequence[str],
    trials: tuple[Sequence[Item], Trials] | None,
    data: Path,
) -> dict[str, float]:
    """The recipe's metrics of the model as it is: of its trials, or of what its validation (or
    measure) finds of each item.
    """
    _same_statistics(run, recipe)
    if trials is not None:
        return evaluate(recipe, run.embedder, run.loss, trials)
    settings, *rest = measure.settings_of(recipe)  # the validation, where there is one
    model = measure.Model(
        run.embedder,
        run.loss,
        classes,
        recipe.read,
        similarity_of(recipe, run.loss),
        recipe.compute.workers,
    )
    return measure.metrics_of(
        recipe,
        measure.measure_items(model, data, settings),
        only=recipe.schedule.watch if rest else "",
    )


def similarity_of(recipe: Recipe, loss: nn.Module) -> str:
    """The recipe's similarity, else the one that the loss trains, else cosine."""
    return recipe.similarity or str(getattr(loss, "similarity", "cosine"))


@contextmanager
def _lost_processes(run: Run, out: Path) -> Iterator[None]:
    """One sentence when another process of the run has died: gloo notices at once, NCCL through
    torchrun or its timeout.
    """
    try:
        yield
    except RuntimeError as error:
        if not distributed.is_lost(error):
            raise
        raise ConnectionError(
            f"process {distributed.rank()}, step {run.step}: another process of the run died or "
            f"does not answer ({str(error).splitlines()[0][:120]}); "
            f"the last checkpoint in {out} is whole, start all again with --resume"
        ) from error


def _set_rate(run: Run, recipe: Recipe) -> float:
    """Set every group's rate for this step from the schedule; returns the backbone's."""
    schedule = recipe.schedule
    warmup = min(1.0, (run.step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    factor = warmup * schedule.decay(run.step / schedule.steps) * 0.5**run.plateau.halvings
    for group in run.optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return recipe.optim.lr * factor


def _keep(
    run: Run, recipe: Recipe, out: Path, metrics: dict[str, float], classes: Sequence[str]
) -> None:
    """After an evaluation: halve the rate or count towards the early stop, and keep the best
    checkpoints.
    """
    schedule = recipe.schedule
    value = metrics[schedule.watch]
    if run.plateau.update(value, schedule.higher_is_better, schedule.halve_after):
        _save_model(out / checkpoint.BEST, run, recipe, metrics, classes)
    if schedule.keep_best > 1 and run.plateau.keep(
        value, run.step, schedule.higher_is_better, schedule.keep_best
    ):
        _save_model(out / checkpoint.best_of(run.step), run, recipe, metrics, classes)


def _same_statistics(run: Run, recipe: Recipe) -> None:
    """Without synced batch norm every process has running statistics of its own: what is measured
    and saved is the first one's.
    """
    if not recipe.parallel.sync_batch_norm:
        for module in (run.embedder, run.encoder):
            for buffer in () if module is None else module.buffers():
                distributed.broadcast(buffer)


def _save(out: Path, run: Run, recipe: Recipe, classes: Sequence[str], listed: str) -> None:
    """The last model and the state to go on from; then the best checkpoints that this state no
    longer names go.
    """
    _same_statistics(run, recipe)
    _save_model(out / checkpoint.LAST, run, recipe, {}, classes)
    save_run(out, run, classes, listed)
    if distributed.is_main():
        checkpoint.remove_stale(out, run.plateau.kept)


def _save_model(
    path: Path, run: Run, recipe: Recipe, metrics: dict[str, float], classes: Sequence[str]
) -> None:
    if distributed.is_main():
        loss = run.loss if recipe.measures_items else None
        similarity = similarity_of(recipe, run.loss)
        checkpoint.save_model(
            path,
            run.embedder,
            recipe,
            similarity=similarity,
            step=run.step,
            metrics=metrics,
            loss=loss,
            classes=classes,
        )


def _check_watch(
    recipe: Recipe, trials: tuple[Sequence[Item], Trials] | None, classes: Sequence[str]
) -> None:
    schedule = recipe.schedule
    if schedule.steps < 1 or schedule.save_every < 1 or schedule.keep_best < 1:
        raise ValueError(
            f"schedule: steps={schedule.steps}, save_every={schedule.save_every} and "
            f"keep_best={schedule.keep_best} must be at least 1"
        )
    measured = trials is not None or recipe.measures_items
    if schedule.watch and (not measured or schedule.watch not in recipe.metrics):
        known = ", ".join(recipe.metrics) or "none"
        raise ValueError(
            f"schedule.watch={schedule.watch!r} needs a measure and must be "
            f"one of the recipe's metrics: {known}"
        )
    if trials is not None:
        if trials[1].target is None:
            raise ValueError(
                "the trials have no labels; evaluation while training needs target and nontarget "
                "trials: label them, or set measure to None"
            )
        both = sorted({str(item.label) for item in trials[0]} & set(classes))
        if both:
            raise ValueError(
                f"{len(both)} subjects are both trained and tested on ({name_first(both)}); give "
                "items and trials the same fold, of disjoint subjects"
            )
