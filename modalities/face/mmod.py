"""dlib's detector of faces, and its five points of a face.

The detector is a small network that looks for faces of 80 x 80 pixels in an image and in ever
smaller copies of it (King, "Max-Margin Object Detection", 2015). The five points, corners of the
eyes and the base of the nose, come from regression trees (Kazemi and Sullivan, "One millisecond
face alignment with an ensemble of regression trees", 2014). `likeness prepare face` writes both
into one .onnx file. The numbers are those of dlib/dnn/loss.h (loss_mmod) and of
dlib/image_processing/shape_predictor.h.
"""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from likeness.toolkit.data.images import Pixels
from likeness.toolkit.models.onnx import Session

Floats32 = NDArray[np.float32]
Complex = NDArray[np.complex64]

# In the frame of dlib's mean face (dlib/image_transforms/interpolation.h): its five points, and
# the eyes, the nose and the corners of the mouth, the means of points 37-42, 43-48, 31, 49 and 55.
_POINTS = np.array(
    [
        0.8595674595992 + 0.2134981538014j,
        0.6460604764104 + 0.2289674387677j,
        0.1205750620789 + 0.2137274526848j,
        0.3340850613712 + 0.2290642403242j,
        0.4901123135679 + 0.6277975316475j,
    ]
)
LANDMARKS = np.array(
    [
        0.225491833 + 0.215990333j,
        0.754761833 + 0.215990333j,
        0.490127 + 0.515625j,
        0.254149 + 0.780233j,
        0.726104 + 0.780233j,
    ]
)
# Outputs of the .onnx file that no other detector has.
TREES = ("mean", "splits", "limits", "leaves", "anchors", "offsets")
_MOST_PIXELS = 2_000_000  # of an image as it is looked at first, in which a second passes
_WINDOW = 80.0  # pixels of a face that the network finds
_STEP, _FIRST = 8, 14  # pixels between two scores of the network, and those before the first
_GROWTH, _SHIFT = 1.2, 1.5  # from a copy of an image to the next larger one
_BORDER, _GAP = 11, 10  # pixels around and between copies
_COLOURS = np.array([122.782, 117.001, 104.298], np.float32)  # which the network takes for 0
_OVERLAP = 0.33837  # of two boxes, from which on they are of one face: their IoU


class Mmod:
    """dlib's detector, with the method `detect` that InsightFace's detectors have.

    Args:
        session: The opened file.
    """

    def __init__(self, session: Session):
        self.det_thresh = 0.5
        self._session = session
        self._scores = session.get_outputs()[0].name
        blank = np.zeros((1, 3, 64, 64), np.float32)
        mean, splits, limits, leaves, anchors, offsets = session.run(TREES, {"images": blank})
        self._mean: Complex = _as_complex(mean)
        self._cascades = list(
            zip(splits, limits, _as_complex(leaves), anchors, _as_complex(offsets), strict=True)
        )

    def detect(self, pixels: Pixels) -> tuple[Floats32, Floats32]:
        """Find the faces of an image.

        A large image is shrunk. Where no face is found, smaller ones are looked for by enlarging.

        Args:
            pixels: (H, W, 3) uint8 BGR.

        Returns:
            (F, 5) as x1 y1 x2 y2 score by falling score, and the landmarks (F, 5, 2) of
            likeness.modalities.face.align, in pixels of the image. The score is dlib's confidence
            by the logistic function. The landmarks are those of dlib's mean face, which is laid
            onto its five points.
        """
        height, width = pixels.shape[:2]
        for factor in (1, 2, 4):
            most = _MOST_PIXELS * (1 if factor == 1 else 2)
            scale = min(factor, math.sqrt(most / (height * width)))
            size = max(1, round(width * scale)), max(1, round(height * scale))
            image = pixels if scale == 1 else np.asarray(Image.fromarray(pixels).resize(size))
            boxes = self._boxes(image)
            if len(boxes) or scale < factor:
                break
        grey = image.sum(axis=2, dtype=np.uint32) // 3
        points = np.array([self.points(grey, box) for box in boxes[:, :4]]).reshape(-1, 5)
        fitted = _fitted(_POINTS, points, LANDMARKS)
        landmarks = np.stack([fitted.real, fitted.imag], axis=-1)
        back = np.array((width / size[0], height / size[1]), np.float32)
        return boxes * np.append(np.tile(back, 2), np.float32(1)), landmarks * back

    def _boxes(self, pixels: Pixels) -> Floats32:
        """Find faces (F, 5) in an image, the best of those that overlap."""
        image = (pixels[..., ::-1] - _COLOURS) / np.float32(256)
        corners, canvas = _laid_out(np.ascontiguousarray(image.transpose(2, 0, 1)))
        scores = self._session.run([self._scores], {"images": canvas[None]})[0][0, 0]
        places = np.argwhere(scores > np.log(self.det_thresh / (1 - self.det_thresh)))
        places = places[np.argsort(-scores[tuple(places.T)], kind="stable")]
        centres = places * _STEP + _FIRST
        outside = np.maximum(corners[:, None, :2] - centres, centres - corners[:, None, 2:])
        copies = np.square(np.maximum(outside, 0)).sum(axis=2).argmin(axis=0)
        growth = (_GROWTH**copies)[:, None]
        edges = [centres - corners[copies, :2] + side * (_WINDOW - 1) / 2 for side in (-1, 1)]
        boxes = [(edge * growth + _SHIFT * (growth - 1))[:, ::-1] for edge in edges]
        confidence = 1 / (1 + np.exp(-scores[tuple(places.T)]))
        return _distinct(np.column_stack([*boxes, confidence]).astype(np.float32))

    def points(self, grey: NDArray[np.uint32], box: Floats32) -> Complex:
        """Find the five points of the face in a box x1 y1 x2 y2, as x + y i in pixels.

        They are, as seen in the picture: the right eye's outer and inner corner, the left eye's
        outer and inner corner, and the base of the nose.
        """
        left, top, right, bottom = np.rint(box).tolist()
        shape, mean = self._mean, self._mean - self._mean.mean()
        for splits, limits, leaves, anchors, offsets in self._cascades:
            turn = np.vdot(mean, shape - shape.mean()) / np.vdot(mean, mean)
            where = shape[anchors] + turn * offsets
            x = np.floor(where.real * (right - left) + left + 0.5).astype(int)
            y = np.floor(where.imag * (bottom - top) + top + 0.5).astype(int)
            inside = (x >= 0) & (x < grey.shape[1]) & (y >= 0) & (y < grey.shape[0])
            levels = np.where(inside, grey[y * inside, x * inside], 0).astype(np.float32)
            trees, nodes = np.arange(len(splits)), np.zeros(len(splits), int)
            while nodes[0] < splits.shape[1]:
                first, second = levels[splits[trees, nodes].T]
                nodes = 2 * nodes + np.where(first - second > limits[trees, nodes], 1, 2)
            shape = shape + leaves[trees, nodes - splits.shape[1]].sum(axis=0)
        x, y = shape.real * (right - left) + left, shape.imag * (bottom - top) + top
        return np.asarray(x + 1j * y, np.complex64)


