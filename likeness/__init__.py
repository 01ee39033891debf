"""Likeness: is this the same voice, the same face, the same thing?

    import likeness

    model = likeness.load("runs/voices")
    model.verify("a.wav", "b.wav")
    embeddings = model.embed("voices/")
    scores = likeness.score("trials.txt", embeddings)
    result = likeness.evaluate(scores)
    result.eer, result.threshold(far=0.01), result.report("report")

`likeness.recipe`, `likeness.data`, `likeness.frontends`, `likeness.losses`, `likeness.backbones`
and `likeness.metrics` are flat lists of what recipes and measurements are written with. Importing
this package is quick and does not import torch: each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# The names of each module, imported when they are first used. For type checkers they stand below.
_NAMES = {
    "likeness.checking.check": ("check",),
    "likeness.benchmark": ("bench",),
    "likeness.eval.metrics.calibration": ("Fusion", "load_fusion"),
    "likeness.eval.errors": ("LikenessError",),
    "likeness.eval.formats.subjects": ("read_durations", "read_mapping"),
    "likeness.eval.formats.trials": ("read_trials",),
    "likeness.eval.protocols.identification": ("IdentificationSettings",),
    "likeness.eval.protocols.retrieval": ("RetrievalSettings",),
    "likeness.eval.protocols.verification": ("VerificationSettings",),
    "likeness.eval.scoring.plda": ("load_plda",),
    "likeness.eval.scoring.score": ("Scored", "calibrate", "score"),
    "likeness.eval.scoring.settings": ("Scoring",),
    "likeness.eval.types": ("Scores", "Trials"),
    "likeness.eval.formats.embeddings": ("Embeddings", "read_embeddings"),
    "likeness.eval.protocols.evaluation": ("Evaluation", "evaluate"),
    "likeness.models.joining": ("join",),
    "likeness.checking.lists": ("items",),
    "likeness.models.model": ("Model", "load"),
    "likeness.training.train": ("train",),
    "likeness.models.network": ("Network",),
    "likeness.eval.protocols.searching": ("Clusters", "cluster", "identify", "retrieve"),
    "likeness.models.verdicts": ("Verification",),
    "likeness.eval.items.items": ("Item",),
    "likeness.toolkit.gallery.gallery": ("open_gallery",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("backbones", "data", "frontends", "losses", "metrics", "recipe")

__all__ = sorted(["__version__", *_MODULES, *_HOMES])

if TYPE_CHECKING:
    from likeness import backbones as backbones
    from likeness import data as data
    from likeness import frontends as frontends
    from likeness import losses as losses
    from likeness import metrics as metrics
    from likeness import recipe as recipe
    from likeness.benchmark import bench as bench
    from likeness.checking.check import check as check
    from likeness.checking.lists import items as items
    from likeness.eval.errors import LikenessError as LikenessError
    from likeness.eval.formats.embeddings import Embeddings as Embeddings
    from likeness.eval.formats.embeddings import read_embeddings as read_embeddings
    from likeness.eval.formats.provenance import likeness_version
    from likeness.eval.formats.subjects import read_durations as read_durations
    from likeness.eval.formats.subjects import read_mapping as read_mapping
    from likeness.eval.formats.trials import read_trials as read_trials
    from likeness.eval.items.items import Item as Item
    from likeness.eval.metrics.calibration import Fusion as Fusion
    from likeness.eval.metrics.calibration import load_fusion as load_fusion
    from likeness.eval.protocols.evaluation import Evaluation as Evaluation
    from likeness.eval.protocols.evaluation import evaluate as evaluate
    from likeness.eval.protocols.identification import (
        IdentificationSettings as IdentificationSettings,
    )
    from likeness.eval.protocols.retrieval import RetrievalSettings as RetrievalSettings
    from likeness.eval.protocols.searching import Clusters as Clusters
    from likeness.eval.protocols.searching import cluster as cluster
    from likeness.eval.protocols.searching import identify as identify
    from likeness.eval.protocols.searching import retrieve as retrieve
    from likeness.eval.protocols.verification import VerificationSettings as VerificationSettings
    from likeness.eval.scoring.plda import load_plda as load_plda
    from likeness.eval.scoring.score import Scored as Scored
    from likeness.eval.scoring.score import calibrate as calibrate
    from likeness.eval.scoring.score import score as score
    from likeness.eval.scoring.settings import Scoring as Scoring
    from likeness.eval.types import Scores as Scores
    from likeness.eval.types import Trials as Trials
    from likeness.models.joining import join as join
    from likeness.models.model import Model as Model
    from likeness.models.model import load as load
    from likeness.models.network import Network as Network
    from likeness.models.verdicts import Verification as Verification
    from likeness.toolkit.gallery.gallery import open_gallery as open_gallery
    from likeness.training.train import train as train

    __version__ = likeness_version()
else:
    # Hidden from type checkers, to which every name would be right otherwise.
    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name == "__version__":
            from likeness.eval.formats.provenance import likeness_version

            value: Any = likeness_version()
        elif name in _MODULES:
            return importlib.import_module(f"likeness.{name}")
        elif name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        else:
            raise AttributeError(f"likeness has no {name!r}; it has {', '.join(__all__)}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
