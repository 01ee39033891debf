"""One .onnx file of a model: front-end and network in one graph, with what is needed to embed in
its metadata, checked against torch before it is there.
"""

from __future__ import annotations

import inspect
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from eval.formats.files import atomic_path
from eval.formats.provenance import likeness_version
from toolkit.models import onnx, onnx_process
from toolkit.models.checkpoint import Loaded
from toolkit.models.embed import TorchEmbedder
from toolkit.models.parts import describe

MAX_DISTANCE = (
    1e-4  # cosine distance between the embeddings of one item on torch and on ONNX Runtime
)
MAX_NORM_ERROR = 1e-3  # relative difference of their norms
_SECONDS = (
    (9, 0.7),
    (1, 6.01),
    (3, 1.93),
    (2, 3.0),
)  # batches of the check: number of items, length
_IMAGES = (1, 3, 9)
_NEEDED = ("onnx", "onnxscript", "onnxruntime")


class Parity(NamedTuple):
    """How near ONNX Runtime is to torch: the largest cosine distance and relative error of the norm
    over so many items.
    """

    distance: float
    norm_error: float
    num_items: int


def export(model: Loaded, path: Path, *, size: tuple[int, int] | None = None) -> Parity:
    """Writes the whole embedder, waves (B, S) or images (B, C, H, W) of levels 0 to 255 -> (B, dim)
    raw embeddings, with free batch and length.

    size: height and width of the images, where neither the model's reading nor its network says
    them. Larger images than a front-end crops to are cropped when they are read instead, so that
    the graph takes one size. The graph goes through torch.export; front-ends are in it as they are
    (ONNX has the operator DFT). The file is there only if synthetic items of several lengths and
    batch sizes give the same embeddings on ONNX Runtime within MAX_DISTANCE and MAX_NORM_ERROR.
    ValueError: it does not, the network cannot be exported, 2 GiB or more, no size known.
    ImportError names the extra to install.
    """
    missing = [name for name in _NEEDED if not _installed(name)]
    if missing:
        raise ImportError(
            f"export needs {', '.join(missing)}; run `pip install 'likeness[export]'`"
        )
    if path.suffix.lower() != ".onnx":
        raise ValueError(
            f"{path}: an ONNX model is named FILE.onnx, which is how it is known as a model"
        )
    if hasattr(model.embedder.backbone, "session"):
        raise ValueError(
            "the model runs in ONNX Runtime already; give the checkpoint that it was made from"
        )
    embedder = model.embedder.cpu().eval()
    shape, read = _shape_and_read(model, size)
    batches = (
        _images(cast(tuple[int, int, int], shape)) if len(shape) == 3 else _waves(_rate_hz(model))
    )
    proto = _translate(embedder, batches[-1], "images" if len(shape) == 3 else "waves")
    description = {
        "format": onnx.FORMAT,
        "modality": model.modality,
        "similarity": model.similarity,
        "dim": embedder.dim,
        "digest": model.digest,
        "norm_is_quality": model.norm_is_quality,
        "read": describe(read, "read"),
        "shape": shape,
        "version": likeness_version(),
    }
    proto.metadata_props.add(key=onnx.KEY, value=json.dumps(description))
    if proto.ByteSize() > onnx.MAX_BYTES:
        raise ValueError(
            f"{path}: the model has {proto.ByteSize()} bytes; an .onnx file holds at most "
            f"{onnx.MAX_BYTES}: export a smaller network"
        )
    with atomic_path(path) as temporary:
        temporary.write_bytes(proto.SerializeToString())
        written = onnx.read(temporary)
        assert written is not None
        found = compare(model.embedder, written[0], batches)
        if not (
            found.distance <= MAX_DISTANCE and found.norm_error <= MAX_NORM_ERROR
        ):  # so written, NaN is refused too
            raise ValueError(
                f"{path}: on ONNX Runtime the embeddings differ from torch's by a cosine distance "
                f"of {found.distance:.1e} and a norm of {found.norm_error:.1e};"
                f" at most {MAX_DISTANCE:.0e} and {MAX_NORM_ERROR:.0e} are allowed: nothing was "
                "written"
            )
    return found


