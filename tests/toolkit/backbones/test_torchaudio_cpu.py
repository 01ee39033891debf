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
from likeness.toolkit.backbones.torchaudio_cpu import import_torchaudio
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
