"""A speaker model in the layout of sherpa-onnx, whose C++ computes the filterbanks itself.

sherpa-onnx (csrc/speaker-embedding-extractor-*.cc, csrc/features.h) takes a graph from filterbanks
(B, T, 80) to embeddings (B, dim), and metadata that say which filterbanks. Only the rate and the
level of the samples are free. All else is fixed: 80 bands from 20 Hz to 400 Hz below half the rate,
frames of 25 ms every 10 ms, Povey's window, a preemphasis of 0.97, and the frames of Kaldi's
snip_edges=false, which begin 7.5 ms before the recording and mirror it at its ends. A normalisation
of the features is part of the graph here, so that every kind of it works.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.eval.writing import atomic_path
from likeness.modalities.speaker.cmn import normalise
from likeness.modalities.speaker.features import KaldiFbank
from likeness.toolkit.models import export, onnx
from likeness.toolkit.models.embedder import TorchEmbedder, in_torch
from likeness.toolkit.models.loaded import Loaded

# How far an embedding may be from ours, as a cosine distance.
MAX_DISTANCE = 1e-4
_NUM_MELS, _TOP_HZ = 80, 400.0
_SETTINGS = "frontend.window=povey frontend.high_hz=-400 frontend.snip_edges=false"


class Normalised(nn.Module):
    """The normalisation of a filterbank, as a front-end of its own: features in, features out."""

    def __init__(self, fbank: KaldiFbank):
        super().__init__()
        self.dim = fbank.dim
        self.cmn, self.variance = fbank.cmn, fbank.cmn_variance

    def forward(
        self, features: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the features (B, T, F), normalised as the filterbank would."""
        if self.cmn:
            features = normalise(features, None, variance=self.variance)
        return features, lengths


def check_sherpa(model: Loaded) -> KaldiFbank:
    """Return the filterbank of a model, if sherpa-onnx has it.

    Raises:
        LikenessError: The model's front-end is another one. The first setting that differs is
            named.
    """
    fbank = in_torch(model).frontend
    if type(fbank) is not KaldiFbank:
        raise LikenessError(
            f"sherpa-onnx computes Kaldi's filterbanks of speech, and this model takes "
            f"{type(fbank).__name__}; export it without --for, or train it with {_SETTINGS}"
        )
    half_hz = fbank.rate_hz / 2
    top_hz = fbank.high_hz if fbank.high_hz > 0 else half_hz + fbank.high_hz
    reading = getattr(model.read, "keywords", {})
    fixed = {
        "num_mels": (fbank.num_mels, _NUM_MELS),
        "window": (fbank.window, "povey"),
        "the upper edge of the bands in Hz": (top_hz, half_hz - _TOP_HZ),
        "low_hz": (fbank.low_hz, 20.0),
        "frame_ms": (fbank.frame_ms, 25.0),
        "hop_ms": (fbank.hop_ms, 10.0),
        "preemphasis": (fbank.preemphasis, 0.97),
        "snip_edges": (fbank.snip_edges, False),
        "scale": (fbank.scale, 1.0 if fbank.scale == 1.0 else 32768.0),
        "level_dbfs of the recordings": (reading.get("level_dbfs"), None),
        "needs_hz of the recordings": (reading.get("needs_hz"), None),
    }
    for name, (own, theirs) in fixed.items():
        if own != theirs:
            raise LikenessError(
                f"sherpa-onnx computes filterbanks of its own, in which {name} is {theirs}, and in "
                f"this model it is {own}; export it without --for, or train it with {_SETTINGS}"
            )
    return fbank


def write(model: Loaded, path: Path) -> tuple[float, int]:
    """Write a speaker model for sherpa-onnx, after comparing it with torch.

    Args:
        model: The model.
        path: The file, FILE.onnx.

    Returns:
        The largest cosine distance between an embedding by sherpa-onnx's filterbanks and ours, and
        the number of synthetic recordings that were compared.

    Raises:
        LikenessError: sherpa-onnx does not have the model's filterbanks, the network cannot be
            exported, or its embeddings differ by more than MAX_DISTANCE. A package is missing.
    """
    export.check_exportable(model, path)
    fbank = check_sherpa(model)
    ours = in_torch(model).cpu().eval()
    embedder = TorchEmbedder(Normalised(fbank), ours.backbone, features=ours.features).eval()
    waves = export.waves(fbank.rate_hz)
    features = [filterbanks(fbank, batch) for batch in waves]
    proto, _ = export.translate(embedder, features[-1], "features")
    metadata = {
        "framework": "wespeaker",
        "language": "unknown",
        "url": "",
        "comment": f"likeness {model.digest[:16]}, scored by {model.similarity}",
        "sample_rate": str(fbank.rate_hz),
        "output_dim": str(ours.dim),
        "normalize_samples": str(int(fbank.scale == 1.0)),
        "feature_normalize_type": "",
    }
    with atomic_path(path) as temporary:
        export.write(proto, metadata, temporary)
        distance = _distance(temporary, ours, waves, features)
        if not distance <= MAX_DISTANCE:  # NaN is refused too
            raise LikenessError(
                f"{path}: an embedding differs from ours by a cosine distance of {distance:.1e}; "
                f"at most {MAX_DISTANCE:.0e} is allowed: nothing was written"
            )
    return distance, sum(map(len, waves))


@torch.no_grad()
def _distance(
    file: Path, ours: TorchEmbedder, waves: list[Tensor], features: list[Tensor]
) -> float:
    """Return the largest cosine distance of the file's embeddings to ours."""
    session = onnx.Session(file)
    worst = 0.0
    for batch, of_batch in zip(waves, features, strict=True):
        a: Any = ours(batch).double().numpy()
        b = session.run(None, {"features": of_batch.numpy()})[0].astype(np.float64)
        cosines = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
        worst = float(np.maximum(worst, (1 - cosines).max()))
    return worst


@torch.no_grad()
def filterbanks(fbank: KaldiFbank, waves: Tensor) -> Tensor:
    """Compute the filterbanks of sherpa-onnx, without any normalisation.

    Args:
        fbank: The model's filterbank, of settings that `check` accepts.
        waves: (B, S) in [-1, 1].

    Returns:
        (B, T, 80), of T = S / 160 frames at 16 kHz, rounded.
    """
    plain = copy.copy(fbank)
    plain.cmn, plain.cmn_variance = False, False
    features: Tensor = plain(waves)[0]
    return features
