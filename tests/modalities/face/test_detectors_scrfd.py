"""Files that are nearly SCRFD detectors, and photographs that no detector takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from likeness.modalities.face import align
from likeness.toolkit.data.images import encode
from likeness.toolkit.data.items import Item

CELLS = {8: 128, 16: 32, 32: 8}  # anchors of each stride, for an image of 64 x 64
POINTS = [0.25, 0.25, 0.75, 0.25, 0.5, 0.5, 0.25, 0.75, 0.75, 0.75]  # in cells


def detector(
    path: Path,
    *,
    score: float = 0.9,
    box: float = 1.0,
    size: tuple[int | str, int | str] = (64, 64),
    anchors: int = 128,
    width: int = 10,
    kind: Any = np.float32,
    inputs: int = 1,
) -> Path:
    """Nine constant outputs, that find the same face in every cell of 8 x 8 pixels.

    Args:
        path: The file.
        score: The score of each anchor at stride 8; the others find nothing.
        box: The distance of each side of a box, in cells.
        size: Height and width of the input; texts are free sizes.
        anchors: The number of them at stride 8.
        width: The numbers per anchor of the landmarks.
        kind: The type of the outputs.
        inputs: The number of inputs.
    """
    rows = {"score": [score], "box": [box] * 4, "points": np.resize(POINTS, width)}
    nodes, outputs, held = [], [], []
    for name, row in rows.items():
        for stride, count in {**CELLS, 8: anchors}.items():
            found = [-1] if name == "score" and stride > 8 else row
            values = np.tile(np.asarray(found, kind), (count, 1))
            held.append(numpy_helper.from_array(values, f"{name}{stride}_held"))
            nodes.append(helper.make_node("Identity", [held[-1].name], [f"{name}{stride}"]))
            element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
            outputs.append(
                helper.make_tensor_value_info(f"{name}{stride}", element, [None, len(row)])
            )
    given = [
        helper.make_tensor_value_info(f"input{n}", TensorProto.FLOAT, [1, 3, *size])
        for n in range(inputs)
    ]
    graph = helper.make_graph(nodes, "constant", given, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(path))
    return path


def test_constant_outputs_are_decoded(tmp_path: Path) -> None:
    model = align.load_detector(detector(tmp_path / "d.onnx"))
    faces = align.detect(model, np.zeros((64, 64, 3), np.uint8))
    # A box reaches 8 pixels from its cell to all sides, and neighbours overlap.
    assert 1 < len(faces.boxes) <= 64
    cells = faces.boxes[:, :2] + 8
    assert {*np.unique(cells)} <= {*range(0, 64, 8)}
    points = cells[:, None] + 8 * np.reshape(POINTS, (5, 2))
    np.testing.assert_array_equal(faces.landmarks, points)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("settings", [{"score": np.nan}, {"box": 3e38}, {"box": np.nan}])
def test_numbers_that_are_none_find_no_face(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = align.load_detector(detector(tmp_path / "d.onnx", **settings))
    faces = align.detect(model, np.zeros((64, 64, 3), np.uint8))
    assert len(faces.scores) == 0


def test_a_photograph_that_is_a_line_is_one_bad_image(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (root / "line.png").write_bytes(encode(np.zeros((1000, 1, 3), np.uint8)))
    (root / "face.png").write_bytes(encode(np.zeros((64, 64, 3), np.uint8)))
    file = detector(tmp_path / "d.onnx")
    made = align.align_folder(root, tmp_path / "out", detector=file)
    assert [item.id for item in made.done] == ["face.png"]
    assert [bad.id for bad in made.failures] == ["line.png"]
    with pytest.raises(ValueError, match="narrow"):
        align.read(Item("line", root / "line.png"), detector=str(file))
