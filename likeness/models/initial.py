"""The network that fine-tuning starts from, `init=MODEL` of a recipe, whatever kind of model."""

from __future__ import annotations

from pathlib import Path

from toolkit.models.embed import TorchEmbedder
from toolkit.training import start
from toolkit.training.start import Initial


def read_initial(init: str) -> Initial:
    """Read the network that a recipe's `init` names.

    Args:
        init: A run's folder or model file, or any other form that `likeness.models.load.load` takes
            and that gives a network of torch: `speechbrain:SOURCE`, `wespeaker:FILE.pt`,
            `hub:FOLDER_OR_ID`.

    Returns:
        Its weights, which a run takes if its own network has the same tensors.

    Raises:
        ValueError: There is no such model, or it cannot be trained on.
        ImportError: A package is missing; the message names the extra to install.
    """
    if Path(init).exists() or ":" not in init:
        return start.read_initial(init)
    from likeness.models.load import load

    loaded = load(init)
    if not isinstance(loaded.embedder, TorchEmbedder):
        raise ValueError(
            f"init={init!r} is a model that cannot be trained on; give a run's folder, a "
            "checkpoint, speechbrain:SOURCE or wespeaker:FILE.pt"
        )
    return Initial(loaded.embedder.state_dict(), f"{init} ({loaded.digest[:12]})")
