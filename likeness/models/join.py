"""Join a model and a head of its embeddings, or two models whose scores are summed, to one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

from likeness.eval.errors import LikenessError, likeness_version
from likeness.eval.formats.runs import EXPORTED, LAST, find_model
from likeness.eval.metrics.calibration import Fusion, load_fusion
from likeness.eval.option import Option
from likeness.eval.scoring.settings import Scoring
from likeness.eval.writing import atomic_folder, atomic_path
from likeness.models.bundled import run_of

if TYPE_CHECKING:
    from likeness.models.model import Model
    from likeness.toolkit.models.loaded import Loaded

_FRONTEND = "modalities.embedding.rows.Vectors"


def join(
    model: Annotated[str | Path, Option("MODEL", metavar="MODEL")],
    head: str | Path | None,
    out: Annotated[str | Path, Option(path="output")],
    *,
    beside: Annotated[str | Path | None, Option(metavar="MODEL")] = None,
    fusion: Annotated[str | Path | Fusion | None, Option(path="file")] = None,
    frontend: Literal["wespeaker", "3dspeaker"] = "wespeaker",
    trust: Annotated[str | Path | Sequence[str | Path], Option(metavar="PACKAGE|FILE|FOLDER")] = (),
    replaces: Annotated[bool, Option(is_typed=False)] = False,
) -> Model:
    """Join a model and a head of its embeddings, or two models whose scores are summed, to one.

    With a head, the embeddings of the joined model are those of the head on the embeddings of the
    model. It embeds, exports, serves and is fine-tuned as a model of `likeness.train`.

    With another model beside it, the embeddings of the joined model are those of both side by side,
    so that one cosine or dot product is the weighted sum of both scores. Each model keeps its own
    front-end, and its own reading where they differ. The result is in ONNX form and needs no torch.
    The probability of `verify` is that of the fusion; stored thresholds of either model do not hold
    for it.

    Args:
        model: the model: a run, a .safetensors checkpoint, speechbrain:SOURCE, wespeaker:FILE.pt,
            redimnet:FILE.pt, hub:FOLDER_OR_ID or own.py[:NAME]. It made the embeddings, and torch
            has its weights. With `beside` also likeness:voice or an .onnx file of `likeness
            export`.
        head: join the model and this run of `likeness train head --data EMBEDDINGS`, which was
            trained on its embeddings, to one model.
        out: the .onnx file to write; with --head a new folder for the model, and with --beside
            either. The folder must not exist or be empty.
        beside: join the model and this one, of the same modality, to one model whose score is the
            sum of theirs. It is named as the first one.
        fusion: with --beside: what `likeness fit fusion` wrote for the scores of both, in this
            order (default: the plain sum of both scores).
        frontend: as in `likeness.models.model.load`.
        trust: as in `likeness.models.model.load`.
        replaces: whether a file that is there is replaced, or refused.

    Returns:
        The joined model.

    Raises:
        LikenessError: a model does not exist. The head is none, or was trained on embeddings of
            another model or another size; the model has no weights of torch; or `out` is not empty.
            Two models are of different modalities or frames, or not scored by cosine or dot
            product; the fusion is of other systems, or no sum of their scores.

    Example:
        >>> import likeness
        >>> likeness.load("runs/voices").embed("voices").save("voices.npz")
        >>> few = ["schedule.steps=2", "sampling.batch_size=4", "compute.threads=1"]
        >>> few += ["items.test_share=0", "measure=None"]
        >>> head = likeness.train("head", "voices.npz", "runs/head", settings=few)
        >>> likeness.join("runs/voices", "runs/head", "runs/adapted").modality
        'speaker'
        >>> likeness.join("runs/adapted", None, "both", beside="likeness:voice").similarity
        'dot'
    """
    out = Path(out)
    is_free = not any(out.iterdir()) if out.is_dir() else replaces and out.is_file()
    if out.exists() and not is_free:
        raise LikenessError(f"{out}: it exists already; give a new folder for the joined model")
    if (head is None) == (beside is None) or (fusion is not None and beside is None):
        raise LikenessError("give a head, or another model beside this one and perhaps a fusion")

    from likeness.models.load import load_named, takes_frontend
    from likeness.models.model import load
    from likeness.models.trust import entries_of, packages_of

    trusted = entries_of(trust)
    if beside is not None:
        names = str(model), str(beside)
        takes = [takes_frontend(name) for name in names]
        chosen = [frontend if taken or not any(takes) else "wespeaker" for taken in takes]
        pair = [
            load_named(name, frontend=each, trust=trusted)
            for name, each in zip(names, chosen, strict=True)
        ]
        _write_sum(pair, fusion if isinstance(fusion, Fusion | None) else load_fusion(fusion), out)
        return load(out, trust=trusted)
    assert head is not None
    base = load_named(run_of(str(model)), frontend=frontend, trust=trusted)
    _write_with_head(base, str(model), Path(head), out, trusted)
    # What the head names was checked above: it opens nothing that the user does not trust.
    return load(out, trust=[*trusted, *packages_of(base.parts)])


def _write_sum(pair: Sequence[Loaded], fusion: Fusion | None, out: Path) -> None:
    """Write the model whose score is the weighted sum of the scores of two models."""
    from likeness.models._places import drop_other_calibration
    from likeness.models.load import load_exported
    from likeness.models.verdicts import calibration_path
    from likeness.toolkit.models import joint

    first, second = pair
    if first.modality != second.modality or "embedding" in (first.modality, second.modality):
        raise LikenessError(
            f"models of modality {first.modality!r} and {second.modality!r} do not embed the same "
            "items; give two models of recordings, of faces or of images"
        )
    frames = [of.settings.get("frame", "arcface") for of in pair]
    if frames[0] != frames[1]:
        raise LikenessError(
            f"the models take faces in the frames {' and '.join(frames)}; join models of one frame"
        )
    if others := [of.similarity for of in pair if of.similarity not in joint.SCORED_BY]:
        raise LikenessError(
            f"a model scored by {others[0]} cannot be joined beside another one; only cosines and "
            "dot products sum up to one (score both and fuse the scores: likeness fit fusion)"
        )
    weights = (1.0, 1.0) if fusion is None else _weights(fusion, pair)
    with TemporaryDirectory() as folder:
        files = [_exported(of, Path(folder) / f"{number}.onnx") for number, of in enumerate(pair)]
        is_file = out.suffix.lower() == ".onnx" and not out.is_dir()
        with atomic_path(out) if is_file else atomic_folder(out) as made:
            file = made if is_file else made / EXPORTED
            joint.write(files, weights, file)
            if fusion is not None:
                written = load_exported(file)
                beside = calibration_path(str(out if is_file else made))
                assert written is not None
                assert beside is not None
                # The cosine of both together is the mean of theirs, and no sum.
                slope = sum(weights) if written.similarity == "cosine" else 1.0
                system = Scoring().system(written.meta)
                Fusion((slope,), fusion.offset, (system,), p_target=fusion.p_target).save(beside)
    if fusion is None:
        drop_other_calibration(out)


def _weights(fusion: Fusion, pair: Sequence[Loaded]) -> tuple[float, ...]:
    """Return the weights of a fusion of two models.

    Raises:
        LikenessError: It is of other scores, or no sum of them that one dot product can be.
    """
    systems = [Scoring().system(of.meta) for of in pair]
    if not fusion.is_of(systems):
        raise LikenessError(
            f"the fusion {fusion.mismatch(systems)}; name its models, in its order, or fit one on "
            "plain scores of these by `likeness fit fusion`"
        )
    if fusion.names or fusion.knots or not all(weight > 0 for weight in fusion.weights):
        weights = ", ".join(f"{weight:.4g}" for weight in fusion.weights)
        raise LikenessError(
            f"the fusion (weights {weights}) is no sum with weights above 0; fit a plain sum by "
            "`likeness fit fusion`, or leave a model out"
        )
    return fusion.weights


def _exported(model: Loaded, path: Path) -> Path:
    """Return the .onnx file of a model, which is written to `path` unless it is in that form."""
    from likeness.toolkit.models.onnx import OnnxEmbedder

    if isinstance(model.embedder, OnnxEmbedder):
        if len(model.embedder.session.get_inputs()) > 1:
            raise LikenessError("a joint model of two readings cannot be joined again; give others")
        return model.embedder.session.path
    from likeness.toolkit.models.export import export

    export(model, path)
    return path


def _write_with_head(
    base: Loaded, model: str, head: Path, out: Path, trusted: Sequence[str]
) -> None:
    """Write the model whose embeddings are those of a head on the embeddings of another model."""
    from likeness.models.load import load_named
    from likeness.toolkit.models import checkpoint
    from likeness.toolkit.models.embedder import Joined, in_torch
    from likeness.toolkit.models.parts import describe

    path = find_model(head)
    trained, description, digest = checkpoint.read(path, checkpoint.FORMAT)
    load_named(str(path), trust=trusted)  # its weights are those of its description
    part = _fitting_head(description, path, base, model)
    own = in_torch(base).state_dict().items()
    tensors = {re.sub(r"^backbone\.", "backbone.network.", name): value for name, value in own}
    tensors |= {
        f"backbone.head.{name.removeprefix('backbone.')}": value
        for name, value in checkpoint.embedder_tensors(trained).items()
    }
    network = {"network": base.parts["backbone"], "head": part, "features": in_torch(base).features}
    joined = {
        **{name: description[name] for name in ("features", "similarity", "step")},
        "metrics": description.get("metrics", {}),
        "modality": base.modality,
        "frontend": base.parts["frontend"],
        "backbone": describe(Joined) | {"args": network},
        "read": base.parts["read"],
        "version": likeness_version(),
        "recipe": description.get("recipe"),  # whose loss says whether the norm measures quality
        "joined": {"model": base.digest, "head": digest},
    }
    with atomic_folder(out) as made:
        checkpoint.save(made / LAST, tensors, joined, checkpoint.FORMAT)


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
            f"{model}: this model has no weights of torch that a checkpoint can hold; give the run "
            "or checkpoint that it was made from"
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
