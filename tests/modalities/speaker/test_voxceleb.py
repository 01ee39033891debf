"""VoxCeleb, and the ids of trial lists."""

import itertools
import math
import shutil
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness import Item, Trials
from likeness.modalities.speaker import voxceleb
from likeness.modalities.speaker._trial_items import match_items
from likeness.modalities.speaker.voxceleb import items, trials
from likeness.toolkit.training import recipe as recipes
from tests.modalities.data_set import DataSet
from tests.modalities.speaker.spoken import write_voices_to
from tests.scripts import touch

load = cache(recipes.load)
VOX1_DEV, VOX1_TEST, VOX2_DEV, VOX2_TEST = "id10001", "id10270", "id00012", "id00017"
SPEAKERS = {  # of the miniature
    "vox1/dev": ("id10001", "id10002", "id10003"),
    "vox1/test": ("id10270", "id10309"),
    "vox2/dev": ("id00012", "id00015", "id00016", "id00018"),
    "vox2/test": ("id00017",),
}
TRIALS = """\
1 id10270/video/00000.wav id10270/video/00001.wav
0 id10270/video/00000.wav id10309/video/00001.wav
1 id10309/video/00000.wav id10309/video/00001.wav
0 id10309/video/00000.wav id10270/video/00001.wav
"""
PROTOCOL = {"O_cleaned": (("veri_test2.txt",), 4, 2)}  # of the miniature, instead of 37,611 trials


def miniature(folder: Path) -> None:
    """Speakers of each split, a trial list, and folders of noise and rooms."""
    folders = [f"{split}/wav/{one}/video" for split, all in SPEAKERS.items() for one in all]
    names = [f"{name}/0000{number}.wav" for name in folders for number in (0, 1)]
    names += ["musan/noise/a.wav", "musan/noise/b.wav", "rirs/a.wav", "rirs/b.wav"]
    write_voices_to(folder, *names)
    (folder / "veri_test2.txt").write_text(TRIALS, encoding="utf-8")


def trials_of_miniature(data: Path) -> Any:
    with patch.dict(voxceleb.PROTOCOLS, PROTOCOL):
        return trials(data)


DATA_SETS = {
    corpus: DataSet(
        miniature,
        items=partial(items, corpus=corpus),
        trials=trials_of_miniature,
        labels=SPEAKERS[f"{folder}/dev"] + SPEAKERS[f"{folder}/test"],
        splits=("dev", "test"),
        fetch="likeness prepare voxceleb1",
        whole=trials,
        counts="4 trials, 2 labelled .*37611 with 18802.*measure=none",
    )
    for corpus, folder in (("voxceleb1", "vox1"), ("voxceleb2", "vox2"))
}
USUAL = {  # the folders above the four speakers
    "as unpacked": "vox1/dev/wav vox1/test/wav vox2/dev/aac vox2/test/aac",
    "WeSpeaker": "raw/voxceleb1/dev/wav raw/voxceleb1/test/wav "
    "raw/voxceleb2_m4a/dev/aac raw/voxceleb2_m4a/test/aac",
    "SpeechBrain": "wav wav dev/wav test/wav",
    "voxceleb_trainer": "voxceleb1 voxceleb1 voxceleb2/dev voxceleb2/test",
}


@pytest.mark.parametrize("layout", USUAL)
def test_usual_layouts_give_the_official_splits(layout: str, tmp_path: Path) -> None:
    # this is not VoxCeleb's audio
    touch(tmp_path, "vox1/dev/txt/id10001/v/1.txt", "CN-Celeb_flac/data/id00013/play-01-001.flac")
    speakers = (VOX1_DEV, VOX1_TEST, VOX2_DEV, VOX2_TEST)
    for above, speaker in zip(USUAL[layout].split(), speakers, strict=True):
        ending = "m4a" if "aac" in above else "wav"
        data = touch(tmp_path, f"{above}/{speaker}/5r0dWxy17C8/00001.{ending}")
    corpora = itertools.product(("voxceleb1", "voxceleb2"), ("dev", "test"))
    for (corpus, split), speaker in zip(corpora, speakers, strict=True):
        (first,) = items(data, corpus=corpus, split=split)  # type: ignore[arg-type]
        assert (first.id, first.label) == (f"{speaker}/5r0dWxy17C8/00001.wav", speaker)
    both = partial(items, data, corpus="both")
    assert list(both(split="all").labels) == [VOX2_DEV, VOX2_TEST, VOX1_DEV, VOX1_TEST]
    assert list(both(split="dev").labels) == [VOX2_DEV, VOX1_DEV]


