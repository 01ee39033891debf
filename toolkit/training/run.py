"""A run while it trains: its state, saved and restored bit for bit by PyTorch's distributed
checkpointing in safetensors files, and its folder.
"""

import json
import math
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.files import json_object
from likeness.eval.formats.provenance import digest
from likeness.eval.formats.runs import BEST, LAST, LOG, RECIPE
from likeness.eval.writing import sync, sync_names, write_json, write_text
from likeness.toolkit.backbones.weights import misfits
from likeness.toolkit.console import one_line, say
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.parts import drop_revisions
from likeness.toolkit.parallel import distributed, spread
from likeness.toolkit.training._average import Average
from likeness.toolkit.training.log import RUN_ID

RESUME = "resume"
STATE = "state.json"
FORMAT = "likeness.resume/5"
# The groups of a recipe whose fields are told apart when recipes are compared.
GROUPS = ("schedule", "tuning", "compute", "parallel", "measure")


@dataclass
class Plateau:
    """What the watched metric decides: halvings of the rate, the end, and which model is kept.

    Attributes:
        best: The best value so far; None before the first evaluation.
        since_best: Evaluations since then.
        since_halving: Evaluations without a better value since the last halving.
        halvings: How often the rate was halved.
    """

    best: float | None = None
    since_best: int = 0
    since_halving: int = 0
    halvings: int = 0

    def update(self, value: float, higher_is_better: bool, halve_after: int) -> bool:
        """Take one evaluation's value; True if it is the best so far, which NaN never is."""
        if not math.isnan(value) and (
            self.best is None or (value > self.best if higher_is_better else value < self.best)
        ):
            self.best, self.since_best, self.since_halving = value, 0, 0
            return True
        self.since_best += 1
        self.since_halving += 1
        if halve_after and self.since_halving >= halve_after:
            self.halvings, self.since_halving = self.halvings + 1, 0
        return False


@dataclass
class Run:
    """All that changes while a recipe trains (what the resume folder stores), and the network as
    DDP and torch.compile see it.
    """

    embedder: TorchEmbedder
    loss: nn.Module
    encoder: TorchEmbedder | None
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    # (features, frames) -> z: the embedder's backbone, in pieces, perhaps compiled, perhaps in DDP
    network: nn.Module
    layout: spread.Layout | None = None  # the classes that this process holds, if they are spread
    plateau: Plateau = field(default_factory=Plateau)
    step: int = 0
    factor: float = 1.0  # of the rates of all parameters, in this step
    owes_evaluation: bool = False  # that after `step` failed, and is made when the run goes on
    # parameters that stand still until a step and are trained from then on (build.thaw)
    frozen: list[nn.Parameter] = field(default_factory=list)
    average: Average | None = None  # of the weights, where the recipe asks for one
    # the model that fine-tuning started from: model (as in recipe.init), digest, and revision
    init: dict[str, str] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the network and the loss are."""
        # A network in closed form has buffers only.
        return next(chain(self.embedder.parameters(), self.embedder.buffers())).device

    @property
    def rate(self) -> float:
        """The learning rate of this step."""
        return float(self.optimizer.defaults["lr"]) * self.factor

    @property
    def model(self) -> tuple[TorchEmbedder, nn.Module]:
        """The network and the loss that are measured and saved: the average where there is one."""
        if self.average is None or not self.average.checkpoints:
            return self.embedder, self.loss
        averaged = self.average.loss
        return self.average.embedder, self.loss if averaged is None else averaged

    @property
    def modules(self) -> dict[str, nn.Module]:
        named = {"embedder": self.embedder, "loss": self.loss, "encoder": self.encoder}
        return {name: module for name, module in named.items() if module is not None}

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that the optimiser changes, in its order."""
        return [value for group in self.optimizer.param_groups for value in group["params"]]

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of modules and optimiser under its name in a checkpoint, sharing memory;
        those with spread classes as DTensors of the whole.
        """
        tensors: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, module in self.modules.items():
            for key, value in module.state_dict().items():
                # a joint loss holds one tensor under two names
                if value.numel() and value.data_ptr() in seen:
                    continue
                seen.add(value.data_ptr())
                tensors[f"{name}.{key}"] = self._whole(value, key) if name == "loss" else value
        if self.average is not None:
            tensors |= self.average.tensors()
        trained = self.trained
        names = {id(parameter): name for name, parameter in self.loss.named_parameters()}
        # of SGD and Adam all are tensors; rates are set anew at every step
        for index, values in self.optimizer.state_dict()["state"].items():
            name = names.get(id(trained[index]), "")
            for key, value in values.items():
                whole = self._whole(value, name) if value.ndim else value
                tensors[f"optimizer.{index}.{key}"] = whole
        return tensors

    def _whole(self, value: Tensor, key: str) -> Tensor:
        if self.layout is None or key not in self.layout.axes:
            return value
        return spread.as_dtensor(value, self.layout.axes[key], self.layout.num_classes)


def check_folder(out: Path, description: str, resume: bool) -> None:
    """Refuse to mix two runs in one folder; nothing is written.

    A run that ended before its first checkpoint is in nobody's way: a new run takes its place.

    Args:
        out: The run's folder.
        description: The recipe as JSON.
        resume: Whether to go on with the run that is there.

    Raises:
        LikenessError: Another run is there, or this one without `resume`; or something else than a
            run has the name of its recipe or of the folder of its state.
    """
    if not holds_checkpoint(out):
        recipe = out / RECIPE
        is_of_run = recipe.is_file() and {"modality", "schedule"} <= json_object(recipe).keys()
        for path in (recipe, *(out / RESUME).glob("*")):
            if path.exists() and not is_of_run:
                raise LikenessError(
                    f"{path} was made by no run, and a run would replace it; choose another --out"
                )
        return
    if not resume:
        raise LikenessError(
            f"{out} already holds a run; add --resume to go on with it, or choose another --out"
        )
    check_same(out, json.loads(description))


def is_unfinished(out: Path, description: str, steps: int, stop_after: int) -> bool:
    """Whether a folder holds a training of this very recipe that ended before its last step."""
    try:
        check_same(out, json.loads(description))
        newest = latest(out)
    except (LikenessError, OSError):
        return False
    if newest is None:  # it ended before its first checkpoint, or while that was written
        return not (out / LAST).is_file() or any(True for _ in out.glob(f"{RESUME}/*"))
    state = newest[1]
    stopped = stop_after and state["plateau"]["since_best"] >= stop_after
    return bool(state["owes_evaluation"] or (state["step"] < steps and not stopped))


def check_same(out: Path, description: dict[str, Any]) -> None:
    """Refuse to go on with the run in a folder by another recipe."""
    before = flat(json_object(out / RECIPE))
    now = flat(description)
    changed = sorted(key for key in now.keys() | before.keys() if before.get(key) != now.get(key))
    if changed:
        raise LikenessError(
            f"{out} holds a run of another recipe (other: {', '.join(changed)}); resume with the "
            "same recipe and overrides, or choose another --out"
        )


def flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's description as two are compared: with the fields of GROUPS one by one,
    {"schedule.steps": 100, ...}, and without what `drop_revisions` leaves out.
    """
    description = drop_revisions(dict(description))
    whole = {name: value for name, value in description.items() if name not in GROUPS}
    return whole | {
        f"{group}.{name}": value
        for group in GROUPS
        for name, value in (description.get(group) or {}).items()
    }


