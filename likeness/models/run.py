"""Load the model of a checkpoint, or of the folder of a run, without its recipe, for which what the
checkpoint states about itself is enough; and the network that fine-tuning starts from.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.included import resolved
from likeness.models.trust import check_trusted
from likeness.toolkit.backbones.weights import put
from likeness.toolkit.data.reading import Read
from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.models.parts import Part, restore, values_in
from likeness.toolkit.training import start
from likeness.toolkit.training.start import Initial

_PARTS = ("frontend", "backbone", "read")
_FREE_SIZE = 2**18  # sampling rates, lengths of windows and the like are smaller


def load_model(path: Path, *, trust: Sequence[str] = ()) -> Loaded:
    """Return the model of a checkpoint file or of the folder of a run.

    Of a run's folder it is the best checkpoint where the run kept one, otherwise the last. Nothing
    in the file is executed.

    Args:
        path: The file or the folder.
        trust: The packages and Python files of others that may be imported for its parts.

    Raises:
        LikenessError: The file is of another kind or version, its weights do not fit its
            description, or a part of it is of a package that is not trusted or not installed.
    """
    path = checkpoint.find_model(path)
    tensors, description, digest = checkpoint.read(path, checkpoint.FORMAT)
    described = {name: description.get(name) for name in _PARTS}
    trusted = check_trusted(described, trust, str(path))
    remedy = (
        "copy it again, take the packages and the version of Likeness "
        f"({description.get('version', 'unknown')}) that it was trained with, or train it again"
    )
    try:
        frontend, backbone = (
            restore(described[name], name, kind="module", trusted=trusted) for name in _PARTS[:2]
        )
        reading = restore(described["read"], "read", kind="read", trusted=trusted)
        embedder = _build(frontend, backbone, description, tensors)
        step, modality = int(description["step"]), str(description["modality"])
    except Exception as error:
        # Arguments of other types than a part takes lead to errors of any type.
        is_ours = isinstance(error, LikenessError)
        reason = str(error) if is_ours else f"{type(error).__name__}: {error}"
        raise LikenessError(
            f"{path}: its description cannot be built: {reason[:400]}; {remedy}"
        ) from error
    put(embedder, checkpoint.without_loss(tensors), str(path), remedy)
    return Loaded(
        embedder.eval(),
        cast(Read, reading),
        modality,
        str(description.get("similarity")),
        digest,
        step,
        norm_is_quality=checkpoint.norm_is_quality(description),
        parts=described,
    )


def _build(
    frontend: Part, backbone: Part, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> TorchEmbedder:
    """Build the network of a description, which takes no more memory than the weights do.

    Raises:
        LikenessError: The description states sizes beyond any of its weights, or more weights.
    """
    stored = sum(tensor.numel() for tensor in tensors.values())
    for value in values_in([description["frontend"], description["backbone"]]):
        if isinstance(value, int | float) and not abs(value) <= max(stored, _FREE_SIZE):
            raise LikenessError(f"it states {value:g}, beyond any size of its {stored} weights")
    made: nn.Module = frontend()
    dim = cast(int, made.dim)
    needed = 0
    # A network that cannot be made without memory passes: `put` compares it with the weights.
    with suppress(Exception), torch.device("meta"):
        needed = sum(parameter.numel() for parameter in backbone(dim).parameters())
    if needed > stored:
        raise LikenessError(
            f"weights do not fit: it is of a network with {needed} weights, and the file has "
            f"{stored}"
        )
    return TorchEmbedder(made, backbone(dim), features=description["features"])


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
