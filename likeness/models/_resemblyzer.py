"""Resemblyzer's network of voices, from the weights in its wheel: `likeness prepare voice`.

Resemblyzer (github.com/resemble-ai/Resemblyzer, Apache 2.0) is an implementation of GE2E (Wan et
al. 2018). Its VoiceEncoder is written here again: a quiet recording is brought to -30 dBFS, its mel
energies (not logarithms) are cut into windows of 1.6 s that lie .77 s apart, each of which gives an
embedding of length 1, and the embedding of the recording is their mean, scaled to length 1. The
last window counts where three quarters of it are filled. Frames at the ends of a recording see
zeros, as by librosa from 0.10 on. What Resemblyzer does before, cutting pauses out by webrtcvad, is
left out.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from likeness.eval.formats.provenance import sha256
from likeness.modalities.speaker import audio
from likeness.modalities.speaker.mel_spectrogram import RESEMBLYZER_MEL
from likeness.models.bundled import RESEMBLYZER, VOICE_PLUS, models_folder, onnx_file
from likeness.prepare import wheels
from likeness.toolkit.backbones.weights import put, read_weights
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.export import export
from likeness.toolkit.models.loaded import Loaded

WHEEL = "Resemblyzer==0.1.4"
SHA256 = "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"
WEIGHTS = "resemblyzer/pretrained.pt"
WEIGHTS_SHA256 = "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e"
_LEAST_LEVEL = 10 ** (-30 / 20)  # -30 dBFS
_HOP = 160  # samples from one frame to the next
_WINDOW, _STEP, _FILLED = 160, 77, 120  # frames: of a window, between two, and in the last
_BEFORE = 2 * _HOP  # zeros, which are more than the half window that MelSpectrogram reflects
_BEHIND = _WINDOW * _HOP + _BEFORE


class LevelledMel(nn.Module):
    """Mel energies (B, T, 40) of waves (B, S) that are at least as loud as -30 dBFS.

    Zeros follow each wave for the length of a window.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mel = RESEMBLYZER_MEL()
        self.dim: int = self.mel.dim

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the features, and the lengths as they are."""
        level = wave.square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-9)
        wave = wave * (_LEAST_LEVEL / level).clamp_min(1.0)
        features, _ = self.mel(nn.functional.pad(wave, (_BEFORE, _BEHIND)), None)
        return features[:, _BEFORE // _HOP :], lengths


class WindowedLSTM(nn.Module):
    """Resemblyzer's LSTM over the windows of features (B, T, 40): embeddings (B, 256).

    Its tensors have the names that they have there.
    """

    def __init__(self, in_dim: int = 40, dim: int = 256) -> None:
        super().__init__()
        self.in_dim, self.dim = in_dim, dim
        self.lstm = nn.LSTM(in_dim, dim, num_layers=3, batch_first=True)
        self.linear = nn.Linear(dim, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings, of length 1 each."""
        windows = features.unfold(1, _WINDOW, _STEP).transpose(2, 3)  # (B, K, frames, mels)
        _, (hidden, _) = self.lstm(windows.reshape(-1, _WINDOW, self.in_dim))
        z = nn.functional.normalize(torch.relu(self.linear(hidden[-1])), dim=1)
        z = z.reshape(features.shape[0], -1, self.dim)
        number = torch.arange(z.shape[1], device=z.device)
        # the frames that begin within the recording
        own = features.shape[1] - 1 - _BEHIND // _HOP
        counts = (number == 0) | (number * _STEP + _FILLED <= own)
        return nn.functional.normalize((z * counts[:, None]).sum(dim=1), dim=1)


def load_resemblyzer(path: Path) -> Loaded:
    """Return the network with the weights of Resemblyzer's file, in torch."""
    network = WindowedLSTM()
    tensors = read_weights(path, key="model_state")
    own = {name: tensors[name] for name in network.state_dict() if name in tensors}
    put(network, own, str(path))
    embedder = TorchEmbedder(LevelledMel(), network).eval()
    read = partial(audio.read, rate_hz=16_000)
    return Loaded(embedder, read, "speaker", "cosine", sha256(path), 0)


def prepare(say: Callable[[str], None] = print) -> Path:
    """Fetch Resemblyzer's weights by pip, and write the network into the user's folder of models.

    likeness:voice-plus, which is made of it, is written beside it.

    Args:
        say: Called with each line of the report.

    Returns:
        The .onnx file, which is used without torch.

    Raises:
        LikenessError: pip cannot fetch the wheel, or it is another one.
    """
    path = models_folder() / RESEMBLYZER
    say(f"{WHEEL}: a network of voices by Resemble AI. Licence: Apache 2.0")
    if path.is_file():
        say(f"{path} is there already")
    else:
        weights = wheels.fetch(WHEEL, SHA256, {WEIGHTS: WEIGHTS_SHA256})[WEIGHTS]
        with TemporaryDirectory() as folder:
            file = Path(folder) / "pretrained.pt"
            file.write_bytes(weights)
            path.parent.mkdir(parents=True, exist_ok=True)
            parity = export(load_resemblyzer(file), path)
        say(
            f"SHA-256 is right; wrote {path}, which agrees with torch to a cosine distance of "
            f"{parity.distance:.1e}"
        )
    onnx_file(VOICE_PLUS)
    say(f"{VOICE_PLUS} is ready: likeness verify a.wav b.wav --model {VOICE_PLUS}")
    return path
