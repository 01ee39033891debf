"""Several processes compute what one does: two real ones run tests/toolkit/parallel/processes.py
under torchrun, once for all tests here.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from likeness import losses
from likeness.toolkit.parallel import distributed, spread
from tests.toolkit.parallel import processes
from tests.toolkit.training.tiny_runs import asked, torchrun

pytestmark = [
    # by dcp, on purpose
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    # two processes for minutes of their time; test_train_many.py trains by as many in every run of
    # the tests
    pytest.mark.slow,
]
CLASSES, DIM, build = processes.CLASSES, processes.DIM, processes.build
JOINT = partial(losses.Joint, first=losses.ProxyAnchor, second=losses.ArcFace)
TABLE = torch.arange(CLASSES * DIM, dtype=torch.float64).view(CLASSES, DIM)


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    """What two processes left, of the losses that are asked for: see
    tests/toolkit/parallel/processes.py.
    """
    folder = tmp_path_factory.mktemp("processes")
    state = {"proxies": TABLE, "momentum": -TABLE, "tau": torch.tensor(0.25, dtype=torch.float64)}
    save(state, checkpoint_id=folder / "one", no_dist=True)
    done = torchrun(Path(processes.__file__), folder, *sorted(asked(request, "name")))
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


@pytest.fixture(scope="module")
def report(folder):
    made: dict[str, Any] = json.loads((folder / "errors.json").read_text(encoding="utf-8"))
    return made


def test_collectives_and_checkpoints(folder, report):
    assert (report["world"], report["device"]) == (2, "cpu")
    assert max(report["adjoint"], report["checkpointed"]) < 1e-12
    state = {name: torch.zeros_like(TABLE) for name in ("proxies", "momentum")}
    load(state, checkpoint_id=folder / "many", no_dist=True)
    assert torch.equal(state["proxies"], TABLE)
    assert torch.equal(state["momentum"], -2 * TABLE)


@pytest.mark.parametrize("name", processes.FOUND)
def test_a_loss_that_is_whole_in_every_process(report, name):
    """Values, gradients of embeddings and parameters, and buffers over three steps, with slices of
    unequal length and an empty one.
    """
    assert report[f"{name}, whole"] < 1e-9


@pytest.mark.parametrize("name", processes.spreadable())
def test_a_loss_that_is_spread_or_sampled(report, name):
    """Sampled classes are the loss of their union, in one process too."""
    for how in ("spread", "sampled", "all drawn"):
        assert report[f"{name}, {how}"] < 1e-9
    assert processes.sampled(processes.spreadable()[name], 0.5) < 1e-9


def test_without_torchrun_the_functions_change_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert distributed.start() is None
    assert (distributed.rank(), distributed.world(), distributed.is_main()) == (0, 1, True)
    assert distributed.any_rank(True)
    distributed.agree(seed=1)
    distributed.wait()
    x = torch.ones(2, requires_grad=True)
    assert distributed.gather(x) is x
    assert distributed.total(x) is x
    loss = build(losses.ArcFace)
    names = [name for name, _ in loss.named_parameters()]
    before = list(loss.parameters())
    layout = spread.cut(loss, spread.class_axes(losses.ArcFace, DIM))
    assert (layout.start, layout.stop) == (0, CLASSES)
    assert all(a is b for a, b in zip(before, loss.parameters(), strict=True))
    assert names == [name for name, _ in loss.named_parameters()]
    z, y = processes.batch(0)
    assert torch.equal(spread.loss_of(loss, z, y, layout=layout), loss(z, y))
    distributed.end()


@pytest.mark.parametrize(
    ("part", "axes"),
    [
        (partial(losses.Softmax, bias=True), {"proxies": 0, "bias": 0}),
        # another axis of the length tried
        (partial(losses.SubCenterArcFace, num_subcentres=11), {"proxies": 0, "subcentres": 1}),
        (losses.SoftTriple, {"proxies": 0, "centres": 1}),
        (JOINT, {"first.proxies": 0, "second.proxies": 0}),
        (losses.Contrastive, {}),
    ],
)
def test_class_axes_are_found(part, axes):
    state = torch.get_rng_state()
    assert spread.class_axes(part, 13) == axes
    assert torch.equal(torch.get_rng_state(), state)


@given(
    wanted=st.lists(st.integers(-5, 14), max_size=12),
    rate=st.floats(0.01, 1.0),
    step=st.integers(0, 3),
)
def test_draws_hold_what_is_wanted_and_as_many_as_asked_for(wanted, rate, step):
    classes = torch.tensor(wanted, dtype=torch.int64)
    drawn, again = (spread.draw(classes, 10, rate, seed=(1, step, 0)).tolist() for _ in range(2))
    here = {value for value in wanted if 0 <= value < 10}
    assert here <= set(drawn) <= set(range(10))
    assert drawn == again == sorted(set(drawn))
    assert len(drawn) == max(len(here), int(rate * 10), 1)


def test_negatives_are_drawn_evenly_and_anew_in_every_step_and_process():
    counts = torch.zeros(20)
    seeds = [(0, step, rank) for step in range(400) for rank in range(2)]
    drawn = [spread.draw(torch.tensor([3]), 20, 0.25, seed=seed) for seed in seeds]
    for value in drawn:
        counts[value] += 1
    assert counts[3] == 800
    others = torch.cat([counts[:3], counts[4:]])
    assert bool(((others / 800 - 4 / 19).abs() < 5 * (4 / 19 * 15 / 19 / 800) ** 0.5).all())
    assert len({tuple(draw.tolist()) for draw in drawn}) > 600


def test_clipping_is_torch_s_in_one_process():
    loss = build(losses.ArcFace)
    layout = spread.cut(loss, spread.class_axes(losses.ArcFace, DIM))
    backbone = nn.Linear(DIM, DIM).double()
    z, y = processes.batch(0)
    loss(backbone(z), y).backward()
    parameters = [*backbone.parameters(), *loss.parameters()]
    before = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    norm = spread.clip_gradients(parameters, 0.5, loss, layout)
    ours = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    for entry, grad in zip(parameters, before, strict=True):
        entry.grad = grad
    assert norm.item() == pytest.approx(nn.utils.clip_grad_norm_(parameters, 0.5).item(), rel=1e-12)
    assert float(norm) > 0.5
    for grad, entry in zip(ours, parameters, strict=True):
        torch.testing.assert_close(grad, entry.grad)
