"""Training in several real processes (torchrun, gloo) equals training in one, resumes in any
number, and ends with a sentence when a process dies.
"""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from likeness.eval.formats.runs import LAST
from likeness.losses import ArcFace, Joint, MarginLoss
from likeness.models.run import load_model
from likeness.recipe import Recipe, fit, step
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.parallel import spread
from likeness.toolkit.training import run
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.run import Run
from tests.toolkit.training import ranks
from tests.toolkit.training.tiny_runs import asked, state_of, step_of, torchrun

# How far two runs may differ that compute the same in another order, as N processes and other
# processors do. A sum of n products in floating point is the exact sum of factors that are changed
# by n u at most, relatively (Higham, Accuracy and Stability, ch. 3; u is half the distance of 1 to
# the next number). So rounding does no more than changing each weight by n u would, in each step.
# What a change does is measured: a run whose weights are changed by NUDGE in each step, large
# beside rounding and small enough for its effect to be proportional.
# of the longest sums, over a batch of 9 spectrograms with 16 bands and less than 100 frames
TERMS = 9 * 16 * 100
# one after the other in a step: forward and backward through 20 layers, each with its batch norm
SUMS = 100
UNIT = 2.0**-53  # float64
NUDGE = 1e-7
SHARE = SUMS * TERMS * UNIT / NUDGE


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def numbers_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint but the generators': network, class vectors, memory, momentum."""
    return {key: value for key, value in state_of(folder).items() if not key.startswith("random.")}


def losses_of(folder: Path) -> list[float]:
    return [line["loss"] for line in read_log(folder) if "loss" in line]


def test_a_loss_that_indexes_its_classes_itself_is_not_cut():
    """MarginLoss has no class vectors, but a boundary per class: cut, it would be read by global
    labels. Alone and as a part of another loss.
    """
    own = partial(MarginLoss, per_class=True)
    for part in (own, partial(Joint, first=ArcFace, second=own)):
        axes = spread.class_axes(part, 5)
        assert any(name.endswith("beta") for name in axes)
        with pytest.raises(ValueError, match="MarginLoss"):
            spread.cut(part(5, 4), axes)
    # one boundary for all: nothing of it is cut
    both = partial(Joint, first=ArcFace, second=MarginLoss)
    assert spread.cut(both(5, 4), spread.class_axes(both, 5)).axes == {"first.proxies": 0}


@torch.no_grad()
def nudged(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
    """A step after each weight was changed by NUDGE, up or down."""
    generator = torch.Generator().manual_seed(run.step)
    for parameter in [*run.embedder.parameters(), *run.loss.parameters()]:
        parameter.mul_(1 + NUDGE * (2 * torch.randint(2, parameter.shape, generator=generator) - 1))
    with torch.enable_grad():
        return step(run, batch, recipe)


@pytest.fixture(scope="module")
def variants(request):
    """Those that are trained in one process and in two: the first, and whatever others are asked
    for.
    """
    return sorted({"whole", *asked(request, "variant")})


@pytest.fixture(scope="module")
def alone(variants, voices, tmp_path_factory):
    """What one process makes of each variant, and of its weights nudged."""
    out = tmp_path_factory.mktemp("alone")
    with ranks.in_float64():
        for name in variants:
            fit(ranks.VARIANTS[name], data=voices, out=out / name)
            unmeasured = replace(ranks.VARIANTS[name], measure=None)
            fit(unmeasured, data=voices, out=out / f"{name}-nudged", step=nudged)
    return out


@pytest.fixture(scope="module")
def two(variants, voices, tmp_path_factory):
    """What two processes make of each variant, until the second is killed."""
    out = tmp_path_factory.mktemp("two")
    events = ("means:start", "means_sharded:start", "sharded:cut", "whole:seeds", "whole:die")
    ended = torchrun(Path(ranks.__file__), voices, out, *variants, "pieces", *events)
    (out / "stderr.txt").write_text(ended.stderr, encoding="utf-8")
    assert (out / "before-the-death").exists(), ended.stderr[-3000:]
    assert ended.returncode != 0
    return out


def allowed(alone: Path, variant: str) -> float:
    """The largest difference between two runs of a variant that rounding explains."""
    moved = difference(numbers_of(alone / variant), numbers_of(alone / f"{variant}-nudged"))
    # the nudge is far above rounding, and the training does not run away
    assert 1e-9 < moved < 1e-2
    return SHARE * moved


OTHERS = ("simple", "memory", "adapted", "unit")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]


@pytest.mark.parametrize("variant", ["whole", "thawed", *SLOW])
def test_two_processes_train_as_one(variant, alone, two):
    bound = allowed(alone, variant)
    assert bound < 1e-6  # far below what a wrong gradient changes
    assert difference(numbers_of(alone / variant), numbers_of(two / variant)) < bound
    assert difference(load_file(alone / variant / LAST), load_file(two / variant / LAST)) < bound
    assert losses_of(two / variant) == pytest.approx(losses_of(alone / variant), rel=1e-6)
    assert len(losses_of(two / variant)) == 6


