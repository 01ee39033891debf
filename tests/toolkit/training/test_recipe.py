"""Recipes: settings, descriptions that restore, refusals; what plan and start list and build."""

import importlib
import json
import pkgutil
import typing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import likeness.modalities
from likeness.data import cub_items, folders
from likeness.frontends import KaldiFbank
from likeness.losses import ArcFace, Joint, MemVir, SphereFaceR
from likeness.recipe import Sampling, override, plan
from likeness.toolkit.models.parts import describe, restore
from likeness.toolkit.training.recipe import Optim, Schedule, check, fields_of, fit_to_batches, load
from tests.tiny import BASE


def test_overrides_are_typed():
    texts = ("optim.lr=0.02", "loss.margin=0.3", "sampling.batch_size=8", "loss.wrap=easy")
    more = ("augment.seconds=1.5,2", "schedule.watch=eer", "compute.cache=true", "items.split=all")
    changed: Any = override(BASE, [*texts, *more, "tuning.rates=a.b:0.1,c:2"])
    assert (changed.optim.lr, BASE.optim.lr) == (0.02, 0.05)
    assert changed.loss.keywords == {"margin": 0.3, "scale": 8.0, "wrap": "easy"}
    assert changed.sampling.batch_size == 8
    assert changed.augment.keywords["seconds"] == (1.5, 2.0)
    assert changed.compute.cache is True
    for text, value in (("false", False), ("True", True), ("graphs", "graphs")):
        assert override(BASE, [f"compute.compile={text}"]).compute.compile == value
    assert changed.items.keywords["split"] == "all"
    assert changed.tuning.rates == {"a.b": 0.1, "c": 2.0}
    for text, steps in (("7", 7), ("20, 40", (20, 40))):
        assert override(BASE, [f"loss.warmup_steps={text}"]).loss.keywords["warmup_steps"] == steps
    sphere: Any = override(replace(BASE, loss=partial(SphereFaceR)), ["loss.version=1"])
    assert sphere.loss.keywords == {"version": 1}
    with pytest.raises(ValueError, match="`1` or `2`"):
        override(sphere, ["loss.version=3"])


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("optm.lr=1", "Recipe has no setting 'optm'; did you mean 'optim'"),
        ("optim.rate=1", "Optim has no setting 'rate'"),
        ("optim.lr=fast", "expected a number"),
        ("schedule.steps=1.5", "expected a whole number"),
        ("loss.marginn=1", "ArcFace has no setting 'marginn'; did you mean 'margin'"),
        ("loss.wrap=sometimes", "`monotone`, `easy`, `clamp`, `none`"),
        ("compute.cache=perhaps", "expected true or false"),
        ("compute.compile=fast", "`false`, `true` or `graphs`"),
        ("loss.warmup_steps=1,2,3", "a whole number or comma-separated whole numbers"),
        ("augment.seconds=1,2,3", "expected comma-separated numbers"),
        ("tuning.rates=backbone:fast", "NAME:NUMBER"),
        ("optim.name=adamax", "`sgd`, `adam` or `adamw`"),
        ("optim.lr", "has no '='"),
        ("loss=ArcFace", "a part; .* changed in the recipe file"),
        ("modality.x=1", "cannot be set inside"),
    ],
)
def test_wrong_overrides_are_refused_with_a_sentence(assignment, says):
    with pytest.raises(ValueError, match=says):
        override(BASE, [assignment])


@pytest.mark.parametrize(
    ("field", "part", "says"),
    [
        ("loss", partial(ArcFace, wrap="sometimes"), "'sometimes' .* monotone, easy, clamp, none"),
        ("loss", partial(SphereFaceR, version=3), "loss.version=3 must be one of 1, 2"),
        ("items", partial(folders.items, split="dev"), "items.split='dev' .* train, validation"),
        ("items", partial(cub_items, protocol="closed"), "'closed' must be one of standard, vmf"),
    ],
)
def test_a_setting_that_its_type_does_not_list_is_found_before_anything_runs(field, part, says):
    """In any part: a constructor behind a decorator, a function, a type that unites lists."""
    with pytest.raises(ValueError, match=says):
        check(replace(BASE, **{field: part}))
    version = partial(SphereFaceR, version=2, margin=None)
    check(replace(BASE, loss=version, items=partial(cub_items, protocol="vmf")))


def test_what_cannot_be_stored_is_refused_with_the_reason():
    def mine(num: int) -> int:
        return num

    for part in (lambda: 1, mine, partial(mine, num=2), json.dumps):
        with pytest.raises(ValueError, match="cannot be stored in a checkpoint"):
            describe(replace(BASE, frontend=part))
    with pytest.raises(ValueError, match="positional"):
        describe(replace(BASE, frontend=partial(KaldiFbank, 40)))


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("module", "os.system"),
        ("module", "likeness.cli.main"),
        ("module", "subprocess.Popen"),
        ("module", "likeness.toolkit.training.recipe.json.dumps"),
        ("module", "likeness.modalities.speaker.audio.read"),
        ("module", "likeness.toolkit.nothing.Here"),
        ("module", "likeness.toolkit.training.assign._parse"),
        ("module", "x"),
        ("read", "likeness.eval.items.item_lists.read_items"),
        ("read", "likeness.modalities.folders.scan"),
        ("read", "likeness.eval.formats.trials.read"),
        ("read", "likeness.modalities.speaker.features.KaldiFbank"),
    ],
)
def test_untrusted_descriptions_import_modules_and_reads_of_ours_alone(kind, call):
    with pytest.raises(ValueError, match="the part"):
        restore({"call": call, "args": {}}, "the part", kind=kind)