def test_merged_voxceleb2_is_split_by_its_metadata(tmp_path: Path) -> None:
    data = touch(tmp_path, "vox2/id00012/v/1.m4a", "vox2/id00017/v/1.m4a", "vox2/id00019/v/1.m4a")
    lines = ["\ufeffVoxCeleb2 ID ,VGGFace2 ID ,Gender ,Set", "id00012 ,n000012 ,m ,dev"]
    text = "\n".join([*lines, "id00017 ,n000017 ,f ,test\n"])
    (data / "vox2" / "vox2_meta.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"1 VoxCeleb2 speakers .*'id00019'"):
        items(data, split="dev")
    shutil.rmtree(data / "vox2" / "id00019")
    assert [item.label for item in items(data, split="test")] == [VOX2_TEST]


def test_an_utterance_found_twice_is_taken_once_wav_first(tmp_path: Path) -> None:
    wav = ("b/dev/wav/id00012/v/1.wav", "b/dev/wav/id00012/v/.hidden.wav")
    data = touch(tmp_path, "a/dev/aac/id00012/v/1.m4a", *wav, "a/dev/aac/id00012/v/2.m4a")
    assert [item.path.suffix for item in items(data)] == [".wav", ".m4a"]
    assert [item.id for item in items(data)] == ["id00012/v/1.wav", "id00012/v/2.wav"]


def test_one_copy_a_speed_keeps_the_classes(tmp_path: Path) -> None:
    data = touch(tmp_path, *(f"vox2/dev/id0001{i}/v/{j}.wav" for i in range(3) for j in range(4)))
    every, kept = items(data, speeds=(0.9, 1.1)), items(data, speeds=(0.9, 1.1), speed_items="one")
    assert {item.label for item in kept} == {item.label for item in every}
    assert (len(every), len(kept)) == (36, 12 + 6)
    copies = [f"id0001{i}/v/0.wav#speed={speed}" for i in range(3) for speed in ("0.9", "1.1")]
    assert {item.id for item in kept if "#" in item.id} == {*copies}
    assert items(data, speed_items="one") == items(data)


@pytest.mark.parametrize("variant", ["resnet34", "ecapa512", "ecapa1024"])
def test_the_margin_moves_as_wespeakers_scheduler_moves_it(variant: str) -> None:
    """MarginScheduler of wespeaker/utils/schedulers.py with increase_start_epoch 20 and
    fix_start_epoch 40 of conf/resnet.yaml; epochs count from 1.
    """
    file = Path(__file__).parents[3] / "recipes" / "speaker" / "voxceleb.py"
    recipe: Any = load(f"{file}:wespeaker_{variant}")[0]
    recipe = recipes.fit_to_batches(recipe, 3 * 1_092_009)  # speeds
    per_epoch = recipe.schedule.save_every
    assert per_epoch == pytest.approx(1_092_009 // 256, abs=1)  # drop_last
    steps, warmup = recipe.schedule.steps, recipe.schedule.warmup_steps
    assert (steps, warmup) == pytest.approx((150 * per_epoch, 6 * per_epoch), rel=2e-4)
    assert recipe.optim.lr == pytest.approx(0.4)
    assert recipe.tuning.average_last == 10
    start, fixed = recipe.loss.keywords["warmup_steps"]
    assert (start, fixed) == pytest.approx((19 * per_epoch, 39 * per_epoch), rel=2e-4)
    loss: Any = recipe.loss(4, 3)

    def margin(step: int) -> float:
        loss.at_step(step)
        return float(loss.moving.now(training=True))

    assert [margin(step) for step in (0, start - 1, start)] == [0.0] * 3
    middle = 0.2 * (1.0 - math.sqrt(1e-3))  # of the ramp that is derived again beside the losses
    assert margin((start + fixed) // 2) == pytest.approx(middle, abs=1e-3)
    assert margin(fixed - 1) == pytest.approx(0.2, abs=1e-3)
    assert [margin(step) for step in (fixed, 150 * per_epoch)] == pytest.approx([0.2] * 2)
    # conf/*_lm.yaml: .5 from the first step on
    second = load(f"{file}:wespeaker_{variant}_lm")[0]
    assert second.tuning.average_last == 0  # the last one, num_avg 1 of run.sh
    loss = second.loss(4, 3)
    assert [margin(step) for step in (0, 1, 42_654)] == [0.5] * 3


@pytest.mark.parametrize(
    ("variant", "speeds", "batch", "epochs", "warmup", "rates"),
    [  # rates by epoch: w2vbert_s1_lora.yaml and its kin, ecapa_tdnn_WavLM_*.yaml on eight GPUs
        ("w2vbert_lora", 3, 512, 15, 5, {7: 1e-4, 9.9: 1e-4, 10: 1e-5, 14.9: 1e-5}),
        ("w2vbert_full", 3, 512, 4, 0, {0: 1e-5, 1: 7.5e-6, 2: 5e-6, 3.9: 5e-6}),
        ("w2vbert_lm", 1, 256, 2, 0, {0: 1e-5, 0.5: 7.5e-6, 1: 5e-6, 1.9: 5e-6}),
        ("wavlm_frozen", 3, 2_048, 150, 6, {75: 3.2e-2, 150: 3.2e-4}),
        ("wavlm_full", 3, 512, 20, 1, {10: 4e-3, 20: 2e-3}),
        ("wavlm_lm", 1, 256, 20, 1, {10: 2e-4, 20: 1e-4}),
    ],
)
def test_pretrained_schedules_are_wespeakers(variant, speeds, batch, epochs, warmup, rates) -> None:
    file = Path(__file__).parents[3] / "recipes" / "speaker" / "voxceleb_pretrained.py"
    recipe = recipes.fit_to_batches(load(f"{file}:{variant}")[0], speeds * 1_092_009)
    per_epoch = 1_092_009 // batch
    schedule = recipe.schedule
    assert recipe.sampling.batch_size == batch
    assert schedule.steps == pytest.approx(epochs * per_epoch, rel=1e-3)
    assert schedule.warmup_steps == pytest.approx(warmup * per_epoch, rel=1e-3)
    for epoch, rate in rates.items():
        assert recipe.optim.lr * schedule.decay(epoch / epochs) == pytest.approx(rate, rel=1e-3)


def test_an_exact_id_wins_and_a_doubtful_one_is_refused() -> None:
    both = [Item("x/1.wav", Path("1")), Item("x/1.flac", Path("2")), Item("x/2.flac", Path("3"))]
    pair = Trials(("x/1.flac",), ("x/2.wav",), [0], [0])
    chosen, _ = match_items(pair, both, where="list")
    assert [item.id for item in chosen] == ["x/1.flac", "x/2.flac"]
    with pytest.raises(ValueError, match=r"2 of.*'x/1.m4a', 'x/3'.*; go"):
        match_items(Trials(("x/1.m4a",), ("x/3",), [0], [0]), both, where="list", hint="go")


PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=20)


@given(PAIRS, st.sampled_from(["", ".wav", ".flac", ".M4A"]))
def test_matching_keeps_every_pair(pairs: list[tuple[int, int]], suffix: str) -> None:
    contents = [Item(f"s{i}/u.v{i}.flac", Path(str(i)), f"s{i}") for i in range(8)]
    ids = tuple(f"s{i}/u.v{i}{suffix}" for i in reversed(range(8)))
    index = np.array([[7 - a, 7 - b] for a, b in pairs], dtype=np.int32)
    chosen, made = match_items(Trials(ids, ids, index[:, 0], index[:, 1]), contents, where="list")
    assert [made.enrol_ids[i] for i in made.enrol] == [contents[a].id for a, _ in pairs]
    assert [made.probe_ids[i] for i in made.probe] == [contents[b].id for _, b in pairs]
    assert chosen == [contents[i] for i in sorted({i for pair in pairs for i in pair})]
