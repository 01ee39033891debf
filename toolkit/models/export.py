"""Export a model as one .onnx file: front-end and network in one graph.

The file's metadata hold what else is needed to embed. Before the file is there, its embeddings are
compared with those of torch.
"""

import ast
import hashlib
import inspect
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copyfile
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likeness.eval.errors import LikenessError, first_line, likeness_version
from likeness.eval.formats.provenance import digest
from likeness.eval.items.items import Item
from likeness.eval.progress import step, track
from likeness.eval.writing import atomic_path
from likeness.toolkit.data.reading import Bad, Read, Remark
from likeness.toolkit.models import _quantization, onnx
from likeness.toolkit.models.embed import inputs_of
from likeness.toolkit.models.embedder import in_torch
from likeness.toolkit.models.loaded import Embedder, Loaded
from likeness.toolkit.models.parts import describe

# How far the embeddings of one item on torch and on ONNX Runtime may differ: their cosine distance,
# and the relative difference of their norms.
MAX_DISTANCE = 1e-4
MAX_NORM_ERROR = 1e-3
# The batches of the check: the number of items, and for speech their length in seconds.
_SECONDS = ((9, 0.7), (1, 6.01), (3, 1.93), (2, 3.0))
_IMAGES = (1, 3, 9)
# Where the exporter says which module of the network a node comes from.
_SCOPES = "pkg.torch.onnx.name_scopes"
_MOST_SAMPLES = 10 * 16_000  # of a wave for calibration
# Their advice is for those who wrote the network.
_ADVISERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


class Parity(NamedTuple):
    """How near ONNX Runtime is to torch.

    Attributes:
        distance: The largest cosine distance between the two embeddings of an item.
        norm_error: The largest relative difference of their norms.
        num_items: The number of items that were compared.
    """

    distance: float
    norm_error: float
    num_items: int


def export(
    model: Loaded,
    path: Path,
    *,
    size: tuple[int, int] | None = None,
    precision: Literal["float32", "float16", "int8"] = "float32",
    calibration: Sequence[Item] = (),
) -> Parity:
    """Write the whole embedder as one .onnx file, after comparing it with torch.

    The graph takes waves (B, S) or images (B, C, H, W) of levels 0 to 255 and gives raw embeddings
    (B, dim). The batch and the length of waves are free. The graph goes through torch.export;
    front-ends are in it as they are (ONNX has the operator DFT). The file is written only if
    synthetic items of several lengths and batch sizes have the same embeddings on ONNX Runtime
    within MAX_DISTANCE and MAX_NORM_ERROR.

    A model that is such a file already is copied.

    A smaller precision gives other embeddings, so that neither limit holds for it, and its digest
    is another one.

    Args:
        model: The model.
        path: The file, FILE.onnx.
        size: Height and width of the images, where neither the model's reading nor its network
            states them.
        precision: Of the weights, and in int8 of the products.
        calibration: Items of the kind that the model will see, from which int8 takes the ranges of
            what flows through the network.

    Raises:
        LikenessError: The embeddings differ, the network cannot be exported, or no size is known.
    """
    session = getattr(model.embedder, "session", None)
    is_exact = precision == "float32"
    if session is not None and is_exact and path.suffix.lower() == ".onnx":
        with atomic_path(path) as temporary:
            copyfile(session.path, temporary)
        return Parity(0.0, 0.0, 0)
    check_exportable(model, path)
    embedder = in_torch(model).cpu().eval()
    shape = shape_of(model, size)
    rate_hz = int(_default(model, "rate_hz") or 16_000)
    name, batches = ("waves", waves(rate_hz)) if shape[0] is None else ("images", images(shape))
    proto, frontend = translate(embedder, batches[-1], name)
    description: dict[str, Any] = {
        "format": onnx.FORMAT,
        "modality": model.modality,
        "similarity": model.similarity,
        "dim": embedder.dim,
        "digest": model.digest,
        "norm_is_quality": model.norm_is_quality,
        "read": describe(model.read, "read"),
        "shape": shape,
        "version": likeness_version(),
    }
    if precision == "float16":
        proto = _quantization.halve_weights(proto, keep=frontend)
    elif precision == "int8":
        inputs = _readable(calibration, cast(Read, model.read), shape)
        proto = _quantization.quantize_int8(proto, inputs, keep=frontend)
    if not is_exact:
        content = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
        description |= {"digest": digest([model.digest, content]), "precision": precision}
    with atomic_path(path) as temporary:
        write(proto, {onnx.KEY: json.dumps(description)}, temporary)
        written = onnx.read(temporary)
        assert written is not None
        parity = compare(embedder, written[0], batches)
        most = (MAX_DISTANCE, MAX_NORM_ERROR) if is_exact else (math.inf, math.inf)
        # With `not` in front of `<=`, NaN is refused too.
        if not (parity.distance <= most[0] and parity.norm_error <= most[1]):
            raise LikenessError(
                f"{path}: on ONNX Runtime the embeddings differ from torch's by a cosine distance "
                f"of {parity.distance:.1e} and by {parity.norm_error:.1e} of their norm; at most "
                f"{most[0]:.0e} and {most[1]:.0e} are allowed: nothing was written"
            )
    return parity


