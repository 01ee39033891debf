"""Join a model and the head that was trained on its embeddings: the result is one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from likeness.eval.errors import LikenessError, likeness_version
from likeness.eval.formats.runs import find_model
from likeness.eval.formats.writing import remove_abandoned
from likeness.eval.option import Option
from likeness.models.bundled import run_of

if TYPE_CHECKING:
    from likeness.models.model import Model
    from likeness.toolkit.models.loaded import Loaded

_FRONTEND = "modalities.embedding.rows.Vectors"
_JOINED = "last.safetensors"  # as toolkit/models/checkpoint.py has it, which imports torch


def join(
    model: Annotated[str | Path, Option("MODEL", metavar="MODEL")],
    head: str | Path,
    out: Annotated[str | Path, Option(path="output")],
    *,
    frontend: Literal["wespeaker", "3dspeaker"] = "wespeaker",
    trust: Annotated[str | Path | Sequence[str | Path], Option(metavar="PACKAGE|FILE|FOLDER")] = (),
) -> Model:
    """Join a model and a head of its embeddings, and write the whole as one model.

    The embeddings of the joined model are those of the head on the embeddings of the model. It
    embeds, exports, serves and is fine-tuned as a model of `likeness.train`.

    Args:
        model: the model: a run, a .safetensors checkpoint, speechbrain:SOURCE, wespeaker:FILE.pt,
            redimnet:FILE.pt, hub:FOLDER_OR_ID or own.py[:NAME]. It made the embeddings, and torch
            has its weights.
        head: join the model and this run of `likeness train head --data EMBEDDINGS`, which was
            trained on its embeddings, to one model.
        out: the .onnx file to write; with --head a new folder for the model. The folder must not
            exist or be empty.
        frontend: as in `likeness.models.model.load`.
        trust: as in `likeness.models.model.load`.

    Returns:
        The joined model.

    Raises:
        LikenessError: a model does not exist. The head is none, or was trained on embeddings of
            another model or another size; the model has no weights of torch; or `out` is not empty.

    Example:
        >>> import likeness
        >>> likeness.load("runs/voices").embed("voices").save("voices.npz")
        >>> few = ["schedule.steps=2", "sampling.batch_size=4", "compute.threads=1"]
        >>> few += ["items.test_share=0", "measure=None"]
        >>> head = likeness.train("head", "voices.npz", "runs/head", settings=few)
        >>> likeness.join("runs/voices", "runs/head", "runs/adapted").modality
        'speaker'
    """
    out = Path(out)
    remove_abandoned(out)  # what a join that was killed has left
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise LikenessError(f"{out}: it exists already; give a new folder for the joined model")

    from likeness.models.load import load_named
    from likeness.models.model import load
    from likeness.models.trust import entries_of, packages_of
    from likeness.toolkit.models import checkpoint
    from likeness.toolkit.models.embedder import in_torch

    trusted = entries_of(trust)
    base = load_named(run_of(str(model)), frontend=frontend, trust=trusted)
    path = find_model(Path(head))
    trained, description, digest = checkpoint.read(path, checkpoint.FORMAT)
    load_named(str(path), trust=trusted)  # its weights are those of its description
    part = _fitting_head(description, path, base, str(model))
    tensors = {_renamed(name): value for name, value in in_torch(base).state_dict().items()}
    tensors |= {
        f"backbone.head.{name.removeprefix('backbone.')}": value
        for name, value in checkpoint.embedder_tensors(trained).items()
    }
    joined = _description(base, part, description) | {
        "joined": {"model": base.digest, "head": digest}
    }
    out.mkdir(parents=True, exist_ok=True)
    checkpoint.save(out / _JOINED, tensors, joined, checkpoint.FORMAT)
    # What the head names was checked above: it opens nothing that the user does not trust.
    return load(out, trust=[*trusted, *packages_of(base.parts)])


def _description(
    base: Loaded, head: Mapping[str, Any], trained: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the description of a joined model.

    Args:
        base: The model.
        head: The description of the head's network.
        trained: The description in the head's checkpoint. Its loss, in the recipe, says whether the
            norm measures quality.
    """
    from likeness.toolkit.models.embedder import Joined, in_torch
    from likeness.toolkit.models.parts import describe

    network = {"network": base.parts["backbone"], "head": dict(head)}
    return {
        **{name: trained[name] for name in ("features", "similarity", "step")},
        "metrics": trained.get("metrics", {}),
        "modality": base.modality,
        "frontend": base.parts["frontend"],
        "backbone": describe(Joined) | {"args": {**network, "features": in_torch(base).features}},
        "read": base.parts["read"],
        "version": likeness_version(),
        "recipe": trained.get("recipe"),
    }


def _fitting_head(
    description: Mapping[str, Any], path: Path, base: Loaded, model: str
) -> dict[str, Any]:
    """Return the description of a head's network, if it fits behind the model.

    Raises:
        LikenessError: It does not.
    """
    frontend = description.get("frontend")
    if not isinstance(frontend, dict) or frontend.get("call") != _FRONTEND:
        raise LikenessError(
            f"{path}: this is no head, but a model of modality {description.get('modality')!r}; "
            "give a run of the recipe head: likeness train head --data EMBEDDINGS --out HEAD"
        )
    if not base.parts:
        raise LikenessError(
            f"{model}: this model, such as one in ONNX form, has no weights of torch that a "
            "checkpoint can hold; give the run or checkpoint that it was made from, or train the "
            "network on with its weights (init=) and make the embeddings anew"
        )
    stated = frontend["args"] if isinstance(frontend.get("args"), dict) else {}
    if stated.get("model") != base.digest:
        raise LikenessError(
            f"{path}: the head was trained on embeddings of the model "
            f"{str(stated.get('model'))[:16]}, and {model} is {base.digest[:16]}; give that model, "
            "or embed with this one and train a head on the result"
        )
    part = description["backbone"]
    assert isinstance(part, dict)
    return part


def _renamed(name: str) -> str:
    """Return the name of a model's tensor in the joined model."""
    first, dot, rest = name.partition(".")
    return f"backbone.network.{rest}" if first == "backbone" else f"{first}{dot}{rest}"
