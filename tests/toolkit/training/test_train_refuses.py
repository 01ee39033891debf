"""What must not cost a run, or pass in silence: data that are missing, damaged or tested on as
well, and a folder that holds another run.
"""

import json
import math
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from likeness import losses
from likeness.data import Item, audio, folders, images, small_sets
from likeness.eval.formats.runs import LAST
from likeness.frontends import MFCC, KaldiFbank, train_view
from likeness.models.run import load_model
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.data.sampling import Sampling
from likeness.toolkit.models.embed import Diverged
from likeness.toolkit.models.parts import describe
from likeness.toolkit.signals import Interrupted
from likeness.toolkit.training import lock, run
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.fine_tuning import LoRA, Tuning
from likeness.toolkit.training.log import Log, read_log
from likeness.toolkit.training.measure import metrics_of
from likeness.toolkit.training.memory import Memory
from likeness.toolkit.training.recipe import Classification, Compute, Optim, Recipe, Schedule
from likeness.toolkit.training.run import Run, check_folder
from likeness.toolkit.training.train import Step, fit, step
from tests.disk_calls import come_in_order, recorded
from tests.toolkit.training.test_measure import CLOSED
from tests.toolkit.training.tiny_runs import before, needs_peft, raising_at, recipe, short
from tests.writers import State

DIGITS = partial(small_sets.digits_items, files=True, validation_share=0.01)
IMAGES = replace(
    CLOSED,
    items=partial(DIGITS, split="train"),
    read=images.read,
    sampling=Sampling(batch_size=8),
    schedule=Schedule(steps=1),
    measure=Classification(
        items=partial(DIGITS, split="test"),
        validation=Classification(items=partial(DIGITS, split="validation")),
    ),
)


def trial_item(data: Path) -> Item:
    return folders.trials(data, split="test", test_share=0.25)[0][0]


def never(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
    raise AssertionError("a step was taken")


def refused_before_a_step(recipe: Recipe, data: Path, says: str) -> None:
    """Nothing is trained, and no folder is made."""
    with pytest.raises(ValueError, match=says):
        fit(recipe, data=data, out=data / "run", step=never)
    assert not (data / "run").exists()


@pytest.mark.parametrize("name", ["items", "calibrate_on"])
def test_missing_files_of_the_test_are_said_before_the_first_step(name, tmp_path):
    small_sets.write_digits(tmp_path)
    absent: dict[str, Any] = {name: partial(small_sets.mnist_items, split="test")}
    lacking = replace(IMAGES, measure=replace(IMAGES.measure, **absent))  # type: ignore[type-var]
    refused_before_a_step(lacking, tmp_path, "t10k-images")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("items.validation_share=0", "270 items"),
        ("items.validation_share=0.05", "218 items"),
        ("items.seed=7", "items"),
        ("measure.items.seed=7", "items"),
        ("measure.calibrate_on.seed=7", "items"),
    ],
)
def test_one_side_of_a_split_is_not_changed_alone(setting, says, tmp_path):
    """Otherwise items are trained on, and calibrated, watched or tested on as well."""
    changed = recipes.override(CLOSED, [setting])
    refused_before_a_step(changed, tmp_path, f"{says} both trained and tested on")


SPREAD = recipes.Parallel(spread_classes=True)
WARMED = partial(losses.ArcFace, warmup_steps=(3, 10))
JOINT = partial(losses.Joint, first=WARMED)


def listed_too_early(data: Path, **_: object) -> list[Item]:
    raise AssertionError(f"{data} was listed before the settings were checked")


