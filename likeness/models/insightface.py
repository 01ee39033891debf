"""InsightFace's recognition models and other face networks (.onnx): which is which, and the pixels.

Both are decided as insightface 2.1 decides them, so that an embedding made here is the one made
there. The rules are those of insightface/model_zoo/model_zoo.py (ModelRouter, by the sizes of
inputs and the number of outputs), arcface_onnx.py (ArcFaceONNX, the scale by the names of the first
nodes) and package_manifest.py (packs with a manifest.json of version 2, which states both). The
rules are guesses: a network that scales its pixels itself, but whose nodes have other names, has
them scaled twice, here as there.

A file that is named by itself may be any face network over (B, 3, H, W) with one output. What the
file does not say is written after it: `FILE.onnx@size=112x96,mean=127.5,std=128,order=bgr` (each of
them may be left out). A size is needed where the file has none, or one of a network of another kind
(96 x 96 is that of gender and age).

The weights that InsightFace publishes (buffalo_*, antelopev2, arcface_torch's zoo) are for
non-commercial research only, and loading them prints that. Nothing is downloaded. Files are parsed
as protocol buffers with a bound on their size; what they hold runs in ONNX Runtime alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from eval.errors import LikenessError, first_line
from eval.types import name_first
from likeness.models.pixels import MAX_SIDE, Pixels, Stated, split
from toolkit.console import say

if TYPE_CHECKING:
    import onnx

Kind = Literal[
    "recognition", "detection", "dense landmarks", "gender and age", "face swapping", "unknown"
]
MAX_BYTES = 2**31 - 1  # of one file: what a protocol buffer holds at most
LICENCE = "the weights that InsightFace publishes are for non-commercial research only"
_OF_TORCH = (".pt", ".pth")
_MAX_MANIFEST = 2**20
_HEAD_NODES = 8  # the number of nodes that ArcFaceONNX looks at
_TRUST_SIZE = "; if it is one all the same, state its size after it, @size=HEIGHTxWIDTH"
_LANDMARK_OUTPUTS = (9, 15)  # of an SCRFD detector with the five landmarks


def is_state_dict(source: str) -> bool:
    """Return whether a path names a file of torch and not one of ONNX or a folder."""
    return Path(source).suffix.lower() in _OF_TORCH


class Pack(NamedTuple):
    """A recognition network, the pixels that it takes, and the detector beside it.

    Attributes:
        recognition: The .onnx file of the network.
        pixels: What it takes.
        detector: The SCRFD or YuNet detector, if a folder was named and has one.
        stated: Whether a manifest states these.
        named: What stood after the file and is not what the file says; "" if nothing did.
    """

    recognition: Path
    pixels: Pixels
    detector: Path | None = None
    stated: bool = False
    named: str = ""

    def text(self) -> str:
        """Return what was loaded, and its licence, in one line."""
        (height, width), mean, std, bgr = self.pixels
        order = "BGR" if bgr else "RGB"
        scale = "0 to 255" if mean == 0 and std == 1 else f"(x - {mean:g}) / {std:g}"
        return f"{self.recognition}: {height} x {width} {order}, {scale}; {LICENCE}"


def find(source: str) -> Pack:
    """Return the recognition network that a path names, and the detector beside it.

    Args:
        source: FILE.onnx, perhaps with a statement (`split`), or the FOLDER of an unpacked pack
            such as buffalo_l. Of a folder, the first file of each kind in the order of names is
            taken, as FaceAnalysis does.

    Raises:
        LikenessError: There is nothing, a file of over 2 GiB or that is no ONNX model, no
            recognition network, or a manifest.json of version 2 that contradicts its folder.
    """
    path, stated = split(source)
    if path.is_file():
        pixels = read_pixels(path, stated=stated)
        return Pack(path, pixels, named=_unlike_its_file(path, pixels, stated))
    if not path.is_dir():
        raise LikenessError(
            f"insightface:{source}: neither a file nor a folder; give a recognition .onnx file or "
            "the folder of an unpacked pack (nothing is downloaded)"
        )
    if stated != Stated():
        raise LikenessError(
            f"insightface:{source}: {path} is a folder, and only of one file can the pixels be "
            "stated; name the recognition .onnx file in it"
        )
    if _has_manifest(path):
        return _read_manifest(path)
    kinds: dict[Path, Kind] = {}
    for file in sorted(path.glob("*.onnx")):
        kinds[file] = _look(file).kind
    # Later entries overwrite earlier ones, so in reversed order the first file of each kind stays.
    by_kind = {seen: file for file, seen in reversed(kinds.items())}
    if "recognition" not in by_kind:
        listed = name_first([f"{file.name}: {seen}" for file, seen in kinds.items()])
        remedy = "give a recognition .onnx file or another pack"
        inner = sorted({file.parent.name for file in path.glob("*/*.onnx")})
        if inner and not kinds:
            remedy = f"give {path / inner[0]}"
        raise LikenessError(
            f"insightface:{source}: no recognition model in this folder "
            f"({listed if kinds else 'no .onnx file'}); {remedy}"
        )
    recognition = by_kind["recognition"]
    return Pack(recognition, read_pixels(recognition), by_kind.get("detection"))


def check_detector(path: Path) -> None:
    """Check that a file is an ONNX model with the outputs of YuNet, or of SCRFD with landmarks.

    Raises:
        LikenessError: It has other outputs, or is no ONNX model.
    """
    # detectors.py imports torch, which looking into files does not need.
    from modalities.face.detectors import is_yunet

    seen = _look(path)
    if not is_yunet(seen.outputs) and seen.num_outputs not in _LANDMARK_OUTPUTS:
        raise LikenessError(
            f"detector {path}: a model with {seen.num_outputs} outputs ({seen.kind}); an SCRFD "
            "detector with landmarks has 9 or 15 (its name says kps or bnkps), and YuNet has 12 "
            "(cls_8 to kps_32)"
        )


def read_pixels(
    path: Path, *, scale: tuple[float, float] | None = None, stated: Stated | None = None
) -> Pixels:
    """Return the pixels that a recognition network takes.

    Args:
        path: The .onnx file.
        scale: Mean and standard deviation, where a manifest states them.
        stated: What the user states. It wins over what is guessed, and a size is believed of a
            network that InsightFace would take for another kind.

    Raises:
        LikenessError: The file is of another kind or has several outputs, it has another size than
            the stated one, or no size is known.
    """
    stated, seen = stated or Stated(), _look(path)
    shape = seen.sizes[0] if len(seen.sizes) == 1 else ()
    of_images = len(shape) == 4 and shape[1] in (3, None) and seen.num_outputs == 1
    if not of_images or (stated.size is None and seen.kind not in ("recognition", "unknown")):
        raise LikenessError(
            f"{path}: no recognition model of InsightFace ({seen.kind}; inputs {seen.sizes}, "
            f"{seen.num_outputs} outputs); one input (B, 3, H, W) and one output (B, dim) are "
            f"needed{_TRUST_SIZE if of_images else ''}"
        )
    sizes = [own or 0 for own in shape[2:]]
    if stated.size is None and not all(sizes):
        raise LikenessError(
            f"{path}: its images have no fixed size (inputs {seen.sizes}); state the one that it "
            f"was trained on: insightface:{path}@size=112x112"
        )
    height, width = stated.size or sizes
    if any(own not in (0, side) for own, side in zip(sizes, (height, width), strict=True)):
        raise LikenessError(
            f"{path}: its images have {' x '.join(str(own or 'any') for own in sizes)} pixels, but "
            f"size={height}x{width} was stated; leave the size out"
        )
    if max(height, width) > MAX_SIDE:
        raise LikenessError(
            f"{path}: its images have {height} x {width} pixels; at most {MAX_SIDE} are read"
        )
    mean, std = scale or seen.scale
    mean = mean if stated.mean is None else stated.mean
    std = std if stated.std is None else stated.std
    return Pixels((height, width), mean, std, stated.bgr)


def _unlike_its_file(path: Path, pixels: Pixels, stated: Stated) -> str:
    """Return the pixels as a text where the file alone does not say them, otherwise ""."""
    if stated == Stated():
        return ""
    seen = _look(path)
    if seen.sizes[0][2:] == pixels.size and Pixels(pixels.size, *seen.scale) == pixels:
        return ""
    (height, width), mean, std, bgr = pixels
    return f"{height}x{width} {mean} {std} {'bgr' if bgr else 'rgb'}"


def kind(graph: onnx.GraphProto) -> Kind:
    """Return what InsightFace's ModelRouter.get_model takes a network for."""
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


