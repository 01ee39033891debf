"""Every example runs as a program of its own and writes what it promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow  # a process that imports torch and draws
def test_vmf_figures(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "examples" / "vmf_figures.py"),
        "--out",
        str(tmp_path / "figures"),
        "--points",
        "12",
    ]
    subprocess.run(
        command,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    written = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert written == ["nivmf_fig3.png", "nivmf_fig8.png", "vmf_fig2.png"]
    assert all((tmp_path / "figures" / name).read_bytes()[:4] == b"\x89PNG" for name in written)


@pytest.mark.slow  # an export
def test_node_compares_two_recordings_as_onnx_runtime_does(voices: Path, tmp_path: Path) -> None:
    """Where Node and onnxruntime-node are, or LIKENESS_NODE_MODULES names its node_modules."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    import soundfile
    import torch

    from modalities.speaker import audio
    from modalities.speaker.features import KaldiFbank
    from toolkit.backbones.resnet import ResNet34
    from toolkit.models import export
    from toolkit.models.embedder import TorchEmbedder
    from toolkit.models.loaded import Loaded

    example = ROOT / "examples" / "onnxruntime_node"
    modules = Path(os.environ.get("LIKENESS_NODE_MODULES", example / "node_modules"))
    node = shutil.which("node")
    if node is None or not (modules / "onnxruntime-node").is_dir():
        pytest.skip("node or its package is absent: `npm install --ignore-scripts` in that folder")
    shutil.copy(example / "compare.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(modules.resolve())
    torch.manual_seed(0)
    network = ResNet34(16, dim=8, width=4, blocks=(1, 1, 1, 1))
    embedder = TorchEmbedder(KaldiFbank(num_mels=16), network).eval()
    model = tmp_path / "m.onnx"
    export.export(Loaded(embedder, audio.read, "speaker", "cosine", "d" * 64, 1), model)
    files, embeddings = [], []
    session = onnxruntime.InferenceSession(model)
    for number, path in enumerate(sorted(voices.glob("*/*.flac"))[:5:4]):
        file = tmp_path / f"{number}.wav"
        wave, rate_hz = soundfile.read(path, dtype="float32")
        stereo = np.stack([wave, wave / 2], axis=1)
        soundfile.write(file, stereo, rate_hz, subtype="PCM_16")
        read, _ = soundfile.read(file, dtype="float32")
        embeddings.append(session.run(None, {"waves": read.mean(axis=1)[None]})[0][0])
        files.append(str(file))
    x, y = (row / np.linalg.norm(row) for row in np.array(embeddings, dtype=np.float64))
    command = [node, str(tmp_path / "compare.mjs"), str(model)]
    done = subprocess.run([*command, *files], check=True, capture_output=True, text=True)
    stated = json.loads(done.stdout)
    assert stated["dim"] == 8
    assert stated["cosine"] == pytest.approx(x @ y, abs=1e-5)
    refused = subprocess.run([*command, files[0], str(model)], capture_output=True, text=True)
    assert refused.returncode
    assert "no WAV file" in refused.stderr
