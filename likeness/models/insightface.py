"""InsightFace's recognition models (.onnx): which file of a pack is which, and the pixels that it
takes, as insightface 2.1 decides them.

The rules are those of insightface/model_zoo/model_zoo.py (ModelRouter, by the sizes of inputs and
the number of outputs), arcface_onnx.py (ArcFaceONNX, the scale by the names of the first nodes) and
package_manifest.py (packs with a manifest.json of version 2, which says both), so that an embedding
made here is the one made there. They are guesses: a network with a scale of its own whose nodes
have other names is scaled twice by both.

The weights that InsightFace publishes (buffalo_*, antelopev2, arcface_torch's zoo) are for
non-commercial research only; loading says so. Nothing is downloaded. Files are parsed as protocol
buffers with a bound on their size; what they hold runs in ONNX Runtime alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from eval.formats.boundary import Answer, Limits, ask_once
from eval.types import name_first
from toolkit.console import console

if TYPE_CHECKING:
    import onnx

Kind = Literal[
    "recognition", "detection", "dense landmarks", "gender and age", "face swapping", "unknown"
]
MAX_BYTES = 2**31 - 1  # of one file: what a protocol buffer holds at most
LICENCE = "the weights that InsightFace publishes are for non-commercial research only"
_MAX_MANIFEST = 2**20
_HEAD_NODES = 8  # ArcFaceONNX looks at so many
_LANDMARK_OUTPUTS = (9, 15)  # of an SCRFD detector with the five landmarks


class Pixels(NamedTuple):
    """A network over (B, 3, size, size) RGB that takes (x - mean) / std of x from 0 to 255."""

    size: int
    mean: float
    std: float


class Pack(NamedTuple):
    """The recognition network and what it takes; the SCRFD detector beside it, if a folder was
    named and has one. stated: whether a manifest says so.
    """

    recognition: Path
    pixels: Pixels
    detector: Path | None = None
    stated: bool = False

    def text(self) -> str:
        """What was loaded, and its licence, in a line."""
        means = (
            "0 to 255"
            if self.pixels.mean == 0 and self.pixels.std == 1
            else f"(x - {self.pixels.mean:g}) / {self.pixels.std:g}"
        )
        return (
            f"{self.recognition}: {self.pixels.size} x {self.pixels.size} RGB, {means}; {LICENCE}"
        )


def find(source: str) -> Pack:
    """FILE.onnx, or the FOLDER of an unpacked pack such as buffalo_l, where the first file of each
    kind in the order of names is taken (as FaceAnalysis does).

    ValueError: nothing there, a file over 2 GiB or that is no ONNX model, no recognition network, a
    manifest.json of version 2 that contradicts its folder.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return Pack(path, read_pixels(path))
    if not path.is_dir():
        raise ValueError(
            f"insightface:{source}: neither a file nor a folder; give a recognition .onnx file or "
            "the folder of an unpacked pack (nothing is downloaded)"
        )
    if _has_manifest(path):
        return _read_manifest(path)
    kinds: dict[Path, Kind] = {}
    for file in sorted(path.glob("*.onnx")):
        kinds[file] = _look(file).kind
    by_kind = {found: file for file, found in reversed(kinds.items())}  # the first of each stays
    if "recognition" not in by_kind:
        held = (
            name_first([f"{file.name}: {found}" for file, found in kinds.items()])
            if kinds
            else "no .onnx file"
        )
        inner = sorted({file.parent.name for file in path.glob("*/*.onnx")})
        remedy = (
            f"give {path / inner[0]}"
            if inner and not kinds
            else "give a recognition .onnx file or another pack"
        )
        raise ValueError(
            f"insightface:{source}: no recognition model in this folder ({held}); {remedy}"
        )
    recognition = by_kind["recognition"]
    return Pack(recognition, read_pixels(recognition), by_kind.get("detection"))


def check_detector(path: Path) -> None:
    """ValueError unless the file is an ONNX model with the outputs of an SCRFD detector with
    landmarks: 9 or 15.
    """
    seen = _look(path)
    if seen.num_outputs not in _LANDMARK_OUTPUTS:
        found = f"{seen.num_outputs} outputs ({seen.kind})"
        raise ValueError(
            f"detector {path}: a model with {found}; an SCRFD detector with landmarks has 9 or 15 "
            "(its name says kps or bnkps)"
        )


def read_pixels(path: Path, *, scale: tuple[float, float] | None = None) -> Pixels:
    """The pixels that a recognition network takes; `scale`, a mean and a std, where a manifest says
    it. ValueError: a file of another kind, several outputs.
    """
    seen = _look(path)
    if seen.kind != "recognition" or seen.num_outputs != 1:
        raise ValueError(
            f"{path}: no recognition model of InsightFace ({seen.kind}; inputs {seen.sizes}, "
            f"{seen.num_outputs} outputs); one input (B, 3, S, S), S at least"
            " 112 and a multiple of 16, and one output (B, dim) are needed"
        )
    return Pixels(int(seen.sizes[0][2] or 0), *(scale or seen.scale))


def kind(graph: onnx.GraphProto) -> Kind:
    """What ModelRouter.get_model takes a network for."""
    sizes = _sizes(graph)
    height, width = sizes[0][2:4] if sizes and len(sizes[0]) == 4 else (None, None)
    if len(graph.output) >= 5:
        return "detection"
    if height is None or height != width:
        return "unknown"
    if height in (96, 192):
        return "gender and age" if height == 96 else "dense landmarks"
    if height == 128 and len(sizes) == 2:
        return "face swapping"
    return "recognition" if height >= 112 and height % 16 == 0 else "unknown"


