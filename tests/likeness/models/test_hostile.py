"""Known attacks by files from elsewhere: each ends as one ValueError, and nothing outside is
touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from likeness.models import speechbrain
from likeness.models.run import load_model
from toolkit.models import checkpoint
from toolkit.models import onnx as onnx_models

# ONNX: programs
# --------------------------------------------------------------------------------------------------


def model(
    path: Path,
    nodes: list[Any],
    constants: dict[str, Any],
    functions: tuple[Any, ...] = (),
    domains: tuple[str, ...] = (),
) -> Path:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["batch", 4])],
        [helper.make_tensor_value_info("z", kind, None)],
        [onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()],
    )
    sets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=sets, ir_version=8, functions=functions
        ).SerializeToString()
    )
    return path


def test_a_loop_of_any_number_of_rounds_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    values = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (("i", 7, []), ("c", 9, []), ("v", 1, None))
    ]
    results = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (("d", 9, []), ("w", 1, None))
    ]
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        values,
        results,
    )
    path = model(
        tmp_path / "m.onnx",
        [helper.make_node("Loop", ["n", "t", "x"], ["z"], body=body)],
        {"n": 2**62, "t": True},
    )
    monkeypatch.setattr(onnx_models, "_SECONDS", 0.1)
    session = onnx_models.open_session(path)
    with pytest.raises(ValueError, match="processor time"):
        session.run(None, {"x": np.ones((1, 4), np.float32)})


def test_a_tensor_of_any_size_is_refused_and_an_honest_model_runs_on(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node
    first = onnx.helper.make_tensor("one", 1, [1], [1.0])
    size = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Cast", ["s"], ["i"], to=7),
        node("Reshape", ["i", "r"], ["k"]),
    ]
    nodes = [
        *size,
        node("ConstantOfShape", ["k"], ["f"], value=first),
        node("ReduceSum", ["f"], ["t"], keepdims=0),
        node("Add", ["x", "t"], ["z"]),
    ]
    session = onnx_models.open_session(model(tmp_path / "m.onnx", nodes, {"r": [1]}))
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(session.run(["z"], {"x": x})[0], x + 4)
    # the same graph, and another input: no trial would have seen it
    with pytest.raises(ValueError, match=r"m\.onnx"):
        session.run(["z"], {"x": x * 4e8})
    np.testing.assert_array_equal(session.run(["z"], {"x": x})[0], x + 4)


def test_a_function_of_a_domain_allows_no_other_operator_of_it(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    function = helper.make_function(
        "evil",
        "Good",
        ["a"],
        ["b"],
        [helper.make_node("Relu", ["a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    for name, allowed in (("Good", True), ("Bad", False)):
        path = model(
            tmp_path / "m.onnx",
            [helper.make_node(name, ["x"], ["z"], domain="evil")],
            {},
            (function,),
            ("evil",),
        )
        if allowed:
            assert onnx_models.open_session(path).get_inputs()[0].name == "x"
        else:
            with pytest.raises(ValueError, match=r"evil\.Bad"):
                onnx_models.open_session(path)


HOSTILE_YAML = {
    "aliases": "a0: &a0 [x]\n"
    + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
    "merges": "b0: &b0 {x: 1}\n"
    + "".join(f"b{i}: &b{i}\n  <<: [{','.join([f'*b{i - 1}'] * 10)}]\n" for i in range(1, 10)),
    "depth": "[" * 5000,
    "number": "a: 1" + ":1" * 20_000 + ".5",
    "date": "a: 9999-99-99",
    "size": "a: 1" + ":1" * 100_000,
    "bytes": "a: \xff",
}


@pytest.mark.parametrize("kind", HOSTILE_YAML)
def test_settings_of_any_depth_and_size_are_refused(kind: str, tmp_path: Path) -> None:
    """Ten aliases in a list, ten of that in another, ...: going through them, or merging them,
    takes for ever.
    """
    (tmp_path / "hyperparams.yaml").write_text(HOSTILE_YAML[kind], encoding="latin-1")
    with pytest.raises(ValueError, match=r"hyperparams\.yaml"):
        speechbrain.read_settings(tmp_path / "hyperparams.yaml")


@pytest.mark.parametrize("depth", [40, 300])
def test_parts_inside_parts_of_any_depth_are_refused(depth: int, tmp_path: Path) -> None:
    """Each level would be a call of a call, until Python's stack ends."""
    part: dict[str, Any] = {"call": "toolkit.backbones.small.SmallCNN", "args": {"dim": 4}}
    head = {"call": "toolkit.backbones.head.Head", "args": {}}
    for _ in range(depth):
        part = {"call": "toolkit.models.joined.Joined", "args": {"network": part, "head": head}}
    description = {
        "modality": "image",
        "frontend": {"call": "toolkit.data.pixels.PixelScale", "args": {}},
        "backbone": part,
        "read": {"call": "modalities.image.images.read", "args": {}},
        "features": "raw",
        "similarity": "cosine",
        "step": 1,
    }
    file = tmp_path / "deep.safetensors"
    checkpoint.save(file, {"x": torch.zeros(3)}, description, checkpoint.FORMAT)
    with pytest.raises(ValueError, match="levels"):
        load_model(file)
