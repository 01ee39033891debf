"""Long searches from the command line: in parts, by several real processes, killed and gone on,
within a limit of memory, and with approximate neighbours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval import retrieval, searching, tiled_ranks
from eval.formats import embeddings
from eval.parts import Parts
from eval.protocols.identification import IdentificationSettings
from eval.protocols.retrieval import RetrievalSettings
from eval.types import Embeddings
from likeness.commands.identify import identify_files
from likeness.commands.retrieve import retrieve_files

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "likeness" / "small_tiles.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of 300 items, 60 subjects, one of them twice under another name, and 200 probes of
    80 subjects.
    """
    made = tmp_path_factory.mktemp("search")
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((80, 12))
    for name, size, subjects in (("gallery", 300, 60), ("probes", 200, 80)):
        of_row = np.arange(size) % subjects
        rows = (centres[of_row] + 0.9 * rng.standard_normal((size, 12))).astype(np.float32)
        if name == "gallery":
            rows[1::60] = rows[0::60]
        ids = tuple(f"s{subject:02d}/{name}{i}" for i, subject in enumerate(of_row))
        embeddings.write(made / f"{name}.npz", Embeddings(ids, rows, {"similarity": "cosine"}))
    return made


def command(folder: Path, out: Path, what: str) -> list[str]:
    files = ["--gallery", str(folder / "gallery.npz"), "--json", str(out), "--resamples", "20"]
    side = "--probes" if what == "identify" else "--embeddings"
    return [what, side, str(folder / "probes.npz"), *files]


def run(
    *arguments: str, processes: int = 0, stop_after: int = 0
) -> subprocess.CompletedProcess[str]:
    """Runs the command line with small tiles, by torchrun if there are processes."""
    launcher = [sys.executable]
    if processes:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(processes)]
    return subprocess.run(
        [*launcher, str(PROGRAM), str(stop_after), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", ["identify", "retrieve"])
def test_four_processes_give_what_one_gives(folder: Path, tmp_path: Path, what: str) -> None:
    single = run(*command(folder, tmp_path / "single.json", what))
    assert single.returncode == 0, single.stderr
    shared = run(*command(folder, tmp_path / "shared.json", what), processes=4)
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout == single.stdout
    assert (tmp_path / "shared.json").read_bytes() == (tmp_path / "single.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shared.json", "single.json"]


def test_several_processes_need_a_place_for_their_parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="--json"):
        identify_files(folder / "gallery.npz", folder / "probes.npz")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["identify", "retrieve"])
def test_a_killed_search_goes_on(folder: Path, tmp_path: Path, what: str) -> None:
    whole = run(*command(folder, tmp_path / "whole.json", what))
    assert whole.returncode == 0, whole.stderr
    out = tmp_path / "out.json"
    assert run(*command(folder, out, what), stop_after=2).returncode == 9
    assert not out.exists()
    ended = run(*command(folder, out, what))
    assert ended.returncode == 0, ended.stderr
    assert ": 2 finished" in ended.stderr
    assert ended.stdout == whole.stdout
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not (tmp_path / "out.json.parts").exists()


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (searching, tiled_ranks):
        monkeypatch.setattr(module, "TILE", 64)
        monkeypatch.setattr(module, "CELLS", 64 * 16)
        monkeypatch.setattr(module, "PART_CELLS", 300 * 32)
    monkeypatch.setattr(retrieval, "LARGE", 64)


@contextmanager
def stopped_after(number: int) -> Iterator[None]:
    """Ctrl-C behind a number of parts."""
    written, write = 0, Parts._write

    def counted(self: Parts, *arguments: Any) -> None:
        nonlocal written
        write(self, *arguments)
        written += 1
        if written == number:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr(Parts, "_write", counted)
        yield


