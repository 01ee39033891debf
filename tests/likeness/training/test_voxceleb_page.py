"""docs/how-to/voxceleb.md from its first training to its last line, on a miniature of VoxCeleb."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import soundfile
import torch

from likeness.data import read_scores, voxceleb
from likeness.eval.formats.embeddings import read_embeddings
from likeness.toolkit.backbones.resnet import ResNet
from likeness.toolkit.training.run import holds_checkpoint
from tests.likeness.training.test_other_forms import kaldi, wespeaker_shards
from tests.modalities.speaker import test_voxceleb
from tests.recording_files import HZ, through_av
from tests.test_docs import ROOT, blocks, lines
from tests.tiny import NETWORKS, QUICK

PAGE = ROOT / "docs" / "how-to" / "voxceleb.md"
SMALL = [*QUICK, "schedule.epochs=0", "schedule.steps=4", "schedule.save_every=1"]
SMALL += ["tuning.average_last=2", "sampling.batch_size=4"]
SMALL += ["augment.seconds=0.3,0.4", *(f"backbone.{field}" for field in NETWORKS["ResNet"])]
# VoxCeleb1-O of the miniature has four trials.
TRIALS = """
from likeness.modalities.speaker import voxceleb
voxceleb.PROTOCOLS["O_cleaned"] = (("veri_test2.txt",), 4, 2)
"""


def small(command: str) -> str:
    """A command of the page; a training takes four steps of a small network."""
    program, train, rest = command.partition(" train ")
    if not train:
        return command
    recipe, _, options = rest.partition(" ")
    more = "schedule.steps=40" if program.startswith("torchrun") else ""  # so that it can be killed
    return f"{program}{train}{recipe} {' '.join(SMALL)} {more} {options}"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A folder with all that the page takes for granted, and what its commands see."""
    pytest.importorskip("av")
    data = tmp_path / "DATA"
    test_voxceleb.miniature(data)
    (data / "RIRS_NOISES").mkdir()
    (data / "rirs").rename(data / "RIRS_NOISES" / "simulated_rirs")
    as_m4a(next((data / "vox2").rglob("*.wav")))
    items = voxceleb.items(data, corpus="voxceleb2", split="dev")
    for form, write in {"shards": wespeaker_shards, "kaldi": kaldi}.items():
        (tmp_path / form).mkdir()
        write(items, tmp_path / form)
    first, second = sorted((data / "vox1").rglob("*.wav"))[:2]
    shutil.copy(first, data / "a.wav")
    shutil.copy(second, data / "b.wav")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    published = ResNet(80, dim=10, width=4, blocks=(1, 1, 1, 1))
    torch.save(published.state_dict(), tmp_path / "avg_model.pt")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(TRIALS, encoding="utf-8")
    paths = {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **paths, "PATH": programs, "CUDA_VISIBLE_DEVICES": ""}


def as_m4a(file: Path) -> None:
    samples, rate = soundfile.read(file, dtype="float32")
    assert rate == HZ
    file.with_suffix(".m4a").write_bytes(through_av(".m4a", samples=samples))
    file.unlink()


def run(command: str, folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    words, place = ["bash", "-c", f"exec {command}"], {"cwd": folder, "env": environment}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, **place, **streams, start_new_session=True)


def kill_with_workers(torchrun: int) -> None:
    workers = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text(encoding="utf-8")
    for process in (torchrun, *map(int, workers.split())):
        os.kill(process, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc names the processes to kill")
@pytest.mark.slow  # starts every command of the page by itself
def test_the_page_runs_from_end_to_end(tmp_path, environment):
    printed = {}
    for block in blocks(PAGE):
        for command in [block.text] if block.kind == "python" else lines(block):
            if block.kind == "console":  # fetches gigabytes
                continue
            text = small(command)
            if block.kind == "python":
                (tmp_path / "block.py").write_text(command, encoding="utf-8")
                text = f"{sys.executable} block.py"
            if text.startswith("torchrun"):  # killed once, wherever it is after its first step
                out = tmp_path / text.rpartition("--out ")[2]
                killed = run(text, tmp_path, environment)
                while killed.poll() is None and not holds_checkpoint(out):
                    time.sleep(0.1)
                kill_with_workers(killed.pid)
                killed.communicate()
                assert holds_checkpoint(out)
            ended = run(text, tmp_path, environment)
            printed[command] = ended.communicate()[0]
            assert ended.returncode == 0, f"{text}\n{printed[command]}"
    assert read_embeddings(tmp_path / "O.npz").matrix.shape == (4, 16)
    published = read_embeddings(tmp_path / "published.npz").matrix
    assert published.shape == (4, 10)
    assert len(read_scores(tmp_path / "O.txt")[1]) == 4
    assert any("minDCF" in text for text in printed.values())
    last = list(printed.values())[-1]
    assert "score" in last
