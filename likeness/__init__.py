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
    from eval.calibration import Calibration
    from eval.formats.provenance import likeness_version
    from eval.formats.trials import read_trials
    from eval.protocols.identification import IdentificationSettings
    from eval.protocols.retrieval import RetrievalSettings
    from eval.protocols.verification import VerificationSettings
    from eval.scoring import Scoring
    from eval.types import Scores, Trials
    from likeness import backbones, losses, metrics
    from likeness.embeddings import Embeddings, read_embeddings
    from likeness.evaluation import Evaluation, evaluate, identify, retrieve, score
    from likeness.model import Model, load, train
    from likeness.verification import Verification
    from toolkit.data.batch import Item
    from toolkit.gallery.open import open_gallery

    __version__ = likeness_version()

__all__ = [
    "Calibration",
    "Embeddings",
    "Evaluation",
    "IdentificationSettings",
    "Item",
    "Model",
    "RetrievalSettings",
    "Scores",
    "Scoring",
    "Trials",
    "Verification",
    "VerificationSettings",
    "__version__",
    "backbones",
    "evaluate",
    "identify",
    "load",
    "losses",
    "metrics",
    "open_gallery",
    "read_embeddings",
    "read_trials",
    "retrieve",
    "score",
    "train",
]

# The module in which each name stands.
_HOMES = {
    "Calibration": "eval.calibration",
    "Embeddings": "likeness.embeddings",
    "Evaluation": "likeness.evaluation",
    "IdentificationSettings": "eval.protocols.identification",
    "Item": "toolkit.data.batch",
    "Model": "likeness.model",
    "RetrievalSettings": "eval.protocols.retrieval",
    "Scores": "eval.types",
    "Scoring": "eval.scoring",
    "Trials": "eval.types",
    "Verification": "likeness.verification",
    "VerificationSettings": "eval.protocols.verification",
    "evaluate": "likeness.evaluation",
    "identify": "likeness.evaluation",
    "load": "likeness.model",
    "open_gallery": "toolkit.gallery.open",
    "read_embeddings": "likeness.embeddings",
    "read_trials": "eval.formats.trials",
    "retrieve": "likeness.evaluation",
    "score": "likeness.evaluation",
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
