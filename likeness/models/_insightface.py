"""InsightFace's recognition models and other face networks (.onnx): which is which, and the pixels.

Both are decided as insightface 2.1 decides them, so that an embedding made here is the one made
there. The rules are those of insightface/model_zoo/model_zoo.py (ModelRouter, by the sizes of
inputs and the number of outputs), arcface_onnx.py (ArcFaceONNX, the scale by the names of the first
nodes). The rules are guesses: a network that scales its pixels itself, but whose nodes have other
names, has them scaled twice, here as there. A pack with a manifest.json, which
may state other pixels, is refused.

A file that is named by itself may be any face network over (B, 3, H, W) with one output. What the
file does not say is written after it, `FILE.onnx@size=112x96,mean=127.5,std=128,order=bgr`, and
frame=dlib or arcface (each of them may be left out). The frame is where the landmarks lie in a
crop, by default that of InsightFace, arcface. A size is needed where the file has none, or one of
a network of another kind (96 x 96 is that of gender and age).

The weights that InsightFace publishes (buffalo_*, antelopev2, arcface_torch's zoo) are for
non-commercial research only, and loading them prints that. They are known by the names of files and
folders; networks of others have licences of their own. Nothing is downloaded. What files hold
runs in ONNX Runtime alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from likeness.eval.errors import LikenessError
from likeness.models.bundled import FINDING_MODELS
from likeness.toolkit.models.onnx import parse

if TYPE_CHECKING:
    import onnx

Kind = Literal["recognition", "detection", "another network", "unknown"]
LICENCE = "the weights that InsightFace publishes are for non-commercial research only"
# The names that InsightFace gives to its recognition networks, and to the folders that they are in.
_OWN_FILES = frozenset({"backbone.pth", "glintr100.onnx", "w600k_mbf.onnx", "w600k_r50.onnx"})
_OWN_FOLDERS = ("antelope", "buffalo_", "casia_", "glint360k_", "ms1mv", "raccoon_", "webface")
OF_TORCH = (".pt", ".pth")  # the suffixes of arcface_torch's weights
_HEAD_NODES = 8  # the number of nodes that ArcFaceONNX looks at


class Pixels(NamedTuple):
    """What a network over (B, 3, height, width) takes: (x - mean) / std of x from 0 to 255.

    Attributes:
        size: Height and width.
        mean: What is subtracted.
        std: What is divided by.
        bgr: Whether the colours come in the order blue, green, red.
    """

    size: tuple[int, int]
    mean: float
    std: float
    bgr: bool = False


class Pack(NamedTuple):
    """A recognition network, the pixels that it takes, and the detector beside it.

    Attributes:
        recognition: The .onnx file of the network.
        pixels: What it takes.
        detector: The SCRFD or YuNet detector, if a folder was named and has one.
        stated: Whether the user states some of the pixels.
        frame: Where the landmarks lie in a crop, "arcface" or "dlib".
    """

    recognition: Path
    pixels: Pixels
    detector: Path | None = None
    stated: bool = False
    frame: str = "arcface"

    def text(self) -> str:
        """Return what was loaded, and its licence, in one line."""
        (height, width), mean, std, bgr = self.pixels
        order = "BGR" if bgr else "RGB"
        scale = "0 to 255" if mean == 0 and std == 1 else f"(x - {mean:g}) / {std:g}"
        return f"{self.recognition}: {height} x {width} {order}, {scale}{licence(self.recognition)}"


def licence(path: Path) -> str:
    """Return the licence of a file as a text begins with it; "" for files that are not its own."""
    in_folder = f"{path.absolute().parent.name}/{path.name}"
    is_own = path.name in _OWN_FILES or in_folder.startswith(_OWN_FOLDERS)
    return f"; {LICENCE}" if is_own else ""


def split(source: str) -> tuple[Path, dict[str, Any]]:
    """Return the path of `PATH` or `PATH@KEY=VALUE,...`, and the pixels that are stated after it.

    A path that exists is taken whole, also with an @ in it.

    Args:
        source: What follows `insightface:`.

    Raises:
        LikenessError: A key or a value is not understood.

    Example:
        >>> split("own.onnx@size=112x96,order=bgr")[1]
        {'size': (112, 96), 'bgr': True}
    """
    whole = Path(source).expanduser()
    name, at, text = source.rpartition("@")
    if not at or "=" not in text or whole.exists():
        return whole, {}
    stated: dict[str, Any] = {}
    try:
        for key, _, value in (pair.partition("=") for pair in text.split(",")):
            if key == "size":
                height, width = value.split("x")
                stated["size"] = int(height), int(width)
            elif key == "order":
                stated["bgr"] = {"rgb": False, "bgr": True}[value]
            elif key == "frame":
                stated["frame"] = {"arcface": "arcface", "dlib": "dlib"}[value]
            else:
                stated[{"mean": "mean", "std": "std"}[key]] = float(value)
    except (KeyError, ValueError):
        raise LikenessError(
            f"insightface:{source}: {text!r} is not understood; write size=HEIGHTxWIDTH, "
            "mean=NUMBER, std=NUMBER, order=rgb or bgr, frame=arcface or dlib, with commas between"
        ) from None
    return Path(name).expanduser(), stated


def find(source: str) -> Pack:
    """Return the recognition network that a path names, and the detector beside it.

    Args:
        source: FILE.onnx, perhaps with a statement (`split`), or the FOLDER of an unpacked pack
            such as buffalo_l. Of a folder, the first file of each kind in the order of names is
            taken, as FaceAnalysis does.

    Raises:
        LikenessError: There is nothing or no ONNX model, no recognition network, or a
            manifest.json, which is not read.
    """
    path, stated = split(source)
    if path.is_file():
        frame = stated.pop("frame", "arcface")
        return Pack(path, read_pixels(path, stated), stated=bool(stated), frame=frame)
    if not path.is_dir() or stated:
        raise LikenessError(
            f"insightface:{source}: {path} is no file; give a recognition .onnx file or the folder "
            "of an unpacked pack (nothing is downloaded, and only of a file are pixels stated); "
            + FINDING_MODELS
        )
    if (path / "manifest.json").exists():
        raise LikenessError(
            f"insightface:{source}: its manifest.json is not read; give insightface:FILE.onnx@mean="
            "127.5,std=127.5 with what it states"
        )
    kinds = {file: kind(_graph(file)) for file in sorted(path.glob("*.onnx"))}
    # Later entries overwrite earlier ones, so in reversed order the first file of each kind stays.
    by_kind = {seen: file for file, seen in reversed(kinds.items())}
    if "recognition" not in by_kind:
        listed = ", ".join(f"{file.name}: {seen}" for file, seen in kinds.items())
        raise LikenessError(
            f"insightface:{source}: no recognition model ({listed or 'no .onnx file'}); give "
            "its .onnx file, or the inner folder that has the .onnx files of a pack"
        )
    recognition = by_kind["recognition"]
    return Pack(recognition, read_pixels(recognition), by_kind.get("detection"))


def read_pixels(path: Path, stated: Mapping[str, Any] | None = None) -> Pixels:
    """Return the pixels that a recognition network takes.

    Args:
        path: The .onnx file.
        stated: What the user states. It wins over what is guessed, and a size is believed of a
            network that InsightFace would take for another kind.

    Raises:
        LikenessError: The file is of another kind, or its size is not known.
    """
    graph, stated = _graph(path), stated or {}
    sizes = _sizes(graph)
    shape = sizes[0] if len(sizes) == 1 and len(graph.output) == 1 else ()
    own = shape[2:] if len(shape) == 4 and shape[1] in (3, None) else ()
    size = stated.get("size", own if kind(graph) in ("recognition", "unknown") else ())
    if (
        len(own) != 2
        or len(size) != 2
        or None in size
        or any(side not in (None, other) for side, other in zip(own, size, strict=True))
    ):
        raise LikenessError(
            f"{path}: no recognition model of InsightFace whose size is known ({kind(graph)}; "
            f"inputs {sizes}, {len(graph.output)} outputs); give one from (B, 3, H, W) to "
            f"(B, dim), perhaps with its size: insightface:{path}@size=112x112"
        )
    mean, std = _guess_scale(graph)
    return Pixels(**{"mean": mean, "std": std, **stated, "size": size})


def kind(graph: onnx.GraphProto) -> Kind:
    """Return what InsightFace's ModelRouter.get_model takes a network for."""
    sizes = _sizes(graph)
    height, width = sizes[0][2:4] if sizes and len(sizes[0]) == 4 else (None, None)
    if len(graph.output) >= 5:
        return "detection"
    if height is None or height != width:
        return "unknown"
    if height in (96, 192) or (height == 128 and len(sizes) == 2):
        return "another network"  # gender and age, dense landmarks, face swapping
    return "recognition" if height >= 112 and height % 16 == 0 else "unknown"


def _guess_scale(graph: onnx.GraphProto) -> tuple[float, float]:
    """Return mean and standard deviation by the rule of ArcFaceONNX.

    A network that begins with a Sub and a Mul (MXNet's) scales its pixels itself.
    """
    names = [node.name for node in graph.node[:_HEAD_NODES]]
    subtracts = any(name.startswith(("Sub", "_minus")) for name in names)
    multiplies = any(name.startswith(("Mul", "_mul")) for name in names)
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


def _graph(path: Path) -> onnx.GraphProto:
    """Return the graph of an .onnx file."""
    graph: onnx.GraphProto = parse(path.read_bytes(), path).graph
    return graph
