"""Smaller ONNX models: weights in float16, or weights and products in int8.

The front-end stays float32 in every precision. A filterbank squares the spectrum of samples at
integer levels, up to 1e13 and more, where float16 ends at 65504; and eight bits cannot tell a pause
from a whisper before the logarithm is taken.

float16
    The weights of the network are stored in float16 and turned back into float32 when the model is
    loaded. The file is half as large, and everything is computed in float32. ONNX Runtime has
    hardly any float16 arithmetic for CPUs: it would turn every value back at every operator.
int8
    Weights have eight bits and a scale for each output channel, and products and convolutions with
    weights are computed in eight bits, by ONNX Runtime's own tools (onnxruntime.quantization). They
    take their ranges from inputs for calibration. Products of two inputs, such as covariances, stay
    float32.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError

# Weights of fewer numbers stay float32: they are biases and scales, which save nothing.
_LEAST = 256
_OPERATORS = ["Conv", "MatMul", "Gemm"]


def halve_weights(proto: Any, *, keep: Collection[str]) -> Any:
    """Return a graph whose weights are stored in float16, each with a Cast behind it.

    Args:
        proto: The ModelProto in float32, with one input.
        keep: The names of the nodes that stay float32: those of the front-end.

    Returns:
        A new ModelProto with the same inputs and outputs.

    Raises:
        LikenessError: The graph has no weights that float16 would make smaller.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    new = onnx.ModelProto.FromString(proto.SerializeToString())
    kept = {name for node in new.graph.node if node.name in keep for name in node.input}
    casts = []
    for tensor in new.graph.initializer:
        values = numpy_helper.to_array(tensor)
        large = tensor.data_type == TensorProto.FLOAT and values.size >= _LEAST
        # A weight beyond float16 would become infinite.
        if large and tensor.name not in kept and abs(values).max() <= np.finfo(np.float16).max:
            name, half = tensor.name, f"{tensor.name}_float16"
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), half))
            casts.append(helper.make_node("Cast", [half], [name], half, to=TensorProto.FLOAT))
    if not casts:
        _refuse("float16")
    nodes = [*casts, *(onnx.NodeProto.FromString(n.SerializeToString()) for n in new.graph.node)]
    del new.graph.node[:]
    new.graph.node.extend(nodes)
    return new


def quantize_int8(proto: Any, calibration: Sequence[NDArray[Any]], *, keep: Collection[str]) -> Any:
    """Return a graph that computes in int8.

    Args:
        proto: The ModelProto in float32, with one input.
        calibration: Inputs like those to come, each with a batch as its first axis.
        keep: The names of the nodes that stay float32: those of the front-end.

    Returns:
        A new ModelProto with the same inputs and outputs.

    Raises:
        LikenessError: The graph has no weights that int8 would make smaller.
    """
    import onnx
    from onnxruntime import quantization

    inputs = [{proto.graph.input[0].name: batch} for batch in calibration]
    weights = {tensor.name for tensor in proto.graph.initializer}
    products = {node.name: {*node.input} for node in proto.graph.node if node.op_type in _OPERATORS}
    left_out = {name for name, of in products.items() if name in keep or not weights & of}
    if left_out == products.keys():
        _refuse("int8")
    with (
        TemporaryDirectory() as folder,
        silence_loggers(""),
    ):  # the graph needs none of its preprocessing
        before, after = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        before.write_bytes(onnx.shape_inference.infer_shapes(proto).SerializeToString())
        quantization.quantize_static(
            before,
            after,
            SimpleNamespace(get_next=partial(next, iter(inputs), None)),  # None ends them
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            op_types_to_quantize=_OPERATORS,
            nodes_to_exclude=sorted(left_out),
            per_channel=True,
            # Processors without VNNI add two products in 16 bits, which 8 bits of weights overflow.
            reduce_range=True,
        )
        return onnx.ModelProto.FromString(after.read_bytes())


def _refuse(precision: str) -> NoReturn:
    raise LikenessError(
        f"the network has no weights that {precision} makes smaller; export it in float32"
    )


@contextmanager
def silence_loggers(*loggers: str) -> Iterator[None]:
    """Silence loggers by name, and what they warn of; "" is the root of all."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
