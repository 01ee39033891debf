"""Models of `likeness export`: one .onnx file with front-end and network, run by ONNX Runtime.

export.py beside this file writes them.

The description is a JSON object under the key "likeness" of the file's metadata. It states format,
modality, similarity, dim, read (which function of the modality reads the items), digest (of the
model that was exported, so that its embeddings and calibrations fit this one too) and shape (what
follows the batch in the input; null means any length).

ONNX files come from anywhere. They are opened and run in a process of their own
(toolkit/models/onnx_process.py), with limits of memory and time that follow from the sizes of the
file and of the input. Tensors outside the file and operators that ONNX does not define are refused
there. Nothing here imports torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.cores import num_threads
from eval.errors import LikenessError
from eval.formats.boundary import Ended, Limits, Process
from eval.types import first_line
from toolkit.data.reading import Array, Floats
from toolkit.models import onnx_process
from toolkit.models.loaded import Flip

FORMAT, KEY = "likeness.onnx/1", "likeness"
MAX_BYTES = 2**31 - 1  # protobuf's own limit
_SECONDS = 8.0  # of processor time that a run may take whatever its input
_MEMORY = 1 << 29  # bytes that a model may take whatever its size and its input


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
        try:
            rows = [self.session.run(None, {name: group})[0] for group in groups]
        except Exception as error:
            # onnxruntime has an exception for each of its states, with no base but Exception.
            raise LikenessError(
                f"the .onnx model does not run on inputs of {shape_text} ({first_line(error)})"
            ) from None
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
        """Do nothing: calls run one after the other in the process of the graph."""


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
            f"{path}: its description is of format {str(stored_format)[:40]!r}, or incomplete; "
            f"this version of Likeness reads {FORMAT!r}: export it anew"
        )
    shape, outputs, inputs = stated.get("shape"), session.get_outputs(), session.get_inputs()
    if (
        not isinstance(shape, list)
        or not all(size is None or isinstance(size, int) for size in shape)
        or len(inputs) != 1
        or len(outputs) != 1
    ):
        raise LikenessError(
            f"{path}: its description does not fit its {len(inputs)} inputs and {len(outputs)} "
            "outputs; export it anew"
        )
    if (
        not isinstance(stated.get("dim"), int)
        or outputs[0].shape[1:] != [stated["dim"]]
        or len(inputs[0].shape) != 1 + len(shape)
    ):
        raise LikenessError(
            f"{path}: its description states {stated.get('dim')} dims for inputs of {shape}, but "
            f"its graph gives {outputs[0].shape} for inputs of {inputs[0].shape}; export it anew"
        )
    return OnnxEmbedder(session, stated["dim"], tuple(shape)), stated


def open_session(path: Path) -> Session:
    """Open a model of a file from anywhere.

    It runs on CUDA where onnxruntime has it. The errors are those of `read`.
    """
    return Session(path)


class Value(NamedTuple):
    """An input or output of a graph.

    Attributes:
        name: Its name.
        type: "tensor(float)" or the like.
        shape: Its sizes; a free size is a text or None.
    """

    name: str
    type: str
    shape: list[int | str | None]


class Session:
    """An ONNX model that runs in a process of its own.

    It has those methods of ONNX Runtime's InferenceSession that are needed here. The process ends
    with this object. A process that met a limit, or that a forked process would share, is started
    anew at the next call.
    """

    def __init__(self, path: Path):
        if not path.is_file():
            raise LikenessError(f"model {str(path)!r} does not exist")
        self._path, self._size = path.absolute(), path.stat().st_size
        if self._size > MAX_BYTES:
            raise LikenessError(
                f"{path}: {self._size} bytes; an .onnx file has at most {MAX_BYTES}: larger models "
                "keep their tensors elsewhere"
            )
        self._open()

    def _open(self) -> None:
        # onnxruntime is not imported here: it starts a thread in the process that imports it.
        self._process = Process(onnx_process.__name__, "onnx")
        limits = Limits(
            seconds=10.0 + self._size / 1e7,
            memory=_MEMORY + 6 * self._size + _cuda_memory(),
            answer=0,
        )
        stated, _ = self._process.ask(
            onnx_process.open_model,
            str(self._path),
            KEY,
            num_threads(),
            about=self._path,
            limits=limits,
        )
        self._inputs, self._outputs = (
            [Value(*fields) for fields in stated[name]] for name in ("inputs", "outputs")
        )
        self.text: str | None = stated["text"]

    def get_inputs(self) -> list[Value]:
        """Return the inputs of the graph."""
        return self._inputs

    def get_outputs(self) -> list[Value]:
        """Return the outputs of the graph."""
        return self._outputs

    def run(
        self, outputs: Sequence[str] | None, inputs: Mapping[str, np.ndarray[Any, Any]]
    ) -> list[np.ndarray[Any, Any]]:
        """Return the outputs for these inputs.

        Raises:
            LikenessError: The model does not take the inputs, or it takes more memory or time than
                any network needs for them.
        """
        size = sum(array.nbytes for array in inputs.values())
        # Networks take up to 100 times the memory of their input, and up to 10 s of a slow
        # processor for each megabyte of it.
        limits = Limits(
            seconds=_SECONDS + size / 7e3,
            memory=_MEMORY + 2 * self._size + 512 * size + _cuda_memory(),
            answer=_MEMORY + 64 * size,
        )
        names = None if outputs is None else list(outputs)
        while True:
            process = self._process
            try:
                return process.ask(
                    onnx_process.run,
                    str(self._path),
                    names,
                    list(inputs),
                    arrays=list(inputs.values()),
                    about=self._path,
                    limits=limits,
                )[1]
            except Ended:
                # An earlier input ended the process, perhaps one of another thread; or the process
                # belongs to the one that this one was forked from.
                if self._process is process:
                    self._open()


def _cuda_memory() -> int:
    """Return what CUDA adds to the memory of the process, in bytes.

    It lies on the graphics card, or is only mapped for it, but counts as memory of the process.
    """
    return 1 << 40 if _has_cuda() else 0


@lru_cache(maxsize=1)
def _has_cuda() -> bool:
    """Say whether the installed ONNX Runtime runs on CUDA. It is not imported for that."""
    spec = find_spec("onnxruntime")
    folders = (spec and spec.submodule_search_locations) or ()
    return any(
        next(Path(folder, "capi").glob("*onnxruntime_providers_cuda*"), None) for folder in folders
    )
