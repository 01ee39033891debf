"""Resemblyzer's network gives the embeddings of Resemblyzer's own code, from the weights in its
wheel.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
from numpy.typing import NDArray

from likeness import Item, LikenessError
from likeness.models import _resemblyzer
from likeness.prepare import wheels
from likeness.toolkit.models.loaded import Loaded
from tests.scripts import ROOT, printed, program, refused

DATA = ROOT.parent / "shared/data"
CODE = {
    "audio": "c43bd9e415b97487b8f1f6e0bcf4d41055ef2b2dc6a7a6d5c2dd35dcea360ff4",
    "hparams": "511abe53b7515263ff33e1c0eaf82f7ffaa165f977b90def312182a15dfb81ae",
    "voice_encoder": "c9ad016fcc4e627d44b27f4597001eec360a6c6f41286297c820a65acfe90767",
}


@pytest.fixture(scope="module")
def release(module_path: Path) -> Path:
    """The files of Resemblyzer's package, without its __init__.py."""
    digests = {f"resemblyzer/{name}.py": digest for name, digest in CODE.items()}
    digests[_resemblyzer.WEIGHTS] = _resemblyzer.WEIGHTS_SHA256
    try:
        found = wheels.fetch(_resemblyzer.WHEEL, _resemblyzer.SHA256, digests)
    except LikenessError as error:
        pytest.skip(str(error))
    (module_path / "resemblyzer").mkdir()
    for name, content in found.items():
        (module_path / name).write_bytes(content)
    return module_path


@pytest.fixture(scope="module")
def ours(release: Path) -> Loaded:
    torch.set_num_threads(1)
    return _resemblyzer.load_resemblyzer(release / _resemblyzer.WEIGHTS)


def melspectrogram(
    *, y: NDArray[np.float32], sr: int, n_fft: int, hop_length: int, n_mels: int
) -> NDArray[np.float64]:
    """As librosa.feature.melspectrogram from 0.10 on: zeros at both ends, Slaney's scale."""

    def mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
        log = 15 + 27 * np.log(np.maximum(hz, 1000) / 1000) / np.log(6.4)
        return np.where(hz < 1000, hz * 3 / 200, log)

    grid = np.arange(0, sr / 2 + 0.01, 0.25)
    edges = np.interp(np.linspace(0, mel(grid)[-1], n_mels + 2), mel(grid), grid)
    low, centre, high = (edges[start : start + n_mels, None] for start in range(3))
    bins = np.arange(n_fft // 2 + 1) * sr / n_fft
    triangles = np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre))
    bank = np.maximum(0, triangles) * 2 / (high - low)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    around = np.pad(y.astype(np.float64), n_fft // 2)
    frames = np.lib.stride_tricks.sliding_window_view(around, n_fft)[::hop_length]
    power: NDArray[np.float64] = np.abs(np.fft.rfft(frames * window)) ** 2
    return bank @ power.T


@pytest.fixture
def theirs(release: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that gives the embedding of a wave by Resemblyzer's own code."""
    stubs = {name: ModuleType(name) for name in ("librosa", "librosa.feature", "webrtcvad")}
    stubs["librosa.feature"].melspectrogram = melspectrogram  # type: ignore[attr-defined]
    stubs["librosa"].feature = stubs["librosa.feature"]  # type: ignore[attr-defined]
    stubs["scipy.ndimage.morphology"] = ModuleType("scipy.ndimage.morphology")
    dilation = scipy.ndimage.binary_dilation
    stubs["scipy.ndimage.morphology"].binary_dilation = dilation  # type: ignore[attr-defined]
    for name, stub in stubs.items():
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.syspath_prepend(release)
    audio, encoders = (import_module(f"resemblyzer.{name}") for name in ("audio", "voice_encoder"))
    encoder = encoders.VoiceEncoder("cpu", verbose=False)
    yield lambda wave: encoder.embed_utterance(audio.normalize_volume(wave, -30, True))
    for name in [name for name in sys.modules if name.partition(".")[0] == "resemblyzer"]:
        del sys.modules[name]


def differences(ours: Loaded, theirs: Any, waves: list[NDArray[np.float32]]) -> list[float]:
    rows = [ours.embedder.embed_batch(wave[None])[0] for wave in waves]
    return [float(np.abs(row - theirs(wave)).max()) for row, wave in zip(rows, waves, strict=True)]


def test_waves_of_every_length_and_level_have_its_embeddings(ours, theirs):
    """Where a window more counts, and where a recording is shorter than one."""
    rng = np.random.default_rng(0)
    lengths = (1_600, 19_199, 19_200, 25_600, 31_519, 31_520, 31_521, 43_839, 43_840, 60_000)
    waves = [
        (level * np.convolve(rng.standard_normal(length), np.ones(9) / 9, "same")).astype("f4")
        for length, level in zip(lengths, [0.001, 0.3] * 5, strict=True)
    ]
    assert max(differences(ours, theirs, waves)) < 1e-5


@pytest.mark.skipif(not DATA.is_dir(), reason="no shared/data beside the checkout")
def test_thirty_recordings_have_its_embeddings(ours, theirs):
    sets = [sorted((DATA / s).rglob("*.flac")) for s in ("an4", "speechocean", "librispeech")]
    files = [file for each in sets for file in each[::20][:10]]
    assert len(files) == 30
    waves = [np.asarray(ours.read(Item(str(file), file))) for file in files]
    assert max(differences(ours, theirs, waves)) < 1e-4


@pytest.mark.slow  # an export of an LSTM takes a quarter of a minute
@pytest.mark.usefixtures("release")
def test_the_command_writes_a_file_that_needs_no_torch(ours, voices, tmp_path, monkeypatch):
    monkeypatch.setenv("LIKENESS_MODELS", str(tmp_path / "models"))
    assert "--data" in refused("prepare", "voice", "--data", tmp_path)
    assert "SHA-256 is right" in printed("prepare", "voice")
    file = tmp_path / "models/resemblyzer.onnx"
    before = file.stat().st_mtime_ns
    assert "there already" in printed("prepare", "voice")
    assert file.stat().st_mtime_ns == before
    first, second = sorted(voices.rglob("*.flac"))[:2]
    script = (
        "import sys; sys.modules['torch'] = None; import likeness; "
        f"print(likeness.load({str(file)!r}).verify({str(first)!r}, {str(second)!r}).score)"
    )
    waves = [np.asarray(ours.read(Item("a", path))) for path in (first, second)]
    rows = [ours.embedder.embed_batch(wave[None])[0] for wave in waves]
    assert float(program("-c", script).stdout) == pytest.approx(float(rows[0] @ rows[1]), abs=1e-5)
