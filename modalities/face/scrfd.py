"""SCRFD, the face detector of InsightFace's packs, whose weights are for research only.

insightface decodes the outputs of the network in this very process, and believes their shapes. The
file may come from anywhere, so the outputs are checked here before insightface sees them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from modalities.face.detector_input import input_size
from toolkit.models.onnx import Session

Array = NDArray[Any]

MIN_SCORE = 0.5  # the default of InsightFace's FaceAnalysis
TOP_K = 5000  # places that are looked at; insightface compares each of them with all others
_WIDTHS = (1, 4, 10)  # numbers per anchor: score, box, landmarks


class _Layout(NamedTuple):
    """Where a network with landmarks looks for faces."""

    strides: tuple[int, ...]
    anchors: int  # in each cell


_LAYOUTS = {9: _Layout((8, 16, 32), 2), 15: _Layout((8, 16, 32, 64, 128), 1)}


def load(session: Session, path: Path, *, min_score: float = MIN_SCORE) -> Any:
    """Return insightface's detector of a network.

    Args:
        session: The opened file.
        path: The file, for the errors.
        min_score: The lowest score of a face, between 0 and 1.

    Raises:
        LikenessError: The inputs or the outputs of the network are not those of SCRFD with
            landmarks.
    """
    checked = CheckedSession(session, path)
    # The import asks the network for a newer version of albumentations otherwise.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    from insightface.model_zoo.scrfd import SCRFD

    detector = SCRFD(session=checked)
    detector.det_thresh = min_score
    # A network with outputs of other sizes is refused now, and not with the first photograph.
    width, height = detector.input_sizes[0]
    checked.run(
        detector.output_names,
        {detector.input_name: np.zeros((1, 3, height, width), np.float32)},
    )
    return detector


class CheckedSession:
    """The session of a network whose outputs have the shapes that insightface decodes.

    Args:
        session: The opened file.
        path: The file, for the errors.

    Raises:
        LikenessError: The network has other inputs, or another number of outputs. `run` raises it
            for outputs of other shapes.
    """

    def __init__(self, session: Session, path: Path):
        self.session, self.path = session, path
        inputs, outputs = session.get_inputs(), session.get_outputs()
        if len(outputs) not in _LAYOUTS:
            raise LikenessError(
                f"{path}: the model has {len(outputs)} outputs; an SCRFD detector with landmarks "
                "has 9 or 15 (its name says kps or bnkps), and YuNet has 12 (cls_8 to kps_32)"
            )
        self.layout = _LAYOUTS[len(outputs)]
        input_size(inputs, path, "SCRFD")

    def get_inputs(self) -> list[Any]:
        """Return the inputs of the graph."""
        return self.session.get_inputs()

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the graph."""
        return self.session.get_outputs()

    def run(self, outputs: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs for an image, with the scores of all but the best places at 0.

        Raises:
            LikenessError: An output has another shape.
        """
        arrays = self.session.run(outputs, inputs)
        names = [value.name for value in self.get_outputs()]
        image = next(iter(inputs.values()))
        strides, anchors = self.layout
        for place, (name, array) in enumerate(zip(names, arrays, strict=True)):
            stride, width = strides[place % len(strides)], _WIDTHS[place // len(strides)]
            cells = math.prod(side // stride for side in image.shape[2:])
            shape = (cells * anchors, width)
            if array.shape not in (shape, (1, *shape)) or array.dtype.kind != "f":
                raise LikenessError(
                    f"{self.path}: its output {name} is {array.dtype} {array.shape} for an image "
                    f"of {image.shape[2]} x {image.shape[3]}; SCRFD gives {shape[0]} x {width} "
                    "floats: give another file"
                )
        return [*_best(arrays[: len(strides)]), *arrays[len(strides) :]]


def _best(scores: list[Array]) -> list[Array]:
    """Return the scores of all strides, in which all but the best TOP_K places have 0."""
    together = np.concatenate([array.ravel() for array in scores])
    if together.size <= TOP_K:
        return scores
    # NaN is no score, and sorts in front of every other here.
    order = np.argsort(np.where(np.isnan(together), -np.inf, together), kind="stable")
    together[order[:-TOP_K]] = 0
    ends = np.cumsum([array.size for array in scores])[:-1]
    parts = np.split(together, ends)
    return [part.reshape(array.shape) for part, array in zip(parts, scores, strict=True)]
