"""Files written whole: what killed writers left goes with the next writer, what others write now
stays, and all reaches the disk in order.
"""

import errno
import json
import os
import signal
from pathlib import Path

import pytest

from likeness.eval import writing
from likeness.eval.errors import LikenessError
from likeness.eval.writing import atomic_path, full_disk
from tests.disk_calls import recorded

NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def kill_a_writer(path: Path) -> None:
    """A process that dies while it writes `path`."""
    child = os.fork()
    if not child:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


NAMES = [("a", "a.b"), ("a.b", "a"), ("a[1]*.npz", "a1.npz"), ("x" * 255, "x" * 254)]
NAMES += [("é" * 127, "é" * 126)]


@NEEDS_FORK
@pytest.mark.parametrize(("name", "other"), NAMES)
def test_what_a_killed_writer_left_goes_with_the_next_write_of_that_file_alone(
    tmp_path: Path, name: str, other: str
) -> None:
    kill_a_writer(tmp_path / other)
    theirs = hidden(tmp_path)
    kill_a_writer(tmp_path / name)
    (tmp_path / ".0123456789ab.notes").write_text("of the user")
    assert len(hidden(tmp_path)) == 3
    with atomic_path(tmp_path / name) as temporary:
        temporary.write_text("whole")
    assert hidden(tmp_path) == sorted([*theirs, ".0123456789ab.notes"])
    assert (tmp_path / name).read_text() == "whole"
    writing.remove_abandoned(tmp_path)
    assert hidden(tmp_path) == [".0123456789ab.notes"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as first:
        assert (first.parent.parent, first.name) == (tmp_path, "a")
        first.write_text("first")
        assert not (tmp_path / "a").exists()
        with atomic_path(tmp_path / "a") as second:
            second.write_text("second")
        assert (tmp_path / "a").read_text() == "second"
    assert (tmp_path / "a").read_text() == "first"
    assert hidden(tmp_path) == []


def test_content_and_name_reach_the_disk_in_order(tmp_path, monkeypatch):
    calls = recorded(monkeypatch, tmp_path)
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("new")
    assert calls[:3] == ["fsync new a", "replace a", "fsync ."]
    calls.clear()
    with writing.staging_path(tmp_path / "b") as temporary:
        (temporary / "inner").mkdir(parents=True)
        (temporary / "inner" / "file").write_text("new")
        writing.move(temporary, tmp_path / "b")
    parts = [f"fsync new {name}" for name in ("b/inner/file", "b/inner", "b")]
    assert calls[:5] == [*parts, "replace b", "fsync ."]
    calls.clear()
    writing.remove(tmp_path / "a")
    assert calls == ["unlink a", "fsync ."]


FULL = (OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota"))


@pytest.mark.parametrize("error", [*FULL, RuntimeError("IO (os error 28), writer.rs")])
def test_a_full_disk_is_one_sentence_with_the_file(tmp_path: Path, error: Exception) -> None:
    (tmp_path / "a").write_text("old")

    def half() -> None:
        with atomic_path(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(OSError, match="make room") as caught:
        half()
    assert str(caught.value).startswith(str(tmp_path / "a"))
    assert caught.value.errno in (errno.ENOSPC, errno.EDQUOT)
    assert (tmp_path / "a").read_text() == "old"
    assert hidden(tmp_path) == []


def test_other_errors_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="other"), full_disk(tmp_path):
        raise RuntimeError("other")
    with pytest.raises(PermissionError), full_disk(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_atomic_path_follows_links_and_spares_devices(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with atomic_path(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    with atomic_path("/dev/null") as temporary:
        assert str(temporary) == "/dev/null"
    absent = tmp_path / "no" / "file"
    with pytest.raises(ValueError, match="there is no folder"), atomic_path(absent):
        pass
    with pytest.raises(LikenessError), atomic_path(tmp_path):
        pass


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_an_open_pipe_is_written(tmp_path):
    """/dev/stdout of a pipeline is one; /dev/fd/N stands for it here."""
    ends = os.pipe()
    try:
        with atomic_path(f"/dev/fd/{ends[1]}") as temporary:
            temporary.write_text("scores")
        assert os.read(ends[0], 100) == b"scores"
    finally:
        for end in ends:
            os.close(end)


def test_names_that_are_not_utf8_are_written_as_their_bytes(tmp_path):
    names = {"caf\udce9/s.txt": "Zo\u00eb"}
    writing.write_json(tmp_path / "inputs.json", names)
    assert json.loads((tmp_path / "inputs.json").read_text(encoding="utf-8")) == names