def test_two_processes_train_in_pieces_as_one(alone, two, voices, tmp_path):
    """Batch norm sees the first pieces of both processes, and then the second ones."""
    order = torch.tensor([0, 1, 4, 5, 6, 2, 3, 7, 8])  # of 4 rows and 5

    def reordered(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
        rows = (None if tensor is None else tensor[order] for tensor in batch)
        return step(run, Batch(*rows), recipe)

    with ranks.in_float64():
        fit(ranks.VARIANTS["pieces"], data=voices, out=tmp_path, step=reordered)
    assert difference(numbers_of(tmp_path), numbers_of(two / "pieces")) < allowed(alone, "whole")


def test_two_processes_measure_as_one(alone, two):
    lines = [read_log(folder / "whole")[-1] for folder in (alone, two)]
    assert lines[0]["eer"] == lines[1]["eer"]


def test_a_sharded_run_resumes_on_another_number_of_processes(alone, two, voices):
    newest = run.latest(two / "sharded")
    assert newest[1]["step"] == 3
    files = newest[0].glob("*.safetensors")
    assert [len(load_file(file)["loss.proxies"]) for file in files] == [3, 3]  # of 6 classes
    with ranks.in_float64():
        fit(ranks.VARIANTS["sharded"], data=voices, out=two / "sharded", resume=True)
    moved = difference(numbers_of(alone / "whole"), numbers_of(two / "sharded"))
    assert moved < allowed(alone, "whole")


def test_class_vectors_start_at_the_means_as_in_one_process(two, voices, tmp_path):
    """Also where each process has half of the classes, and turns only those."""
    with ranks.in_float64():
        for name in ("whole", "means"):
            file, recipe = tmp_path / f"{name}.safetensors", ranks.VARIANTS[name]
            keeping = ranks.keep_the_start(file)
            fit(recipe, data=voices, out=tmp_path / name, step=keeping)
    files = [tmp_path / f"{name}.safetensors" for name in ("whole", "means")]
    at_random, at_means = map(load_file, files)
    cosine = torch.cosine_similarity(at_means["proxies"], at_random["proxies"])
    assert cosine.abs().max() < 0.99
    halves = [load_file(two / f"means_sharded-{rank}.safetensors") for rank in range(2)]
    wholes = [load_file(two / f"means-{rank}.safetensors") for rank in range(2)]
    assert [len(half["proxies"]) for half in halves] == [3, 3]  # of 6 classes
    joined = {**halves[0], "proxies": torch.cat([half["proxies"] for half in halves])}
    for started in (*wholes, joined):
        torch.testing.assert_close(started["proxies"], at_means["proxies"], rtol=1e-12, atol=1e-12)
        assert difference(started, at_random | {"proxies": started["proxies"]}) == 0
    for half in halves:  # the network is every process's, and as it was made
        assert difference(half, joined | {"proxies": half["proxies"]}) == 0


def test_processes_with_different_seeds_are_refused(two):
    for rank in range(2):
        message = (two / f"seeds-{rank}.txt").read_text()
        assert "seed is 0 in process 0, but 1 in process 1" in message
    assert not (two / "seeds").exists()


def test_a_process_that_dies_stops_the_others_with_a_sentence(two, voices):
    message = " ".join((two / "stderr.txt").read_text(encoding="utf-8").split())
    assert (
        "another process of the run died or does not answer" in message
        or "SIGTERM (another process of the run ended" in message
    )
    assert step_of(two / "die") == 3
    with ranks.in_float64():
        fit(ranks.VARIANTS["whole"], data=voices, out=two / "die", resume=True)
    assert step_of(two / "die") == 6


def test_no_library_prints_a_warning(two):
    """What a library warns of in each run hides what matters: DDP's renamed argument was printed by
    each process.
    """
    assert "FutureWarning" not in (two / "stderr.txt").read_text(encoding="utf-8")


@pytest.mark.slow  # two more processes
def test_all_processes_refuse_what_one_of_them_finds(voices, tmp_path):
    shutil.copytree(voices, tmp_path / "data")
    done = torchrun(Path(ranks.__file__), tmp_path / "data", tmp_path, "refuse")
    assert done.returncode == 0, done.stderr[-3000:]
    ends = [(tmp_path / f"{rank}.txt").read_text().splitlines() for rank in range(2)]
    for statistics, unread, locked in ends:
        assert unread.startswith(("unread: ValueError", "unread: LikenessError"))
        assert statistics.startswith("statistics: Diverged: step 3: ")
        assert "holds NaN or infinity" in statistics
        assert locked.startswith("locked: ")
    assert "another process has refused" in ends[0][1]
    assert "this machine has no such file" in ends[1][1]
    assert "Busy" in ends[0][2]
    assert "another process has refused" in ends[1][2]
    assert load_model(tmp_path / "statistics").step == 2
    for name in ("unread", "locked"):
        assert not (tmp_path / name).exists()
