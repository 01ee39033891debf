"""Likeness: is this the same voice, the same face, the same thing?

    import likeness

    model = likeness.load("runs/voices")
    model.verify("a.wav", "b.wav")
    embeddings = model.embed("voices/")
    scores = likeness.score("trials.txt", embeddings)
    result = likeness.evaluate(scores)
    result.eer, result.threshold(far=0.01), result.report("report")

`likeness.losses`, `likeness.backbones` and `likeness.metrics` are flat lists of what there is.
Importing this package is quick and does not import torch: each name is imported when it is first
used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eval.calibration import Calibration, load_calibration
    from eval.errors import LikenessError
    from eval.formats.durations import read_durations
    from eval.formats.provenance import likeness_version
    from eval.formats.subjects import read_mapping
    from eval.formats.trials import read_trials
    from eval.protocols.identification import IdentificationSettings
    from eval.protocols.retrieval import RetrievalSettings
    from eval.protocols.verification import VerificationSettings
    from eval.scoring.plda import load_plda
    from eval.scoring.score import Scored, Scoring
    from eval.types import Scores, Trials
    from likeness import backbones, losses, metrics
    from likeness.embeddings import Embeddings, read_embeddings
    from likeness.evaluation import Evaluation, evaluate
    from likeness.joining import join
    from likeness.lists import items
    from likeness.model import Model, load, train
    from likeness.network import Network
    from likeness.scoring import calibrate, score
    from likeness.searching import Clusters, cluster, identify, retrieve
    from likeness.verification import Verification
    from toolkit.data.items import Item
    from toolkit.gallery.gallery import open_gallery

    __version__ = likeness_version()

__all__ = [
    "Calibration",
    "Clusters",
    "Embeddings",
    "Evaluation",
    "IdentificationSettings",
    "Item",
    "LikenessError",
    "Model",
    "Network",
    "RetrievalSettings",
    "Scored",
    "Scores",
    "Scoring",
    "Trials",
    "Verification",
    "VerificationSettings",
    "__version__",
    "backbones",
    "calibrate",
    "cluster",
    "evaluate",
    "identify",
    "items",
    "join",
    "load",
    "load_calibration",
    "load_plda",
    "losses",
    "metrics",
    "open_gallery",
    "read_durations",
    "read_embeddings",
    "read_mapping",
    "read_trials",
    "retrieve",
    "score",
    "train",
]

# The module in which each name stands.
_HOMES = {
    "Calibration": "eval.calibration",
    "Clusters": "likeness.searching",
    "Embeddings": "likeness.embeddings",
    "Evaluation": "likeness.evaluation",
    "IdentificationSettings": "eval.protocols.identification",
    "Item": "toolkit.data.items",
    "LikenessError": "eval.errors",
    "Model": "likeness.model",
    "Network": "likeness.network",
    "RetrievalSettings": "eval.protocols.retrieval",
    "Scored": "eval.scoring.score",
    "Scores": "eval.types",
    "Scoring": "eval.scoring.score",
    "Trials": "eval.types",
    "Verification": "likeness.verification",
    "VerificationSettings": "eval.protocols.verification",
    "calibrate": "likeness.scoring",
    "cluster": "likeness.searching",
    "evaluate": "likeness.evaluation",
    "identify": "likeness.searching",
    "items": "likeness.lists",
    "join": "likeness.joining",
    "load": "likeness.model",
    "load_calibration": "eval.calibration",
    "load_plda": "eval.scoring.plda",
    "open_gallery": "toolkit.gallery.gallery",
    "read_durations": "eval.formats.durations",
    "read_embeddings": "likeness.embeddings",
    "read_mapping": "eval.formats.subjects",
    "read_trials": "eval.formats.trials",
    "retrieve": "likeness.searching",
    "score": "likeness.scoring",
    "train": "likeness.model",
}
_MODULES = ("backbones", "losses", "metrics")
_METHODS = ("embed", "export", "verify")  # of a Model; people look for them here


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from eval.formats.provenance import likeness_version

        value: Any = likeness_version()
    elif name in _MODULES:
        return importlib.import_module(f"likeness.{name}")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _METHODS:
        raise AttributeError(
            f"likeness has no {name!r}, because a model does it: likeness.load(MODEL).{name}(...)"
        )
    else:
        raise AttributeError(f"likeness has no {name!r}; it has {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
