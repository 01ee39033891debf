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
The names stand in `__init__.pyi`, for this file and for type checkers.
"""

from typing import Any

from lazy_loader import attach_stub

_import, _, __all__ = attach_stub(__name__, __file__)
__all__ = sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from likeness.eval.errors import likeness_version

        return likeness_version()
    return _import(name)


def __dir__() -> list[str]:
    return __all__
