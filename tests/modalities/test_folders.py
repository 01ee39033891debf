"""Folders of classes, and synthetic voices."""

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from likeness.eval.items.items import Item
from likeness.eval.items.pairs import all_pairs, draw_pairs
from likeness.modalities import folders
from likeness.modalities.folders import items, scan, trials
from likeness.modalities.speaker._folds import stratified_folds
from likeness.modalities.synthetic import voice, write_voices
from tests.modalities.data_set import DataSet
from tests.scripts import touch


def lay_out(root: Path, files_per_speaker: list[int], suffix: str = ".wav") -> Path:
    for number, files in enumerate(files_per_speaker):
        touch(root, *(f"s{number:02d}/session{i % 2}/{i}{suffix}" for i in range(files)))
    return root


DATA_SETS = {
    f"folders of {modality}s": DataSet(
        partial(lay_out, files_per_speaker=[3] * 10, suffix=suffix),
        fetch="DATA/LABEL/file|no such file or folder",
        items=partial(items, modality=modality, validation_share=0.25),
        trials=partial(trials, modality=modality),
        labels=[f"s{number:02d}" for number in range(10)],
        splits=("train", "validation", "test"),
    )
    for modality, suffix in (("speaker", ".wav"), ("face", ".png"), ("image", ".webp"))
}


def test_labels_are_divided_never_files(tmp_path: Path) -> None:
    data = lay_out(tmp_path, [3] * 10)
    splits = ("train", "validation", "test")
    parts = {split: items(data, split=split, validation_share=0.25) for split in splits}
    assert [len({*map(str, part.labels)}) for part in parts.values()] == [6, 2, 2]
    every = items(data, split="all")
    first = "s00/session0/0.wav"
    assert every[0] == Item(first, tmp_path / first, "s00")
    assert items(data, split="test", seed=1) != parts["test"]
    assert items(data, test_share=0.0) == every
    chosen, made = trials(data)
    assert (chosen, len(made)) == (parts["test"], 15)


def test_only_files_of_the_modality_that_are_not_hidden(tmp_path: Path) -> None:
    lay_out(tmp_path, [1, 1])
    touch(tmp_path, "s00/a.JPG", "s00/._x.wav", "s01/B.FLAC", "loose.wav", ".cache/x.wav")
    names = ["s00/session0/0.wav", "s01/B.FLAC", "s01/session0/0.wav"]
    assert [item.id for item in scan(tmp_path)] == names
    assert [item.id for item in scan(tmp_path, "face")] == ["s00/a.JPG"]


def test_a_folder_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loose.wav").touch()
    with pytest.raises(ValueError, match="1 lie directly in it"):
        items(tmp_path)
    lay_out(tmp_path, [2])
    with pytest.raises(ValueError, match="of 1 labels"):
        items(tmp_path)
    lay_out(tmp_path, [2, 2, 2])
    for wrong, reason in (
        ({}, "1 for train, 0 for validation, 2 for test"),
        ({"test_share": 1.0}, "test_share 1.0"),
        ({"split": "test", "test_share": 0.0}, "0 for test"),
        ({"split": "validation", "test_share": 0.0}, "0 for validation"),
    ):
        with pytest.raises(ValueError, match=reason):
            items(tmp_path, **wrong)  # type: ignore[arg-type]


def test_labels_with_a_single_file_give_false_trials_alone(tmp_path: Path) -> None:
    chosen, made = trials(lay_out(tmp_path / "data", [1, 3, 1]), split="all")
    assert (len(chosen), len(made)) == (5, 10)
    with pytest.raises(ValueError, match="no target trial"):
        trials(lay_out(tmp_path / "other", [1, 1]), split="all")


def test_a_list_of_faces_is_labelled_by_its_folders(tmp_path: Path) -> None:
    """As OpenSphere's training lists, SUBJECT/image.jpg."""
    touch(tmp_path, "b/1.jpg", "a/2.jpg")
    (tmp_path / "train.txt").write_text("b/1.jpg\na/2.jpg\n")
    listed = items(tmp_path / "train.txt", modality="face", split="all")
    assert [item.path for item in listed] == [tmp_path / "b/1.jpg", tmp_path / "a/2.jpg"]
    assert [item.label for item in listed] == ["b", "a"]
    with pytest.raises(ValueError, match=r"2 of 2 items have no label \('b/1.jpg'"):
        items(tmp_path / "train.txt", modality="image", split="all")


