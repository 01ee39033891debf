"""Detectors of faces, which are files that the user has and are known by their outputs.

SCRFD with landmarks is the detector of InsightFace's packs, whose weights are for research only.
insightface decodes the outputs of its network.

YuNet is the detector of OpenCV, whose file is under the MIT licence. Source: Wu, Peng and Yu,
"YuNet: A Tiny Millisecond-level Face Detector", 2023; the file face_detection_yunet_2023mar.onnx of
opencv/opencv_zoo, which `likeness prepare yunet` fetches. OpenCV runs it (cv2.FaceDetectorYN).

dlib's detector, mmod.py, is in the files of `likeness prepare face`. It needs neither OpenCV nor
insightface.

A photograph that is larger than YuNet's input is shrunk to it here, and a smaller one lies in
its corner, on black. The published file has the fixed size of 640 x 640, and YuNet finds faces of
up to about 300 pixels.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.modalities.face.mmod import TREES, Mmod
from likeness.toolkit.data.images import Pixels
from likeness.toolkit.models.onnx import Session

Floats32 = NDArray[np.float32]

MAX_SIDE = 4096  # pixels of the input of a network
DIVISOR = 32  # the sizes of the input are multiples of it
_SCRFD_OUTPUTS = (9, 15)  # of an SCRFD network with landmarks
OUTPUTS = tuple(
    f"{part}_{stride}" for part in ("cls", "obj", "bbox", "kps") for stride in (8, 16, 32)
)
MIN_SCORE = 0.9  # the default of cv2.FaceDetectorYN.create
_LONGEST = 640  # the longest side that a network of any size gets


def load_detector(path: str | Path, min_score: float | None = None) -> Any:
    """Load a detector from a local .onnx file: SCRFD with landmarks, YuNet, or dlib's.

    Which of them it is follows from its outputs.

    Args:
        path: The file.
        min_score: The lowest score of a face, between 0 and 1; None is the default of the
            detector's own project: 0.5 for SCRFD and dlib's, and 0.9 for YuNet.

    Returns:
        The detector, for align.detect() and align.align_faces(). Its attribute `det_thresh` is the
        lowest score.

    Raises:
        LikenessError: The file is missing, or is no such detector, or there is no such score.
    """
    if min_score is not None and not 0 < min_score < 1:
        raise LikenessError(f"the lowest score of a face is {min_score}; between 0 and 1 is needed")
    path = Path(path)
    if not path.is_file():
        raise LikenessError(
            f"{path}: no such file; give an SCRFD or YuNet .onnx file (`likeness prepare yunet`)"
        )
    try:
        session = Session(path)
    except ValueError as error:
        raise LikenessError(
            f"{path}: this is no ONNX model that can be run ({str(error)[:120]}); an SCRFD or "
            "YuNet detector is needed"
        ) from None
    outputs = {value.name for value in session.get_outputs()}
    detector: Any
    if outputs >= set(TREES):
        detector = Mmod(session)
    else:
        is_yunet = outputs >= set(OUTPUTS)
        detector = YuNet(session, path) if is_yunet else _scrfd(session, path)
    if min_score is not None:
        detector.det_thresh = min_score
    return detector


def _scrfd(session: Session, path: Path) -> Any:
    """Return insightface's detector of a network."""
    outputs = session.get_outputs()
    if len(outputs) not in _SCRFD_OUTPUTS:
        raise LikenessError(
            f"{path}: {len(outputs)} outputs; give an SCRFD with landmarks (9 or 15) or YuNet (12)"
        )
    _input_size(session.get_inputs(), path, "SCRFD")
    # The import asks the network for a newer version of albumentations otherwise.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    from insightface.model_zoo.scrfd import SCRFD

    return SCRFD(session=session)


def _input_size(inputs: Sequence[Any], path: Path, kind: str) -> tuple[int, int]:
    """Return the height and the width that a network takes; 0 where the network leaves it open.

    Raises:
        LikenessError: It takes anything but one image of floats (1, 3, height, width).
    """
    stated = ", ".join(f"{value.name} {value.type} {value.shape}" for value in inputs)
    sizes: list[int | str | None] = inputs[0].shape if len(inputs) == 1 else []
    known = [size if isinstance(size, int) else 0 for size in sizes]
    if (
        len(known) != 4
        or inputs[0].type != "tensor(float)"
        or known[0] not in (0, 1)
        or known[1] not in (0, 3)
        or any(size % DIVISOR or not 0 <= size <= MAX_SIDE for size in known[2:])
    ):
        raise LikenessError(
            f"{path}: its input is {stated or 'absent'}; {kind} takes floats (1, 3, height, "
            f"width), both sizes multiples of {DIVISOR} up to {MAX_SIDE}: give another file"
        )
    return known[2], known[3]


class YuNet:
    """A YuNet detector, with the method `detect` that InsightFace's detectors have.

    Args:
        session: The opened file, which states the size of its input.
        path: The file.

    Raises:
        LikenessError: The input of the network is not that of YuNet.
    """

    def __init__(self, session: Session, path: Path):
        import cv2

        self.det_thresh = MIN_SCORE
        self.height, self.width = _input_size(session.get_inputs(), path, "YuNet")
        self._network = cv2.FaceDetectorYN.create(str(path), "", (_LONGEST, _LONGEST))
        self._lock = Lock()  # OpenCV's networks serve one thread at a time

    def detect(self, pixels: Pixels) -> tuple[Floats32, Floats32]:
        """Find the faces of an image.

        The five landmarks of a face are, of the person: right eye, left eye, nose, right and left
        corner of the mouth. The person's right eye is the left one in the picture, so this is the
        order of likeness.modalities.face.align. (OpenCV's FaceRecognizerSF::alignCrop maps them
        likewise.)

        Args:
            pixels: (H, W, 3) uint8 BGR.

        Returns:
            (F, 5) as x1 y1 x2 y2 score by falling score, and the landmarks (F, 5, 2), both in
            pixels of the image.
        """
        fitted = self._fit(pixels)
        height, width = fitted.shape[:2]
        canvas = np.zeros((self.height or height, self.width or width, 3), np.uint8)
        canvas[:height, :width] = fitted
        with self._lock:
            self._network.setInputSize(canvas.shape[1::-1])
            self._network.setScoreThreshold(self.det_thresh)
            _, rows = self._network.detect(canvas)
        table = np.zeros((0, 15), np.float32) if rows is None else np.asarray(rows, np.float32)
        scale = np.array((pixels.shape[1] / width, pixels.shape[0] / height), np.float32)
        # Boxes are x y w h.
        corners = np.concatenate((table[:, :2], table[:, :2] + table[:, 2:4]), axis=1)
        faces = np.concatenate((corners * np.tile(scale, 2), table[:, 14:]), axis=1)
        return faces, table[:, 4:14].reshape(-1, 5, 2) * scale

    def _fit(self, pixels: Pixels) -> Pixels:
        """Return the image, shrunk in its proportions where it is larger than the input."""
        height, width = pixels.shape[:2]
        most = self.height or _LONGEST, self.width or _LONGEST
        factor = min(most[0] / height, most[1] / width)
        if factor >= 1:
            return pixels
        size = (
            min(most[1], max(1, round(width * factor))),
            min(most[0], max(1, round(height * factor))),
        )
        import cv2

        return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
