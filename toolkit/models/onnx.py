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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.cores import num_threads
from likeness.eval.errors import LikenessError, first_line
from likeness.eval.items.items import Item
from likeness.eval.types import name_first, quoted
from likeness.toolkit.data.reading import Array, Floats, Read

FORMAT, KEY = "likeness.onnx/1", "likeness"
# Each tensor outside a file has an entry of this key. To parse every file would import onnx, which
# takes as long as to import ONNX Runtime.
_KEY_OUTSIDE = b"location"


class OnnxEmbedder:
    """A whole embedder in ONNX Runtime, which gives raw embeddings (B, dim).

    It takes inputs as the model's reading gives them: waves (B, S), images (B, C, H, W), or what
    `read_both` packs (B, S), where the graph has two inputs. The graph takes no lengths, so the
    batches of `embed` hold equal lengths only; inputs that come with lengths are cut and run one by
    one.

    Args:
        session: What runs the graph.
        dim: The size of an embedding.
    """

    pads_exactly = False
    is_on_cpu = True  # its inputs are

    def __init__(self, session: Session, dim: int):
        self.session, self.dim = session, dim

    def embed_batch(self, inputs: Array, lengths: NDArray[np.float64] | None = None) -> Floats:
        """Return the embeddings (B, dim) of inputs (B, ...), whose relative lengths are (B,).

        Raises:
            LikenessError: The inputs have another shape, or the graph cannot take them (for
                instance waves that are shorter than a frame).
        """
        names = [value.name for value in self.session.get_inputs()]
        values = np.ascontiguousarray(inputs, dtype=np.float32)
        groups = [[values]]
        if len(names) > 1:
            groups = [[part[None] for part in _unpacked(row)] for row in values]
        elif lengths is not None and (lengths < 1).any():
            sizes = np.rint(lengths * values.shape[-1]).astype(int)
            groups = [[row[None, ..., :size]] for row, size in zip(values, sizes, strict=True)]
        rows = [self.session.run(None, dict(zip(names, group, strict=True)))[0] for group in groups]
        return np.concatenate(rows).astype(np.float32, copy=False)

    def begin_batch(
        self, inputs: Array, lengths: NDArray[np.float64] | None = None
    ) -> Callable[[], Floats]:
        """Do what `embed_batch` does, and return what gives the embeddings."""
        rows = self.embed_batch(inputs, lengths)
        return lambda: rows

    def used_length(self, length: int) -> int:
        """Return the length itself: what the graph leaves out of an input is not known here."""
        return length

    def to_device(self, device: str = "") -> None:
        """Check the device: the graph runs on CUDA where the installed ONNX Runtime has it.

        Raises:
            LikenessError: It is another device than that.
        """
        if device and device.partition(":")[0] != self.session.device:
            raise LikenessError(
                f"device {device!r} cannot be used: it runs on {self.session.device}; give that"
            )

    def share_cores(self, num_calls: int) -> None:
        """Do nothing: the graph has the threads that it was opened with."""


