"""Two models of `likeness export` as one .onnx file, whose score is a weighted sum of theirs.

The graph has both networks, each with its own front-end, and puts their embeddings side by side,

    z = (sqrt(w1) a, sqrt(w2) b)    so that    z.z' = w1 a.a' + w2 b.b'

where the embeddings of a model that is scored by the cosine are scaled to length 1. If both are,
|z| is the same for all items, and the cosine of z is the mean of both cosines by these weights.
Models that read items alike share the input; of others the graph has two inputs. Nothing here
imports torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError, likeness_version
from likeness.eval.formats.files import atomic_path
from likeness.eval.formats.provenance import digest
from likeness.eval.items.items import Item
from likeness.toolkit.data.reading import Array, Floats, Read
from likeness.toolkit.models import onnx

SCORED_BY = ("cosine", "dot")  # the similarities that a dot product of joint embeddings can sum


def write(files: Sequence[Path], weights: Sequence[float], path: Path) -> None:
    """Write the file of two models.

    Args:
        files: Two files of `likeness export`, of one modality.
        weights: That of the score of each, above 0.
        path: The file to write.

    Raises:
        LikenessError: The graphs cannot be put into one.
    """
    from onnx import compose, helper, version_converter

    texts, graphs = [], []
    for file in files:
        graph = onnx.parse(file.read_bytes(), file)
        (text,) = (entry.value for entry in graph.metadata_props if entry.key == onnx.KEY)
        texts.append(json.loads(text))
        del graph.metadata_props[:], graph.graph.metadata_props[:]
        del graph.graph.value_info[:]  # its names of sizes are those of the other graph, too
        graphs.append(graph)
    opset = max(_opset(graph) for graph in graphs)
    try:
        for number, graph in enumerate(graphs):
            made = (
                graph if _opset(graph) == opset else version_converter.convert_version(graph, opset)
            )
            made.ir_version = max(each.ir_version for each in graphs)
            graphs[number] = compose.add_prefix(made, f"{number + 1}/")
        both = compose.merge_models(graphs[0], graphs[1], io_map=[])
    except Exception as error:  # of many kinds, with no base but Exception
        raise LikenessError(
            f"the graphs of both models cannot be put into one ({error})"
        ) from error
    graph = both.graph
    parts = []
    for number, (stated, weight) in enumerate(zip(texts, weights, strict=True), 1):
        last = f"{number}/{graphs[number - 1].graph.output[0].name.partition('/')[2]}"
        if stated["similarity"] == "cosine":
            node = helper.make_node("LpNormalization", [last], [f"{number}/unit"], axis=1, p=2)
            graph.node.append(node)
            last = f"{number}/unit"
        scale = helper.make_tensor(f"{number}/scale", 1, (), [math.sqrt(weight)])
        graph.initializer.append(scale)
        graph.node.append(helper.make_node("Mul", [last, scale.name], [f"{number}/weighted"]))
        parts.append(f"{number}/weighted")
    graph.node.append(helper.make_node("Concat", parts, ["embeddings"], axis=1))
    dim = sum(stated["dim"] for stated in texts)
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("embeddings", 1, ("batch", dim)))
    alike = [(stated["read"], stated["shape"]) for stated in texts]
    is_shared = alike[0] == alike[1]
    if is_shared:
        _share_input(graph)
    else:  # sizes of one name would be taken for equal
        for size in graph.input[1].type.tensor_type.shape.dim[1:]:
            if size.dim_param:
                size.dim_param = f"{size.dim_param}_2"
    scored = {stated["similarity"] for stated in texts}
    description = {
        **texts[0],
        "similarity": "cosine" if scored == {"cosine"} else "dot",
        "dim": dim,
        "digest": digest([*(stated["digest"] for stated in texts), *map(repr, weights)]),
        "norm_is_quality": False,
        "read": alike[0][0] if is_shared else [read for read, _ in alike],
        "shape": alike[0][1] if is_shared else [shape for _, shape in alike],
        "version": likeness_version(),
    }
    both.metadata_props.add(key=onnx.KEY, value=json.dumps(description))
    with atomic_path(path) as temporary:
        temporary.write_bytes(both.SerializeToString())


def _opset(graph: Any) -> int:
    """The version of ONNX's own operators that a graph is written in."""
    return max(int(entry.version) for entry in graph.opset_import if entry.domain == "")


def _share_input(graph: Any) -> None:
    """Let both networks take the first one's input."""
    first, second = (value.name for value in graph.input)
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == second:
                node.input[place] = first
    del graph.input[1]


class ByTwoReadings:
    """An embedder of two inputs an item, which `read_both` packs into one array.

    It takes the place of an `OnnxEmbedder` whose graph has two inputs.

    Args:
        embedder: What runs the graph.
    """

    def __init__(self, embedder: onnx.OnnxEmbedder):
        self._embedder = embedder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_embedder"], name)

    def embed_batch(self, inputs: Array, lengths: NDArray[np.float64] | None = None) -> Floats:
        """Return the embeddings (B, dim) of packed inputs (B, S)."""
        session = self._embedder.session
        names = [value.name for value in session.get_inputs()]
        rows = [
            session.run(None, {n: x[None] for n, x in zip(names, _unpacked(row), strict=True)})[0]
            for row in inputs
        ]
        return np.concatenate(rows).astype(np.float32, copy=False)

    def begin_batch(
        self, inputs: Array, lengths: NDArray[np.float64] | None = None
    ) -> Callable[[], Floats]:
        """Do what `embed_batch` does, and return what gives the embeddings."""
        rows = self.embed_batch(inputs, lengths)
        return lambda: rows


def read_both(item: Item, *, reads: Sequence[Read]) -> Floats:
    """Read an item in several ways, and pack what they give into one array of numbers.

    Before the numbers of each stand the number of its axes and their sizes.

    Example:
        >>> reads = [lambda item: np.zeros((2, 3)), lambda item: np.ones(2)]
        >>> packed = read_both(Item("a", Path("a")), reads=reads)
        >>> packed.tolist()
        [2.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 1.0, 1.0]
        >>> [part.shape for part in _unpacked(packed)]
        [(2, 3), (2,)]
    """
    values = [np.asarray(read(item)) for read in reads]
    parts = [[[value.ndim, *value.shape], value.reshape(-1)] for value in values]
    return np.concatenate([part for both in parts for part in both]).astype(np.float32)


def _unpacked(packed: Floats) -> list[Floats]:
    """What `read_both` packed, and perhaps zeros after it."""
    values, start = [], 0
    for _ in range(2):
        axes = int(packed[start])
        shape = packed[start + 1 : start + 1 + axes].astype(int)
        start += 1 + axes
        end = start + int(shape.prod())
        values.append(packed[start:end].reshape(shape))
        start = end
    return values