def shape_of(model: Loaded, size: tuple[int, int] | None = None) -> tuple[int | None, ...]:
    """Return what follows the batch in the inputs of a model's graph; None is any size.

    Args:
        model: The model.
        size: Height and width of the images, where the model does not state them.

    Raises:
        LikenessError: No size is known, or another one.
    """
    if model.modality == "speaker":
        return (None,)
    embedder = in_torch(model)
    known = (
        _default(model, "crop")
        or _default(model, "size")
        or getattr(embedder.backbone, "image_size", None)
        or size
    )
    known = (known, known) if isinstance(known, int) else known
    if known is None or (size is not None and size != tuple(known)):
        own = "any size" if known is None else f"{known[0]} x {known[1]} alone"
        raise LikenessError(
            f"the model takes images of {own}, and an .onnx graph takes one size: name it by "
            "--size HEIGHTxWIDTH where it takes any, and leave it out otherwise"
        )
    return (cast(int, embedder.frontend.dim), int(known[0]), int(known[1]))


def _readable(
    items: Sequence[Item], read: Read, shape: tuple[int | None, ...]
) -> list[NDArray[np.float32]]:
    """Return the inputs of the items that can be read, each a batch of one.

    A warning counts the others. Long waves are cut to their middle: what flows through a network
    does not grow with their length, and the time does.

    Raises:
        LikenessError: None of them can be read; the reason of the first is given.
    """
    inputs, bad = [], list[Bad]()
    for _, values in inputs_of(items, read):
        if isinstance(values, Bad):
            bad.append(values)
        elif values is not None and not isinstance(values, Remark):
            if shape == (None,):
                start = max(0, (len(values) - _MOST_SAMPLES) // 2)
                values = values[start : start + _MOST_SAMPLES]
            inputs.append(np.asarray(values, dtype=np.float32)[None])
    if bad:
        text = f"{len(bad)} of {len(items)} items for calibration cannot be read ({bad[0].reason})"
        if not inputs:
            raise LikenessError(f"{text}; give others")
        warnings.warn(f"{text}, and are left out", stacklevel=1)
    return inputs


def write(proto: Any, metadata: Mapping[str, str], file: Path) -> None:
    """Write a graph with its metadata into a file.

    Args:
        proto: The ModelProto, whose metadata are replaced.
        metadata: Key -> value.
        file: The file to write.
    """
    del proto.metadata_props[:]
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    file.write_bytes(proto.SerializeToString())


def check_exportable(model: Loaded, path: Path) -> None:
    """Raise what stands against exporting this model to this file, before any work is done."""
    if path.suffix.lower() != ".onnx":
        raise LikenessError(
            f"{path}: an ONNX model is named FILE.onnx, which is how it is known as a model"
        )
    in_onnx = hasattr(getattr(model.embedder, "backbone", model.embedder), "session")
    if in_onnx or model.modality == "embedding":
        raise LikenessError(
            "the model runs in ONNX Runtime or is a head; give its checkpoint, or join the head"
        )


def compare(embedder: Embedder, other: Embedder, batches: list[Tensor]) -> Parity:
    """Compare the embeddings of two embedders on the same batches."""
    distance = norm_error = 0.0
    for batch in track(batches, "comparing with torch"):
        a, b = (
            network.embed_batch(batch.numpy()).astype(np.float64) for network in (embedder, other)
        )
        if not np.isfinite(a).all() or not np.isfinite(b).all():
            return Parity(np.nan, np.nan, sum(map(len, batches)))
        norms = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
        either = np.maximum(*norms)
        distances = 1 - (a * b).sum(axis=1) / np.maximum(norms[0] * norms[1], 1e-300)
        distances[either == 0] = 0.0  # two zero vectors are equal
        errors = abs(norms[0] - norms[1]) / np.maximum(either, 1e-300)
        distance = max(distance, float(distances.max()))
        norm_error = max(norm_error, float(errors.max()))
    return Parity(distance, norm_error, sum(map(len, batches)))


@step("translating the network to ONNX")
def translate(embedder: torch.nn.Module, example: Tensor, name: str) -> tuple[Any, frozenset[str]]:
    """Return the model in ONNX form, and the names of the nodes of its front-end.

    What the exporter writes about this machine (paths, lines of source) is taken out again.

    Args:
        embedder: Front-end and network.
        example: Inputs of the shape that the graph is to take: waves (B, S), features (B, T, F) or
            images (B, C, H, W). The sizes B, S and T are free.
        name: The name of the graph's input.

    Raises:
        LikenessError: The network cannot be exported.
    """
    free = {0: "batch"}
    if example.ndim < 4:
        free[1] = "samples" if example.ndim == 2 else "frames"
    with warnings.catch_warnings(), _quantization.silence_loggers(*_ADVISERS):
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                embedder,
                # With a gradient, OrderStatistics sorts in torch. Otherwise it sorts in numpy,
                # which no export can follow.
                (example[:2].clone().requires_grad_(),),
                input_names=[name],
                output_names=["embeddings"],
                dynamic_shapes=(free,),
                dynamo=True,
                verbose=False,
                custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
            )
        except Exception as error:  # torch.onnx and torch.export raise some dozen types
            cause = error.__cause__ or error
            reason = f"{type(cause).__name__}: {first_line(cause)}"
            if _leaves_torch(embedder, example[:2]):
                reason = (
                    "numpy, onnxruntime or another library computes a part of it, and no export "
                    f"can follow what leaves torch; write that part in torch ({reason})"
                )
            raise LikenessError(f"the model cannot be exported to ONNX: {reason}") from error
    assert program is not None
    proto = program.model_proto
    del proto.metadata_props[:], proto.graph.metadata_props[:]
    proto.producer_version = ""
    frontend = frozenset(node.name for node in proto.graph.node if _is_of_frontend(node))
    for part in onnx.parts_of(proto):
        for field in ("metadata_props", "doc_string"):
            if field in part.DESCRIPTOR.fields_by_name:
                part.ClearField(field)
    return proto, frontend


