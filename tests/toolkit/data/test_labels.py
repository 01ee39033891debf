"""Labels that look wrong: what is reported, and what is not."""

from __future__ import annotations

import hashlib

import pytest

from likeness.toolkit.data.labels import LabelPattern, alike, suggest_labels

NAMES = ("ann", "bob", "cyd")
HASHES = [hashlib.sha1(bytes([number])).hexdigest()[:8] for number in range(9)]
WORDS = [f"{word}/{name}_{i}.wav" for word in ("yes", "no", "up") for name in NAMES for i in (0, 1)]
DIGITS = [f"{digit}/{digit}_{name}_{i}.wav" for digit in range(4) for name in NAMES for i in (0, 1)]
HASHED = [f"{word}/{name}_nohash_{i}.wav" for word in ("a", "b") for name in HASHES for i in (0, 1)]
KEYWORDS = [f"{word}/{n}_NO_{i}.wav" for word in "abcdefgh" for n in NAMES for i in range(3)]


@pytest.mark.parametrize(
    ("paths", "names", "kind"),
    [
        (WORDS, NAMES, "word"),
        (DIGITS, NAMES, "word"),
        (HASHED, sorted(HASHES), "word"),
        (KEYWORDS, NAMES, "word"),
        ([f"{w}/{n}/{i}.wav" for w in ("a", "b") for n in NAMES for i in "12"], NAMES, "word"),
        ([f"{w}/take{i}-spk{n}.wav" for w in "ab" for n in "12" for i in "12"], "12", "word"),
        ([f"wav/{name}/{i}.wav" for name in NAMES for i in (0, 1)], NAMES, "parent"),
        ([f"{part}/{name}/1.wav" for part in ("train", "test") for name in NAMES], NAMES, "split"),
    ],
)
def test_folders_that_are_no_subjects(paths: list[str], names: list[str], kind: str) -> None:
    suggested = suggest_labels(paths, are_voices=True)
    assert suggested is not None
    assert suggested.kind == kind
    assert [name.removeprefix("spk") for name in suggested.names] == list(names)
    pattern = LabelPattern(suggested.pattern)
    assert all(pattern.fields(path) is not None for path in paths)


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
        ["a.wav", "b.wav"],
        [],
    ],
)
def test_folders_of_subjects_are_left_alone(paths: list[str]) -> None:
    assert suggest_labels(paths, are_voices=True) is None


def test_words_in_the_names_of_images_are_poses() -> None:
    paths = [f"{name}/{pose}_{i}.png" for name in NAMES for pose in ("left", "frown") for i in "12"]
    assert suggest_labels(paths, are_voices=False) is None


def test_labels_that_differ_in_case_and_blanks() -> None:
    assert alike(["Ann", "ann", " ann", "bob", "a-b", "A b", "ab"]) == [
        (" ann", "Ann", "ann"),
        ("A b", "a-b"),
    ]
