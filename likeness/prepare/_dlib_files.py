"""The networks and regression trees of dlib's .dat files, read as data.

dlib writes a whole number as one byte, which holds its length and its sign, and as many bytes,
lowest first; a real number as two of them, mantissa and exponent of 2; and the weights of a layer
as 32-bit floats behind their sizes (dlib/serialize.h, dlib/dnn/layers.h).
"""

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_WEIGHTED = re.compile(rb"\x01.(con_4|affine_|bn_con2|fc_2)", re.DOTALL)
_EPSILON = np.float32(1e-4)  # dlib's own, in a batch normalisation


class Layer(NamedTuple):
    """A convolution, or the last, fully connected layer.

    Attributes:
        weights: (out, in, height, width), or (in, out).
        bias: (out,).
        stride: Of a convolution.
        padding: Of a convolution, at each side.
    """

    weights: Floats
    bias: Floats
    stride: int = 1
    padding: int = 0


def read_layers(content: bytes) -> list[Layer]:
    """Read the layers with weights of a network, from its input on.

    A fixed batch normalisation becomes part of the convolution before it.
    """
    layers: list[Layer] = []
    for name in _WEIGHTED.finditer(content):
        numbers, kind = _Numbers(content, name.end()), name[1]
        if kind == b"fc_2":
            (outputs, inputs), weights = numbers.take(2), numbers.tensor()
            layers.append(Layer(weights.reshape(inputs, outputs), np.zeros(outputs, np.float32)))
        elif kind == b"con_4":
            weights = numbers.tensor()
            filters, height, width, stride, _, padding, _ = numbers.take(7)
            shape = (filters, -1, height, width)
            matrix = weights[:-filters].reshape(shape)
            layers.append(Layer(matrix, weights[-filters:], stride, padding))
        else:
            scale, shift = np.split(numbers.tensor(), 2)
            if kind == b"bn_con2":
                numbers.take(10)  # how gamma and beta lie in what was read
                _, _, mean, variance = (numbers.tensor() for _ in range(4))
                scale = scale / np.sqrt(variance + _EPSILON)
                shift = shift - scale * mean
            last = layers[-1]
            weights = last.weights * scale[:, None, None, None]
            layers[-1] = last._replace(weights=weights, bias=last.bias * scale + shift)
    return layers


class _Numbers:
    """The numbers of a file from a place on."""

    def __init__(self, content: bytes, start: int = 0):
        self._content, self._at = content, start

    def take(self, count: int) -> list[int]:
        """Return the next whole numbers."""
        return [self._next() for _ in range(count)]

    def _next(self) -> int:
        start = self._at + 1
        size = self._content[start - 1]
        self._at = start + (size & 0x0F)
        value = int.from_bytes(self._content[start : self._at], "little")
        return -value if size & 0x80 else value

    def tensor(self) -> Floats:
        """Return the next weights, flat."""
        _, *sizes = self.take(5)
        start, self._at = self._at, self._at + 4 * int(np.prod(sizes))
        return np.frombuffer(self._content[start : self._at], "<f4").astype(np.float32)

    def rest(self) -> NDArray[np.int64]:
        """Return all numbers up to the end."""
        numbers = []
        while self._at < len(self._content):
            numbers.append(self._next())
        return np.array(numbers)


def read_trees(content: bytes) -> dict[str, NDArray[Any]]:
    """Read the regression trees of the predictor of five points, whose sizes are known.

    Returns:
        What likeness.modalities.face.mmod.Points takes, by name.
    """
    head, numbers = np.split(_Numbers(content).rest(), [24])
    cascades, trees, splits, leaves, pixels = 15, 500, 15, 16, 800
    of_tree = 1 + 4 * splits + 1 + leaves * (2 + 4 * 5)
    ends = np.cumsum([cascades * (1 + trees * of_tree), 1 + cascades * (1 + pixels), 1])
    forests, anchors, _, deltas = np.split(numbers, ends)
    tree = forests.reshape(cascades, -1)[:, 1:].reshape(cascades, trees, of_tree)
    split = tree[..., 1 : 1 + 4 * splits].reshape(cascades, trees, splits, 4)
    leaf = tree[..., 2 + 4 * splits :].reshape(cascades, trees, leaves, 22)[..., 2:]
    return {
        "mean": _reals(head[3:23]).reshape(5, 2),
        "splits": split[..., :2],
        "limits": _reals(split[..., 2:])[..., 0],
        "leaves": _reals(leaf).reshape(cascades, trees, leaves, 5, 2),
        "anchors": anchors[1:].reshape(cascades, -1)[:, 1:],
        "offsets": _reals(deltas.reshape(cascades, -1)[:, 1:]).reshape(cascades, pixels, 2),
    }


def _reals(numbers: NDArray[np.int64]) -> Floats:
    """The real numbers (..., N) of mantissas and exponents (..., 2 N)."""
    return np.ldexp(numbers[..., ::2].astype(np.float64), numbers[..., 1::2]).astype(np.float32)
