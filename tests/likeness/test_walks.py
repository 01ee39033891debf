"""A command walks a folder once, and hands on what it found."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import likeness
from likeness.cli import main
from likeness.eval.items import listing

FEW = ["schedule.steps=1", "schedule.warmup_steps=0", "sampling.batch_size=4", "compute.threads=1"]


@pytest.fixture(scope="module")
def voices(example: Path) -> Path:
    return example / "voices"


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were walked, in order."""
    folders: list[Path] = []
    walk = listing._walk

    def noted(root: Path, *others: Any) -> Any:
        folders.append(root)
        return walk(root, *others)

    monkeypatch.setattr(listing, "_walk", noted)
    return folders


def _run(*words: str | Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code in (0, None)


@pytest.mark.parametrize("recipe", ["speaker/folders", "speaker/folders:resnet34"])
def test_train_walks_once(recipe: str, voices: Path, walked: list[Path], tmp_path: Path) -> None:
    few = [*FEW, "compute.workers=0", "schedule.watch=", "schedule.eval_every=1"]
    _run("train", recipe, *few, "--data", voices, "--out", tmp_path / "run")
    assert walked == [voices]
    walked.clear()
    likeness.train(recipe, voices, tmp_path / "called", settings=few)
    assert walked == [voices]


def test_check_and_embed_and_evaluate_walk_once(
    voices: Path, walked: list[Path], tmp_path: Path
) -> None:
    with suppress(SystemExit):  # with 1, as it finds something
        main(["check", str(voices)])
    assert walked == [voices]
    walked.clear()
    _run("embed", "--items", voices, "--out", tmp_path / "e.npz", "--model", "likeness:voice")
    assert walked == [voices]
    walked.clear()
    # Groups are read from a list, so that no folder is walked.
    ids = sorted(path.relative_to(voices).as_posix() for path in voices.rglob("*.flac"))
    speakers = sorted({id.split("/")[0] for id in ids})
    trials, scores, table = (tmp_path / name for name in ("trials.txt", "scores.txt", "sex.txt"))
    pairs = itertools.combinations(ids, 2)
    lines = (f"{int(a.split('/')[0] == b.split('/')[0])} {a} {b}\n" for a, b in pairs)
    trials.write_text("".join(lines))
    likeness.score(trials, tmp_path / "e.npz").save(scores)
    table.write_text("".join(f"{name} {'fm'[k % 2]}\n" for k, name in enumerate(speakers)))
    _run("evaluate", scores, "--groups", table, "--resamples", "20")
    assert walked == []
