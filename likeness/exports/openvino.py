"""OpenVINO's form of a model: an .xml file and a .bin file with the same inputs and outputs.

OpenVINO 2026.4 ends the process when it reads the operator DFT. So the transform becomes a product
with the cosines and sines of its frequencies, which is the same in exact arithmetic.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from eval.errors import LikenessError
from eval.formats.writing import move, remove, staged
from toolkit.models import export, onnx
from toolkit.models.loaded import Loaded

# How far an embedding may be from that of torch, as a cosine distance.
MAX_DISTANCE = 1e-4


def check(path: Path) -> None:
    """Raise what stands against writing this file.

    Raises:
        LikenessError: Its name does not end in .xml, or its weights would replace a file that is
            not of it. The package OpenVINO is missing.
    """
    if path.suffix.lower() != ".xml":
        raise LikenessError(
            f"{path}: OpenVINO's model is named FILE.xml; its weights are written beside it, as "
            "FILE.bin"
        )
    weights = path.with_suffix(".bin")
    if os.path.lexists(weights) and not os.path.lexists(path):
        raise LikenessError(
            f"{weights} is there without {path.name}, so that it is not known to be of an OpenVINO "
            "model; remove it, or give another name"
        )
    if find_spec("openvino") is None:
        raise LikenessError("--for openvino needs openvino; run `pip install 'likeness[openvino]'`")


def write(model: Loaded, path: Path, *, size: tuple[int, int] | None = None) -> float:
    """Write a model for OpenVINO, after comparing it with torch.

    Args:
        model: The model.
        path: The file, FILE.xml; FILE.bin is written beside it.
        size: Height and width of the images, where the model does not state them.

    Returns:
        The largest absolute difference of a number of an embedding to torch's, divided by the norm
        of the embedding.

    Raises:
        LikenessError: The model cannot be exported, or OpenVINO gives other embeddings. What was
            there before stays. The package OpenVINO is missing.
    """
    check(path)
    import onnx as onnx_package
    import openvino

    weights = path.with_suffix(".bin")
    with staged(path) as partial_xml, staged(weights) as partial_bin:
        plain = partial_xml.with_suffix(".onnx")
        export.export(model, plain, size=size)
        proto = onnx_package.load(plain)
        described = {entry.key: entry.value for entry in proto.metadata_props}
        without_dft(proto)
        plain.write_bytes(proto.SerializeToString())
        try:
            converted = openvino.convert_model(plain)
        except RuntimeError as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1][:200]
            raise LikenessError(
                f"OpenVINO cannot take this network ({reason}); "
                "use the .onnx file, with ONNX Runtime"
            ) from None
        converted.set_rt_info(described[onnx.KEY], [onnx.KEY])
        openvino.save_model(converted, partial_xml, compress_to_fp16=False)
        difference = _difference(model, partial_xml, size)
        os.replace(partial_xml.with_suffix(".bin"), partial_bin)
        _replace(partial_xml, partial_bin, path)
    return difference


def _replace(new_xml: Path, new_bin: Path, path: Path) -> None:
    """Put both new files in place of the old ones. A kill leaves no two that are not of each other.

    OpenVINO reads the .xml file, and takes the .bin file of that name.
    """
    remove(path)
    move(new_bin, path.with_suffix(".bin"))
    move(new_xml, path)


def _difference(model: Loaded, xml: Path, size: tuple[int, int] | None) -> float:
    import openvino

    # On newer processors OpenVINO would compute in bfloat16.
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(xml, "CPU", settings)
    inputs = export.inputs_of(model, size)
    worst = 0.0
    for batch in inputs.batches:
        ours = model.embedder.embed_batch(batch.numpy())
        theirs = compiled({inputs.name: batch.numpy()})[0]
        norms = np.linalg.norm(ours, axis=1, keepdims=True)
        cosines = (ours * theirs).sum(1) / (norms[:, 0] * np.linalg.norm(theirs, axis=1))
        if not (1 - cosines.min() <= MAX_DISTANCE):  # NaN is refused too
            raise LikenessError(
                f"on OpenVINO an embedding differs from torch's by a cosine distance of "
                f"{1 - cosines.min():.1e}; at most {MAX_DISTANCE:.0e} is allowed: nothing was "
                "written"
            )
        worst = max(worst, float((abs(ours - theirs) / norms).max()))
    return worst


def without_dft(proto: Any) -> None:
    """Replace the real transforms of a graph by products, in place.

    Args:
        proto: A ModelProto whose nodes DFT are one-sided, over the last axis but one.
    """
    from onnx import NodeProto, helper, numpy_helper

    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    nodes: list[Any] = []
    for node in proto.graph.node:
        if node.op_type != "DFT":
            nodes.append(NodeProto.FromString(node.SerializeToString()))
            continue
        size = int(numpy_helper.to_array(constants[node.input[1]]))
        name, bins = node.output[0], size // 2 + 1
        # Multiples of whole turns are taken out first, so that the angles are exact.
        turns = np.arange(size)[:, None] * np.arange(bins) % size / size
        table = np.stack([np.cos(2 * np.pi * turns), -np.sin(2 * np.pi * turns)], axis=-1)
        tensors = {
            "table": table.reshape(size, -1).astype(np.float32),
            "shape": np.array([0, 0, bins, 2]),
            "last": np.array([-1]),
        }
        for key, values in tensors.items():
            proto.graph.initializer.append(numpy_helper.from_array(values, f"{name}_{key}"))
        nodes += [
            helper.make_node("Squeeze", [node.input[0], f"{name}_last"], [f"{name}_real"]),
            helper.make_node("MatMul", [f"{name}_real", f"{name}_table"], [f"{name}_product"]),
            helper.make_node("Reshape", [f"{name}_product", f"{name}_shape"], [name]),
        ]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
