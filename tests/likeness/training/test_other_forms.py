"""A recipe of a data set trains on the same utterances in shards, lists and Kaldi folders."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from likeness.eval.items.items import Item, Items
from likeness.modalities.speaker import voxceleb
from likeness.recipe import Recipe, fit, plan
from likeness.training.train import RecipeOnData, read_recipe
from tests.modalities.speaker import test_voxceleb
from tests.tiny import shrunk


@pytest.fixture(autouse=True)
def _trials_of_the_miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(voxceleb.PROTOCOLS, "O_cleaned", (("veri_test2.txt",), 4, 2))


@pytest.fixture(scope="module")
def data(module_path: Path) -> Path:
    test_voxceleb.miniature(module_path)
    return module_path


def wespeaker_shards(items: Items, folder: Path) -> Path:
    """Shards as WeSpeaker's tools/make_shard_list.py writes them, and their list."""
    shards = []
    for number in range(2):
        shards.append(folder / f"shards_{number:09d}.tar")
        with tarfile.open(shards[-1], "w") as archive:
            for item in list(items)[number::2]:
                key = item.id.replace("/", "-").removesuffix(".wav")
                parts = {".spk": (item.label or "").encode(), ".wav": Path(item.path).read_bytes()}
                for suffix, content in parts.items():
                    member = tarfile.TarInfo(key + suffix)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    listed = folder / "shard.list"
    listed.write_text("".join(f"{shard}\n" for shard in shards), encoding="utf-8")
    return listed


def kaldi(items: Items, folder: Path) -> Path:
    def lines(of: Callable[[Item], object]) -> str:
        return "".join(f"{item.id} {of(item)}\n" for item in items)

    (folder / "wav.scp").write_text(lines(lambda item: item.path), encoding="utf-8")
    (folder / "utt2spk").write_text(lines(lambda item: item.label), encoding="utf-8")
    return folder


def table(items: Items, folder: Path) -> Path:
    rows = "".join(f"{item.path},{item.label}\n" for item in items)
    (folder / "voices.csv").write_text(f"path,label\n{rows}", encoding="utf-8")
    return folder / "voices.csv"


FORMS = {
    "shards": lambda items, folder: wespeaker_shards(items, folder).parent,
    "list of shards": wespeaker_shards,
    "Kaldi folder": kaldi,
    "table": table,
}


@pytest.fixture
def formed(request: pytest.FixtureRequest, data: Path, tmp_path: Path) -> Path:
    items = voxceleb.items(data, corpus="voxceleb2", split="dev")
    folder = tmp_path / "formed"
    folder.mkdir()
    return Path(FORMS[request.param](items, folder))


def small(prepared: RecipeOnData) -> Recipe:
    return shrunk(prepared.recipe, "sampling.batch_size=4", "augment.seconds=0.3,0.4")


def labels(items: Items) -> set[str | None]:
    return {(item.label or "").partition("#")[0] for item in items}


VARIANT = "speaker/voxceleb:wespeaker_resnet34_lm"
NOISELESS = ["augment.corrupt=none", "init="]
SPEAKERS = set(test_voxceleb.SPEAKERS["vox2/dev"])


@pytest.mark.parametrize("formed", FORMS, indirect=True)
def test_all_of_it_trains_and_the_official_trials_test(formed, data, tmp_path):
    prepared = read_recipe(VARIANT, formed, settings=NOISELESS, test=data)
    planned = plan(small(prepared), prepared.data)
    assert labels(planned.items) == SPEAKERS
    copies = [item.id for item in planned.items if "#speed" in item.id]
    assert len(copies) == 2 * len(SPEAKERS)  # one utterance a speaker and speed
    assert len(planned.trials[1]) == 4
    out = tmp_path / "run"
    fit(planned.recipe, data=prepared.data, out=out)
    last = json.loads((out / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert 0 <= last["eer"] <= 1


@pytest.mark.parametrize("formed", ["table"], indirect=True)
def test_without_other_data_speakers_are_held_out(formed):
    prepared = read_recipe(VARIANT, formed, settings=NOISELESS)
    planned = plan(small(prepared), prepared.data)
    tested = labels(planned.held_out)
    assert (len(tested), labels(planned.items) | tested) == (2, SPEAKERS)
    assert not labels(planned.items) & tested
    everything = read_recipe(VARIANT, formed, settings=[*NOISELESS, "measure=none"])
    assert labels(plan(small(everything), everything.data).items) == SPEAKERS


def test_an_archive_beside_a_data_set_is_passed_over(data, tmp_path):
    shutil.copytree(data, tmp_path / "DATA")
    (tmp_path / "DATA" / "vox1_dev_wav.tar").write_bytes(b"as it was fetched")
    prepared = read_recipe(VARIANT, tmp_path / "DATA", settings=NOISELESS)
    assert labels(plan(small(prepared), prepared.data).items) == SPEAKERS


def test_embeddings_take_no_options_of_lists(data):
    with pytest.raises(ValueError, match="--label: a recipe of embeddings"):
        read_recipe("head", data, label="{label}/*")


def test_a_part_of_the_set_trains_without_its_trials(data, tmp_path):
    shutil.copytree(data / "vox2", tmp_path / "vox2")
    prepared = read_recipe(VARIANT, tmp_path, settings=NOISELESS)
    with pytest.raises(ValueError, match="measure=none trains without"):
        plan(small(prepared), prepared.data)
    prepared = read_recipe(VARIANT, tmp_path, settings=[*NOISELESS, "measure=none"])
    assert labels(plan(small(prepared), prepared.data).items) == SPEAKERS
