"""fit(): THE training loop. One readable loop for every recipe; its one extension point is step()."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eval.similarity import score_trials
from eval.types import Trials, name_first
from toolkit import checkpoint
from toolkit.batch import Batch, Draw, Item, Views, check_unique, collate_views, label_numbers
from toolkit.console import BadItems, Bar, Interrupted, console, ignore_ctrl_c, interruptible
from toolkit.embed import TorchEmbedder, embed, pick_device
from toolkit.memory import Bank, momentum_encoder, update_encoder
from toolkit.recipe import Optim, Recipe, check, describe
from toolkit.run import LOG, Run, cut_log, load_run, prepare_folder, save_run
from toolkit.sampling import Sampling, draws
from toolkit.sampling import check as check_sampling


def step(run: Run, batch: Batch, momentum: float) -> Tensor:
    """One forward pass: the loss of a batch. With memory, the momentum encoder moves, encodes the same batch and gives z_key (SimPLE paper, Sec. 3)."""
    z_key = None
    if run.encoder is not None:
        update_encoder(run.encoder, run.embedder, momentum)
        with torch.no_grad():
            z_key = run.encoder.encode(batch.inputs, batch.lengths).float()
    z = run.embedder.encode(batch.inputs, batch.lengths)
    value: Tensor = run.loss(z, batch.labels, z_key)
    return value


def fit(recipe: Recipe, *, data: Path, out: Path, resume: bool = False, step: Callable[[Run, Batch, float], Tensor] = step) -> Path:
    """Train `recipe` on the data in folder `data` into folder `out`; returns the model file to use.

    resume=True goes on from out/resume.safetensors; on CPU the weights then equal an uninterrupted run's bit for bit (a run killed before its first checkpoint
    starts again). Ctrl-C finishes the step, saves, and raises Interrupted. ValueError for anything wrong with recipe, data or folder, before the first step.
    """
    check(recipe)
    description = describe(recipe)
    items = recipe.items(data)
    check_unique(items, "items")
    classes, labels = label_numbers(items)
    check_sampling(labels, recipe.sampling)
    trials = recipe.trials(data) if recipe.trials is not None else None
    _check_watch(recipe, trials, classes)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    device = pick_device()
    run = _build(recipe, len(classes), device)
    prepare_folder(out, description, resume)  # after everything that may refuse the recipe, so that a refused run leaves no folder behind
    if resume and (out / checkpoint.RESUME).is_file():
        load_run(out / checkpoint.RESUME, run, classes)
    else:
        _estimate(run, recipe, items, labels)
    cut_log(out / LOG, run.step)
    schedule, sampling = recipe.schedule, recipe.sampling
    views = Views(items, labels, recipe.read, recipe.augment, seed=recipe.seed, cache=recipe.cache)
    loader = _loader(views, draws(labels, sampling, seed=recipe.seed, start=run.step, stop=schedule.steps), recipe, device)
    momentum = recipe.memory.momentum if recipe.memory else 0.0
    halved = recipe.precision == "bfloat16" or (recipe.precision == "auto" and device.type == "cuda")
    autocast = torch.autocast(device.type, dtype=_half(recipe, device), enabled=halved)
    bad = BadItems(recipe.max_bad_share)
    size = sum(parameter.numel() for parameter in run.embedder.parameters())
    console.print(f"{len(items)} items of {len(classes)} classes, {size:,} parameters, {schedule.steps} steps on {device.type}", highlight=False)
    if schedule.stop_after and run.plateau.since_best >= schedule.stop_after:
        return checkpoint.find_model(out)  # resumed after its early stop
    started, first, value = time.perf_counter(), run.step, math.nan
    with interruptible() as interrupted, Bar(schedule.steps, run.step) as bar, (out / LOG).open("a", encoding="utf-8") as log:
        run.embedder.train()
        for batch, unreadable in loader:
            bad.count(unreadable, sampling.batch_size)
            rate = _set_rate(run, recipe)
            if (at_step := getattr(run.loss, "at_step", None)) is not None:  # margins and annealings that move
                at_step(run.step)
            if batch is not None and len(batch.labels) > 1:
                batch = _to(batch, device)
                run.optimizer.zero_grad(set_to_none=True)
                with autocast:
                    loss = step(run, batch, momentum)
                value = float(loss.detach())
                if not math.isfinite(value):
                    raise ValueError(
                        f"step {run.step}: the loss is {value} at lr {rate:.3g}; the last checkpoint is kept. Lower optim.lr or set optim.grad_clip"
                    )
                run.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                if recipe.optim.grad_clip:
                    run.scaler.unscale_(run.optimizer)
                    nn.utils.clip_grad_norm_([p for group in run.optimizer.param_groups for p in group["params"]], recipe.optim.grad_clip)
                run.scaler.step(run.optimizer)
                run.scaler.update()
            run.step += 1
            last = run.step == schedule.steps
            seconds = time.perf_counter() - started
            bar.show(run.step, value, rate)
            if run.step % max(1, schedule.steps // 200) == 0 or last:
                _log(
                    log,
                    step=run.step,
                    loss=value,
                    lr=rate,
                    seconds=round(seconds, 3),
                    items_per_second=round((run.step - first) * sampling.batch_size / seconds, 1),
                )
            if trials is not None and (last or (schedule.eval_every and run.step % schedule.eval_every == 0)):
                metrics = evaluate(recipe, run.embedder, run.loss, trials)
                _log(log, step=run.step, **metrics)
                bar.note(f"step {run.step}: " + ", ".join(f"{name} {number:.4f}" for name, number in metrics.items()))
                if schedule.watch and run.plateau.update(metrics[schedule.watch], schedule.higher_is_better, schedule.halve_after):
                    _save_model(out / checkpoint.BEST, run, recipe, metrics)
                last = last or bool(schedule.stop_after and run.plateau.since_best >= schedule.stop_after)
            if last or interrupted() or run.step % schedule.save_every == 0:
                _save_model(out / checkpoint.LAST, run, recipe, {})
                save_run(out / checkpoint.RESUME, run, classes)
            if last:
                break
            if interrupted():
                raise Interrupted(f"stopped by Ctrl-C after step {run.step} of {schedule.steps}; {out} is whole, go on with --resume")
    bad.report()
    return checkpoint.find_model(out)


def evaluate(recipe: Recipe, embedder: TorchEmbedder, loss: nn.Module, trials: tuple[Sequence[Item], Trials]) -> dict[str, float]:
    """Embed the trial items, score the trials with the recipe's similarity, and apply its metrics."""
    trial_items, pairs = trials
    embeddings, bad = embed(embedder, trial_items, recipe.read, workers=recipe.workers)
    if bad:
        raise ValueError(f"{len(bad)} of {len(trial_items)} evaluation items cannot be read ({name_first(one.id for one in bad)}): {bad[0].reason}")
    scores = score_trials(pairs, embeddings, similarity=similarity_of(recipe, loss))
    assert pairs.target is not None
    return {name: float(metric(scores[pairs.target], scores[~pairs.target])) for name, metric in recipe.metrics.items()}


