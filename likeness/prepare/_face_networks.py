"""dlib's networks of faces as ONNX graphs, whose weights likeness/prepare/_dlib_files.py reads.

The descriptor is the ResNet of 29 layers of dlib's examples/dnn_face_recognition_ex.cpp, and the
detector the one of examples/dnn_mmod_face_detection_ex.cpp.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.prepare._dlib_files import Layer

SIDE = 150  # pixels of the descriptor's input
_COLOURS = np.array([122.782, 117.001, 104.298], np.float32).reshape(3, 1, 1)  # dlib's mean face
_OPSET, _IR = 17, 8


class _Graph:
    """A graph that grows by a node at a time."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._values: list[Any] = []

    def constant(self, values: NDArray[Any], name: str = "") -> str:
        """Add an array, and return its name."""
        from onnx import numpy_helper

        name = name or f"weights{len(self._values)}"
        self._values.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node, and return its output."""
        from onnx import helper

        output = f"{kind}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def pad(self, value: str, *pads: int) -> str:
        """Add zeros in front of and behind each of four axes."""
        return self.add("Pad", value, self.constant(np.array(pads, np.int64)))

    def convolve(self, value: str, layer: Layer, *, relu: bool = True) -> str:
        """Add a convolution."""
        weights = map(self.constant, layer[:2])
        pads, strides = [layer.padding] * 4, [layer.stride] * 2
        value = self.add("Conv", value, *weights, pads=pads, strides=strides)
        return self.add("Relu", value) if relu else value

    def scaled(self, image: str) -> str:
        """Add the scale of dlib's pixels, which are 0 to 255."""
        centred = self.add("Sub", image, self.constant(_COLOURS))
        return self.add("Div", centred, self.constant(np.array(256, np.float32)))

    def model(self, shape: Sequence[int | str], outputs: Mapping[str, Sequence[int | str]]) -> Any:
        """Return the whole model, whose input are "images" of this shape."""
        from onnx import TensorProto, helper

        kinds = {value.name: value.data_type for value in self._values}
        images = helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)
        gives = [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), sizes)
            for name, sizes in outputs.items()
        ]
        graph = helper.make_graph(self._nodes, "face", [images], gives, self._values)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR
        )


def descriptor(layers: Sequence[Layer]) -> Any:
    """The ModelProto of the descriptor: images (B, 3, 150, 150) from 0 to 255 give (B, 128)."""
    graph, (first, *blocks, last) = _Graph(), layers
    value = graph.convolve(graph.scaled("images"), first)
    value = graph.add("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2])
    side = ((SIDE - 7) // 2 + 1 - 3) // 2 + 1
    for begin, end in zip(blocks[::2], blocks[1::2], strict=True):
        inner = graph.convolve(graph.convolve(value, begin), end, relu=False)
        if begin.stride == 2:
            value = graph.add("AveragePool", value, kernel_shape=[2, 2], strides=[2, 2])
            # dlib adds what is of different size as if it were zero elsewhere
            side, smaller = side // 2, (side - 3) // 2 + 1
            outputs, inputs = begin.weights.shape[:2]
            value = graph.pad(value, 0, 0, 0, 0, 0, outputs - inputs, 0, 0)
            inner = graph.pad(inner, *[0] * 6, side - smaller, side - smaller)
        value = graph.add("Relu", graph.add("Add", inner, value))
    value = graph.add("ReduceMean", value, axes=[2, 3], keepdims=0)
    value = graph.add("MatMul", value, graph.constant(last.weights))
    return graph.model(["batch", 3, SIDE, SIDE], {value: ["batch", last.weights.shape[1]]})


def detector(layers: Sequence[Layer], trees: Mapping[str, NDArray[Any]]) -> Any:
    """The ModelProto of the detector: an image gives scores, and the trees of points are outputs.

    See likeness.modalities.face.mmod.
    """
    graph, (*inner, last) = _Graph(), layers
    value = "images"
    for layer in inner:
        value = graph.convolve(value, layer)
    scores = graph.convolve(value, last, relu=False)
    outputs: dict[str, Sequence[int | str]] = {scores: [1, 1, "rows", "columns"]}
    for name, values in trees.items():
        outputs[graph.constant(values, name)] = values.shape
    return graph.model([1, 3, "height", "width"], outputs)