def test_no_description_of_a_file_chooses_another_file():
    """Whatever reading of a modality takes a path or a name has it refused; what the command line
    itself describes may.
    """
    seen = set()
    for entry in pkgutil.walk_packages(likeness.modalities.__path__, "modalities."):
        read = getattr(importlib.import_module(entry.name), "read", None)
        if read is None or read.__module__ != entry.name:
            continue
        for key, hint in typing.get_type_hints(read).items():
            if {str, Path} & {hint, *typing.get_args(hint)}:
                seen.add(key)
                description = {"call": f"{entry.name}.read", "args": {key: "/etc/passwd"}}
                with pytest.raises(ValueError, match=rf"m\.onnx: read: it names {key} files"):
                    restore(description, "m.onnx: read", kind="read")
    assert seen == {"detector", "landmarks"}


def test_recipe_files_say_what_they_lack(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("X = 1\n")
    with pytest.raises(ValueError, match="that defines RECIPES"):
        load(str(file))
    with pytest.raises(ValueError, match="likeness recipes"):
        load(str(tmp_path / "other.py"))
    clone = Path(__file__).parents[3] / "recipes" / "speaker" / "an4.py"
    with pytest.raises(ValueError, match="'simpel'; did you mean 'simple'"):
        load(f"{clone}:simpel")


def test_a_plan_lists_what_is_trained_on_and_measured(voices):
    planned = plan(BASE, voices)
    assert len(planned.items) == 24
    assert len(planned.classes) == 6
    labels = [planned.classes[number] for number in planned.views.labels]
    assert labels == [item.label for item in planned.items]
    assert len(planned.held_out) == 8
    assert plan(BASE, voices).fingerprint == planned.fingerprint
    fewer = plan(BASE, voices, items=planned.items[:-1])
    assert fewer.fingerprint != planned.fingerprint
    assert np.array_equal(fewer.views.labels, planned.views.labels[:-1])


def test_passes_give_steps_and_everything_else_keeps_its_place():
    """150 passes over 1,092,009 items by batches of 1,024, as WeSpeaker's resnet.yaml counts them:
    an epoch has 1,066 steps, the margin rises in epochs 20 to 40, and the rate is .1 for 64.
    """
    loss = partial(ArcFace, margin=0.2, warmup_steps=(81_035, 166_335))
    lasts = {"steps": 639_750, "epochs": 150, "warmup_steps": 25_590}
    recipe = replace(
        BASE,
        loss=loss,
        sampling=Sampling(batch_size=1_024),
        optim=Optim(lr=0.1, reference_batch=64),
        tuning=replace(BASE.tuning, freeze=("backbone",), freeze_until=63_975),
        schedule=Schedule(eval_every=0, save_every=4_265, **lasts),
    )
    run: Any = fit_to_batches(recipe, 1_092_009)
    epoch = 1_066  # whole batches
    assert run.schedule.steps == 150 * epoch
    assert run.schedule.warmup_steps == pytest.approx(6 * epoch, abs=1)
    assert run.schedule.save_every == pytest.approx(epoch, abs=1)
    assert run.schedule.eval_every == 0
    assert run.tuning.freeze_until == pytest.approx(15 * epoch, abs=1)
    ends = pytest.approx((19 * epoch, 39 * epoch), rel=1e-4)
    assert run.loss.keywords["warmup_steps"] == ends
    assert run.optim.lr == pytest.approx(1.6)
    assert fit_to_batches(run, 5_000) == run  # a second time changes nothing
    balanced = replace(recipe, sampling=Sampling(40, items_per_class=4))
    assert fit_to_batches(balanced, 30).schedule.steps == 150  # a batch of more draws than items


def test_steps_that_passes_would_replace_are_refused():
    passes = replace(BASE, schedule=Schedule(steps=150, epochs=50))
    with pytest.raises(ValueError, match="trains schedule"):
        override(passes, ["schedule.steps=10"])
    changed = override(passes, ["schedule.steps=10", "schedule.epochs=0"])
    assert (changed.schedule.steps, changed.schedule.epochs) == (10, 0)


def test_numbers_of_passes_keep_their_shares_where_steps_replace_them():
    passes = replace(
        BASE,
        loss=partial(ArcFace, margin=0.2, warmup_steps=(19, 39)),
        tuning=replace(BASE.tuning, freeze=("backbone",), freeze_until=15, average_last=10),
        schedule=Schedule(steps=150, epochs=50, warmup_steps=6, eval_every=5, save_every=1),
    )
    changes = [" schedule.epochs = 0", "schedule.steps=3000"]
    run: Any = override(passes, [*changes, "schedule.eval_every=7"])
    assert run.schedule == Schedule(steps=3000, warmup_steps=120, eval_every=7, save_every=20)
    assert (run.tuning.freeze_until, run.tuning.average_last) == (300, 10)
    assert fields_of(run)["loss.warmup_steps"] == "380,780"
    joint = partial(Joint, first=passes.loss, second=partial(MemVir, warmup_steps=15))
    fields = fields_of(override(replace(passes, loss=joint), changes))
    ends = fields["loss.first.warmup_steps"], fields["loss.second.warmup_steps"]
    assert ends == ("380,780", "300")
    assert override(passes, ["schedule.epochs=0"]).schedule == replace(passes.schedule, epochs=0)


def test_passes_leave_as_many_checkpoints_as_the_recipe_states():
    for num_items in (1_000, 1_001, 3_276_027):
        recipe = replace(BASE, schedule=Schedule(steps=150, epochs=50, save_every=1))
        schedule = fit_to_batches(recipe, num_items).schedule
        assert -(-schedule.steps // schedule.save_every) <= 150


def test_a_recipe_without_passes_is_unchanged():
    assert fit_to_batches(BASE, 1_000) is BASE