def _laid_out(image: Floats32) -> tuple[NDArray[np.int64], Floats32]:
    """Lay an image (3, H, W) and ever smaller copies of it into one.

    Returns:
        The first and the last row and column of each copy (N, 4) as y1 x1 y2 x2, and the whole.
    """
    corners, (height, width) = _layout(*image.shape[1:])
    canvas = np.zeros((3, height, width), np.float32)
    for top, left, bottom, right in corners:
        for axis, size in ((1, bottom - top + 1), (2, right - left + 1)):
            length = image.shape[axis]
            if size < length:
                places = np.linspace(0, length - 1, size)
                low = np.minimum(places.astype(int), length - 2)
                part = (places - low).astype(np.float32)
                part = part[:, None] if axis == 1 else part
                image = image.take(low, axis) * (1 - part) + image.take(low + 1, axis) * part
        canvas[:, top : bottom + 1, left : right + 1] = image
    return np.array(corners), canvas


def _layout(height: int, width: int) -> tuple[list[tuple[int, int, int, int]], tuple[int, int]]:
    """Where dlib lays an image and its copies: down at the left, and up again at the right."""
    sizes: list[tuple[int, int]] = []
    shrunk = height, width
    while not sizes or min(shrunk[0], 5 * shrunk[1]) >= 5:
        sizes.append(shrunk)
        shrunk = int(shrunk[0] / _GROWTH), int(shrunk[1] / _GROWTH)
    total = sum(size[0] + _GAP for size in sizes) - 2 * _GAP
    bottom, last = -_GAP, 0
    for size in sizes:
        has_room = size[1] <= width - last - _GAP
        if has_room and 2 * (bottom + _GAP - height) >= total - height:
            break
        bottom, last = bottom + size[0] + _GAP, size[1]
    corners, goes_down, y = [], True, _BORDER
    for rows, columns in sizes:
        if goes_down and y >= bottom + _BORDER:
            goes_down, y = False, y - _GAP
        if goes_down:
            corners.append((y, _BORDER, y + rows - 1, _BORDER + columns - 1))
            y += rows + _GAP
        else:
            if y - rows < height + _BORDER:
                break
            corners.append((y - rows, _BORDER + width - columns, y - 1, _BORDER + width - 1))
            y -= rows + _GAP
    return corners, (bottom + 2 * _BORDER, width + 2 * _BORDER)


def _distinct(boxes: Floats32) -> Floats32:
    """Leave out the boxes (F, 5) that overlap a better one."""
    left: list[int] = []
    areas = np.prod(boxes[:, 2:4] - boxes[:, :2], axis=1)
    for number, box in enumerate(boxes):
        others = boxes[left]
        sides = np.minimum(box[2:4], others[:, 2:4]) - np.maximum(box[:2], others[:, :2])
        common = np.prod(np.maximum(sides, 0), axis=1)
        if np.all(common <= _OVERLAP * (areas[number] + areas[left] - common)):
            left.append(number)
    return boxes[left]


def _fitted(places: Complex, points: Complex, others: Complex) -> Complex:
    """Where `others` lie if `places` (P,) are laid onto points (F, P) by least squares."""
    centred, centres = places - places.mean(), points.mean(axis=1, keepdims=True)
    factors = (points - centres) @ centred.conj() / np.vdot(centred, centred)
    return np.asarray(centres + factors[:, None] * (others - places.mean()), np.complex64)


def _as_complex(reals: Floats32) -> Complex:
    return np.ascontiguousarray(reals).view(np.complex64)[..., 0]
