"""Fine-tuning: frozen parts, rates, adapters and averages, each of which resumes bit for bit."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from likeness.eval.formats.runs import BEST, LAST
from likeness.models.run import load_model
from likeness.recipe import Optim, Recipe, Schedule, Tuning
from likeness.toolkit.backbones.vit import ViT
from likeness.toolkit.backbones.weights import put
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.models import adapter
from likeness.toolkit.training.build import build
from likeness.toolkit.training.fine_tuning import LoRA
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.run import Run
from tests.toolkit.training import tiny_runs
from tests.toolkit.training.tiny_runs import CPU, differing, needs_peft, recipe, state_of, watching

SHORT = Schedule(steps=6, save_every=3)
ADAM = Optim(name="adamw", lr=1e-3)
WAYS: dict[str, dict[str, Any]] = {
    "frozen": {"tuning": Tuning(freeze=("backbone.layer1", "backbone.bn1"))},
    "thawed": {"tuning": Tuning(freeze=("backbone",), freeze_until=2), "optim": ADAM},
    "later": {"tuning": Tuning(freeze=("backbone.layer1", "backbone.bn1"), freeze_until=4)},
    "rates": {"tuning": Tuning(rates={"backbone": 2.0, "backbone.layer1": 0.1})},
    "last": {"tuning": Tuning(average_last=2), "schedule": Schedule(steps=6, save_every=2)},
    "lora": {"tuning": Tuning(lora=LoRA(rank=2, targets=("conv1", "conv2"), dropout=0.1))},
}


def tuned(way: str, **changes: Any) -> Recipe:
    return recipe(**{"schedule": SHORT, "measure": None, **WAYS[way], **changes})


def started(recipe: Recipe) -> dict[str, Tensor]:
    """A run's tensors before its first step."""
    return {name: value.clone() for name, value in build(recipe, 6, CPU).tensors().items()}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_stopped_resumes_bit_for_bit(way, train):
    if way == "lora":
        needs_peft()
    whole, stopped = train(tuned(way), "whole"), train(tuned(way), "stopped", cut_at=4)
    assert tiny_runs.same(whole, stopped)
    assert differing(load_file(whole / LAST), load_file(stopped / LAST)) == []


def test_frozen_parts_stand_still_with_their_statistics(train, capsys):
    """Also after an evaluation, which puts the network back into training mode."""
    measure, schedule = recipe().measure, replace(SHORT, eval_every=2)
    frozen = tuned("frozen", measure=measure, schedule=schedule)
    before = started(frozen)
    after = state_of(train(frozen))
    names = [name for name in before if name.startswith("embedder.")]
    unmoved = {name for name in names if torch.equal(before[name], after[name])}
    parts = ("embedder.backbone.layer1.", "embedder.backbone.bn1.")
    assert unmoved == {name for name in names if name.startswith(parts)}
    assert any(name.endswith("running_mean") for name in unmoved)
    run = build(frozen, 6, CPU)
    sizes = {f"embedder.{name}": p.numel() for name, p in run.embedder.named_parameters()}
    every = sum(sizes.values())
    trained = sum(size for name, size in sizes.items() if not name.startswith(parts))
    assert f"{every:,} parameters ({trained:,} of them trained" in capsys.readouterr().err


def test_parts_are_trained_from_their_step_on(train):
    seen: list[bool] = []

    def watch(run: Run, batch: Batch) -> None:
        bn1 = run.embedder.get_submodule("backbone.bn1")
        value = next(iter(bn1.parameters()))
        assert value.requires_grad == bn1.training
        seen.append(value.requires_grad)

    later = tuned("thawed")
    before = started(later)
    after = state_of(train(later, step=watching(watch)))
    assert seen == [False] * 2 + [True] * 4
    thawed = "embedder.backbone.conv1.weight"
    assert not torch.equal(before[thawed], after[thawed])
    steps = {float(value) for name, value in after.items() if name.endswith(".step")}
    assert steps == {4.0, 6.0}  # Adam counts the steps of each parameter


# Rates
# --------------------------------------------------------------------------------------------------


def test_groups_of_the_optimiser_take_their_rates():
    run = build(tuned("rates"), 6, CPU)
    groups = run.optimizer.param_groups
    rates = {id(value): group["lr"] / 0.05 for group in groups for value in group["params"]}
    for name, value in run.embedder.named_parameters():
        is_named = name.startswith("backbone.layer1.")  # the longest name counts
        assert rates[id(value)] == pytest.approx(0.1 if is_named else 2.0)
    for group in groups:
        assert {x.ndim > 1 for x in group["params"]} == {bool(group["weight_decay"])}
    every = [id(value) for group in groups for value in group["params"]]
    trained = [*run.embedder.parameters(), *run.loss.parameters()]
    assert sorted(every) == sorted(map(id, trained))  # once each, those of the loss too


# Adapters
# --------------------------------------------------------------------------------------------------