def holds_checkpoint(out: Path) -> bool:
    """Say whether a run's folder holds a model, or a state that the run can go on from."""
    patterns = (BEST, LAST, f"{RESUME}/*/{STATE}")
    return any(True for pattern in patterns for _ in out.glob(pattern))


def prepare_folder(out: Path, description: str) -> None:
    """Make the run's folder, after `check_folder`.

    What a killed run left half-written is removed, and so is the log of a run without a whole
    checkpoint. The main process calls this.
    """
    if (out / RECIPE).is_file() and latest(out) is None:
        say(
            one_line(
                f"{out} holds no state that a run can go on from; training begins anew, and its "
                f"{RECIPE} and {LOG} are replaced"
            ),
            error=True,
        )
        for name in (LOG, RUN_ID):
            (out / name).unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    whole = sorted(state.parent for state in (out / RESUME).glob(f"*/{STATE}"))
    for folder in (out / RESUME).glob("*"):
        if folder not in whole[-1:]:
            shutil.rmtree(folder, ignore_errors=True)
    write_text(out / RECIPE, f"{description}\n")


def save_run(out: Path, run: Run, classes: Sequence[str], items: str) -> None:
    """Write out/resume/STEP, then remove the one before; all ranks call it.

    It counts once its state.json is there: a kill at any moment leaves a whole one.

    items: a digest of what is trained on, which load_run compares.

    Raises:
        OSError: it cannot be written (a full disk, say); nothing of it is left, and the one before
            is kept.
    """
    folder = out / RESUME / f"{run.step:09d}"
    main = distributed.is_main()
    state = {
        "format": FORMAT,
        "step": run.step,
        "owes_evaluation": run.owes_evaluation,
        "plateau": vars(run.plateau),
        "scaler": run.scaler.state_dict(),
        "num_classes": len(classes),
        "classes": digest(classes),
        "items": items,
        "init": run.init,
    }
    if main:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    distributed.wait()
    try:
        _write_tensors(folder, run)
        distributed.wait()
        if main:
            sync(folder)
            write_json(folder / STATE, state)
            for changed in (out / RESUME, out):
                sync_names(changed)  # the new folder is on the disk before the one before it goes
    except (Exception, CheckpointException) as error:  # the latter is a BaseException
        if main:
            shutil.rmtree(folder, ignore_errors=True)
        failures = error.failures.values() if isinstance(error, CheckpointException) else ()
        cause = next((failure[0] for failure in failures), error)
        raise OSError(
            f"writing {folder} failed, and the checkpoint before it is kept ({first_line(cause)}); "
            "make room, and the same command goes on"
        ) from error
    for other in (out / RESUME).iterdir() if main else ():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    distributed.wait()