def similarity_of(recipe: Recipe, loss: nn.Module) -> str:
    """The recipe's similarity, else the one that the loss trains, else cosine."""
    return recipe.similarity or str(getattr(loss, "similarity", "cosine"))


def _build(recipe: Recipe, num_classes: int, device: torch.device) -> Run:
    torch.manual_seed(recipe.seed)
    frontend = recipe.frontend()
    backbone = recipe.backbone(frontend.dim)
    loss = recipe.loss(backbone.dim, num_classes).to(device)
    embedder = TorchEmbedder(frontend, backbone, features=getattr(loss, "features", "raw")).to(device)
    encoder: TorchEmbedder | None = None
    if recipe.memory is not None:
        if not hasattr(loss, "bank"):
            raise ValueError(f"memory is set, but {type(loss).__name__} takes no keys; set memory to None or take a loss with a bank, such as SimPLE")
        if recipe.memory.size < recipe.sampling.batch_size:
            raise ValueError(
                f"memory.size={recipe.memory.size} is smaller than sampling.batch_size={recipe.sampling.batch_size}; it must hold a batch at least"
            )
        loss.bank = Bank(recipe.memory.size, backbone.dim).to(device)
        encoder = cast(TorchEmbedder, momentum_encoder(embedder))
    optimizer = _optimizer(recipe.optim, embedder, loss)
    scaler = torch.amp.GradScaler(device.type, enabled=_half(recipe, device) is torch.float16)
    return Run(embedder, loss, encoder, optimizer, scaler)


