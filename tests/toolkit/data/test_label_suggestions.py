"""Folders that are subjects, and folders that are none."""

import hashlib

import pytest

from likeness.eval.items.labels import LabelPattern
from likeness.toolkit.data.label_suggestions import suggest_labels

NAMES = ("ann", "bob", "cyd")
HASHES = [hashlib.sha1(bytes([number])).hexdigest()[:8] for number in range(9)]
LONG = ("backward", "bed", "bird")
IDS = [f"{number:08d}" for number in range(1, 9)]
WORDS = [f"{word}/{name}_{i}.wav" for word in ("yes", "no", "up") for name in NAMES for i in (0, 1)]
DIGITS = [f"{digit}/{digit}_{name}_{i}.wav" for digit in range(4) for name in NAMES for i in (0, 1)]
HASHED = [f"{word}/{name}_nohash_{i}.wav" for word in ("a", "b") for name in HASHES for i in (0, 1)]
KEYWORDS = [f"{word}/{n}_NO_{i}.wav" for word in "abcdefgh" for n in NAMES for i in range(3)]


@pytest.mark.parametrize(
    ("paths", "names", "kind"),
    [
        (WORDS, NAMES, "same names"),
        (DIGITS, NAMES, "same names"),
        (HASHED, sorted(HASHES), "same names"),
        (KEYWORDS, NAMES, "same names"),
        ([f"{w}/take{i}-spk{n}.wav" for w in "ab" for n in "12" for i in "12"], "12", "same names"),
        (
            [f"{f}/{n}_{i}.{f}" for f in ("flac", "wav") for n in NAMES for i in "12"],
            NAMES,
            "parts",
        ),
        (
            [f"all/{w}_{n}_{i}.wav" for w in "0123" for n in NAMES for i in "12"],
            NAMES,
            "one folder",
        ),
        (
            [f"{w}/{n}_NO_{i:02d}.wav" for w in LONG for n in IDS for i in (1, 2)],
            IDS,
            "same numbers",
        ),
        ([f"{w}/{n}_NO_01.wav" for w in LONG for n in IDS], IDS, "same numbers"),
    ],
)
def test_folders_that_are_no_subjects(paths: list[str], names: list[str], kind: str) -> None:
    pattern, suggested, why = suggest_labels(paths, are_voices=True)
    assert kind in why
    assert [name.removeprefix("spk") for name in suggested] == list(names)
    assert all(LabelPattern(pattern).fields(path) is not None for path in paths)


@pytest.mark.parametrize(
    "paths",
    [
        [f"{name}/{i}.wav" for name in NAMES for i in range(9)],
        [f"{name}/utt{i:02d}.wav" for name in NAMES for i in range(9)],
        [f"{name}/session{s}/{i}.wav" for name in NAMES for s in (1, 2) for i in range(9)],
        [f"{name}/{name}_{i:04d}.wav" for name in NAMES for i in range(9)],
        [f"{name}/cen{i}-{name}-b.flac" for name in NAMES for i in range(1, 9)],
        [f"{name}/hello-{name}.flac" for name in NAMES] + [f"{n}/no-{n}.flac" for n in NAMES],
        [f"{n}/{v}/{i:05d}.wav" for n, v in zip(NAMES, HASHES, strict=False) for i in range(9)],
        [f"{name}/{part}/1.wav" for name in NAMES for part in ("train", "test")],
        [f"{n}/{s:02d}_{i:03d}.wav" for n in NAMES for s in range(3) for i in range(20)],
        [f"p{k}/{n}_{i:02d}.wav" for k in range(4) for n in IDS for i in (1, 2)],
        [f"{k}/{k}-{700 + k}-{i:04d}.flac" for k in range(4) for i in range(9)],
        [f"Actor_{k:02d}/03-0{e}-1-{k:02d}.wav" for k in range(4) for e in range(8)],
        ["a.wav", "b.wav"],
        [],
    ],
)
def test_folders_of_subjects_are_left_alone(paths: list[str]) -> None:
    assert suggest_labels(paths, are_voices=True) is None


def test_words_in_the_names_of_images_are_poses() -> None:
    paths = [f"{name}/{pose}_{i}.png" for name in NAMES for pose in ("left", "frown") for i in "12"]
    assert suggest_labels(paths, are_voices=False) is None
