"""Models of `likeness export`: one .onnx file that holds front-end, network and what else there is to know, run by ONNX Runtime.

The description is a JSON object under the key "likeness" of the file's metadata: format, modality, similarity, dim, read (which function of the modality reads
the items), digest (of the model that was exported: its embeddings and calibrations fit) and shape (what follows the batch in the input; null = any length).

ONNX files come from anywhere: their size is bounded, tensors outside the file and operators that ONNX does not define are refused before ONNX Runtime sees
them, which then gets bytes and no path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from eval.types import name_first
from toolkit.batch import Read
from toolkit.checkpoint import Loaded
from toolkit.embed import TorchEmbedder
from toolkit.recipe import restore

FORMAT, KEY = "likeness.onnx/1", "likeness"
MAX_BYTES = 2**31 - 1  # protobuf's own limit
_MAX_DESCRIPTION = 2**20
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


class Whole(nn.Module):
    """The front-end of a model that has its own inside: inputs pass through."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return inputs, lengths


class OnnxEmbedder(nn.Module):
    """A whole embedder in ONNX Runtime: inputs as `read` gives them, (B, S) waves or (B, C, H, W) images -> (B, dim) raw embeddings.

    It takes no lengths, so that embedding batches hold equal lengths only; inputs with lengths are cut and run one by one.
    """

    pads_exactly = False

    def __init__(self, session: Any, dim: int, shape: tuple[int | None, ...]):
        super().__init__()
        self.session, self.dim, self.shape = session, dim, shape

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """ValueError for inputs of another shape, and those that the graph cannot take (waves shorter than a frame)."""
        given = tuple(inputs.shape[1:])
        if len(given) != len(self.shape) or any(wanted not in (None, size) for wanted, size in zip(self.shape, given, strict=True)):
            wanted_text = " x ".join("any" if size is None else str(size) for size in self.shape)
            raise ValueError(f"inputs of {' x '.join(map(str, given))}; this .onnx model takes {wanted_text}: read or resize them so, or export it anew")
        values = inputs.detach().float().cpu()
        groups = [values]
        if lengths is not None and bool((lengths < 1).any()):
            sizes = (lengths.double().cpu() * values.shape[-1]).round().long().tolist()
            groups = [row[None, ..., :size] for row, size in zip(values, sizes, strict=True)]
        name = self.session.get_inputs()[0].name
        try:
            rows = [torch.from_numpy(self.session.run(None, {name: group.numpy()})[0]) for group in groups]
        except Exception as error:  # onnxruntime has an exception for each of its states, with no base but Exception
            raise ValueError(f"the .onnx model does not run on inputs of {' x '.join(map(str, given))} ({str(error).splitlines()[0][:200]})") from None
        return torch.cat(rows).to(inputs.device)


def load(path: Path) -> Loaded | None:
    """The model of a file of `likeness export`; None for an .onnx file from elsewhere.

    ValueError: damaged, too large, outside tensors, foreign operators, a description that is not one. ImportError names the extra to install.
    """
    session = open_session(path)
    text = session.get_modelmeta().custom_metadata_map.get(KEY)
    if text is None:
        return None
    try:
        stated = json.loads(text) if len(text) <= _MAX_DESCRIPTION else None
    except (ValueError, RecursionError):
        stated = None
    names = ("format", "modality", "similarity", "digest")
    if not isinstance(stated, dict) or stated.get("format") != FORMAT or not all(isinstance(stated.get(name), str) for name in names):
        found = stated.get("format") if isinstance(stated, dict) else None
        raise ValueError(f"{path}: its description is of format {str(found)[:40]!r}, or incomplete; this version of Likeness reads {FORMAT!r}: export it anew")
    shape, outputs, inputs = stated.get("shape"), session.get_outputs(), session.get_inputs()
    if not isinstance(shape, list) or not all(size is None or isinstance(size, int) for size in shape) or len(inputs) != 1 or len(outputs) != 1:
        raise ValueError(f"{path}: its description does not fit its {len(inputs)} inputs and {len(outputs)} outputs; export it anew")
    if not isinstance(stated.get("dim"), int) or outputs[0].shape[1:] != [stated["dim"]] or len(inputs[0].shape) != 1 + len(shape):
        raise ValueError(f"{path}: its description says {stated.get('dim')} dims of {shape}, the graph {outputs[0].shape} of {inputs[0].shape}; export it anew")
    read = cast(Read, restore(stated.get("read"), f"{path}: read", kind="read", untrusted=True))
    embedder = TorchEmbedder(Whole(shape[0] or 1), OnnxEmbedder(session, stated["dim"], tuple(shape))).eval()
    quality = stated.get("norm_is_quality") is True
    return Loaded(embedder, read, stated["modality"], stated["similarity"], stated["digest"], 0, norm_is_quality=quality)


def open_session(path: Path) -> Any:
    """An ONNX Runtime session of a file from anywhere: on CUDA where onnxruntime has it, with as many threads as torch. Errors as in `load`."""
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(f"{path}: an .onnx model needs ONNX Runtime; run `pip install 'likeness[export]'`") from None
    held = _checked(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 4
    known = onnxruntime.get_available_providers()
    cuda = [("CUDAExecutionProvider", {"use_tf32": 0})] if "CUDAExecutionProvider" in known else []  # TF32 has three digits, and embeddings would differ
    try:
        return onnxruntime.InferenceSession(held, options, providers=[*cuda, "CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(f"{path}: no ONNX model that can be run ({str(error).splitlines()[0][:200]})") from None


def _checked(path: Path) -> bytes:
    """The file's bytes, after a look at what they refer to."""
    try:
        import onnx
    except ImportError:
        raise ImportError(f"{path}: looking into an .onnx model needs onnx; run `pip install 'likeness[export]'`") from None
    if not path.is_file():
        raise ValueError(f"model {str(path)!r} does not exist")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: {path.stat().st_size} bytes; an .onnx file has at most {MAX_BYTES}: larger models keep their tensors elsewhere")
    held = path.read_bytes()
    try:
        model = onnx.ModelProto.FromString(held)
    except Exception:  # google.protobuf's DecodeError, for one
        raise ValueError(f"{path}: no ONNX model that can be run (its protobuf is damaged or truncated)") from None
    own = {one.domain for one in model.functions}
    foreign: dict[str, None] = {}
    outside: dict[str, None] = {}
    for graph in (model.graph, *model.functions):
        for part in parts(graph):
            if isinstance(part, onnx.NodeProto):
                if part.domain not in (*_DOMAINS, *own):
                    foreign[f"{part.domain}.{part.op_type}"] = None
            elif part.data_location == onnx.TensorProto.EXTERNAL or part.external_data:
                outside[part.name] = None
    if foreign:
        raise ValueError(f"{path}: {len(foreign)} operators are not ONNX's own ({name_first(foreign)}); custom operators are refused: export it without them")
    if outside:
        raise ValueError(f"{path}: {len(outside)} tensors lie in other files ({name_first(outside)}); these are refused: export it as one file")
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
            for sparse in (*attribute.sparse_tensors, *((attribute.sparse_tensor,) if attribute.HasField("sparse_tensor") else ())):
                tensors += [sparse.values, sparse.indices]
            for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                yield from parts(inner)
    yield from tensors
