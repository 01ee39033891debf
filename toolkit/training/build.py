"""From a recipe to a run's parts: embedder, loss, momentum encoder, optimiser, and the network as
DDP and torch.compile see it.
"""

import inspect
import os
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.toolkit.losses.contract import Classifier, Keyed, features_of, param_groups
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.parts import Part, check_rates
from likeness.toolkit.parallel import batch_norm, distributed, spread
from likeness.toolkit.training._average import Average
from likeness.toolkit.training.fine_tuning import prepare, rate_multiples, recompute_for_gradient
from likeness.toolkit.training.memory import Bank, Memory, momentum_encoder
from likeness.toolkit.training.recipe import Compute, ItemMeasure, Optim, Parallel, Recipe
from likeness.toolkit.training.run import Run

# Every process keeps the batch statistics of its own, unless they are synced. torch 2.13 renamed
# DDP's argument and warns of the old name; with the new one buffers are made equal at the start,
# which build() does anyway.
_NEW_NAME = "forward_sync_buffers"
_KNOWN = inspect.signature(nn.parallel.DistributedDataParallel).parameters
_OWN_BUFFERS: dict[str, Any] = {_NEW_NAME if _NEW_NAME in _KNOWN else "broadcast_buffers": False}


class Network(nn.Module):
    """The trained part as one call, (features, frames) -> (B, D).

    frontend: given if it has parameters to train; else the loop computes the features, once for
    this network and the momentum encoder.
    mask: what masks the features of this front-end.
    """

    def __init__(
        self, frontend: nn.Module | None, backbone: nn.Module, *, mask: Part | None = None
    ):
        super().__init__()
        self.frontend, self.backbone, self.mask = frontend, backbone, mask

    def forward(self, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        if self.frontend is not None:
            inputs, frames = self.frontend(inputs, lengths)
            inputs = inputs if self.mask is None else self.mask(inputs, frames)
            lengths = None if lengths is None else frames
        return cast(Tensor, self.backbone(inputs, lengths))


class InPieces(nn.Module):
    """A network that gets the batch in pieces, whose activations are computed again for the
    gradient.
    """

    def __init__(self, network: nn.Module, pieces: int):
        super().__init__()
        self.network, self.pieces = network, pieces

    def forward(self, inputs: Tensor, lengths: Tensor | None) -> Tensor:
        if not torch.is_grad_enabled():
            return cast(Tensor, self.network(inputs, lengths))
        # always so many, since synced batch norm counts calls
        rows = torch.tensor_split(inputs, self.pieces)
        parts = (
            [None] * self.pieces if lengths is None else torch.tensor_split(lengths, self.pieces)
        )
        return torch.cat(
            [
                recompute_for_gradient(self.network, piece, part)
                for piece, part in zip(rows, parts, strict=True)
            ]
        )


def build(recipe: Recipe, num_classes: int, device: torch.device) -> Run:
    """Build everything that a run changes. It is equal in every process for equal seeds.

    Raises:
        LikenessError: Settings that do not go together.
    """
    torch.manual_seed(recipe.seed)
    compute, tuning, parallel = recipe.compute, recipe.tuning, recipe.parallel
    if compute.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(compute.deterministic)
    torch.backends.cudnn.benchmark = not compute.deterministic
    frontend = recipe.frontend()
    check_rates(frontend, read=recipe.read, train_read=recipe.train_read, augment=recipe.augment)
    backbone = recipe.backbone(frontend.dim)
    loss = recipe.loss(backbone.dim, num_classes).to(device)
    on_proxies = recipe.start_at_means or recipe.optim.unit_proxies
    if on_proxies and not isinstance(loss, Classifier):
        raise LikenessError(
            "start_at_means and optim.unit_proxies need a loss with class vectors, but "
            f"{type(loss).__name__} has none; leave them out"
        )
    if distributed.world() > 1 and parallel.sync_batch_norm:
        backbone = batch_norm.sync_batch_norms(backbone, device)
    embedder = TorchEmbedder(frontend, backbone, features=features_of(loss)).to(device)
    if compute.is_channels_last(device.type):
        embedder.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    frozen = prepare(embedder, tuning)
    later = frozen if tuning.freeze_until else []
    for parameter in frozen if not later else ():
        parameter.requires_grad_(False)
    encoder = None if recipe.memory is None else _add_memory(recipe.memory, loss, embedder)
    loss.to(device)  # with its bank
    layout = None
    if parallel.spread_classes or parallel.class_rate < 1:
        layout = spread.cut(loss, spread.class_axes(recipe.loss, backbone.dim))
    _check_trains(embedder, loss, frozen)
    average = None
    if tuning.average_last:
        # a model that classifies has class vectors
        kept = loss if isinstance(recipe.measure, ItemMeasure) else None
        average = Average(embedder, kept, last=tuning.average_last)
    steps = optimizer(recipe.optim, embedder, loss, device, rate_multiples(embedder, tuning))
    for parameter in later:
        parameter.requires_grad_(False)
    scaler = torch.amp.GradScaler(device.type, enabled=half(compute, device) is torch.float16)
    if distributed.world() > 1 and scaler.is_enabled():
        raise LikenessError(
            "compute.precision=float16 scales the loss by what each process sees, which many "
            "processes cannot share; set compute.precision=bfloat16 or float32"
        )
    network = network_of(compute, recipe.mask, embedder, device)
    run = Run(
        embedder, loss, encoder, steps, scaler, network, layout, frozen=later, average=average
    )
    # from here on, dropout and dither differ between processes
    torch.manual_seed(recipe.seed + 1_000_003 * distributed.rank())
    return run


def thaw(run: Run, freeze_until: int, compute: Compute, mask: Part | None) -> None:
    """Train the frozen parts as well, once the run is at the step until which they stand still.

    DDP knows the parameters that it was made with, so the network is made anew.
    """
    if not run.frozen or run.step < freeze_until:
        return
    for parameter in run.frozen:
        parameter.requires_grad_(True)
    run.frozen = []
    for embedder in (run.embedder, run.encoder):
        if embedder is not None:
            embedder.still = ()
            embedder.train(embedder.training)
    run.network = network_of(compute, mask, run.embedder, run.device)


def _check_trains(embedder: nn.Module, loss: nn.Module, frozen: list[nn.Parameter]) -> None:
    """ValueError where nothing has a gradient in the first step."""
    still_now = {id(parameter) for parameter in frozen}
    every = (*embedder.parameters(), *loss.parameters())
    if not any(value.requires_grad and id(value) not in still_now for value in every):
        raise LikenessError(
            f"nothing is trained: {len(frozen)} tensors of the network stand still, and "
            f"{type(loss).__name__} learns none of its own; take parts out of tuning.freeze, or a "
            "loss with a vector for each class"
        )


def _add_memory(memory: Memory, loss: Any, embedder: TorchEmbedder) -> TorchEmbedder | None:
    """Give the loss its bank of keys.

    Returns:
        The momentum encoder, None where the keys are the batch's own embeddings.
    """
    if not isinstance(loss, Keyed):
        raise LikenessError(
            f"memory is set, but {type(loss).__name__} takes no keys; set memory to None or "
            "take a loss with a bank, such as SimPLE"
        )
    loss.bank = Bank(memory.size, cast(int, embedder.backbone.dim))
    return cast(TorchEmbedder, momentum_encoder(embedder)) if memory.momentum > 0 else None


def network_of(
    compute: Compute, mask: Part | None, embedder: TorchEmbedder, device: torch.device
) -> nn.Module:
    """The embedder as the loop calls it: in pieces, compiled, and in DDP with many processes."""
    network: nn.Module = Network(
        embedder.frontend if embedder.trains_frontend else None,
        embedder.backbone,
        mask=mask,
    )
    if compute.compile:
        mode = "reduce-overhead" if compute.compile == "graphs" else None
        network.compile(dynamic=False, mode=mode)
    if compute.accumulate > 1:
        network = InPieces(network, compute.accumulate)
    if distributed.world() > 1 and any(value.requires_grad for value in network.parameters()):
        network = nn.parallel.DistributedDataParallel(
            network,
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **_OWN_BUFFERS,
        )
    return network


def least_rows(compute: Compute, parallel: Parallel) -> int:
    """How many items of a batch a process needs: two in each piece, as one alone has no batch
    statistics; one where these are of all processes.
    """
    one_each = distributed.world() > 1 and parallel.sync_batch_norm
    return compute.accumulate * (1 if one_each else 2)


def half(compute: Compute, device: torch.device) -> torch.dtype:
    """The network's precision: bfloat16 wherever it exists; float16 with loss scaling on older
    GPUs; float32 on CPUs unless asked otherwise.
    """
    if compute.precision == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return known[compute.precision]


def optimizer(
    optim: Optim,
    embedder: nn.Module,
    loss: Any,
    device: torch.device,
    multiples: Mapping[str, float],
) -> torch.optim.Optimizer:
    """Weights with decay, biases and norms without, and the loss's own groups.

    multiples: the rate of each parameter of the embedder by name, as a multiple of optim.lr.
    """
    by_kind: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for decays in (True, False):
        for name, parameter in embedder.named_parameters():
            if parameter.requires_grad and (parameter.ndim > 1) == decays:
                by_kind.setdefault((decays, multiples[name]), []).append(parameter)
    groups: list[dict[str, Any]] = [
        {
            "params": parameters,
            "lr": optim.lr * rate,
            "weight_decay": optim.weight_decay if decays else 0.0,
        }
        for (decays, rate), parameters in by_kind.items()
    ]
    groups += param_groups(loss, optim)
    groups = [{"lr": optim.lr, **group} for group in groups if group["params"]]
    for group in groups:
        group["base_lr"] = group["lr"]
    fused = device.type == "cuda"
    if optim.name == "sgd":
        return torch.optim.SGD(
            groups, lr=optim.lr, momentum=optim.momentum, nesterov=optim.nesterov, fused=fused
        )
    return (torch.optim.AdamW if optim.name == "adamw" else torch.optim.Adam)(
        groups, lr=optim.lr, fused=fused
    )
