"""Models of `likeness export`: one .onnx file with front-end and network, run by ONNX Runtime.

export.py beside this file writes them.

The description is a JSON object under the key "likeness" of the file's metadata. It states format,
modality, similarity, dim, read (which function of the modality reads the items), digest (of the
model that was exported, so that its embeddings and calibrations fit this one too) and shape (what
follows the batch in the input; null means any length).

ONNX files come from anywhere, and ONNX Runtime runs them in this process. Tensors outside the file
are refused: no digest would cover them, and their paths may lead anywhere. Nothing here imports
torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.cores import num_threads
from eval.errors import LikenessError, first_line
from eval.types import name_first, quoted
from toolkit.data.reading import Array, Floats
from toolkit.models.loaded import Flip

FORMAT, KEY = "likeness.onnx/1", "likeness"
MAX_BYTES = 2**31 - 1  # protobuf's own limit
_MAX_DESCRIPTION = 2**20  # characters


class OnnxEmbedder:
    """A whole embedder in ONNX Runtime, which gives raw embeddings (B, dim).

    It takes inputs as `read` gives them: waves (B, S) or images (B, C, H, W). The graph takes no
    lengths, so the batches of `embed` hold equal lengths only; inputs that come with lengths are
    cut and run one by one.

    Args:
        session: What runs the graph.
        dim: The size of an embedding of the graph.
        shape: What follows the batch in its input; None for any size.
        flip: For images: how the embedding of the mirror image is joined to the image's own.
    """

    pads_exactly = False
    is_on_cpu = True  # its inputs are

    def __init__(
        self, session: Session, dim: int, shape: tuple[int | None, ...], flip: Flip = "none"
    ):
        self.session, self.shape, self.flip = session, shape, flip
        self.dim = 2 * dim if flip == "concat" else dim
        self._graph_dim = dim

    def embed_batch(self, inputs: Array, lengths: NDArray[np.float64] | None = None) -> Floats:
        """Return the embeddings (B, dim) of inputs (B, ...), whose relative lengths are (B,).

        Raises:
            LikenessError: The inputs have another shape, or the graph cannot take them (for
                instance waves that are shorter than a frame).
        """
        z = self._view(inputs, lengths)
        if self.flip == "none":
            return z
        mirrored = self._view(inputs[..., ::-1], lengths)
        if self.flip == "concat":
            return np.concatenate((z, mirrored), axis=1)
        both: Floats = z + mirrored
        return both if self.flip == "sum" else both / np.float32(2)

    def _view(self, inputs: Array, lengths: NDArray[np.float64] | None) -> Floats:
        """Return the embeddings of these inputs alone, without those of their mirror images."""
        shape = tuple(inputs.shape[1:])
        shape_text = " x ".join(map(str, shape))
        if len(shape) != len(self.shape) or any(
            expected not in (None, size) for expected, size in zip(self.shape, shape, strict=True)
        ):
            expected_text = " x ".join("any" if size is None else str(size) for size in self.shape)
            raise LikenessError(
                f"the inputs have the shape {shape_text}, but this .onnx model takes "
                f"{expected_text}; read or resize them to it, or export the model anew"
            )
        values = np.ascontiguousarray(inputs, dtype=np.float32)
        groups = [values]
        if lengths is not None and (lengths < 1).any():
            sizes = np.rint(lengths * values.shape[-1]).astype(int)
            groups = [row[None, ..., :size] for row, size in zip(values, sizes, strict=True)]
        name = self.session.get_inputs()[0].name
        rows = [self.session.run(None, {name: group})[0] for group in groups]
        return np.concatenate(rows).astype(np.float32, copy=False)

    def used_length(self, length: int) -> int:
        """Return the length itself: what the graph leaves out of an input is not known here."""
        return length

    def flipped(self, flip: Flip) -> OnnxEmbedder:
        """Return an embedder of the same graph with another `flip`."""
        return OnnxEmbedder(self.session, self._graph_dim, self.shape, flip)

    def to_device(self, device: str = "") -> None:
        """Do nothing: the graph runs on CUDA where the installed ONNX Runtime has it.

        Raises:
            LikenessError: This is the name of no device.
        """
        if device and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise LikenessError(
                f"device {device!r} cannot be used by an .onnx model; give cpu, cuda or cuda:NUMBER"
            )

    def share_cores(self, num_calls: int) -> None:
        """Do nothing: the graph has the threads that it was opened with."""


def read(path: Path) -> tuple[OnnxEmbedder, dict[str, Any]] | None:
    """Return the embedder of a file of `likeness export`, and what the file states about it.

    Returns:
        The embedder and the description, or None for an .onnx file from elsewhere.

    Raises:
        LikenessError: The file is damaged or too large, has tensors outside it or foreign
            operators, or has a description that is none. A package is missing; the message names
            the extra to install.
    """
    session = open_session(path)
    text = session.text
    if text is None:
        return None
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError):
        stated = None
    names = ("format", "modality", "similarity", "digest")
    if (
        not isinstance(stated, dict)
        or stated.get("format") != FORMAT
        or not all(isinstance(stated.get(name), str) for name in names)
    ):
        stored_format = stated.get("format") if isinstance(stated, dict) else None
        raise LikenessError(
            f"{path}: its description is of format {quoted(stored_format)}, or incomplete; "
            f"this version of Likeness reads {FORMAT!r}: export it anew"
        )
    shape, dim = stated.get("shape"), stated.get("dim")
    outputs, inputs = session.get_outputs(), session.get_inputs()
    if not (
        len(inputs) == len(outputs) == 1
        and isinstance(shape, list)
        and all(size is None or isinstance(size, int) for size in shape)
        and len(inputs[0].shape) == 1 + len(shape)
        and isinstance(dim, int)
        and outputs[0].shape[1:] == [dim]
    ):
        raise LikenessError(
            f"{path}: its description states inputs {quoted(shape)} and {quoted(dim)} dims, which "
            "does not fit its graph; export it anew"
        )
    return OnnxEmbedder(session, dim, tuple(shape)), stated


def open_session(path: Path) -> Session:
    """Open a model of a file from anywhere.

    It runs on CUDA where onnxruntime has it. The errors are those of `read`.
    """
    return Session(path)


class Session:
    """An ONNX model in ONNX Runtime.

    It has those methods of InferenceSession that are needed here. A process that was forked from
    this one lacks the threads of the session, and opens the file again at its first call.

    Attributes:
        text: The description in the file's metadata; None where it has none.
    """

    def __init__(self, path: Path):
        if not path.is_file():
            raise LikenessError(f"model {quoted(str(path))} does not exist")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise LikenessError(
                f"{path}: {size} bytes; an .onnx file has at most {MAX_BYTES}: larger models "
                "keep their tensors elsewhere"
            )
        self._path = path.absolute()
        self._open()

    def _open(self) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise LikenessError(
                f"{self._path}: an .onnx model needs ONNX Runtime; run `pip install onnxruntime`"
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads(), 1
        options.log_severity_level = 4
        providers: list[Any] = ["CPUExecutionProvider"]
        if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            # TF32 has three digits only, and embeddings would differ.
            providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": 0}))
        content = _without_others(self._path)
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=providers)
        except Exception as error:
            # onnxruntime has an exception for each of its states, with no base but Exception.
            raise LikenessError(
                f"{self._path} is no ONNX model that can be run ({first_line(error)})"
            ) from None
        self._owner = os.getpid()
        self.text: str | None = self._session.get_modelmeta().custom_metadata_map.get(KEY)
        if self.text is not None and len(self.text) > _MAX_DESCRIPTION:
            raise LikenessError(
                f"{self._path}: its description has {len(self.text)} characters; at most "
                f"{_MAX_DESCRIPTION} are read"
            )

    def get_inputs(self) -> list[Any]:
        """Return the inputs of the graph: name, type and shape, where a free size is no integer."""
        inputs: list[Any] = self._session.get_inputs()
        return inputs

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the graph, as `get_inputs`."""
        outputs: list[Any] = self._session.get_outputs()
        return outputs

    def run(
        self, outputs: Sequence[str] | None, inputs: Mapping[str, NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """Return the outputs for these inputs.

        Raises:
            LikenessError: The model does not take the inputs.
        """
        if self._owner != os.getpid():
            self._open()
        names = None if outputs is None else list(outputs)
        try:
            results: list[NDArray[Any]] = self._session.run(names, dict(inputs))
        except Exception as error:  # of many kinds, see _open
            shapes = ", ".join(" x ".join(map(str, array.shape)) for array in inputs.values())
            raise LikenessError(
                f"{self._path}: the .onnx model does not run on inputs of {shapes} "
                f"({first_line(error)})"
            ) from None
        return results


def _without_others(path: Path) -> bytes:
    """Return the bytes of a model, all of whose tensors lie in this file."""
    try:
        import onnx
    except ImportError:
        raise LikenessError(
            f"{path}: looking into an .onnx model needs onnx; run `pip install onnx`"
        ) from None
    content = path.read_bytes()
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception:  # the DecodeError of google.protobuf, among others
        raise LikenessError(
            f"{path} is no ONNX model that can be run (its protobuf is damaged or truncated)"
        ) from None
    outside = [
        part.name
        for graph in (model.graph, *model.functions)
        for part in graph_parts(graph)
        if isinstance(part, onnx.TensorProto)
        and (part.data_location == onnx.TensorProto.EXTERNAL or part.external_data)
    ]
    if outside:
        raise LikenessError(
            f"{path}: tensors lie in other files ({name_first(dict.fromkeys(outside))}); export it "
            "as one file"
        )
    return content


def graph_parts(graph: Any) -> Iterator[Any]:
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
                yield from graph_parts(inner)
    yield from tensors