@torch.no_grad()
def compare(embedder: TorchEmbedder, other: TorchEmbedder, batches: list[Tensor]) -> Parity:
    """Both embedders on the same batches."""
    distance = norm_error = 0.0
    for batch in batches:
        a, b = (one(batch).double().numpy() for one in (embedder, other))
        norms = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
        either = np.maximum(*norms)
        distances = 1 - (a * b).sum(axis=1) / np.maximum(norms[0] * norms[1], 1e-300)
        distances[either == 0] = 0.0  # two zero vectors are equal
        distance = max(distance, float(distances.max())) if np.isfinite(distances).all() else np.nan
        norm_error = max(
            norm_error, float((abs(norms[0] - norms[1]) / np.maximum(either, 1e-300)).max())
        )
        if not np.isfinite(a).all() or not np.isfinite(b).all():
            return Parity(np.nan, np.nan, sum(map(len, batches)))
    return Parity(distance, norm_error, sum(map(len, batches)))


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _translate(embedder: torch.nn.Module, example: Tensor, name: str) -> Any:
    """The ONNX model.

    What the exporter says of this machine (paths, lines of source) is taken out again.
    """
    from onnxscript import opset20

    op: Any = opset20

    def stable_sort(
        self: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
    ) -> Any:
        """aten::sort.stable, which the exporter lacks: TopK of all.

        ONNX has the lower index first among equals, so it is stable.
        """
        return op.TopK(
            self,
            op.Gather(op.Shape(self), op.Constant(value_ints=[dim])),
            axis=dim,
            largest=int(descending),
            sorted=1,
        )

    free = {0: "batch"} if example.ndim == 4 else {0: "batch", 1: "samples"}
    with _quiet():
        try:
            program = torch.onnx.export(
                embedder,
                # OrderStatistics sorts in numpy, which no export follows, where no gradient is
                # asked for
                (example[:2].clone().requires_grad_(),),
                input_names=[name],
                output_names=["embeddings"],
                dynamic_shapes=(free,),
                dynamo=True,
                verbose=False,
                custom_translation_table={torch.ops.aten.sort.stable: stable_sort},
            )
        except Exception as error:  # torch.onnx and torch.export have some dozen kinds
            cause = error.__cause__ or error
            raise ValueError(
                f"the model cannot be exported to ONNX: {type(cause).__name__}: "
                f"{(str(cause).splitlines() or [''])[0][:300]}"
            ) from error
    assert program is not None
    proto = program.model_proto
    del proto.metadata_props[:], proto.graph.metadata_props[:]
    proto.producer_version = ""
    for graph in (proto.graph, *proto.functions):
        for part in onnx_process.parts(graph):
            part.ClearField("metadata_props")
            part.ClearField("doc_string")
    for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        value.ClearField("metadata_props")
    return proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's advice for those who wrote the network."""
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
    ]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)


def _default(model: Loaded, name: str) -> Any:
    """What the model's reading has for an argument, stated or by default; None where it has no such
    argument.
    """
    parameter = inspect.signature(model.read).parameters.get(name)
    return (
        None
        if parameter is None or parameter.default is inspect.Parameter.empty
        else parameter.default
    )


def _rate_hz(model: Loaded) -> int:
    return int(_default(model, "rate_hz") or 16_000)


def _shape_and_read(
    model: Loaded, size: tuple[int, int] | None
) -> tuple[tuple[int | None, ...], Any]:
    """What follows the batch in the graph's input, and the reading that gives such inputs."""
    if model.modality == "speaker":
        if size is not None:
            raise ValueError(
                f"size {size[0]} x {size[1]} is for images; this is a model of modality 'speaker', "
                "whose inputs may have any length: leave it out"
            )
        return (None,), model.read
    frontend, read = cast(Any, model.embedder.frontend), cast(Any, model.read)
    crop = getattr(frontend, "crop", 0)
    if crop and "crop" in inspect.signature(read).parameters:
        read = partial(read, crop=crop)
    known = (
        crop
        or _default(model, "crop")
        or _default(model, "size")
        or getattr(model.embedder.backbone, "image_size", None)
        or size
    )
    if known is None:
        raise ValueError(
            "the model takes images of any size, and an .onnx graph one; name it: --size "
            "HEIGHTxWIDTH"
        )
    height, width = (known, known) if isinstance(known, int) else known
    if size is not None and size != (height, width):
        raise ValueError(
            f"size {size[0]} x {size[1]}: the model's images have {height} x {width}; leave the "
            "size out"
        )
    return (int(frontend.dim), int(height), int(width)), read


def _waves(rate_hz: int) -> list[Tensor]:
    """Noise of changing colour and level with pauses: every item another spectrum."""
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
        level = np.clip(
            np.sin(np.arange(samples) / rate_hz * rng.uniform(8, 30, (num, 1))) + 0.7, 0, None
        )
        wave = wave * level
        batches.append(
            torch.from_numpy((0.3 * wave / abs(wave).max(axis=1, keepdims=True)).astype(np.float32))
        )
    return batches


def _images(shape: tuple[int, int, int]) -> list[Tensor]:
    """Smooth random levels, 0 to 255."""
    generator = torch.Generator().manual_seed(0)
    channels, height, width = shape
    batches = []
    for num in _IMAGES:
        coarse = torch.rand(num, channels, 6, 6, generator=generator) * 1.4 - 0.2
        batches.append(
            torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
            .clamp(0, 1)
            .mul(255)
            .round()
        )
    return batches