def say(pack: Pack) -> None:
    """The licence where the weights are loaded, on stderr."""
    console.print(pack.text())


def _guess_scale(graph: onnx.GraphProto) -> tuple[float, float]:
    """Mean and std by ArcFaceONNX's rule: a network that begins with a Sub and a Mul (MXNet's)
    scales its pixels itself.
    """
    names = [node.name for node in graph.node[:_HEAD_NODES]]
    subtracts, multiplies = (
        any(name.startswith(starts) for name in names)
        for starts in (("Sub", "_minus"), ("Mul", "_mul"))
    )
    return (0.0, 1.0) if subtracts and multiplies else (127.5, 127.5)


def _sizes(graph: onnx.GraphProto) -> list[tuple[int | None, ...]]:
    """The inputs' shapes, None where a size is free.

    Old files list their weights among the inputs.
    """
    weights = {one.name for one in graph.initializer}
    shapes = [one.type.tensor_type.shape.dim for one in graph.input if one.name not in weights]
    return [
        tuple(dim.dim_value if dim.dim_value > 0 else None for dim in shape) for shape in shapes
    ]


class _Look(NamedTuple):
    """What is to be known of a file: the kind of network, the sizes of its inputs, how many
    outputs, and the scale by its nodes' names.
    """

    kind: Kind
    sizes: list[tuple[int | None, ...]]
    num_outputs: int
    scale: tuple[float, float]


def _look(path: Path) -> _Look:
    """ValueError: no file, too large, no ONNX model, tensors in other files.

    It is parsed in a process of its own: a few bytes may unfold to any size.
    """
    if not path.is_file():
        raise ValueError(
            f"{path} does not exist; the path of an .onnx file on this machine is needed (nothing "
            "is downloaded)"
        )
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{path}: {size} bytes; an .onnx file holds at most {MAX_BYTES}")
    limits = Limits(seconds=8.0 + size / 2e7, memory=(1 << 29) + 4 * size, answer=0)
    found, _ = ask_once(
        look_here, str(path.absolute()), preload=(__name__, "onnx"), about=path, limits=limits
    )
    return _Look(
        found["kind"],
        [tuple(one) for one in found["sizes"]],
        found["outputs"],
        tuple(found["scale"]),
    )


def look_here(path: str) -> Answer:
    """The fields of _Look, by onnx in this very process."""
    graph = _graph(Path(path))
    sizes = _sizes(graph)
    if len(sizes) > 100 or any(len(one) > 16 for one in sizes):
        raise ValueError(f"{path}: no network over images ({len(sizes)} inputs)")
    return {
        "kind": kind(graph),
        "sizes": sizes,
        "outputs": len(graph.output),
        "scale": _guess_scale(graph),
    }, []


def _graph(path: Path) -> onnx.GraphProto:
    try:
        import onnx
    except ImportError:
        raise ImportError(
            f"{path}: an .onnx model needs onnx; run `pip install 'likeness[export]'`"
        ) from None
    try:
        graph = onnx.load_model(str(path), format="protobuf", load_external_data=False).graph
    except (
        Exception
    ) as error:  # protobuf's DecodeError has no base but Exception, and onnx has its own
        raise ValueError(
            f"{path}: no ONNX model ({(str(error).splitlines() or ['empty'])[0][:200]})"
        ) from None
    if not graph.node:
        raise ValueError(f"{path}: no ONNX model (it has no nodes)")
    apart = [
        one.name for one in graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL
    ]
    if apart:  # they are in no digest, and their paths lead anywhere
        raise ValueError(
            f"{path}: {len(apart)} tensors lie in other files ({name_first(apart)}); save the "
            "model as one file (onnx.save of onnx.load)"
        )
    return graph


def _has_manifest(folder: Path) -> bool:
    """Whether manifest.json asks for the rules of version 2; InsightFace passes over others."""
    file = folder / "manifest.json"
    if not file.is_file():
        return False
    if file.stat().st_size > _MAX_MANIFEST:
        raise ValueError(f"{file}: {file.stat().st_size} bytes; at most {_MAX_MANIFEST} are read")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("manifest_version") == 2


def _read_manifest(folder: Path) -> Pack:
    """By InsightFace's own reader, which keeps every path inside the folder and checks the digests
    that the manifest states.
    """
    os.environ.setdefault(
        "NO_ALBUMENTATIONS_UPDATE", "1"
    )  # which insightface imports, and which would ask the network for a newer version
    from insightface.model_zoo import package_manifest as manifests

    try:
        tasks = manifests.load_model_package(folder).tasks
        files = {
            name: manifests.verify_model_artifact(tasks[name])
            for name in ("recognition", "detection")
            if name in tasks
        }
    except (ValueError, TypeError, OSError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"insightface:{folder}: its manifest.json does not fit the folder: {error}"
        ) from None
    if "recognition" not in files:
        raise ValueError(
            f"insightface:{folder}: its manifest.json states no recognition model, but "
            f"{', '.join(tasks) or 'nothing'}; give another pack"
        )
    scales = {name: _scale(tasks[name].metadata["preprocessing"]) for name in files}
    detector = (
        files.get("detection") if scales.get("detection") == (127.5, 128.0) else None
    )  # what modalities.face.align feeds detectors
    return Pack(
        files["recognition"],
        read_pixels(files["recognition"], scale=scales["recognition"]),
        detector,
        stated=True,
    )


def _scale(stated: Any) -> tuple[float, float]:
    return (0.0, 1.0) if stated == "embedded" else (float(stated["mean"]), float(stated["std"]))
