"""What happens to .onnx files in a process of their own: they are checked, opened and run.

The process is that of eval.formats.boundary, and has no torch. ONNX describes programs: loops of
any number of rounds, tensors of any size that depend on the input. No look at a file bounds these;
limits of memory and time on the process that runs it do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from eval.formats.boundary import Answer, Array
from eval.types import first_line, name_first

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_MAX_DESCRIPTION = 2**20
# Path -> session. There are several only where eval.formats.boundary has no processes.
_sessions: dict[str, Any] = {}


def open_model(path: str, key: str, threads: int) -> Answer:
    """Check a file and open it.

    Args:
        path: The file.
        key: The key of the file's metadata whose text is returned.
        threads: The number of threads of ONNX Runtime.

    Returns:
        {"inputs": [[name, type, shape], ...], "outputs": the same, "text": what the metadata hold
        under the key, or None}, and no arrays.

    Raises:
        LikenessError: The file is damaged, has tensors in other files, or operators that ONNX does
            not define.
        ImportError: onnx or onnxruntime is missing.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(
            f"{path}: an .onnx model needs ONNX Runtime; run `pip install onnxruntime`"
        ) from None
    content = checked(Path(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    providers: list[Any] = ["CPUExecutionProvider"]
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        # TF32 has three digits only, and embeddings would differ.
        providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": 0}))
    try:
        session = onnxruntime.InferenceSession(content, options, providers=providers)
    except Exception as error:
        raise LikenessError(
            f"{path} is no ONNX model that can be run ({first_line(error)})"
        ) from None
    _sessions[path] = session
    text = session.get_modelmeta().custom_metadata_map.get(key)
    if text is not None and len(text) > _MAX_DESCRIPTION:
        raise LikenessError(
            f"{path}: its description has {len(text)} characters; at most {_MAX_DESCRIPTION} are "
            "read"
        )
    stated = {
        "inputs": [_stated(value) for value in session.get_inputs()],
        "outputs": [_stated(value) for value in session.get_outputs()],
    }
    return {**stated, "text": text}, []


def _stated(value: Any) -> list[Any]:
    """Return name, type and shape of an input or output as JSON values."""
    shape = [size if size is None or isinstance(size, int) else str(size) for size in value.shape]
    return [value.name, value.type, shape]


def run(path: str, outputs: list[str] | None, inputs: list[str], *arrays: Array) -> Answer:
    """Run a model that `open_model` opened; return None and its outputs."""
    import numpy as np

    results = _sessions[path].run(outputs, dict(zip(inputs, arrays, strict=True)))
    if not all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in results):
        raise LikenessError("its outputs are no arrays of numbers")
    return None, results


def checked(path: Path) -> bytes:
    """Return the file's bytes, after a check of what they refer to.

    Raises:
        LikenessError: The file is damaged, has tensors in other files, or operators that ONNX does
            not define.
        ImportError: onnx is missing.
    """
    try:
        import onnx
    except ImportError:
        raise ImportError(
            f"{path}: looking into an .onnx model needs onnx; run `pip install onnx`"
        ) from None
    content = path.read_bytes()
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception:  # the DecodeError of google.protobuf, among others
        raise LikenessError(
            f"{path} is no ONNX model that can be run (its protobuf is damaged or truncated)"
        ) from None
    # Domain and name together: a function of a domain allows no other operator of that domain.
    own = {(function.domain, function.name) for function in model.functions}
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
        raise LikenessError(
            f"{path}: {len(foreign)} operators are not ONNX's own ({name_first(foreign)}); custom "
            "operators are refused: export it without them"
        )
    if outside:
        raise LikenessError(
            f"{path}: {len(outside)} tensors lie in other files ({name_first(outside)}); these are "
            "refused: export it as one file"
        )
    return content


def parts(graph: Any) -> Iterator[Any]:
    """Yield all nodes and tensors of an ONNX graph or function, those of inner graphs too."""
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
