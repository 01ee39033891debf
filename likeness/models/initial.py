"""The network that fine-tuning starts from, `init=MODEL` of a recipe, whatever kind of model."""

from pathlib import Path

from likeness.eval.errors import LikenessError
from likeness.included import resolved
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.training import start
from likeness.toolkit.training.start import Initial


def read_initial(init: str) -> Initial:
    """Read the network that a recipe's `init` names.

    Args:
        init: A MODEL as on the command line (likeness.models.load.load) whose network torch can
            train: a run's folder or a .safetensors checkpoint, speechbrain:SOURCE,
            wespeaker:FILE.pt, insightface:FILE.pth, hub:FOLDER_OR_ID, own.py[:NAME], or another of
            its forms.

    Returns:
        Its weights, which a run takes if its own network has the same tensors.

    Raises:
        LikenessError: There is no such model, or it cannot be trained on.
    """
    if Path(init).is_dir() or Path(init).suffix == ".safetensors":
        return start.read_initial(init)  # its weights alone: no part that it names is imported
    from likeness.models.load import load

    loaded = load(resolved(init))
    embedder = loaded.embedder
    if not isinstance(embedder, TorchEmbedder) or not any(True for _ in embedder.parameters()):
        raise LikenessError(
            f"init={init!r} is a model that torch cannot train; give a run's folder, a checkpoint, "
            "speechbrain:SOURCE, wespeaker:FILE.pt, insightface:FILE.pth, hub:, own.py, or another "
            "model whose weights torch holds"
        )
    revision = loaded.settings.get("revision", "")
    commit = f", commit {revision[:12]}" if revision else ""
    source = f"{init} ({loaded.digest[:12]}{commit})"
    return Initial(embedder.state_dict(), source, loaded.digest, revision)