def test_compressed_shards_are_said(tmp_path: Path) -> None:
    touch(tmp_path, "a.tar.gz", "b.tar.index")
    for data in (tmp_path, tmp_path / "a.tar.gz"):
        with pytest.raises(ValueError, match=r"compressed .*a\.tar\.gz'\); uncompress"):
            items(data, split="all")


def of_counts(counts: list[int]) -> list[Item]:
    ids = [f"{speaker}/{file}" for speaker, n in enumerate(counts) for file in range(n)]
    made = [Item(id, Path("x"), id.partition("/")[0]) for id in ids]
    return [made[i] for i in np.random.default_rng(0).permutation(len(made))]


def test_all_pairs() -> None:
    chosen = of_counts([2, 2, 2])
    assert len(all_pairs(chosen)) == 15
    with pytest.raises(ValueError, match="no label"):
        all_pairs([*chosen, Item("x", Path("x"), None)])


@pytest.mark.parametrize(("counts", "num_target"), [([2, *[1] * 20], 1), ([12, 1], 28)])
def test_where_pairs_of_one_kind_are_few(counts: list[int], num_target: int) -> None:
    made = draw_pairs(of_counts(counts), 40, np.random.default_rng(0))
    assert (len(made), made.target.sum()) == (40, num_target)
    assert (made.enrol < made.probe).all()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(2, 6))
def test_folds_are_even_within_groups(sizes: list[int], num_folds: int) -> None:
    groups = [[f"{group}-{i}" for i in range(size)] for group, size in enumerate(sizes)]
    assume(sum(sizes) >= num_folds)
    folds = stratified_folds(groups, num_folds)
    every = set().union(*groups)
    assert sorted(itertools.chain(*folds)) == sorted(every)
    for group in (every, *groups):
        counts = [len(fold & set(group)) for fold in folds]
        assert max(counts) - min(counts) <= 1


def test_other_data_may_be_the_test(voices: Path, tmp_path: Path) -> None:
    subjects = sorted(path for path in voices.iterdir() if path.is_dir())
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder, some in ((ours, subjects[:-2]), (theirs, subjects[-2:])):
        folder.mkdir()
        for subject in some:
            (folder / subject.name).symlink_to(subject)
    trained = folders.items(ours, split="train", test=str(theirs))
    assert trained.ids == folders.items(ours, split="all").ids
    tested, trials = folders.trials(ours, split="test", test=str(theirs))
    assert {str(item.label) for item in tested} == {path.name for path in subjects[-2:]}
    assert len(trials) == len(tested) * (len(tested) - 1) // 2


NUMBERS = st.integers(0, 10**6)


@settings(max_examples=15)
@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from([8000, 16000, 22050]), st.floats(0.3, 1.0))
def test_any_voice_is_a_function_of_its_numbers(speaker, utterance, seed, rate_hz, seconds) -> None:
    how: Any = {"seed": seed, "seconds": (seconds, seconds), "rate_hz": rate_hz}
    wave = voice(speaker, utterance, **how)
    assert wave.dtype == np.float32
    assert wave.shape == (round(seconds * rate_hz),)
    assert np.isfinite(wave).all()
    assert 0.1 < np.abs(wave).max() < 1.0
    assert np.array_equal(wave, voice(speaker, utterance, **how))


def test_written_voices_are_the_same_voices(tmp_path: Path) -> None:
    write_voices(tmp_path, num_speakers=2, num_utterances=3, seed=5, seconds=(0.5, 0.6))
    items = folders.scan(tmp_path)
    assert [item.id for item in items] == [f"spk00{k}/utt0{n}.flac" for k in "01" for n in "012"]
    wave, rate_hz = soundfile.read(items[4].path, dtype="float32")
    assert rate_hz == 16000
    np.testing.assert_allclose(wave, voice(1, 1, seed=5, seconds=(0.5, 0.6)), atol=2**-15)
