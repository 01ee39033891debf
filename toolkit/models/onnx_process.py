"""What happens to .onnx files in a process of their own (eval.formats.boundary): they are looked
into, opened and run there, without torch.

ONNX describes programs: loops of any number of rounds, tensors of any size that depend on the
input. No look at a file bounds these; limits of memory and time on the process that runs it do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eval.formats.boundary import Answer, Array
from eval.types import name_first

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_MAX_DESCRIPTION = 2**20
_sessions: dict[str, Any] = {}  # by path; several only where eval.formats.boundary has no processes


def open_model(path: str, key: str, threads: int) -> Answer:
    """Check a file and open it.

    Args:
        path: The file.
        key: Of its metadata, what is given back.
        threads: Of ONNX Runtime.

    Returns:
        {"inputs", "outputs": [[name, type, shape], ...], "text": what the metadata say under the
        key, or None}, and no arrays.

    Raises:
        ValueError: Damaged; outside tensors; operators that ONNX does not define.
        ImportError: onnx or onnxruntime is missing.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(
            f"{path}: an .onnx model needs ONNX Runtime; run `pip install 'likeness[export]'`"
        ) from None
    held = checked(Path(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = (
        threads,
        1,
        4,
    )
    known = onnxruntime.get_available_providers()
    cuda = (
        [("CUDAExecutionProvider", {"use_tf32": 0})] if "CUDAExecutionProvider" in known else []
    )  # TF32 has three digits, and embeddings would differ
    try:
        session = onnxruntime.InferenceSession(
            held, options, providers=[*cuda, "CPUExecutionProvider"]
        )
    except Exception as error:
        raise ValueError(
            f"{path}: no ONNX model that can be run ({(str(error).splitlines() or ['?'])[0][:200]})"
        ) from None
    _sessions[path] = session
    text = session.get_modelmeta().custom_metadata_map.get(key)
    if text is not None and len(text) > _MAX_DESCRIPTION:
        raise ValueError(
            f"{path}: its description has {len(text)} characters; at most {_MAX_DESCRIPTION} are "
            "read"
        )
    stated = {
        "inputs": [_stated(one) for one in session.get_inputs()],
        "outputs": [_stated(one) for one in session.get_outputs()],
    }
    return {**stated, "text": text}, []


def _stated(one: Any) -> list[Any]:
    return [
        one.name,
        one.type,
        [
            size if isinstance(size, int) else str(size) if size is not None else None
            for size in one.shape
        ],
    ]


def run(path: str, outputs: list[str] | None, inputs: list[str], *arrays: Array) -> Answer:
    """Run a model that open_model opened: None, and its outputs."""
    import numpy as np

    found = _sessions[path].run(outputs, dict(zip(inputs, arrays, strict=True)))
    if not all(isinstance(one, np.ndarray) and one.dtype.kind in "fiub" for one in found):
        raise ValueError("its outputs are no arrays of numbers")
    return None, found


def checked(path: Path) -> bytes:
    """The file's bytes, after a look at what they refer to."""
    try:
        import onnx
    except ImportError:
        raise ImportError(
            f"{path}: looking into an .onnx model needs onnx; run `pip install 'likeness[export]'`"
        ) from None
    held = path.read_bytes()
    try:
        model = onnx.ModelProto.FromString(held)
    except Exception:  # google.protobuf's DecodeError, for one
        raise ValueError(
            f"{path}: no ONNX model that can be run (its protobuf is damaged or truncated)"
        ) from None
    own = {
        (one.domain, one.name) for one in model.functions
    }  # by name: a function of a domain allows no other operator of it
    foreign: dict[str, None] = {}
    outside: dict[str, None] = {}
    for graph in (model.graph, *model.functions):
        for part in parts(graph):
            if isinstance(part, onnx.NodeProto):
                if part.domain not in _DOMAINS and (part.domain, part.op_type) not in own:
                    foreign[f"{part.domain}.{part.op_type}"] = None
            elif part.data_location == onnx.TensorProto.EXTERNAL or part.external_data:
                outside[part.name] = None
    if foreign:
        raise ValueError(
            f"{path}: {len(foreign)} operators are not ONNX's own ({name_first(foreign)}); custom "
            "operators are refused: export it without them"
        )
    if outside:
        raise ValueError(
            f"{path}: {len(outside)} tensors lie in other files ({name_first(outside)}); these are "
            "refused: export it as one file"
        )
    return held


def parts(graph: Any) -> Iterator[Any]:
    """All nodes and tensors of an ONNX graph or function, those of inner graphs too."""
    tensors = [*getattr(graph, "initializer", ())]
    for sparse in getattr(graph, "sparse_initializer", ()):
        tensors += [sparse.values, sparse.indices]
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            tensors += [*attribute.tensors, *((attribute.t,) if attribute.HasField("t") else ())]
            for sparse in (
                *attribute.sparse_tensors,
                *((attribute.sparse_tensor,) if attribute.HasField("sparse_tensor") else ()),
            ):
                tensors += [sparse.values, sparse.indices]
            for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                yield from parts(inner)
    yield from tensors
