"""From a recipe to a run's parts: embedder, loss, momentum encoder, optimiser, and the network as
DDP and torch.compile see it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from eval.formats.provenance import digest
from toolkit.console import console
from toolkit.models import checkpoint
from toolkit.models.embed import TorchEmbedder
from toolkit.parallel import batch_norm, distributed, spread
from toolkit.training import run as runs
from toolkit.training.memory import Bank, momentum_encoder
from toolkit.training.recipe import Optim, Recipe
from toolkit.training.run import Run

# Every process keeps the batch statistics of its own, unless they are synced. torch 2.13 renamed
# DDP's argument and warns of the old name; with the new one buffers are made equal at the start,
# which build() does anyway.
_NEW_NAME = "forward_sync_buffers"
_KNOWN = inspect.signature(nn.parallel.DistributedDataParallel).parameters
_OWN_BUFFERS: dict[str, Any] = {_NEW_NAME if _NEW_NAME in _KNOWN else "broadcast_buffers": False}


class Network(nn.Module):
    """The trained part as one call, (features, frames) -> (B, D): the batch in `pieces`, whose
    activations are computed again for the gradient.

    frontend: given if it has parameters to train; else the loop computes the features, once for
    this network and the momentum encoder.
    """

    def __init__(
        self,
        frontend: nn.Module | None,
        backbone: nn.Module,
        *,
        pieces: int = 1,
        compiled: bool = False,
    ):
        super().__init__()
        self.frontend, self.backbone, self.pieces = frontend, backbone, pieces
        self.call: Callable[[Tensor, Tensor | None], Tensor] = (
            torch.compile(self.whole, dynamic=False) if compiled else self.whole
        )

    def whole(self, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        if self.frontend is not None:
            inputs, frames = self.frontend(inputs, lengths)
            lengths = None if lengths is None else frames
        return cast(Tensor, self.backbone(inputs, lengths))

    def forward(self, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        if self.pieces == 1 or not torch.is_grad_enabled():
            return self.call(inputs, lengths)

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), _still(self.backbone)

        rows = torch.tensor_split(
            inputs, self.pieces
        )  # always so many, since synced batch norm counts calls
        parts = (
            [None] * self.pieces if lengths is None else torch.tensor_split(lengths, self.pieces)
        )
        return torch.cat(
            [
                recomputed(self.call, one, part, use_reentrant=False, context_fn=contexts)
                for one, part in zip(rows, parts, strict=True)
            ]
        )


@contextmanager
def _still(network: nn.Module) -> Iterator[None]:
    """While activations are computed a second time, running statistics must not move once more."""
    norms = [
        (one, one.momentum)
        for one in network.modules()
        if isinstance(one, nn.modules.batchnorm._BatchNorm) and one.track_running_stats
    ]
    for one, _ in norms:
        one.momentum = 0.0
    try:
        yield
    finally:
        for one, momentum in norms:
            one.momentum = momentum


def build(recipe: Recipe, num_classes: int, device: torch.device) -> Run:
    """Everything that a run changes, equal on every rank for equal seeds.

    ValueError for settings that do not go together.
    """
    torch.manual_seed(recipe.seed)
    compute, parallel = recipe.compute, recipe.parallel
    if compute.accumulate < 1 or compute.prefetch < 1 or not 0 < parallel.class_rate <= 1:
        raise ValueError(
            f"compute.accumulate={compute.accumulate} and compute.prefetch={compute.prefetch} must "
            f"be at least 1, and parallel.class_rate={parallel.class_rate} above 0 and at most 1"
        )
    rows, least = recipe.sampling.batch_size // distributed.world(), least_rows(recipe)
    if rows < least:
        raise ValueError(
            f"sampling.batch_size={recipe.sampling.batch_size} gives each of {distributed.world()} "
            f"processes {rows} items of a batch, and compute.accumulate={compute.accumulate} needs "
            f"{least}; raise batch_size or lower accumulate"
        )
    if compute.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(compute.deterministic)
    torch.backends.cudnn.benchmark = not compute.deterministic
    frontend = recipe.frontend()
    _check_rates(recipe, frontend)
    backbone = recipe.backbone(frontend.dim)
    loss = recipe.loss(backbone.dim, num_classes).to(device)
    many = distributed.world() > 1
    if many and parallel.sync_batch_norm:
        backbone = batch_norm.synced(backbone, device)
    embedder = TorchEmbedder(frontend, backbone, features=getattr(loss, "features", "raw")).to(
        device
    )
    if compute.channels_last:
        embedder.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    encoder: TorchEmbedder | None = None
    if recipe.memory is not None:
        if not hasattr(loss, "bank"):
            raise ValueError(
                f"memory is set, but {type(loss).__name__} takes no keys; set memory to None or "
                "take a loss with a bank, such as SimPLE"
            )
        if recipe.memory.size < recipe.sampling.batch_size:
            raise ValueError(
                f"memory.size={recipe.memory.size} is smaller than "
                f"sampling.batch_size={recipe.sampling.batch_size}; it must hold a batch at least"
            )
        loss.bank = Bank(recipe.memory.size, backbone.dim).to(device)
        if recipe.memory.momentum > 0:
            encoder = cast(TorchEmbedder, momentum_encoder(embedder))
    layout = None
    if parallel.spread_classes or parallel.class_rate < 1:
        layout = spread.shard(loss, spread.class_axes(recipe.loss, backbone.dim))
    network: nn.Module = Network(
        frontend if embedder.trains_frontend else None,
        embedder.backbone,
        pieces=compute.accumulate,
        compiled=compute.compile,
    )
    if many:
        network = nn.parallel.DistributedDataParallel(
            network,
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **_OWN_BUFFERS,
        )
    scaler = torch.amp.GradScaler(device.type, enabled=half(recipe, device) is torch.float16)
    if many and scaler.is_enabled():
        raise ValueError(
            "compute.precision=float16 scales the loss by what each process sees, which many "
            "processes cannot share; set compute.precision=bfloat16 or float32"
        )
    run = Run(
        embedder,
        loss,
        encoder,
        optimizer(recipe.optim, embedder, loss, device),
        scaler,
        network,
        layout,
    )
    torch.manual_seed(
        recipe.seed + 1_000_003 * distributed.rank()
    )  # from here on, dropout and dither differ between processes
    return run


def _check_rates(recipe: Recipe, frontend: nn.Module) -> None:
    """ValueError where the parts that state a sampling rate state different ones: read resamples to
    its own, and the others cannot see which it was.
    """
    inside = (
        one for one in frontend.modules() if hasattr(one, "rate_hz")
    )  # SpecAugment holds the front-end that states it
    rates: dict[str, Any] = {"frontend": getattr(next(inside, None), "rate_hz", None)}
    for name in ("read", "train_read", "augment"):
        part = getattr(recipe, name)
        stated = None if part is None else inspect.signature(part).parameters.get("rate_hz")
        rates[name] = None if stated is None else stated.default
    rates = {name: rate for name, rate in rates.items() if rate is not None}
    if len(set(rates.values())) > 1:
        raise ValueError(
            "sampling rates differ: "
            f"{', '.join(f'{name}.rate_hz={rate}' for name, rate in rates.items())}; set them to "
            "one value"
        )


def least_rows(recipe: Recipe) -> int:
    """How many items of a batch a process needs: two in each piece, as one alone has no batch
    statistics; one where these are of all processes.
    """
    one_each = distributed.world() > 1 and recipe.parallel.sync_batch_norm
    return recipe.compute.accumulate * (1 if one_each else 2)


def half(recipe: Recipe, device: torch.device) -> torch.dtype:
    """The network's precision: bfloat16 wherever it exists; float16 with loss scaling on older
    GPUs; float32 on CPUs unless asked otherwise.
    """
    precision = recipe.compute.precision
    if precision == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if precision not in known:
        raise ValueError(
            f"compute.precision is {precision!r}; choose one of auto, {', '.join(known)}"
        )
    return known[precision]


def optimizer(
    optim: Optim, embedder: nn.Module, loss: Any, device: torch.device
) -> torch.optim.Optimizer:
    """Weights with decay, biases and norms without, and the loss's own groups."""
    decayed = [p for p in embedder.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in embedder.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [
        {"params": decayed, "weight_decay": optim.weight_decay},
        {"params": plain, "weight_decay": 0.0},
        *loss.param_groups(optim),
    ]
    groups = [{"lr": optim.lr, **group} for group in groups if group["params"]]
    for group in groups:
        group["base_lr"] = group["lr"]
    fused = device.type == "cuda"
    if optim.name == "sgd":
        return torch.optim.SGD(
            groups, lr=optim.lr, momentum=optim.momentum, nesterov=optim.nesterov, fused=fused
        )
    if optim.name not in ("adam", "adamw"):
        raise ValueError(f"optim.name is {optim.name!r}; choose one of sgd, adam, adamw")
    return (torch.optim.AdamW if optim.name == "adamw" else torch.optim.Adam)(
        groups, lr=optim.lr, fused=fused
    )


def start_from(recipe: Recipe, run: Run, classes: tuple[str, ...]) -> bool:
    """Fine-tuning: weights of recipe.init, a run folder or a model file; whether the loss's state
    (class proxies) came along.

    It does from a run with the same classes and loss: then network and loss are of the run's last
    step. Else the network alone is taken, the run's best. ValueError if the network is another one.
    What was taken and what is made anew is said.
    """
    path = Path(recipe.init)
    found = runs.latest(path) if path.is_dir() else None
    anew, tensors = f"{path} keeps no state of a loss", dict[str, Tensor]()
    if found is not None:
        folder, state = found
        tensors = {
            name: value
            for name, value in run.tensors().items()
            if name.startswith("loss.") and not name.startswith("loss.bank.")
        }
        stored = {
            name: size
            for name, size in runs.read_metadata(folder).items()
            if name.startswith("loss.") and not name.startswith("loss.bank.")
        }
        anew = ""
        if state["classes"] != digest(classes):
            anew = f"{state['num_classes']} classes before, {len(classes)} (or others) now"
        elif {name: value.shape for name, value in tensors.items()} != stored:
            anew = "that run's loss was another one"
    weights, stated, digest_of_file = checkpoint.read(
        checkpoint.find_model(path), checkpoint.FORMAT
    )
    checkpoint.put(run.embedder, checkpoint.without_loss(weights), f"init={path}")
    told = f"init: network weights of {path} ({digest_of_file[:12]}, step {int(stated['step'])})"
    if found is not None and not anew:
        runs.read(
            found[0],
            tensors
            | {
                name: value for name, value in run.tensors().items() if name.startswith("embedder.")
            },
        )
        told = f"init: network weights of {path} (step {found[1]['step']})"
    if run.encoder is not None:
        run.encoder.load_state_dict(run.embedder.state_dict())
    loss = type(run.loss).__name__
    told += (
        f"; {loss} is made anew for {len(classes)} classes: {anew}"
        if anew
        else f", and its class proxies: the {len(classes)} classes are the same"
    )
    console.print(told)
    return not anew
