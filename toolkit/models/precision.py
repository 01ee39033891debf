"""Smaller ONNX models: weights in float16, or weights and products in int8.

The front-end stays float32 in every precision. A filterbank squares the spectrum of samples at
integer levels, up to 1e13 and more, where float16 ends at 65504; and eight bits cannot tell a pause
from a whisper before the logarithm is taken.

float16
    The weights of the network are stored in float16 and turned back into float32 when the model is
    loaded. The file is half as large, and everything is computed in float32. ONNX Runtime has
    hardly any float16 arithmetic for CPUs: it would turn every value back at every operator.
int8
    Weights have eight bits and a scale for each output channel. By ONNX Runtime's own tools
    (onnxruntime.quantization), products with weights are computed in eight bits too. Dynamic:
    matrix products take the range of their inputs from each input, as the model runs; convolutions
    are computed in float32, because ONNX Runtime is slower at them in this form. Static: products
    and convolutions take their ranges from inputs for calibration. Products of two inputs, such as
    covariances, stay float32.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.temporary import temporary_folder

Precision = Literal["float16", "int8"]
# Weights of fewer numbers stay float32: they are biases and scales, which save nothing.
_LEAST = 256
_DYNAMIC = ["MatMul", "Gemm"]
_STATIC = ["Conv", "MatMul", "Gemm"]


def convert(
    proto: Any,
    precision: Precision,
    *,
    keep: Collection[str],
    calibration: Sequence[NDArray[Any]] | None = None,
) -> Any:
    """Return a graph in a smaller precision.

    Args:
        proto: The ModelProto in float32, with one input.
        precision: "float16" or "int8".
        keep: The names of the nodes that stay float32: those of the front-end.
        calibration: Inputs for int8, each with a batch as its first axis. None for ranges that are
            taken as the model runs.

    Returns:
        A new ModelProto with the same inputs and outputs.

    Raises:
        LikenessError: The graph has no weights that the precision would make smaller.
    """
    if precision == "float16":
        return _with_half_weights(proto, keep)
    return _quantised(proto, keep, calibration)


def _with_half_weights(proto: Any, keep: Collection[str]) -> Any:
    """Store the weights in float16, each with a Cast behind it."""
    from onnx import TensorProto, helper, numpy_helper

    kept = {name for node in proto.graph.node if node.name in keep for name in node.input}

    def halve(name: str, values: NDArray[Any]) -> tuple[list[Any], list[Any]] | None:
        # A weight beyond float16 would become infinite.
        if name in kept or abs(values).max() > np.finfo(np.float16).max:
            return None
        half = numpy_helper.from_array(values.astype(np.float16), f"{name}_float16")
        return [half], [
            helper.make_node("Cast", [half.name], [name], half.name, to=TensorProto.FLOAT)
        ]

    return _with_weights(proto, halve) or _refuse("float16")


def _with_byte_convolutions(proto: Any) -> Any | None:
    """Store the weights of convolutions in int8, with a scale for each output channel."""
    from onnx import TensorProto, helper, numpy_helper

    weights = {node.input[1] for node in proto.graph.node if node.op_type == "Conv"}

    def quantise(name: str, values: NDArray[Any]) -> tuple[list[Any], list[Any]] | None:
        if name not in weights:
            return None
        axes = tuple(range(1, values.ndim))
        scale = np.maximum(abs(values).max(axis=axes, keepdims=True) / 127, 1e-30)
        tensors = [
            numpy_helper.from_array(np.rint(values / scale).astype(np.int8), f"{name}_int8"),
            numpy_helper.from_array(scale.astype(np.float32), f"{name}_scale"),
        ]
        # Both nodes are computed once, when the model is loaded. DequantizeLinear would be computed
        # at each run.
        return tensors, [
            helper.make_node(
                "Cast", [f"{name}_int8"], [f"{name}_levels"], f"{name}_cast", to=TensorProto.FLOAT
            ),
            helper.make_node("Mul", [f"{name}_levels", f"{name}_scale"], [name], f"{name}_scaled"),
        ]

    return _with_weights(proto, quantise)


def _with_weights(
    proto: Any, replace: Callable[[str, NDArray[Any]], tuple[list[Any], list[Any]] | None]
) -> Any | None:
    """Replace weights by smaller tensors and the nodes that make the weights of them again.

    Args:
        proto: The ModelProto, which stays as it is.
        replace: Takes the name of a weight and its values, and returns tensors and nodes, or None
            for a weight that stays.

    Returns:
        A new ModelProto; None where nothing was replaced.
    """
    import onnx
    from onnx import TensorProto, numpy_helper

    new = onnx.ModelProto.FromString(proto.SerializeToString())
    tensors, nodes = [], []
    for tensor in new.graph.initializer:
        values = numpy_helper.to_array(tensor)
        replaced = None
        if tensor.data_type == TensorProto.FLOAT and values.size >= _LEAST:
            replaced = replace(tensor.name, values)
        tensors += [tensor] if replaced is None else replaced[0]
        nodes += [] if replaced is None else replaced[1]
    if not nodes:
        return None
    nodes += new.graph.node
    for field, parts in ((new.graph.initializer, tensors), (new.graph.node, nodes)):
        copies = [type(part).FromString(part.SerializeToString()) for part in parts]
        del field[:]
        field.extend(copies)
    return new


def _refuse(precision: str) -> NoReturn:
    raise LikenessError(
        f"the network has no weights of {_LEAST} numbers or more that {precision} would make "
        "smaller; export it in float32"
    )


def _quantised(
    proto: Any, keep: Collection[str], calibration: Sequence[NDArray[Any]] | None
) -> Any:
    import onnx
    from onnxruntime import quantization

    kinds = _DYNAMIC if calibration is None else _STATIC
    weights = {tensor.name for tensor in proto.graph.initializer}
    products = {node.name: {*node.input} for node in proto.graph.node if node.op_type in kinds}
    left_out = {name for name, inputs in products.items() if name in keep or not weights & inputs}
    smaller = _with_byte_convolutions(proto) if calibration is None else None
    if left_out == products.keys():
        return smaller or _refuse("int8")
    with temporary_folder() as folder, silenced(""):  # the graph needs none of its preprocessing
        before, after = Path(folder, "before.onnx"), Path(folder, "after.onnx")
        inferred = onnx.shape_inference.infer_shapes(smaller or proto)
        before.write_bytes(inferred.SerializeToString())
        common: dict[str, Any] = {
            "op_types_to_quantize": kinds,
            "nodes_to_exclude": sorted(left_out),
            "per_channel": True,
            "weight_type": quantization.QuantType.QInt8,
        }
        if calibration is None:
            quantization.quantize_dynamic(before, after, **common)
        else:
            quantization.quantize_static(
                before,
                after,
                _Reader(proto.graph.input[0].name, calibration),
                quant_format=quantization.QuantFormat.QDQ,
                activation_type=quantization.QuantType.QUInt8,
                **common,
            )
        return onnx.ModelProto.FromString(after.read_bytes())


@contextmanager
def silenced(*loggers: str) -> Iterator[None]:
    """Silence loggers by name, and what they warn of; "" is the root of all."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


class _Reader:
    """Gives ONNX Runtime's calibration one input after the other."""

    def __init__(self, name: str, batches: Sequence[NDArray[Any]]):
        self._inputs: Iterator[dict[str, NDArray[Any]]] = iter([{name: batch} for batch in batches])

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """Return the next input, or None after the last."""
        return next(self._inputs, None)