def _leaves_torch(embedder: torch.nn.Module, example: Tensor) -> bool:
    """Whether no gradient comes from the embeddings to the inputs: others compute in between."""
    inputs = example.clone().requires_grad_()
    try:
        with torch.enable_grad():
            total = embedder(inputs).sum()
            return torch.autograd.grad(total, inputs, allow_unused=True)[0] is None
    except Exception as error:  # a tensor with a gradient gives no array, and says so
        return "numpy" in str(error) or "does not require grad" in str(error)


def _stable_sort(
    self: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """Translate aten::sort.stable, which the exporter lacks, to TopK of all values.

    ONNX puts the lower index first among equal values, so the sort is stable.
    """
    import onnxscript

    op: Any = onnxscript.opset20
    size = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]))
    return op.TopK(self, size, axis=dim, largest=int(descending), sorted=1)


def _is_of_frontend(node: Any) -> bool:
    """Whether the exporter says that a node comes from the embedder's front-end."""
    scopes = [entry.value for entry in node.metadata_props if entry.key == _SCOPES]
    return bool(scopes) and ast.literal_eval(scopes[0])[1:2] == ["frontend"]


def _default(model: Loaded, name: str) -> Any:
    """Return what the model's reading has for an argument, bound or by default.

    None means that it has no such argument.
    """
    parameter = inspect.signature(model.read).parameters.get(name)
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return None
    return parameter.default


def waves(rate_hz: int) -> list[Tensor]:
    """Return batches (B, S) of noise whose colour and level change, with pauses.

    Every item has another spectrum, and every batch another length.
    """
    rng = np.random.default_rng(0)
    batches = []
    for num, seconds in _SECONDS:
        samples = round(seconds * rate_hz)
        spectrum = np.fft.rfft(rng.standard_normal((num, samples)))
        place = np.linspace(0, 1, spectrum.shape[1])
        resonances = sum(
            np.exp(-(((place - rng.uniform(0.02, 0.8, (num, 1))) / 0.05) ** 2)) for _ in range(3)
        )
        wave = np.fft.irfft(spectrum * (0.05 + resonances), samples)
        angle = np.arange(samples) / rate_hz * rng.uniform(8, 30, (num, 1))
        wave = wave * np.clip(np.sin(angle) + 0.7, 0, None)
        wave = 0.3 * wave / abs(wave).max(axis=1, keepdims=True)
        batches.append(torch.from_numpy(wave.astype(np.float32)))
    return batches


def images(shape: Sequence[Any]) -> list[Tensor]:
    """Return images of smooth random levels from 0 to 255."""
    generator = torch.Generator().manual_seed(0)
    channels, height, width = shape
    batches = []
    for num in _IMAGES:
        coarse = torch.rand(num, channels, 6, 6, generator=generator) * 1.4 - 0.2
        fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
        batches.append(fine.clamp(0, 1).mul(255).round())
    return batches
