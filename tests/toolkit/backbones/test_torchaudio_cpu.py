"""Each check runs in an interpreter of its own: what an earlier import left behind would hide the
failure.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )


def test_torchaudio_and_speechbrain_import() -> None:
    code = """
from toolkit.backbones.torchaudio_cpu import import_torchaudio
torchaudio = import_torchaudio()
assert import_torchaudio() is torchaudio
import torch
from torchaudio.compliance.kaldi import fbank
assert fbank(torch.randn(1, 16000)).shape == (98, 23)
from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN
net = ECAPA_TDNN(20, channels=[16, 16, 16, 16, 48], lin_neurons=8).eval()
assert net(torch.randn(2, 50, 20)).shape == (2, 1, 8)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_a_changed_torchaudio_is_named() -> None:
    code = """
import importlib, sys
import toolkit.backbones.torchaudio_cpu as ours
real = importlib.import_module
def changed(name, package=None):
    if name == "torchaudio":
        raise OSError("libcudart.so.99: cannot open shared object file")
    return real(name, package)
importlib.import_module = changed
try:
    ours.import_torchaudio()
except ImportError as error:
    assert "libcudart.so.99" in str(error) and "torchaudio>=2.11,<2.12" in str(error), error
else:
    raise SystemExit("no error")
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