def test_merged_and_unmerged_embeddings_agree(train):
    needs_peft()
    adapted = tuned("lora", optim=Optim(lr=0.5))
    before = started(adapted)
    out = train(adapted)
    stored, run = state_of(out), build(adapted, 6, CPU)
    own = {name: value for name, value in run.tensors().items() if name.startswith("embedder.")}
    moved = [name for name in own if not torch.equal(before[name], stored[name])]
    assert moved
    assert all(".lora_" in name for name in moved)
    for name, value in own.items():
        value.copy_(stored[name])
    waves = torch.randn(3, 8000, generator=torch.Generator().manual_seed(0))
    loaded = load_model(out)
    assert not list(adapter.layers_of(loaded.embedder))
    with torch.no_grad():
        unmerged = run.embedder.eval()(waves)
        bound = 1e-5 * max(1.0, float(unmerged.abs().max()))  # of rounding, relative to the largest
        assert torch.allclose(loaded.embedder(waves), unmerged, rtol=0, atol=bound)
    file = load_file(out / LAST)
    base = {name: value for name, value in file.items() if not name.startswith("adapter.")}
    assert base.keys() == loaded.embedder.state_dict().keys()
    untouched = {
        name.removeprefix("embedder.").replace(".base_layer.", "."): value
        for name, value in before.items()
        if name in own and ".lora_" not in name
    }
    assert differing(base, untouched) == []  # the weights below the adapters, as they were
    assert len(file) - len(base) == 2 * 9  # the stem, and two in each of four blocks


def test_adapters_of_a_vision_transformer():
    needs_peft()
    torch.manual_seed(0)
    vit = ViT(1, image_size=8, patch=4, width=8, depth=2, heads=2, dim=4).eval()
    plain = {name: value.clone() for name, value in vit.state_dict().items()}
    layers = adapter.add(vit, rank=2, alpha=4.0)
    assert layers == ["blocks.0.attn.qkv", "blocks.1.attn.qkv"]
    for name, value in vit.named_parameters():
        if ".lora_" in name:
            nn.init.normal_(value)
    images = torch.rand(2, 1, 8, 8)
    stored = adapter.tensors_of(vit)
    assert {name for name in stored if not name.startswith("adapter.")} == plain.keys()
    again = ViT(1, image_size=8, patch=4, width=8, depth=2, heads=2, dim=4).eval()
    again.load_state_dict(adapter.merge_adapters(stored))
    with torch.no_grad():
        assert torch.allclose(again(images), vit(images), atol=1e-5)
        again.load_state_dict(plain)
        assert not torch.allclose(again(images), vit(images), atol=1e-2)


def test_adapters_of_another_shape_are_refused():
    good = {"fc.weight": torch.zeros(3, 2)}
    good |= {"adapter.fc.A": torch.ones(1, 2), "adapter.fc.B": torch.ones(3, 1)}
    assert adapter.merge_adapters(good).keys() == {"fc.weight"}
    wrong_ones = [("fc.A", (1, 3)), ("fc.B", (3, 2)), ("fc.B", ()), ("other.A", (1, 2))]
    for name, shape in (*wrong_ones, ("fc.C", (1, 2)), ("", (1, 2))):
        wrong = adapter.merge_adapters(good | {f"adapter.{name}": torch.ones(shape)})
        assert any(name.startswith("adapter.") for name in wrong)
        with pytest.raises(ValueError, match="unknown"):
            put(nn.ModuleDict({"fc": nn.Linear(2, 3, bias=False)}), wrong, "file")


# Averages
# --------------------------------------------------------------------------------------------------


def test_the_mean_of_the_last_checkpoints_is_measured_and_saved(train):
    states: dict[int, dict[str, Tensor]] = {}

    def watch(run: Run, batch: Batch) -> None:
        states[run.step] = {k: v.clone() for k, v in run.embedder.state_dict().items()}

    watched = Schedule(steps=6, save_every=2, eval_every=1, watch="eer")
    mean = tuned("last", measure=recipe().measure, schedule=watched)
    out = train(mean, step=watching(watch))
    final = state_of(out)
    states[6] = {name: final[f"embedder.{name}"] for name in states[0]}
    model = load_file(out / LAST)
    for name, value in model.items():
        if value.is_floating_point():
            expected = torch.stack([states[at][name].double() for at in (4, 6)]).mean(0)
            assert torch.allclose(value.double(), expected, atol=1e-6), name
        else:
            assert torch.equal(value, states[6][name]), name
    # the evaluations before the first checkpoint are of the weights as they are
    assert sum("eer" in entry for entry in read_log(out)) == 6
    assert load_file(out / BEST).keys() == model.keys()


@pytest.mark.parametrize("second", [{}, WAYS["lora"]], ids=["plain", "lora"])
@pytest.mark.parametrize("first", ["last", "lora"])
def test_fine_tuning_starts_from_an_average_and_from_adapters(first, second, train, capsys):
    needs_peft()
    init = train(tuned(first), "first")
    optim = Optim(lr=0.0, weight_decay=0.0)
    out = train(tiny_runs.short(steps=1, init=str(init), optim=optim, **second))
    assert "its class proxies" in capsys.readouterr().err
    states = (load_model(folder).embedder.state_dict() for folder in (init, out))
    counters = ("running_mean", "running_var", "num_batches_tracked")
    assert [name for name in differing(*states) if not name.endswith(counters)] == []