# what is said names the setting
BEYOND = (
    "schedule.steps=0 compute.accumulate=0 compute.workers=-1 seed=-1 max_bad_share=-1 optim.lr=-1 "
    "optim.lr=nan schedule.epochs=1e308 tuning.rates=backbone:inf tuning.rates=backbone:-1 "
    "parallel.class_rate=0 parallel.class_rate=1.5 tuning.average_last=-1"
)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        *((setting, setting.partition("=")[0]) for setting in BEYOND.split()),
        ("schedule.watch=accuracy", "watch"),
        ("schedule.stop_after=3", "schedule.watch=, schedule.eval_every=0, "),
        ({"schedule": Schedule(watch="eer", halve_after=3)}, "schedule.eval_every=0, "),
        ("sampling.batch_size=9", "multiple"),
        ("sampling.batch_size=1", "batch_size"),
        ("compute.accumulate=5", "accumulate=5 needs 10"),
        ("optim.lr=inf", "optim.lr=inf"),
        ("schedule.epochs=1e400", "schedule.epochs=inf"),
        ({"optim": Optim(momentum=0.0, nesterov=True)}, "optim.momentum=0.0, optim.nesterov=True"),
        ({"loss": partial(losses.ArcFace, margin=math.inf)}, "loss.margin=inf"),
        ({"schedule": Schedule(steps=9, epochs=1, warmup_steps=10)}, "schedule.warmup_steps=10"),
        ({"schedule": Schedule(steps=9, epochs=1), "loss": WARMED}, "warmup_steps of the loss"),
        ({"schedule": Schedule(steps=9, epochs=1), "loss": JOINT}, "warmup_steps of the loss"),
        ({"compute": Compute(compile="graphs", accumulate=2)}, "compute.accumulate=2"),
        ({"compute": replace(Compute(), precision="float8")}, "precision"),  # type: ignore[arg-type]
        ({"optim": replace(Optim(), name="lamb")}, "name"),  # type: ignore[arg-type]
        ({"loss": partial(losses.ArcFace, margn=0.2)}, "margn"),
        ({"memory": Memory(size=4)}, "memory"),
        ({"similarity": "cosin"}, "similarity"),
        ({"measure": recipes.Retrieval(listed_too_early, similarity="cosin")}, "similarity"),
        ({"measure": Classification(listed_too_early), "parallel": SPREAD}, "spread_classes"),
    ],
)
def test_a_wrong_setting_is_refused_before_any_item_is_listed(setting, says, tmp_path):
    changed = recipe("arcface", setting) if isinstance(setting, str) else recipe(**setting)
    refused_before_a_step(replace(changed, items=listed_too_early), tmp_path, says)