def read(path: Path) -> tuple[OnnxEmbedder, dict[str, Any]] | None:
    """Return the embedder of a file of `likeness export`, and what the file states about it.

    Returns:
        The embedder and the description, or None for an .onnx file from elsewhere.

    Raises:
        LikenessError: The file is damaged, has tensors outside it or foreign operators, or has a
            description that is none.
    """
    session = Session(path)
    if session.text is None:
        return None
    try:
        stated = json.loads(session.text)
        dim = stated["dim"]
        fits = stated["format"] == FORMAT and session.get_outputs()[0].shape[1:] == [dim]
        for name in ("modality", "similarity", "digest"):
            fits = fits and isinstance(stated[name], str)
    except (ValueError, LookupError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise LikenessError(
            f"{path}: its description is incomplete, does not fit its graph or is not of the "
            f"format {FORMAT!r} ({quoted(session.text[:200])}); export it anew"
        )
    return OnnxEmbedder(session, dim), stated


_HALF = 1 << 16


def read_both(item: Item, *, reads: Sequence[Read]) -> Floats:
    """Read an item in several ways, and pack what they give into one array of numbers.

    Before the numbers of each stand the number of its axes and their sizes, each as two numbers
    below 65,536, so that float32 holds them exactly.

    Example:
        >>> reads = [lambda item: np.zeros((2, 3)), lambda item: np.ones(2)]
        >>> packed = read_both(Item("a", Path("a")), reads=reads)
        >>> packed.tolist()
        [2.0, 0.0, 2.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 2.0, 1.0, 1.0]
        >>> [part.shape for part in _unpacked(packed)]
        [(2, 3), (2,)]
    """
    values = [np.asarray(read(item)) for read in reads]
    parts: list[Any] = []
    for value in values:
        halves = [half for size in value.shape for half in divmod(size, _HALF)]
        parts += [[value.ndim, *halves], value.reshape(-1)]
    return np.concatenate(parts).astype(np.float32)


def _unpacked(packed: Floats) -> list[Floats]:
    """What `read_both` packed, and perhaps zeros after it."""
    values, start = [], 0
    for _ in range(2):
        axes = int(packed[start])
        halves = packed[start + 1 : start + 1 + 2 * axes].astype(int).reshape(axes, 2)
        shape = halves @ (_HALF, 1)
        start += 1 + 2 * axes
        end = start + int(shape.prod())
        values.append(packed[start:end].reshape(shape))
        start = end
    return values


class Session:
    """An ONNX model of a file from anywhere in ONNX Runtime, on CUDA where that has it.

    It has those methods of InferenceSession that are needed here. A process that was forked from
    this one lacks the threads of the session, and opens the file again at its first call.

    Attributes:
        path: The file.
        metadata: The file's metadata.
        text: The description in them; None where they have none.
        device: "cuda" or "cpu".
        get_inputs: Gives the inputs of the graph: name, type and shape, where a free size is no
            integer.
        get_outputs: Gives the outputs, as `get_inputs`.
    """

    def __init__(self, path: Path):
        if not path.is_file():
            raise LikenessError(f"model {quoted(str(path))} does not exist")
        self.path = path.absolute()
        self._open()

    def _open(self) -> None:
        import onnxruntime

        content = self.path.read_bytes()
        if _KEY_OUTSIDE in content:
            parse(content, self.path)
        options = onnxruntime.SessionOptions()
        # ONNX Runtime has a format of its own, which is not looked into here.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        options.intra_op_num_threads, options.inter_op_num_threads = num_threads(), 1
        options.log_severity_level = 4
        providers: list[Any] = ["CPUExecutionProvider"]
        if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            # TF32 has three digits only, and embeddings would differ.
            providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": 0}))
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=providers)
        except Exception as error:
            # onnxruntime has an exception for each of its states, with no base but Exception.
            raise LikenessError(
                f"{self.path} is no ONNX model that can be run ({first_line(error)})"
            ) from None
        self._owner = os.getpid()
        self.get_inputs: Callable[[], list[Any]] = self._session.get_inputs
        self.get_outputs: Callable[[], list[Any]] = self._session.get_outputs
        is_on_gpu = "CUDAExecutionProvider" in self._session.get_providers()
        self.device = "cuda" if is_on_gpu else "cpu"
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.text = self.metadata.get(KEY)

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
                f"{self.path}: the model does not run on inputs of {shapes} ({first_line(error)})"
            ) from None
        return results


def parse(content: bytes, path: Path) -> Any:
    """Return the ModelProto of a file, all of whose tensors lie in it.

    Args:
        content: The bytes of the file.
        path: The file, for errors.

    Raises:
        LikenessError: It is no ONNX model, or has tensors outside it.
    """
    import onnx

    try:
        model = onnx.ModelProto.FromString(content)
    except Exception:  # the DecodeError of google.protobuf, among others
        model = onnx.ModelProto()
    if not model.graph.node:
        raise LikenessError(
            f"{path} is no ONNX model that can be run (it is damaged, cut off or another file)"
        )
    outside = [
        part.name
        for part in parts_of(model)
        if isinstance(part, onnx.TensorProto)
        and (part.data_location == onnx.TensorProto.EXTERNAL or part.external_data)
    ]
    if outside:
        raise LikenessError(
            f"{path}: tensors lie in other files ({name_first(sorted({*outside}))}); save one file"
        )
    return model


def parts_of(message: Any) -> Iterator[Any]:
    """Yield all nodes, tensors and inner graphs of an ONNX model, and what they hold."""
    for field, value in message.ListFields():
        if field.message_type is not None:  # no number or text
            for part in [value] if hasattr(value, "ListFields") else value:
                yield part
                yield from parts_of(part)
