"""Small networks in ONNX form: a detector with YuNet's inputs and outputs that finds bright red
squares, and a face network.

The detector has the names and shapes of OpenCV's face_detection_yunet_2023mar.onnx: cls, obj, bbox
and kps at the strides 8, 16 and 32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STRIDES = (8, 16, 32)
# Landmarks about the corner of a cell, in cells. They are, of the person, the right eye, the left
# eye, the nose, the right and the left corner of the mouth. The person's right eye is the left one
# in the picture.
POINTS = np.array([[-0.5, -0.25], [1.5, -0.3], [0.5, 0.6], [-0.3, 1.3], [1.25, 1.25]])
BOX = np.array([0.5, 0.5, np.log(4.0), np.log(4.5)])  # its centre in cells, the logs of its sides


def tiny_yunet(
    path: Path,
    size: tuple[int | str, int | str] = (96, 128),
    *,
    strides: tuple[int, ...] = (8,),
    kps: int = 10,
    leave_out: str = "",
) -> Path:
    """Write a network in which every cell finds a face if its mean of the red channel is high.

    The score is (the mean of red) / 255 at `strides`, and 0 at the others. Boxes and landmarks move
    with the green channel by up to a cell, so that they follow from the image too.

    Args:
        path: The file.
        size: Height and width of its input; texts are free sizes.
        strides: The strides at which faces are found.
        kps: The numbers per cell of the landmarks.
        leave_out: The name of an output that it lacks.
    """
    nodes: list[Any] = []
    weights: list[Any] = []
    outputs: list[Any] = []

    def constant(name: str, values: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def cells(stride: int, kind: str, rows: np.ndarray, shift: np.ndarray) -> None:
        """(1, cells, numbers) by a convolution over the means of the channels."""
        name = f"{kind}_{stride}"
        count = len(rows)
        # Channels of the input are blue, green, red.
        kernel = np.zeros((count, 3, 1, 1), np.float32)
        kernel[:, :, 0, 0] = rows / 255
        inputs = [f"mean_{stride}", constant(f"{name}_w", kernel), constant(f"{name}_b", shift)]
        nodes.append(helper.make_node("Conv", inputs, [f"{name}_c"]))
        nodes.append(helper.make_node("Transpose", [f"{name}_c"], [f"{name}_t"], perm=[0, 2, 3, 1]))
        weights.append(numpy_helper.from_array(np.array([1, -1, count]), f"{name}_s"))
        nodes.append(helper.make_node("Reshape", [f"{name}_t", f"{name}_s"], [name]))
        if name != leave_out:
            shape: list[Any] = [1, None, count]
            if all(isinstance(side, int) for side in size):
                shape[1] = int(size[0]) // stride * (int(size[1]) // stride)
            outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    red, green = np.array([[0.0, 0.0, 1.0]]), np.array([0.0, 1.0, 0.0])
    for stride in STRIDES:
        square = [stride, stride]
        nodes.append(
            helper.make_node(
                "AveragePool", ["input"], [f"mean_{stride}"], kernel_shape=square, strides=square
            )
        )
        finds = 1.0 if stride in strides else 0.0
        cells(stride, "cls", finds * red, np.zeros(1))
        cells(stride, "obj", finds * red, np.zeros(1))
        cells(stride, "bbox", np.array([green, green, 0 * green, 0 * green]), BOX)
        shift = np.resize(POINTS.ravel(), kps)
        cells(stride, "kps", np.tile(green, (kps, 1)), shift)
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, *size])],
        outputs,
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


def network(
    path: Path, size: tuple[int | str, int | str], *, trained: tuple[int, int] | None = None
) -> Path:
    """A network (B, 3, height, width) -> (B, 6): means of 8 x 8 pixels and a random matrix.

    Args:
        path: The file.
        size: Height and width of its input; texts are free sizes.
        trained: The sizes that the matrix fits, where `size` has free ones.
    """
    height, width = trained or (side if isinstance(side, int) else 112 for side in size)
    rng, inner = np.random.default_rng(0), 3 * (height // 8) * (width // 8)
    matrix = rng.normal(0, 0.1, (inner, 6)).astype(np.float32)
    nodes = [
        helper.make_node("AveragePool", ["data"], ["cells"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Flatten", ["cells"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "own",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", 3, *size])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", 6])],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(path))
    return path