PASSES = Schedule(steps=150, epochs=1, save_every=1)
FROZEN = Tuning(freeze=("backbone",))
EIGHT_KHZ = partial(MFCC, fbank=partial(KaldiFbank, num_mels=16, rate_hz=8_000))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"items": partial(folders.items, split="all")}, "both trained"),
        ({"tuning": Tuning(freeze_until=4)}, "freeze_until=4"),
        ({"tuning": replace(FROZEN, freeze_until=6)}, "freeze_until=6"),
        ({"tuning": Tuning(freeze=("backbone.layr1",))}, "backbone.layer1"),
        ({"tuning": Tuning(rates={"backbone.layer9": 0.5})}, "backbone.layer"),
        ({"tuning": replace(FROZEN, rates={"backbone": 0.5})}, "rates"),
        ({"tuning": replace(FROZEN, lora=LoRA(rank=2))}, "adapters"),
        ({"tuning": Tuning(lora=LoRA(targets=("conv1",)))}, "rank"),
        ({"tuning": Tuning(lora=LoRA(rank=2))}, "seg_1"),
        ({"tuning": Tuning(lora=LoRA(rank=2, targets=("conv7",)))}, "conv7"),
        ({"tuning": Tuning(average_last=9)}, "checkpoints"),
        ({"tuning": Tuning(average_last=100), "schedule": PASSES}, r"checkpoints \(3\)"),
        ({"tuning": FROZEN, "loss": losses.Triplet}, "nothing is trained"),
        ({"tuning": replace(FROZEN, freeze_until=2), "loss": losses.Triplet}, "nothing is trained"),
        ({"loss": losses.SimPLE, "start_at_means": True}, "class vectors, but SimPLE has none"),
        ({"loss": losses.SimPLE, "optim": Optim(unit_proxies=True)}, "SimPLE has none"),
        ({"memory": Memory(20)}, "takes no keys"),
        ({"frontend": EIGHT_KHZ}, "rates differ: .*frontend.rate_hz=8000, read.rate_hz=16000"),
        ({"augment": partial(train_view, rate_hz=8_000)}, "rates differ: .*augment.rate_hz=8000"),
        ({"train_read": partial(audio.read, rate_hz=44_100)}, "differ: .*train_read.rate_hz=44100"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_the_first_step(changes, says, data):
    if getattr(changes.get("tuning", Tuning()).lora, "rank", 0):
        needs_peft()
    measure = recipe().measure if "items" in changes else None
    refused_before_a_step(short(**{"measure": measure, **changes}), data, says)


def test_an_evaluation_that_fails_costs_no_step(data, train, tmp_path):
    item, whole = trial_item(data), trial_item(data).path.read_bytes()
    changed = recipe(schedule=Schedule(steps=4, save_every=100, eval_every=2))
    damages = before(3, lambda *_: item.path.write_bytes(b"no audio"))
    with pytest.raises(ValueError, match=rf"1 of 8 test items cannot be read \('{item.id}'\)"):
        train(changed, data=data, step=damages)
    assert load_model(tmp_path / "run").step == 4
    item.path.write_bytes(whole)
    out = train(changed, data=data, resume=True, step=never)
    assert [line["step"] for line in read_log(out) if "eer" in line] == [2, 4]
    item.path.write_bytes(b"no audio")
    # nothing is left to do, and nothing is read
    train(changed, data=data, resume=True, step=never)


def test_ctrl_c_during_the_last_evaluation_is_heard(train, tmp_path, monkeypatch):
    def interrupted(*arguments: Any, **settings: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return metrics_of(*arguments, **settings)

    monkeypatch.setattr("likeness.toolkit.training.measure.metrics_of", interrupted)
    with pytest.raises(Interrupted, match=r"stopped after the last step; .* is whole"):
        train(recipe(schedule=Schedule(steps=2)))
    assert load_model(tmp_path / "run").step == 2


# The folder of a run
# --------------------------------------------------------------------------------------------------


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_read(data, train):
    once = recipe(schedule=Schedule(steps=1))
    train(once, data=data)
    trial_item(data).path.write_bytes(b"no audio")
    with pytest.raises(ValueError, match="already holds a run"):
        train(once, data=data)
    with pytest.raises(ValueError, match=r"another recipe .*seed"):
        train(replace(once, seed=5), data=data, resume=True)


FAILURES: dict[str, tuple[type[BaseException], Step]] = {
    "a late mistake": (TypeError, raising_at(2, TypeError("a mistake"))),
    "Ctrl-C twice": (KeyboardInterrupt, raising_at(1, KeyboardInterrupt())),
    "NaN": (Diverged, lambda *arguments: step(*arguments) * math.nan),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("resume", [False, True])
def test_the_corrected_command_begins_where_a_run_failed_before_its_first_checkpoint(
    failure, resume, train, tmp_path, capsys
):
    out, (kind, steps) = tmp_path / "run", FAILURES[failure]
    with pytest.raises(kind):
        train(short(schedule=Schedule(steps=4), seed=3), step=steps)
    left = {path.name for path in out.rglob("*")} - {lock.NAME}
    assert left == {"log.jsonl", "recipe.json"}
    with (out / "log.jsonl").open("a") as log:  # of step 0 too: nothing of it may stay
        log.write('{"step": 0, "of": "the run that failed"}\nand what is no JSON')
    capsys.readouterr()
    corrected = short(schedule=Schedule(steps=4), optim=Optim(lr=0.01))
    train(corrected, resume=resume)
    assert capsys.readouterr().err.count("holds no state that a run can go on from") == 1
    entries = read_log(out)
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4]
    assert not any("of" in entry or "error" in entry for entry in entries)
    assert json.loads((out / "recipe.json").read_text())["optim"]["lr"] == 0.01
    assert (out / LAST).read_bytes() == (train(corrected, "alone") / LAST).read_bytes()


def test_a_run_that_was_evaluated_before_its_first_checkpoint_starts_again(train, tmp_path, capsys):
    watched = recipe(schedule=Schedule(steps=4, eval_every=2, save_every=4, watch="eer"))
    with pytest.raises(TypeError):
        train(watched, step=raising_at(3, TypeError("a mistake")))
    left = {path.name for path in (tmp_path / "run").rglob("*")} - {lock.NAME}
    assert left == {"best.safetensors", "log.jsonl", "recipe.json"}
    with pytest.raises(ValueError, match="already holds a run"):
        train(replace(watched, seed=5))
    out = train(watched)
    assert "training begins anew" in capsys.readouterr().err
    assert (out / LAST).read_bytes() == (train(watched, "alone") / LAST).read_bytes()
    assert [entry["step"] for entry in read_log(out)] == [1, 2, 2, 3, 4, 4]


@pytest.mark.parametrize("name", ["best.safetensors", "resume", None])
def test_a_run_with_any_checkpoint_is_protected(name, tmp_path):
    """Also where only one of its files is there."""
    description = describe(recipe())
    text, other = json.dumps(description), json.dumps(description | {"seed": 7})
    (tmp_path / "recipe.json").write_text(text)
    if name == "resume":
        (tmp_path / "resume" / "000000002").mkdir(parents=True)
        (tmp_path / "resume" / "000000002" / "state.json").write_text("{}")
    else:
        (tmp_path / (name or LAST)).touch()
    with pytest.raises(ValueError, match="already holds a run; add --resume"):
        check_folder(tmp_path, text, resume=False)
    with pytest.raises(ValueError, match=r"another recipe .*seed"):
        check_folder(tmp_path, other, resume=True)
    check_folder(tmp_path, text, resume=True)


@pytest.mark.parametrize("name", ["run/resume/2025/cv.tex", "run/recipe.json"])
def test_what_no_run_made_is_left_alone(name, train, tmp_path):
    own = tmp_path / name
    own.parent.mkdir(parents=True)
    own.write_text('{"flour": 500}')
    with pytest.raises(ValueError, match="made by no run"):
        train(short())
    assert own.read_text() == '{"flour": 500}'


def test_a_checkpoint_is_on_the_disk_before_the_one_before_it_goes(tmp_path, monkeypatch):
    run.save_run(tmp_path, State(1), ["x"], "y")
    calls = recorded(monkeypatch, tmp_path)
    run.save_run(tmp_path, State(2), ["x"], "y")
    new = "resume/000000002"
    counts = calls.index(f"replace {new}/state.json")  # from here on
    contents = {path.name for path in (tmp_path / new).iterdir()} - {"state.json"}
    assert len(contents) >= 2  # weights and their index
    assert {f"fsync {new}/{name}" for name in contents} <= set(calls[:counts])
    order = [f"fsync {new}", "fsync resume", "fsync .", "rmtree resume/000000001"]
    assert come_in_order(order, calls[counts:])
    assert [path.name for path in (tmp_path / "resume").iterdir()] == ["000000002"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{"])
def test_damaged_files_of_a_run_are_refused_by_name(tmp_path, content):
    run.save_run(tmp_path, State(1), ["x"], "y")
    state = tmp_path / "resume" / "000000001" / "state.json"
    state.write_bytes(content)
    (tmp_path / "recipe.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"state\.json is damaged"):
        run.latest(tmp_path)
    with pytest.raises(ValueError, match=r"recipe\.json is damaged"):
        run.check_folder(tmp_path, "{}", resume=True)
    assert (tmp_path / "recipe.json").read_bytes() == content


@pytest.mark.parametrize("content", ["[1}\n", '"}\n'])
def test_a_damaged_log_is_refused_by_name(tmp_path, content):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n' + content)
    with pytest.raises(ValueError, match=r"log\.jsonl is damaged"):
        read_log(tmp_path)
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"ste')
    assert read_log(tmp_path) == [{"step": 1}]


def test_the_log_is_json_without_nan(tmp_path):
    with Log(tmp_path) as log:
        log.write(1, loss=math.nan, lr=0.1, eer=math.inf, items=["a"])
    assert read_log(tmp_path) == [{"step": 1, "lr": 0.1, "items": ["a"]}]
