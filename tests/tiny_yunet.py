"""Small networks in ONNX form: a detector with YuNet's inputs and outputs that finds bright red
squares, and a face network.

The detector has the names and shapes of OpenCV's face_detection_yunet_2023mar.onnx: cls, obj, bbox
and kps at the strides 8, 16 and 32.
"""

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

STRIDES = (8, 16, 32)
# Landmarks about the corner of a cell, in cells. They are, of the person, the right eye, the left
# eye, the nose, the right and the left corner of the mouth. The person's right eye is the left one
# in the picture.
POINTS = np.array([[-0.5, -0.25], [1.5, -0.3], [0.5, 0.6], [-0.3, 1.3], [1.25, 1.25]])
BOX = np.array([0.5, 0.5, np.log(4.0), np.log(4.5)])  # its centre in cells, the logs of its sides


def tiny_yunet(path, size=(96, 128), *, strides=(8,), kps=10, leave_out=""):
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
    lines: list[str] = []
    constants: dict[str, np.ndarray] = {}
    outputs: list[str] = []

    def cells(stride: int, kind: str, rows: np.ndarray, shift: np.ndarray) -> None:
        """(1, cells, numbers) by a convolution over the means of the channels."""
        name, count = f"{kind}_{stride}", len(rows)
        # Channels of the input are blue, green, red.
        kernel = (rows / 255)[:, :, None, None].astype(np.float32)
        constants[f"{name}_w"], constants[f"{name}_b"] = kernel, shift.astype(np.float32)
        constants[f"{name}_s"] = np.array([1, -1, count])
        lines.append(f"{name}_c = Conv (mean_{stride}, {name}_w, {name}_b)")
        lines.append(f"{name}_t = Transpose <perm = [0, 2, 3, 1]> ({name}_c)")
        lines.append(f"{name} = Reshape ({name}_t, {name}_s)")
        if name != leave_out:
            sides = [side // stride for side in size if isinstance(side, int)]
            number = sides[0] * sides[1] if len(sides) == 2 else "cells"
            outputs.append(f"float[1,{number},{count}] {name}")

    red, green = np.array([[0.0, 0.0, 1.0]]), np.array([0.0, 1.0, 0.0])
    for stride in STRIDES:
        pool = f"AveragePool <kernel_shape = [{stride}, {stride}], strides = [{stride}, {stride}]>"
        lines.append(f"mean_{stride} = {pool} (input)")
        finds = 1.0 if stride in strides else 0.0
        cells(stride, "cls", finds * red, np.zeros(1))
        cells(stride, "obj", finds * red, np.zeros(1))
        cells(stride, "bbox", np.array([green, green, 0 * green, 0 * green]), BOX)
        cells(stride, "kps", np.tile(green, (kps, 1)), np.resize(POINTS.ravel(), kps))
    return save_onnx(path, f"float[1,3,{size[0]},{size[1]}] input", outputs, lines, constants)


def save_onnx(path, inputs, outputs, lines, constants):
    """Write a network in ONNX's text form: its inputs, outputs, nodes and constants."""
    body = "\n".join(lines)
    graph = onnx.parser.parse_graph(f"tiny ({inputs}) => ({', '.join(outputs)}) {{\n{body}\n}}")
    graph.initializer.extend(numpy_helper.from_array(*item[::-1]) for item in constants.items())
    imports = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), str(path))
    return path


def pooled(pixels: str = "data") -> list[str]:
    """The nodes of a network over the means of 8 x 8 pixels, by a matrix."""
    means = f"AveragePool <kernel_shape = [8, 8], strides = [8, 8]> ({pixels})"
    return [f"cells = {means}", "flat = Flatten (cells)", "embedding = MatMul (flat, matrix)"]


def network(path, size, *, trained=None):
    """A network (B, 3, height, width) -> (B, 6): means of 8 x 8 pixels and a random matrix.

    Args:
        path: The file.
        size: Height and width of its input; texts are free sizes.
        trained: The sizes that the matrix fits, where `size` has free ones.
    """
    height, width = trained or (side if isinstance(side, int) else 112 for side in size)
    rng, inner = np.random.default_rng(0), 3 * (height // 8) * (width // 8)
    matrix = rng.normal(0, 0.1, (inner, 6)).astype(np.float32)
    inputs = f"float[batch,3,{size[0]},{size[1]}] data"
    return save_onnx(path, inputs, ["float[batch,6] embedding"], pooled(), {"matrix": matrix})
