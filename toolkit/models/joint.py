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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from likeness.eval.errors import LikenessError, likeness_version
from likeness.eval.formats.provenance import digest
from likeness.toolkit.models import onnx

SCORED_BY = ("cosine", "dot")  # the similarities that a dot product of joint embeddings can sum


def write(files: Sequence[Path], weights: Sequence[float], path: Path) -> str:
    """Write the file of two models.

    Args:
        files: Two files of `likeness export`, of one modality.
        weights: That of the score of each, above 0.
        path: The file to write, which is not whole if this is interrupted.

    Returns:
        The digest of the model.

    Raises:
        LikenessError: A file has no description, or the graphs cannot be put into one.
    """
    from onnx import compose, helper, version_converter

    texts, graphs = [], []
    for file in files:
        graph = onnx.parse(file.read_bytes(), file)
        text = next((it.value for it in graph.metadata_props if it.key == onnx.KEY), None)
        if text is None:
            raise LikenessError(f"{file} has no description of Likeness; make it anew")
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
    path.write_bytes(both.SerializeToString())
    return str(description["digest"])


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
