"""start(): from a plan to a run that can take its next step, built anew or restored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from likeness.eval.errors import LikenessError
from likeness.eval.formats.provenance import digest
from likeness.eval.formats.runs import LAST, find_model
from likeness.eval.progress import step
from likeness.toolkit.backbones.weights import first_names, misfits
from likeness.toolkit.console import say
from likeness.toolkit.models import adapter, checkpoint
from likeness.toolkit.models.embedder import pick_device
from likeness.toolkit.parallel import distributed
from likeness.toolkit.training import run as runs
from likeness.toolkit.training._finite import not_finite
from likeness.toolkit.training.build import build, thaw
from likeness.toolkit.training.fine_tuning import fresh_parts, is_in
from likeness.toolkit.training.loading import estimate
from likeness.toolkit.training.plan import Plan
from likeness.toolkit.training.recipe import Recipe
from likeness.toolkit.training.run import Run, load_run


@dataclass(frozen=True)
class Initial:
    """The network that fine-tuning starts from, of whatever kind of model it comes.

    Attributes:
        weights: The embedder's tensors by name.
        source: Where they are from, in words.
        digest: The SHA-256 that tells the model from others.
        revision: The commit that came, of a model that was fetched; "" for any other.
    """

    weights: dict[str, Tensor]
    source: str
    digest: str = ""
    revision: str = ""


# `recipe.init` to the network that it names
ReadInitial = Callable[[str], Initial]


def read_initial(init: str) -> Initial:
    """The network of a run's folder, as it was at its best, or of a model file that a run wrote.

    The application reads models of other kinds as well (likeness.models.load).

    Raises:
        LikenessError: There is no such file, or it is of another kind.
    """
    weights, stated, summed = checkpoint.read(find_model(Path(init)), checkpoint.FORMAT)
    source = f"{init} ({summed[:12]}, step {int(stated['step'])})"
    return Initial(checkpoint.embedder_tensors(weights), source, summed)


def start(
    planned: Plan, out: Path, *, resume: bool = False, read_initial: ReadInitial = read_initial
) -> Run:
    """Build the run of a plan in the folder `out`, or go on from its last checkpoint there.

    A training of the same recipe that ended before its last step goes on in any case.

    The folder is only written once nothing can refuse the recipe any more, so that a refused run
    leaves no folder behind.

    Args:
        planned: What `plan` made.
        out: The run's folder.
        resume: Whether to go on from the last checkpoint of a finished training, too.
        read_initial: Reads the network that `recipe.init` names.

    Returns:
        The run, at the step that comes next.

    Raises:
        LikenessError: Settings that do not go together, another run in the folder, or an initial
            model that does not fit.
    """
    recipe = planned.recipe
    if recipe.compute.threads:
        torch.set_num_threads(recipe.compute.threads)
    with step("building the network"):
        run = build(recipe, len(planned.classes), distributed.start() or pick_device())
    schedule = recipe.schedule
    ends = schedule.steps, schedule.stop_after
    resume = resume or runs.is_unfinished(out, planned.description, *ends)
    distributed.run_on_main(lambda: runs.check_folder(out, planned.description, resume))
    fine_tunes = bool(recipe.init) and not (resume and runs.latest(out))
    taken = False
    if fine_tunes:  # before anything is written: it may be refused
        with step("loading the initial network"):
            initial = distributed.run_on_all(lambda: read_initial(recipe.init))
        taken = start_from(initial, recipe, run, planned.classes)
    distributed.run_on_main(lambda: runs.prepare_folder(out, planned.description))
    if resume and load_run(out, run, planned.classes, planned.fingerprint):
        if distributed.is_main():
            say(f"going on in {out} after step {run.step}", error=True)
    else:
        estimate(
            run,
            replace(planned.views, seed=recipe.seed + 1_000_003),  # other views than the first
            recipe.compute,
            num_views=recipe.estimate_views,
            at_means=recipe.start_at_means,
            seed=recipe.seed,
            network=not fine_tunes,
            loss=not taken,
        )
    thaw(run, recipe.tuning.freeze_until, recipe.compute, recipe.mask)
    return run


def start_from(initial: Initial, recipe: Recipe, run: Run, classes: tuple[str, ...]) -> bool:
    """Fine-tuning: put the weights of an initial model into the run.

    Where recipe.init is the folder of a run with the same classes and loss, the network and the
    loss of its last step are taken. Otherwise the initial network alone is taken. Parts that no
    pretrained model has may be missing there. What was taken and what is made anew is printed, and
    the run keeps which model it was.

    Returns:
        Whether the loss's state (its class proxies) was taken as well.

    Raises:
        LikenessError: The network there is another one.
    """
    path = Path(recipe.init)
    before = runs.latest(path) if path.is_dir() else None
    goes_on = _goes_on(before, run, classes)
    new = distributed.run_on_all(lambda: _put(run, initial.weights, f"init={recipe.init}"))
    source, digest = initial.source, initial.digest
    if before is not None and goes_on:
        source, digest = f"{path} (step {before[1]['step']})", _go_on_from(path, before[0], run)
    stated = {"model": recipe.init, "digest": digest, "revision": initial.revision}
    run.init = {name: text for name, text in stated.items() if text}
    if run.encoder is not None:
        run.encoder.load_state_dict(run.embedder.state_dict())
    if distributed.is_main():
        made = f"; {len(new)} tensors of it are new ({first_names(new)})" if new else ""
        loss = (
            f", and its class proxies: the {len(classes)} classes are the same"
            if goes_on
            else f"; {type(run.loss).__name__} is made anew for {len(classes)} classes"
        )
        say(f"init: network weights of {source}{made}{loss}", error=True)
    return goes_on


def _put(run: Run, weights: Mapping[str, Tensor], where: str) -> list[str]:
    """Put weights into the network, below its adapters.

    Returns:
        The names of the tensors that are made anew, since no pretrained model has them.

    Raises:
        LikenessError: Any other tensor is missing, unknown or of another shape, or a weight is no
            finite number.
    """
    own, fresh = run.embedder.state_dict(), fresh_parts(run.embedder)
    names = adapter.plain_names(run.embedder)
    new = [name for name in names.values() if name not in weights and is_in(name, fresh)]
    expected = {plain: own[name].shape for name, plain in names.items() if plain not in new}
    stored = {name: value.shape for name, value in weights.items()}
    faults = misfits(expected, stored)
    trained = [names.get(name, "") for name, _ in run.embedder.named_parameters()]
    if diverged := not_finite({name: weights[name] for name in trained if name in weights}):
        faults = f"{len(diverged)} tensors hold NaN or infinity ({first_names(diverged)})"
    if faults:
        raise LikenessError(
            f"{where}: weights do not fit: {faults}; take the recipe and settings that the weights "
            "were trained with, or other weights"
        )
    kept = {name: weights[plain] for name, plain in names.items() if plain in weights}
    run.embedder.load_state_dict(kept, strict=False)
    return new


def _go_on_from(path: Path, folder: Path, run: Run) -> str:
    """Take the loss and the network of a run's last step.

    Returns:
        The digest of the model file that has this network.
    """
    last = path / LAST
    weights, _, summed = distributed.run_on_all(lambda: checkpoint.read(last, checkpoint.FORMAT))
    distributed.run_on_all(lambda: _put(run, checkpoint.embedder_tensors(weights), f"init={last}"))
    runs.read(folder, _loss_tensors(run))
    return summed


def _goes_on(
    before: tuple[Path, dict[str, Any]] | None, run: Run, classes: tuple[str, ...]
) -> bool:
    """Whether the loss can go on from the state of a run: its classes and its loss are the same."""
    if before is None or before[1]["classes"] != digest(classes):
        return False
    stored = runs.read_metadata(before[0])
    shapes = {name: size for name, size in stored.items() if _is_of_loss(name)}
    return {name: value.shape for name, value in _loss_tensors(run).items()} == shapes


def _loss_tensors(run: Run) -> dict[str, Tensor]:
    """The loss's own tensors, without its bank of keys."""
    return {name: value for name, value in run.tensors().items() if _is_of_loss(name)}


def _is_of_loss(name: str) -> bool:
    return name.startswith("loss.") and not name.startswith("loss.bank.")