def say_licence(pack: Pack) -> None:
    """Print the licence to stderr where the weights are loaded."""
    say(pack.text(), error=True)


def _guess_scale(graph: onnx.GraphProto) -> tuple[float, float]:
    """Return mean and standard deviation by the rule of ArcFaceONNX.

    A network that begins with a Sub and a Mul (MXNet's) scales its pixels itself.
    """
    names = [node.name for node in graph.node[:_HEAD_NODES]]
    subtracts, multiplies = (
        any(name.startswith(starts) for name in names)
        for starts in (("Sub", "_minus"), ("Mul", "_mul"))
    )
    return (0.0, 1.0) if subtracts and multiplies else (127.5, 127.5)


def _sizes(graph: onnx.GraphProto) -> list[tuple[int | None, ...]]:
    """Return the inputs' shapes, with None where a size is free.

    Old files list their weights among the inputs; these are left out.
    """
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    shapes = [value.type.tensor_type.shape.dim for value in inputs]
    return [
        tuple(dim.dim_value if dim.dim_value > 0 else None for dim in shape) for shape in shapes
    ]


class _Look(NamedTuple):
    """What is to be known of a file.

    It is the kind of network, the sizes of its inputs, the number and the names of its outputs, and
    the scale by the names of its nodes.
    """

    kind: Kind
    sizes: list[tuple[int | None, ...]]
    num_outputs: int
    outputs: list[str]
    scale: tuple[float, float]


