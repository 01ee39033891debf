"""A run's folder: what reaches the disk before what is removed, and whose remains are removed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from likeness.eval.formats.writing import atomic_path
from likeness.toolkit.training import run
from likeness.toolkit.training.log import read_log
from tests.disk_calls import come_in_order, recorded
from tests.full_disk import State


def remains_of(path: Path) -> Path:
    """What a killed writer of `path` leaves."""
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        left = temporary.parent
        shutil.copytree(left, path.parent / "kept")
    path.unlink()
    shutil.move(path.parent / "kept", left)
    return left


def test_a_checkpoint_is_on_the_disk_before_the_one_before_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save_run(tmp_path, State(1), ["x"], "y")
    calls = recorded(monkeypatch, tmp_path)
    run.save_run(tmp_path, State(2), ["x"], "y")
    new = "resume/000000002"
    counts = calls.index(f"replace {new}/state.json")  # from here on
    contents = {path.name for path in (tmp_path / new).iterdir()} - {"state.json"}
    assert len(contents) >= 2  # weights and their index
    assert {f"fsync {new}/{name}" for name in contents} <= set(calls[:counts])
    assert come_in_order(
        [f"fsync {new}", "fsync resume", "fsync .", "rmtree resume/000000001"], calls[counts:]
    )
    assert [path.name for path in (tmp_path / "resume").iterdir()] == ["000000002"]


DESCRIBED = {"modality": "speaker", "schedule": {"steps": 1}}


def test_only_remains_of_the_run_s_own_files_are_removed(tmp_path: Path) -> None:
    run.prepare_folder(tmp_path, DESCRIBED)
    ours = [
        remains_of(tmp_path / name)
        for name in ("last.safetensors", "best.safetensors", "log.jsonl")
    ]
    others = [remains_of(tmp_path / "scores.txt"), tmp_path / ".0123456789ab.notes"]
    others[1].write_text("of the user")
    run.prepare_folder(tmp_path, DESCRIBED)  # which the one writer of the run calls
    assert not any(entry.exists() for entry in ours)
    assert all(other.exists() for other in others)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[]", b"{"],
)
def test_damaged_files_of_a_run_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    run.save_run(tmp_path, State(1), ["x"], "y")
    state = tmp_path / "resume" / "000000001" / "state.json"
    state.write_bytes(content)
    (tmp_path / "recipe.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"state\.json is damaged"):
        run.latest(tmp_path)
    with pytest.raises(ValueError, match=r"recipe\.json is damaged"):
        run.check_folder(tmp_path, {}, resume=True)
    assert (tmp_path / "recipe.json").read_bytes() == content


@pytest.mark.parametrize("content", ["[1}\n", '"}\n'])
def test_a_damaged_log_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n' + content)
    with pytest.raises(ValueError, match=r"log\.jsonl is damaged"):
        read_log(tmp_path)
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"ste')
    assert read_log(tmp_path) == [{"step": 1}]