def _loader(views: Views, order: Iterator[list[Draw]], recipe: Recipe, device: torch.device) -> Any:
    """Batches of views in the given order, read in recipe.workers processes."""
    return torch.utils.data.DataLoader(
        views,
        batch_sampler=order,
        collate_fn=collate_views,
        num_workers=recipe.workers,
        worker_init_fn=ignore_ctrl_c if recipe.workers else None,
        pin_memory=device.type == "cuda",
        generator=torch.Generator().manual_seed(recipe.seed),  # its own, so that making the loader draws nothing from the run's generator
    )


@torch.no_grad()
def _estimate(run: Run, recipe: Recipe, items: Sequence[Item], labels: NDArray[np.int64]) -> None:
    """Let a backbone that learns constants from the training data before the first step do so, from recipe.estimate_views views of every item."""
    estimate = getattr(run.embedder.backbone, "estimate", None)
    if estimate is None:
        return
    device = next(iter(run.embedder.parameters())).device
    views = Views(items, labels, recipe.read, recipe.augment, seed=recipe.seed + 1_000_003, cache=recipe.cache)  # other random numbers than the training views
    size = min(64, len(items))
    order = draws(labels, Sampling(size), seed=recipe.seed, start=0, stop=recipe.estimate_views * (len(items) // size))
    loader = _loader(views, order, recipe, device)

    def batches() -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
        for batch, _ in loader:
            if batch is not None:
                batch = _to(batch, device)
                features, lengths = run.embedder.frontend(batch.inputs, batch.lengths)
                yield features, lengths, batch.labels

    run.embedder.eval()
    estimate(batches())
    if run.encoder is not None:
        run.encoder.load_state_dict(run.embedder.state_dict())


def _half(recipe: Recipe, device: torch.device) -> torch.dtype:
    """bfloat16 wherever it exists; float16 with loss scaling on older GPUs."""
    return torch.float16 if recipe.precision == "auto" and device.type == "cuda" and not torch.cuda.is_bf16_supported() else torch.bfloat16


def _optimizer(optim: Optim, embedder: nn.Module, loss: Any) -> torch.optim.Optimizer:
    decayed = [p for p in embedder.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in embedder.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": plain, "weight_decay": 0.0}, *loss.param_groups(optim)]
    groups = [{"lr": optim.lr, **group} for group in groups if group["params"]]
    for group in groups:
        group["base_lr"] = group["lr"]
    if optim.name == "sgd":
        return torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum, nesterov=optim.nesterov)
    return torch.optim.AdamW(groups, lr=optim.lr) if optim.name == "adamw" else torch.optim.Adam(groups, lr=optim.lr)


def _set_rate(run: Run, recipe: Recipe) -> float:
    """Set every group's rate for this step from the schedule; returns the backbone's."""
    schedule = recipe.schedule
    warmup = min(1.0, (run.step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    factor = warmup * schedule.decay(run.step / schedule.steps) * 0.5**run.plateau.halvings
    for group in run.optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return recipe.optim.lr * factor


def _to(batch: Batch, device: torch.device) -> Batch:
    return Batch(*(None if one is None else one.to(device, non_blocking=True) for one in batch))  # type: ignore[arg-type]


def _save_model(path: Path, run: Run, recipe: Recipe, metrics: dict[str, float]) -> None:
    checkpoint.save_model(path, run.embedder, recipe, similarity=similarity_of(recipe, run.loss), step=run.step, metrics=metrics)


def _check_watch(recipe: Recipe, trials: tuple[Sequence[Item], Trials] | None, classes: Sequence[str]) -> None:
    schedule = recipe.schedule
    if schedule.steps < 1 or schedule.save_every < 1:
        raise ValueError(f"schedule: steps={schedule.steps} and save_every={schedule.save_every} must be at least 1")
    if schedule.watch and (trials is None or schedule.watch not in recipe.metrics):
        raise ValueError(f"schedule.watch={schedule.watch!r} needs trials and must be one of the recipe's metrics: {', '.join(recipe.metrics) or 'none'}")
    if trials is not None:
        both = sorted({str(item.label) for item in trials[0]} & set(classes))
        if both:
            raise ValueError(
                f"{len(both)} subjects are both trained and tested on ({name_first(both)}); give items and trials the same fold, of disjoint subjects"
            )


def _log(file: Any, **entry: Any) -> None:
    file.write(json.dumps(entry) + "\n")
    file.flush()
