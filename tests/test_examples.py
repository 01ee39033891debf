"""Every example runs as a program of its own and writes what it promises."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import soundfile

import likeness
from likeness.eval.intervals import per_item
from likeness.eval.intervals.per_item import PerItem
from likeness.modalities.image import small_sets
from likeness.recipe import Schedule, fit
from likeness.toolkit.training import recipe as recipes
from likeness.training.recipe_files import locate
from tests.scripts import ROOT, loaded
from tests.tiny import untrained


@pytest.mark.slow  # draws
def test_figures_of_the_papers(tmp_path):
    made = example("paper_figures").main(["--out", str(tmp_path), "--points", "12"])
    named = ("nivmf_fig2", "nivmf_fig3", "nivmf_fig8", "simple_fig4", "vmf_fig2")
    assert sorted(path.stem for path in made) == [*named]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in made)


def example(name: str) -> ModuleType:
    return loaded(ROOT / "examples" / f"{name}.py")


def test_norms_are_split_by_what_another_run_got_right(tmp_path):
    drawn = example("run_figures")
    ids, right = ("a", "b", "c", "d"), np.array([1.0, 0.0, 1.0, 0.0])
    whole = {"correct": right, "norm": np.ones(4)}
    run = {"correct": 1 - right, "norm": np.array([5.0, 1.0, 7.0, 2.0])}
    for name, columns in {"baseline": whole, "run": run, "another": whole}.items():
        (tmp_path / name).mkdir()
        items = PerItem(("z", *ids[1:]) if name == "another" else ids, columns, None, "items")
        per_item.write(tmp_path / name / "test.npz", items)
    baseline, run, out = tmp_path / "baseline", tmp_path / "run", tmp_path / "figure.png"
    assert drawn.norms(baseline, run, "correct", out) == (6.0, 1.5)
    assert out.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="different items"):
        drawn.norms(baseline, tmp_path / "another", "correct", out)


@pytest.mark.slow  # trains
def test_figures_of_a_run(tmp_path):
    drawn = example("run_figures")
    recipe = "image/demo:arcface"
    data, out, figure = tmp_path / "data", tmp_path / "run", tmp_path / "figure.png"
    small_sets.write_digits(data)
    made = replace(recipes.load(locate(recipe))[0], schedule=Schedule(steps=3, save_every=3))
    fit(made, data=data, out=out)
    rows = drawn.ordered(made, out, data, figure, num=2)
    assert figure.read_bytes()[:4] == b"\x89PNG"
    items, matrix = drawn.embedded(made, out, data)
    norms = dict(zip(items.ids, np.linalg.norm(matrix, axis=1), strict=True))
    labels = {item.id: item.label for item in items}
    assert len(rows) == 2
    for row in rows:
        assert len(row) == 10
        assert len({labels[name] for name in row}) == 1
        assert [norms[name] for name in row] == sorted(norms[name] for name in row)
    for training in (False, True):
        figure.unlink()
        rows = drawn.extremes(made, out, data, figure, num=10, training=training)
        assert figure.read_bytes()[:4] == b"\x89PNG"
        items, matrix = drawn.embedded(made, out, data, training)
        shown = made.items(data) if training else made.measure.items(data)
        assert list(items.ids) == [item.id for item in shown]
        by_norm = [items.ids[place] for place in np.argsort(np.linalg.norm(matrix, axis=1))]
        assert list(map(len, rows)) == [8, 2, 8, 2]
        assert [*rows[0], *rows[1]] == by_norm[:10]
        assert [*rows[2], *rows[3]] == by_norm[-10:]
    with pytest.raises(ValueError, match=r"dim=3"):
        drawn.sphere({"arcface": out}, "image/demo", data, figure, 100)
    flat = tmp_path / "flat.py"
    flat.write_text(
        f"from dataclasses import replace\nfrom functools import partial\n"
        "from likeness.toolkit.backbones.image_resnet import SmallCNN\n"
        "from likeness.toolkit.training import recipe\n"
        f"made = recipe.load({locate(recipe)!r})[0]\n"
        "backbone = partial(SmallCNN, dim=3, image_size=16)\n"
        "schedule = replace(made.schedule, steps=3, save_every=3)\n"
        "RECIPES = {'flat': replace(made, backbone=backbone, schedule=schedule)}\n"
    )
    fit(recipes.load(str(flat))[0], data=data, out=tmp_path / "flat")
    figure.unlink()
    drawn.sphere({"flat": tmp_path / "flat"}, str(flat), data, figure, 100)
    assert figure.read_bytes()[:4] == b"\x89PNG"


def test_figures_of_a_comparison(tmp_path):
    drawn = example("comparison_figures")
    measured = (("w=0.1", 0.2), ("w=0.1", 0.3), ("d.w=10", 0.1), ("plain", 0.4))
    runs = [{"variant": name, "values": {"eer": value}} for name, value in measured]
    runs.append({"variant": "plain", "values": {}})  # one that failed
    stated = {"metrics": ["eer"], "variants": ["w=0.1", "d.w=10", "plain"], "runs": runs}
    (tmp_path / "comparison.json").write_text(json.dumps(stated))
    values = drawn.values_of(tmp_path, "eer")
    assert values == {"w=0.1": [0.2, 0.3], "d.w=10": [0.1], "plain": [0.4]}
    for arguments in ([], ["--over", "w"]):
        out = tmp_path / f"{len(arguments)}.png"
        drawn.main([str(tmp_path), "--metric", "eer", "--out", str(out), *arguments])
        assert out.read_bytes()[:4] == b"\x89PNG"
    # a weight of 0 is drawn too, though a logarithmic axis has no 0
    stated["variants"].append("w=0")
    runs.append({"variant": "w=0", "values": {"eer": 0.5}})
    (tmp_path / "comparison.json").write_text(json.dumps(stated))
    drawn.over(tmp_path, "eer", "w", tmp_path / "zero.png")
    first, last = drawn.plt.gcf().axes[0].get_xlim()
    assert first <= 0 < 10 <= last


@pytest.mark.slow  # an export
def test_node_compares_two_recordings_as_onnx_runtime_does(voices, tmp_path):
    """Where Node and onnxruntime-node are, or LIKENESS_NODE_MODULES names its node_modules."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    example = ROOT / "examples" / "onnxruntime_node"
    modules = Path(os.environ.get("LIKENESS_NODE_MODULES", example / "node_modules"))
    node = shutil.which("node")
    if node is None or not (modules / "onnxruntime-node").is_dir():
        pytest.skip("node or its package is absent: `npm install --ignore-scripts` in that folder")
    shutil.copy(example / "compare.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(modules.resolve())
    model = tmp_path / "m.onnx"
    likeness.load(untrained(tmp_path / "run")).export(model)
    files, embeddings = [], []
    session = onnxruntime.InferenceSession(model)
    for number, path in enumerate(sorted(voices.glob("*/*.flac"))[:5:4]):
        file = tmp_path / f"{number}.wav"
        wave, rate_hz = soundfile.read(path, dtype="float32")
        stereo = np.stack([wave, wave / 2], axis=1)
        soundfile.write(file, stereo, rate_hz, subtype="PCM_16")
        read, _ = soundfile.read(file, dtype="float32")
        embeddings.append(session.run(None, {"waves": read.mean(axis=1)[None]})[0][0])
        files.append(str(file))
    x, y = (row / np.linalg.norm(row) for row in np.array(embeddings, dtype=np.float64))
    command = [node, str(tmp_path / "compare.mjs"), str(model)]
    done = subprocess.run([*command, *files], check=True, capture_output=True, text=True)
    stated = json.loads(done.stdout)
    assert stated["dim"] == 8
    assert stated["cosine"] == pytest.approx(x @ y, abs=1e-5)