def _look(path: Path) -> _Look:
    """Look into an .onnx file.

    Raises:
        LikenessError: There is no file, it is too large or no ONNX model, or its tensors are in
            other files.
    """
    if not path.is_file():
        raise LikenessError(
            f"{path} does not exist; the path of an .onnx file on this machine is needed (nothing "
            "is downloaded)"
        )
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise LikenessError(f"{path}: {size} bytes; an .onnx file holds at most {MAX_BYTES}")
    graph = _graph(path)
    outputs = [value.name for value in graph.output]
    return _Look(kind(graph), _sizes(graph), len(outputs), outputs, _guess_scale(graph))


def _graph(path: Path) -> onnx.GraphProto:
    """Return the graph of an ONNX model whose tensors are all in the file."""
    try:
        import onnx
    except ImportError:
        raise LikenessError(
            f"{path}: an .onnx model needs onnx; run `pip install 'likeness[export]'`"
        ) from None
    try:
        graph = onnx.load_model(str(path), format="protobuf", load_external_data=False).graph
    except Exception as error:
        # protobuf's DecodeError has no base but Exception, and onnx has exceptions of its own.
        raise LikenessError(f"{path}: no ONNX model ({first_line(error)})") from None
    if not graph.node:
        raise LikenessError(f"{path}: no ONNX model (it has no nodes)")
    external = onnx.TensorProto.EXTERNAL
    apart = [tensor.name for tensor in graph.initializer if tensor.data_location == external]
    if apart:  # such tensors are in no digest, and their paths may lead anywhere
        raise LikenessError(
            f"{path}: {len(apart)} tensors lie in other files ({name_first(apart)}); save the "
            "model as one file (onnx.save of onnx.load)"
        )
    return graph


def _has_manifest(folder: Path) -> bool:
    """Say whether manifest.json asks for the rules of version 2; InsightFace passes over others."""
    file = folder / "manifest.json"
    if not file.is_file():
        return False
    if file.stat().st_size > _MAX_MANIFEST:
        raise LikenessError(
            f"{file}: {file.stat().st_size} bytes; at most {_MAX_MANIFEST} are read"
        )
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("manifest_version") == 2


def _read_manifest(folder: Path) -> Pack:
    """Read a pack by InsightFace's own reader of manifests.

    It keeps every path inside the folder and checks the digests that the manifest states.
    """
    # insightface imports albumentations, which would ask the network for a newer version of itself.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    from insightface.model_zoo import package_manifest as manifests

    try:
        tasks = manifests.load_model_package(folder).tasks
        files = {
            name: manifests.verify_model_artifact(tasks[name])
            for name in ("recognition", "detection")
            if name in tasks
        }
    except (ValueError, TypeError, OSError, RuntimeError, OverflowError) as error:
        raise LikenessError(
            f"insightface:{folder}: its manifest.json does not fit the folder: {error}"
        ) from None
    if "recognition" not in files:
        raise LikenessError(
            f"insightface:{folder}: its manifest.json states no recognition model, but "
            f"{', '.join(tasks) or 'nothing'}; give another pack"
        )
    scales = {name: _scale(tasks[name].metadata["preprocessing"]) for name in files}
    # modalities.face.align feeds detectors with this scale and no other.
    detector = files.get("detection") if scales.get("detection") == (127.5, 128.0) else None
    pixels = read_pixels(files["recognition"], scale=scales["recognition"])
    return Pack(files["recognition"], pixels, detector, stated=True)


def _scale(stated: Any) -> tuple[float, float]:
    """Return mean and standard deviation of a manifest's preprocessing."""
    return (0.0, 1.0) if stated == "embedded" else (float(stated["mean"]), float(stated["std"]))
