"""A run while it trains: its state, saved and restored bit for bit, and its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eval.files import atomic_path
from toolkit import checkpoint
from toolkit.embed import TorchEmbedder

LOG = "log.jsonl"
RECIPE = "recipe.json"


@dataclass
class Plateau:
    """Halving of the rate and early stop on the watched metric."""

    best: float | None = None
    since_best: int = 0
    since_halving: int = 0
    halvings: int = 0

    def update(self, value: float, higher_is_better: bool, halve_after: int) -> bool:
        """Take one evaluation's value; True if it is the best so far."""
        if self.best is None or (value > self.best if higher_is_better else value < self.best):
            self.best, self.since_best, self.since_halving = value, 0, 0
            return True
        self.since_best += 1
        self.since_halving += 1
        if halve_after and self.since_halving >= halve_after:
            self.halvings, self.since_halving = self.halvings + 1, 0
        return False


@dataclass
class Run:
    """All that changes while a recipe trains: what resume.safetensors stores."""

    embedder: TorchEmbedder
    loss: nn.Module
    encoder: TorchEmbedder | None
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    plateau: Plateau = field(default_factory=Plateau)
    step: int = 0

    @property
    def modules(self) -> dict[str, nn.Module]:
        named = {"embedder": self.embedder, "loss": self.loss, "encoder": self.encoder}
        return {name: module for name, module in named.items() if module is not None}


def save_run(path: Path, run: Run, classes: Sequence[str]) -> None:
    tensors = {f"{name}.{key}": value for name, module in run.modules.items() for key, value in module.state_dict().items()}
    optimizer, plain = checkpoint.flatten_optimizer(run.optimizer)
    tensors |= {f"optimizer.{key}": value for key, value in optimizer.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    state = {"step": run.step, "plateau": vars(run.plateau), "optimizer": plain, "scaler": run.scaler.state_dict(), "classes": list(classes)}
    checkpoint.save(path, tensors, state, checkpoint.RESUME_FORMAT)


def load_run(path: Path, run: Run, classes: Sequence[str]) -> None:
    tensors, state = checkpoint.load(path, checkpoint.RESUME_FORMAT)
    if state["classes"] != list(classes):
        raise ValueError(f"{path} was trained on {len(state['classes'])} classes, the data now has {len(classes)} or others; start a new run in another folder")
    for name, module in run.modules.items():
        checkpoint.put(module, _under(tensors, name), f"{path} ({name})")
    checkpoint.restore_optimizer(run.optimizer, _under(tensors, "optimizer"), state["optimizer"])
    run.scaler.load_state_dict(state["scaler"])
    run.plateau, run.step = Plateau(**state["plateau"]), int(state["step"])
    torch.set_rng_state(tensors["random.cpu"])
    if torch.cuda.is_available() and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"])


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def prepare_folder(out: Path, description: dict[str, Any], resume: bool) -> None:
    """Make the run's folder; refuse to mix two runs in one."""
    recipe_file = out / RECIPE
    holds_run = recipe_file.is_file() or (out / checkpoint.RESUME).is_file()
    if resume and holds_run:
        if recipe_file.is_file():
            before = json.loads(recipe_file.read_text(encoding="utf-8"))
            changed = sorted(key for key in description.keys() | before.keys() if before.get(key) != json.loads(json.dumps(description)).get(key))
            if changed:
                raise ValueError(
                    f"{out} holds a run of another recipe: {', '.join(changed)} differ; resume with the same recipe and overrides, or choose another --out"
                )
    elif holds_run:
        raise ValueError(f"{out} already holds a run; add --resume to go on with it, or choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    for left in out.glob(".????????????.*"):  # the temporary names of eval.files.atomic_path, left by a killed run
        left.unlink()
    with atomic_path(recipe_file) as partial_path:
        partial_path.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def cut_log(path: Path, step: int) -> None:
    """Drop what a killed run logged after the checkpoint that is resumed."""
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        with atomic_path(path) as partial_path:
            partial_path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