def mark_evaluated(out: Path, run: Run) -> None:
    """Write down that the evaluation of the last checkpoint was made, and what it gave."""
    newest = latest(out)
    assert newest is not None
    distributed.wait()
    if distributed.is_main():
        made = {"owes_evaluation": False, "plateau": vars(run.plateau)}
        write_json(newest[0] / STATE, newest[1] | made)


def _write_tensors(folder: Path, run: Run) -> None:
    """Write a run's tensors into a folder; those with spread classes each process's part."""
    many = distributed.world() > 1
    # weights in the layout channels_last are not contiguous
    tensors = {
        name: value if isinstance(value, DTensor) else value.contiguous()
        for name, value in sorted(run.tensors().items())  # a resumed run has them in another order
    }
    with warnings.catch_warnings():
        # "torch.distributed is uninitialized, assuming a single process"
        warnings.simplefilter("ignore", UserWarning)
        dcp_save(
            tensors | _random_states(),
            storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=many),
            no_dist=not many,
        )


def latest(out: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole resume folder of a run and its state, or None."""
    whole = sorted(state.parent for state in (out / RESUME).glob(f"*/{STATE}"))
    if not whole:
        return None
    state = json_object(whole[-1] / STATE)
    if state.get("format") != FORMAT:
        raise LikenessError(
            f"{whole[-1]} is a checkpoint of format {state.get('format')!r}; this version of "
            f"Likeness reads {FORMAT!r}"
        )
    return whole[-1], state


def load_run(out: Path, run: Run, classes: Sequence[str], items: str) -> bool:
    """Go on from the newest whole checkpoint in `out`, False if there is none; all ranks call it.

    Another number of ranks deals spread classes out anew.
    """
    newest = latest(out)
    if newest is None:
        return False
    folder, state = newest
    if (state["classes"], state["items"]) != (digest(classes), items):
        raise LikenessError(
            f"{out} was trained on other items ({state['num_classes']} classes, now "
            f"{len(classes)}); resume with the same data and lists, or start a new run in another "
            f"folder (init={out} takes the network's weights along)"
        )
    stored = read_metadata(folder)
    _make_optimizer_state(run, stored)
    if run.average is not None:
        taken = {name.split(".")[1] for name in stored if name.startswith("average.")}
        run.average.make_room(len(taken))
    tensors = run.tensors()
    kept = {name: size for name, size in stored.items() if not name.startswith("random.")}
    if faults := misfits({name: value.shape for name, value in tensors.items()}, kept):
        raise LikenessError(
            f"{folder}: the state does not fit: {faults}; resume with the same recipe and version "
            "of Likeness"
        )
    tensors |= {name: value for name, value in _random_states().items() if name in stored}
    read(folder, tensors)
    if run.average is not None:
        run.average.mean()
    for kind, restore in (("cpu", torch.set_rng_state), ("cuda", torch.cuda.set_rng_state)):
        if (name := f"random.{kind}.{distributed.rank()}") in tensors:
            restore(tensors[name])
    run.scaler.load_state_dict(state["scaler"])
    run.plateau, run.step = Plateau(**state["plateau"]), state["step"]
    run.owes_evaluation = state["owes_evaluation"]
    run.init = state["init"]
    return True


def read(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill the tensors in place from a resume folder; DTensors take their part.

    Nothing in the folder is executed: the files are safetensors.
    """
    many = distributed.world() > 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp_load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=not many)


def read_metadata(folder: Path) -> dict[str, torch.Size]:
    """Names and whole shapes of the tensors in a resume folder."""
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: getattr(stored, "size", torch.Size()) for name, stored in metadata.items()}


def _random_states() -> dict[str, Tensor]:
    """The states of this process's generators, by their names in a checkpoint."""
    states = {f"random.cpu.{distributed.rank()}": torch.get_rng_state()}
    if torch.cuda.is_available():
        states[f"random.cuda.{distributed.rank()}"] = torch.cuda.get_rng_state()
    return states


def _make_optimizer_state(run: Run, stored: Mapping[str, torch.Size]) -> None:
    """Empty tensors for what the optimiser is given: it makes its own only at its first step."""
    trained = run.trained
    for name in stored:
        kind, _, rest = name.partition(".")
        index, _, key = rest.partition(".")
        if kind == "optimizer" and int(index) < len(trained):
            parameter = trained[int(index)]
            # fused optimisers want the step, too, where the parameter is
            alone = torch.zeros((), device=parameter.device)
            empty = alone if key == "step" else torch.zeros_like(parameter)
            run.optimizer.state[parameter][key] = empty
