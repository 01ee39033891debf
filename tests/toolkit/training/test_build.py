"""The options of a run: pieces, compilation, precision, fine-tuning, several best checkpoints,
loggers, constants learned before the first step.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from likeness.modalities.speaker import audio
from likeness.modalities.speaker.features import KaldiFbank
from likeness.modalities.speaker.spec_augment import SpecAugment
from likeness.toolkit.backbones.resnet import ResNet34
from likeness.toolkit.losses.softmax import Cosine
from likeness.toolkit.losses.vmf import VMF
from likeness.toolkit.models import checkpoint
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training import run
from likeness.toolkit.training.build import Network, build
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.recipe import Recipe, Schedule
from likeness.toolkit.training.train import fit
from tests.toolkit.training.steps import raising_at

TINY = Path(__file__).parents[2] / "tiny.py"


def recipe(variant: str = "arcface", *overrides: str, **changes: Any) -> Recipe:
    return recipes.override(
        replace(recipes.load(f"{TINY}:{variant}")[0], **changes), list(overrides)
    )


class Plain(nn.Module):
    """Dropout shows that random numbers are drawn again alike, batch norm that running statistics
    move once.
    """

    def __init__(self, norm: bool):
        super().__init__()
        self.first, self.norm, self.dropout, self.last = (
            nn.Linear(4, 8),
            nn.BatchNorm1d(8) if norm else nn.Identity(),
            nn.Dropout(0.5),
            nn.Linear(8, 3),
        )

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        hidden = self.dropout(self.norm(self.first(x)).relu())
        return torch.as_tensor(self.last(hidden))


def test_pieces_give_the_gradient_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    for pieces in (2, 4, 9):
        network = Network(None, Plain(False).double().eval(), pieces=pieces)
        single = Network(None, network.backbone, pieces=1)
        x = torch.randn(9, 4, dtype=torch.float64)
        values = []
        for module in (network, single):
            module.zero_grad()
            z = module(x, None)
            (z @ z.T).logsumexp(dim=1).sum().backward()
            values.append(
                [p.grad.clone() for p in network.backbone.parameters() if p.grad is not None]
            )
        for a, b in zip(*values, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_pieces_draw_the_same_dropout_twice_and_move_statistics_once() -> None:
    for norm in (False, True):
        torch.manual_seed(0)
        backbone = Plain(norm).double()
        x = torch.randn(8, 4, dtype=torch.float64)
        before = [b.clone() for b in backbone.buffers()]
        torch.manual_seed(1)
        # two calls: two moves of the statistics
        expected = torch.cat([backbone(part, None) for part in x.tensor_split(2)])
        expected.square().sum().backward()
        after, reference = (
            [b.clone() for b in backbone.buffers()],
            [p.grad.clone() for p in backbone.parameters() if p.grad is not None],
        )
        for buffer, value in zip(backbone.buffers(), before, strict=True):
            buffer.copy_(value)
        backbone.zero_grad()
        torch.manual_seed(1)
        z = Network(None, backbone, pieces=2)(x, None)
        z.square().sum().backward()
        torch.testing.assert_close(z, expected, rtol=0, atol=0)
        for p, gradient in zip(backbone.parameters(), reference, strict=True):
            torch.testing.assert_close(p.grad, gradient, rtol=1e-12, atol=1e-12)
        for buffer, value in zip(backbone.buffers(), after, strict=True):
            if buffer.is_floating_point():
                torch.testing.assert_close(buffer, value, rtol=0, atol=0)


@pytest.mark.parametrize(
    "override",
    [
        "compute.accumulate=3",
        "compute.precision=bfloat16",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "compute.channels_last=true",
                "compute.deterministic=true",
                "optim.grad_clip=1.0",
            )
        ),
    ],
)
def test_options_train_and_resume(override: str, voices: Path, tmp_path: Path) -> None:
    # PyTorch crashes with four channels in channels_last: docs/explanation/limits.md
    backbone = partial(ResNet34, dim=8, width=16, blocks=(1, 1, 1, 1))
    chosen = recipe(
        "arcface", override, schedule=Schedule(steps=4, save_every=2), backbone=backbone
    )
    fit(chosen, data=voices, out=tmp_path / "whole")
    with pytest.raises(KeyError, match="stop"):
        fit(chosen, data=voices, out=tmp_path / "run", step=raising_at(3, KeyError("stop")))
    fit(chosen, data=voices, out=tmp_path / "run", resume=True)
    a, b = (load_file(tmp_path / name / checkpoint.LAST) for name in ("whole", "run"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    torch.use_deterministic_algorithms(False)
    assert all(
        record["step_seconds"] >= record["data_seconds"] >= 0
        for record in read_log(tmp_path / "run")
        if "loss" in record
    )


@pytest.mark.slow  # compiles C++: 50 seconds
def test_compiled_networks_give_the_same_gradient() -> None:
    torch.manual_seed(0)
    backbone = Plain(True).double().eval()
    x, result = torch.randn(6, 4, dtype=torch.float64), []
    for network in (Network(None, backbone), Network(None, backbone, compiled=True)):
        network.zero_grad()
        network(x, None).square().sum().backward()
        result.append([p.grad.clone() for p in backbone.parameters() if p.grad is not None])
    for a, b in zip(*result, strict=True):
        torch.testing.assert_close(a, b)
    assert list(network.state_dict()) == [f"backbone.{name}" for name in backbone.state_dict()]


def test_fine_tuning_takes_the_network_and_the_proxies_of_the_same_classes(
    voices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(recipe(), data=voices, out=tmp_path / "first")
    still = ["optim.lr=0", f"init={tmp_path / 'first'}"]
    fit(recipe("arcface", *still, schedule=Schedule(steps=1)), data=voices, out=tmp_path / "again")
    assert "and its class proxies: the 6 classes are the same" in " ".join(
        capsys.readouterr().err.split()
    )
    for name in ("loss.proxies", "embedder.backbone.conv1.weight"):
        assert torch.equal(_stored(tmp_path / "first", name), _stored(tmp_path / "again", name))
    items: Any = recipe().items
    fewer = partial(items.func, split="train", test_share=0.5)
    fit(
        recipe("arcface", *still, items=fewer, measure=None, schedule=Schedule(steps=1)),
        data=voices,
        out=tmp_path / "fewer",
    )
    assert "ArcFace is made anew for 4 classes: 6 classes before, 4 (or others) now" in " ".join(
        capsys.readouterr().err.split()
    )
    assert _stored(tmp_path / "fewer", "loss.proxies").shape[0] == 4
    assert torch.equal(
        _stored(tmp_path / "first", "embedder.backbone.conv1.weight"),
        _stored(tmp_path / "fewer", "embedder.backbone.conv1.weight"),
    )
    fit(
        recipe("arcface", *still, loss=Cosine, schedule=Schedule(steps=1)),
        data=voices,
        out=tmp_path / "softmax",
    )
    assert "that run's loss was another one" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ValueError, match="weights do not fit"):
        fit(recipe("arcface", *still, "backbone.dim=9"), data=voices, out=tmp_path / "other")


def _stored(out: Path, name: str) -> torch.Tensor:
    newest = run.latest(out)
    assert newest is not None
    (file,) = newest[0].glob("*.safetensors")
    return load_file(file)[name]


def test_vmf_starts_at_the_concentration_it_aims_at(voices: Path, tmp_path: Path) -> None:
    fit(
        recipe(loss=partial(VMF, resultant=0.4), schedule=Schedule(steps=1)),
        data=voices,
        out=tmp_path / "run",
    )
    alpha = float(_stored(tmp_path / "run", "loss.alpha"))
    assert alpha != 1.0
    assert 0 < alpha < 100


def test_class_vectors_start_at_the_means_of_their_classes(voices: Path, tmp_path: Path) -> None:
    """Before the first step every class vector has turned to where embeddings of its class lie, and
    its length has not changed.
    """
    from likeness.toolkit.training.train import step

    seen: dict[bool, torch.Tensor] = {}
    near: dict[bool, float] = {}  # the mean cosine of embeddings with their class vector

    def watch(run: Any, batch: Any, recipe: Recipe) -> torch.Tensor:
        seen[recipe.start_at_means] = run.loss.proxies.detach().clone()
        with torch.no_grad():
            z = run.embedder(batch.inputs, batch.lengths)
        own = run.loss.proxies.detach()[batch.labels]
        near[recipe.start_at_means] = float(nn.functional.cosine_similarity(z, own).mean())
        return step(run, batch, recipe)

    for at_means in (False, True):
        fit(
            recipe(loss=Cosine, schedule=Schedule(steps=1), start_at_means=at_means),
            data=voices,
            out=tmp_path / str(at_means),
            step=watch,
        )
    torch.testing.assert_close(seen[True].norm(dim=1), seen[False].norm(dim=1))
    cosine = nn.functional.cosine_similarity(seen[True], seen[False])
    assert float(cosine.max()) < 0.999
    assert near[True] > near[False] + 0.2
    with pytest.raises(ValueError, match="class vectors, but SimPLE has none"):
        fit(recipe("simple", start_at_means=True), data=voices, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_loggers_get_the_same_numbers(
    voices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"'mlflow' is unknown; .*wandb"):
        fit(recipe(), data=voices, out=tmp_path / "run", loggers=["mlflow"])
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(
        recipe(schedule=Schedule(steps=3)),
        data=voices,
        out=tmp_path / "run",
        loggers=["tensorboard"],
    )
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    expected = [line["loss"] for line in read_log(tmp_path / "run") if "loss" in line]
    assert [point.value for point in board.Scalars("loss")] == pytest.approx(expected, rel=1e-6)
    assert [entry.step for entry in board.Scalars("eer")] == [3]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_runs_offline(
    voices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    fit(recipe(schedule=Schedule(steps=2)), data=voices, out=tmp_path / "run", loggers=["wandb"])
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert len((tmp_path / "run" / "wandb.id").read_text()) == 8


def test_parts_of_different_sampling_rates_are_refused() -> None:
    made = recipe()
    inside = partial(SpecAugment, frontend=partial(KaldiFbank, num_mels=16, rate_hz=8_000))
    for wrong, says in (
        (replace(made, frontend=inside), "frontend.rate_hz=8000, read.rate_hz=16000"),
        (recipe("arcface", "augment.rate_hz=8000"), "augment.rate_hz=8000"),
        (replace(made, train_read=partial(audio.read, rate_hz=44_100)), "train_read.rate_hz=44100"),
    ):
        with pytest.raises(ValueError, match=f"sampling rates differ: .*{says}"):
            build(wrong, 4, torch.device("cpu"))
    eight = recipe("arcface", "read.rate_hz=8000", "augment.rate_hz=8000", "frontend.rate_hz=8000")
    assert build(eight, 4, torch.device("cpu")).embedder.frontend.rate_hz == 8_000
    assert build(replace(eight, augment=None), 4, torch.device("cpu")).embedder.dim == 8


def test_a_memory_needs_a_loss_with_keys() -> None:
    with pytest.raises(ValueError, match="takes no keys"):
        build(recipe("simple", loss=recipe().loss), 6, torch.device("cpu"))