def work(folder: Path, what: str, out: Path | None, **changes: Any) -> str:
    gallery, probes = folder / "gallery.npz", folder / "probes.npz"
    if what == "identify":
        settings = IdentificationSettings(num_resamples=0, **changes)
        return identify_files(gallery, probes, settings, json_file=out)
    return retrieve_files(
        probes, None, RetrievalSettings(num_resamples=0, **changes), gallery=gallery, json_file=out
    )


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("what", ["identify", "retrieve"])
def test_finished_parts_are_not_made_again(
    folder: Path, tmp_path: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    out, parts = tmp_path / "out.json", tmp_path / "out.json.parts"
    with stopped_after(2):
        work(folder, what, out)
    first, second = sorted(parts.glob("*.npz"))
    assert not out.exists()
    # A part that is damaged is made again.
    second.write_bytes(second.read_bytes()[:-40])
    made = first.stat().st_mtime_ns
    with stopped_after(2):
        work(folder, what, out)
    assert first.stat().st_mtime_ns == made
    assert len(list(parts.glob("*.npz"))) == 3
    capfd.readouterr()
    assert work(folder, what, out) == work(folder, what, None)
    assert ": 3 finished" in capfd.readouterr().err
    assert not parts.exists()


@pytest.mark.usefixtures("small_tiles")
def test_parts_of_another_search_are_refused(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(folder, mine)
    out = tmp_path / "out.json"
    with stopped_after(1):
        work(mine, "identify", out)
    before = {path: path.read_bytes() for path in (tmp_path / "out.json.parts").iterdir()}
    for changes in ({"similarity": "dot"}, {"fpirs": (0.5,)}, {"protocol": "closed"}):
        with pytest.raises(ValueError, match="settings"):
            work(mine, "identify", out, **changes)
    rows = embeddings.read(mine / "probes.npz")
    turned = Embeddings(rows.ids, rows.matrix[::-1].copy(), rows.meta)
    embeddings.write(mine / "probes.npz", turned)
    with pytest.raises(ValueError, match="inputs"):
        work(mine, "identify", out)
    after = {path: path.read_bytes() for path in (tmp_path / "out.json.parts").iterdir()}
    assert after == before


def results(file: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(file.read_text())["results"]
    return found


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_approximate_recall_says_how_far_it_is_off(folder: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("faiss")
    gallery, probes, out = folder / "gallery.npz", folder / "probes.npz", tmp_path / "out.json"
    text = retrieve_files(probes, gallery=gallery, approximate=kind, json_file=out)
    exact = retrieve_files(probes, gallery=gallery, json_file=tmp_path / "exact.json")
    assert "approximate" in text
    assert "approximate" not in exact
    of_exact = {result["metric"]: result for result in results(tmp_path / "exact.json")}
    found = results(out)
    assert [result["metric"] for result in found] == [f"recall@{k}" for k in (1, 2, 4, 8)]
    for result in found:
        said = result["conventions"]
        assert isinstance(said, dict)
        assert kind.upper() in said["approximate"]
        # 160 probes have a relevant item, all are in the sample, and few neighbours are missed.
        assert said["sample"] == 160
        assert said["on_sample"] == pytest.approx(result["value"])
        assert said["exact_on_sample"] == pytest.approx(
            of_exact[str(result["metric"])]["value"], abs=0.02
        )
        assert abs(said["on_sample"] - said["exact_on_sample"]) < 0.2
        assert f"{100 * said['exact_on_sample']:.2f} exact" in text
    rated = retrieve_files(
        probes, settings=RetrievalSettings(quality="norm", num_resamples=0), approximate=kind
    )
    assert "R-AUROC" in rated
    assert rated.count(" exact.") == 4  # of recall@K; a quality is measured once


def test_approximate_self_retrieval_leaves_the_query_out(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    out = tmp_path / "out.json"
    retrieve_files(folder / "probes.npz", approximate="ivf", json_file=out)
    for result in results(out):
        said = result["conventions"]
        assert isinstance(said, dict)
        # 200 items are too few for many lists, and every list is visited: nothing is missed.
        assert said["on_sample"] == pytest.approx(said["exact_on_sample"])
    exact = retrieve_files(folder / "probes.npz", json_file=tmp_path / "exact.json")
    assert exact
    values = [result["value"] for result in results(tmp_path / "exact.json")[:4]]
    assert [result["value"] for result in results(out)] == pytest.approx(values)


@pytest.mark.usefixtures("small_tiles")
def test_what_is_no_folder_of_parts_stays_as_it_is(folder: Path, tmp_path: Path) -> None:
    out, parts = tmp_path / "out.json", tmp_path / "out.json.parts"
    parts.mkdir()
    (parts / "gallery-000001.npz").write_text("mine")
    with pytest.raises(ValueError, match="move"):
        work(folder, "identify", out)
    (parts / "plan.json").write_text('{"mine": 1}')
    with pytest.raises(ValueError, match="move"):
        work(folder, "identify", out)
    assert (parts / "gallery-000001.npz").read_text() == "mine"
    shutil.move(parts, tmp_path / "elsewhere")
    parts.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="move"):
        work(folder, "identify", out)
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [
        "gallery-000001.npz",
        "plan.json",
    ]


@pytest.mark.usefixtures("small_tiles")
def test_parts_that_are_exchanged_are_made_again(folder: Path, tmp_path: Path) -> None:
    out, parts = tmp_path / "out.json", tmp_path / "out.json.parts"
    with stopped_after(3):
        work(folder, "identify", out)
    first, second, third = sorted(parts.glob("*.npz"))[:3]
    shutil.copy(second, first)
    third.unlink()
    os.mkfifo(third)
    with pytest.raises(ValueError, match="remove"):
        work(folder, "identify", out)
    third.unlink()
    work(folder, "identify", out)
    work(folder, "identify", tmp_path / "whole.json")
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not parts.exists()


@pytest.mark.usefixtures("small_tiles")
def test_a_plan_without_parts_binds_nobody(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with stopped_after(1):
        work(folder, "identify", out)
    for part in (tmp_path / "out.json.parts").glob("*.npz"):
        part.unlink()
    work(folder, "retrieve", out)
    assert not (tmp_path / "out.json.parts").exists()
