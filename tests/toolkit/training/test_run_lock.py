"""One writer in a folder: the second is refused, touches nothing, and the lock is gone with its
process, however that ended.
"""

import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from likeness.models.run import load_model
from likeness.prepare import prepare
from likeness.recipe import Schedule, fit
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.training import compare
from likeness.toolkit.training.lock import NAME, Busy, empty, only_writer
from likeness.toolkit.training.run import Run
from tests.toolkit.training.tiny_runs import before, recipe, short


def files(folder: Path) -> dict[Path, tuple[int, int, bytes]]:
    """What would show that somebody wrote: names, inodes, times and contents."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    stats = {path: path.stat() for path in paths}
    return {path: (at.st_ino, at.st_mtime_ns, path.read_bytes()) for path, at in stats.items()}


def test_a_folder_has_one_writer_and_keeps_no_trace(tmp_path):
    folder = tmp_path / "a" / "b"
    with only_writer(folder):
        before = files(folder)
        with pytest.raises(Busy), only_writer(folder):
            pass
        assert files(folder) == before
        with only_writer(tmp_path / "other"):
            pass
    assert not folder.exists()  # nothing was written into it
    with only_writer(folder):
        (folder / "kept").touch()
    assert [path.name for path in folder.iterdir()] == ["kept"]
    with only_writer(folder):  # a next one
        pass
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_the_lock_of_another_writer_stays_where_the_folder_was_removed_and_made_again(tmp_path):
    folder = tmp_path / "shards"
    with ExitStack() as second:
        with only_writer(folder):
            shutil.rmtree(folder)
            second.enter_context(only_writer(folder))
        with pytest.raises(Busy), only_writer(folder):
            pass


def test_a_folder_that_is_emptied_keeps_its_lock(tmp_path):
    with only_writer(tmp_path):
        (tmp_path / "of").mkdir()
        (tmp_path / "of" / "an earlier plan").touch()
        (tmp_path / "000000.npz").touch()
        empty(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [NAME]
        with pytest.raises(Busy), only_writer(tmp_path):
            pass


def test_the_lock_goes_with_the_process_and_not_with_its_children(tmp_path):
    """A training process is killed while a process that reads files for it lives on."""
    lives, ends = os.pipe()
    reader, tells = os.pipe()
    writer = os.fork()
    if not writer:
        try:
            with only_writer(tmp_path):
                if not os.fork():  # the reader: until the test lets it go
                    os.close(ends)
                    os.write(tells, b"r")
                    os.read(lives, 1)
                    os._exit(0)
                os.write(tells, b"w")
                signal.pause()
        finally:
            os._exit(1)
    os.close(tells)
    try:
        assert len(os.read(reader, 1) + os.read(reader, 1)) == 2
        with pytest.raises(Busy), only_writer(tmp_path):
            pass
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    with only_writer(tmp_path):
        pass
    for handle in (lives, ends, reader):
        os.close(handle)


def test_many_writers_one_after_the_other(tmp_path):
    """A lost update would show that two were in the folder at once; the lock's file is removed and
    made anew all the while.
    """
    counter = tmp_path / "folder" / "count"
    counter.parent.mkdir()
    counter.write_text("0")

    def count() -> None:
        done = 0
        while done < 200:
            try:
                with only_writer(counter.parent):
                    counter.write_text(str(int(counter.read_text()) + 1))
                done += 1
            except Busy:
                os.sched_yield()

    children = [multiprocessing.get_context("fork").Process(target=count) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert counter.read_text() == "600"


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, capsys):
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with only_writer(tmp_path), only_writer(tmp_path):
        pass
    assert "no locks" in " ".join(capsys.readouterr().err.split())


def test_two_trainings_in_one_folder(voices, tmp_path):
    """The second, begun while the first trains, is refused with and without resume, and the first
    goes on.
    """
    out = tmp_path / "run"
    refused = 0
    made = short(schedule=Schedule(steps=2, save_every=1))

    def begin_another(run: Run, batch: Batch) -> None:
        nonlocal refused
        there = files(out)
        for resume in (False, True):
            with pytest.raises(Busy, match="is being written by"):
                fit(made, data=voices, out=out, resume=resume)
            refused += 1
        assert files(out) == there
        assert load_model(out).step == 1  # reading needs no lock

    fit(made, data=voices, out=out, step=before(1, begin_another))
    assert refused == 2
    assert load_model(out).step == 2
    assert not (out / NAME).exists()
    fit(made, data=voices, out=out, resume=True)


def test_a_comparison_and_downloads_have_the_lock(voices, tmp_path):
    """Extractions have it too: tests/likeness/embedding/test_extraction.py."""
    busy = tmp_path / "busy"
    with only_writer(busy), only_writer(tmp_path / "data" / "downloads"):
        before = files(tmp_path)
        with pytest.raises(Busy):
            compare.compare({"arcface": recipe()}, num_seeds=1, data=voices, out=busy)
        with pytest.raises(Busy):
            prepare.prepare(prepare.Dataset("none", "", "", ""), tmp_path / "data")
        assert files(tmp_path) == before
