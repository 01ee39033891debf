"""The options of a run: pieces, compilation, precision, fine-tuning, several best checkpoints,
loggers, constants learned before the first step.
"""

import copy
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from likeness.eval.formats.runs import BEST
from likeness.losses import VMF, Cosine
from likeness.modalities.speaker.features import KaldiFbank
from likeness.recipe import Compute, Optim, Schedule
from likeness.toolkit.parallel.batch_norm import sync_batch_norms
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training import run
from likeness.toolkit.training.build import InPieces, Network, build, network_of
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.memory import momentum_encoder, update_encoder
from tests.toolkit.training.tiny_runs import CPU, recipe, same, state_of


class Plain(nn.Module):
    """Dropout shows that random numbers are drawn again alike, batch norm that running statistics
    move once.
    """

    def __init__(self, norm: Callable[[int], nn.Module] = nn.Identity):
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(4, 8), nn.Linear(8, 3), norm(8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        hidden = self.dropout(self.norm(self.first(x)).relu())
        return torch.as_tensor(self.last(hidden))


def gradients(network: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Of a loss that couples the rows of a batch."""
    network.zero_grad()
    z = network(x, None)
    (z @ z.T).logsumexp(dim=1).sum().backward()
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


def test_pieces_give_the_gradient_of_the_whole_batch():
    torch.manual_seed(0)
    x = torch.randn(9, 4, dtype=torch.float64)
    for pieces in (2, 4, 9):
        whole = Network(None, Plain().double().eval())
        in_pieces = gradients(InPieces(whole, pieces), x)
        torch.testing.assert_close(in_pieces, gradients(whole, x), rtol=1e-12, atol=1e-12)


def test_features_of_a_front_end_that_is_trained_are_masked_too():
    def half(features: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return features * 0.5

    frontend, backbone, waves = KaldiFbank(num_mels=4), Plain().eval(), torch.randn(2, 800)
    network = Network(frontend, backbone, mask=half)
    assert torch.equal(network(waves, None), backbone(frontend(waves)[0] * 0.5, None))


def synced(dim: int, **settings: Any) -> nn.Module:
    return sync_batch_norms(nn.BatchNorm1d(dim, **settings), CPU)


NORMS = (nn.BatchNorm1d, nn.SyncBatchNorm, synced)  # that of a GPU works alone on a CPU, too
OF_ALL = [partial(norm, momentum=None) for norm in NORMS]  # the mean of all batches


@pytest.mark.parametrize("norm", [nn.Identity, *NORMS, *OF_ALL])
def test_pieces_draw_the_same_dropout_twice_and_move_statistics_once(norm):
    torch.manual_seed(0)
    backbone = Plain(norm).double()
    x, before = torch.randn(8, 4, dtype=torch.float64), copy.deepcopy(backbone.state_dict())
    results = []
    for pieces in (1, 2):
        backbone.load_state_dict(before)
        backbone.zero_grad()
        torch.manual_seed(1)
        if pieces == 1:  # two calls: two moves of the statistics
            z = torch.cat([backbone(part, None) for part in x.tensor_split(2)])
        else:
            z = InPieces(backbone, 2)(x, None)
        z.square().sum().backward()
        grads = [p.grad.clone() for p in backbone.parameters() if p.grad is not None]
        results.append([z.detach(), *copy.deepcopy(list(backbone.buffers())), *grads])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


OTHERS = ("compute.channels_last=true", "compute.deterministic=true", "optim.grad_clip=1.0")
SLOW = [pytest.param(override, marks=pytest.mark.slow) for override in OTHERS]


@pytest.mark.parametrize("override", ["compute.accumulate=3", "compute.precision=bfloat16", *SLOW])
def test_options_train_and_resume(override, train):
    # PyTorch crashes with four channels in channels_last: docs/explanation/limits.md
    settings = ("backbone.width=16", "schedule.steps=4", "schedule.save_every=2", override)
    chosen = recipe("arcface", *settings)
    out = train(chosen, cut_at=3)
    assert same(train(chosen, "whole"), out)
    torch.use_deterministic_algorithms(False)
    steps = [record for record in read_log(out) if "loss" in record]
    assert all(record["step_seconds"] >= record["data_seconds"] >= 0 for record in steps)


@pytest.mark.slow  # compiles C++: 50 seconds
@pytest.mark.parametrize("compiled", [True, "graphs"])  # a CPU has no graphs
def test_compiled_networks_give_the_same_gradient(compiled):
    torch.manual_seed(0)
    backbone, x = Plain(nn.BatchNorm1d).double().eval(), torch.randn(6, 4, dtype=torch.float64)
    embedder: Any = SimpleNamespace(trains_frontend=False, backbone=backbone)
    network = network_of(Compute(compile=compiled), None, embedder, CPU)
    torch.testing.assert_close(gradients(network, x), gradients(Network(None, backbone), x))
    assert list(network.state_dict()) == [f"backbone.{name}" for name in backbone.state_dict()]


def test_fine_tuning_takes_the_network_and_the_proxies_of_the_same_classes(train, capsys):
    """Those of the last step, with the constants that the loss has learnt from the data; of other
    classes or another loss the best network alone.
    """
    watched = Schedule(steps=4, eval_every=1, watch="eer")
    first = recipe(loss=partial(VMF, resultant=0.4), schedule=watched)
    init = train(first, "first")
    given, model = state_of(init), load_file(init / BEST)
    best = {f"embedder.{name}": value for name, value in model.items()}
    assert 0 < float(given["loss.alpha"]) < 100
    assert float(given["loss.alpha"]) != 1
    items: Any = first.items
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "again": ({}, "and its class proxies: the 6 classes are the same"),
        "fewer": ({"items": partial(items, test_share=0.5)}, "VMF is made anew for 4 classes"),
        "softmax": ({"loss": Cosine}, "Cosine is made anew for 6 classes"),
    }
    once = Schedule(steps=1)
    still = replace(first, init=str(init), measure=None, optim=Optim(lr=0.0), schedule=once)
    for name, (change, says) in changes.items():
        capsys.readouterr()
        taken = state_of(train(replace(still, **change), name))
        assert says in " ".join(capsys.readouterr().err.split())
        kept = given if name == "again" else best
        keys = [key for key in kept.keys() & taken.keys() if key.endswith((".weight", ".bias"))]
        keys += ["loss.proxies", "loss.alpha"] if name == "again" else []
        assert len(keys) > 20
        assert all(torch.equal(kept[key], taken[key]) for key in keys)
        assert len(taken["loss.proxies"]) == (4 if name == "fewer" else 6)
    with pytest.raises(ValueError, match="weights do not fit"):
        train(recipes.override(still, ["backbone.dim=9"]), "other")


def test_loggers_get_the_same_numbers(train):
    with pytest.raises(ValueError, match=r"'mlflow' is unknown; .*wandb"):
        train(recipe(), loggers=["mlflow"])
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = train(recipe(schedule=Schedule(steps=3)), loggers=["tensorboard"])
    board = EventAccumulator(str(out / "tensorboard"))
    board.Reload()
    expected = [line["loss"] for line in read_log(out) if "loss" in line]
    assert [point.value for point in board.Scalars("loss")] == pytest.approx(expected, rel=1e-6)
    assert [entry.step for entry in board.Scalars("eer")] == [3]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_runs_offline(train, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    out = train(recipe(schedule=Schedule(steps=2)), loggers=["wandb"])
    assert list((out / "wandb").glob("offline-run-*"))
    assert len((out / "wandb.id").read_text()) == 8


def test_parts_of_one_sampling_rate_are_built():
    eight = recipe("arcface", "read.rate_hz=8000", "augment.rate_hz=8000", "frontend.rate_hz=8000")
    assert build(eight, 4, CPU).embedder.frontend.rate_hz == 8_000
    assert build(replace(eight, augment=None), 4, CPU).embedder.dim == 8


def test_encoder_is_the_moving_average_with_its_batch_norm_buffers():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    encoder = momentum_encoder(network)
    expected = {name: value.clone() for name, value in network.state_dict().items()}
    for _ in range(3):
        network(torch.randn(8, 3) + 5)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
        update_encoder(encoder, network, 0.9)
        for name, value in network.state_dict().items():
            share = 0.1 if value.is_floating_point() else 1
            expected[name] = (1 - share) * expected[name] + share * value
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


def test_optimiser_state_is_made_where_the_parameter_is():
    """Fused optimisers refuse a step counter on another device."""
    made = build(recipe(optim=Optim(name="adam")), 6, CPU)
    elsewhere = [nn.Parameter(torch.empty(shape, device="meta")) for shape in ((), (3, 2))]
    made.optimizer.param_groups[:] = [{**made.optimizer.param_groups[0], "params": elsewhere}]
    names = [f"optimizer.{i}.{key}" for i in (0, 1) for key in ("step", "exp_avg")]
    run._make_optimizer_state(made, dict.fromkeys(names, torch.Size()))
    for parameter in elsewhere:
        state = made.optimizer.state[parameter]
        assert {value.device.type for value in state.values()} == {"meta"}
        assert (state["step"].shape, state["exp_avg"].shape) == ((), parameter.shape)
