"""Two models beside each other are one model, whose score is the weighted sum of theirs."""

import json
import os
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from onnx import load as load_onnx

import likeness
from likeness import Fusion, Item, LikenessError, Scoring
from likeness.eval.metrics.similarity import pairs
from likeness.modalities.speaker import audio
from likeness.modalities.speaker.features import KaldiFbank
from likeness.models import bundled
from likeness.toolkit.backbones.resnet import ResNet
from likeness.toolkit.models import joint, onnx
from likeness.toolkit.models.parts import describe
from tests import tiny
from tests.scripts import printed, refused
from tests.tiny_yunet import save_onnx

WEIGHTS, OFFSET = (1.5, 6.0), -2.0


def in_onnx(
    path: Path, seed: int, *, rate_hz: int = 16_000, similarity: str = "cosine", **stated: str
) -> Path:
    """A file as `likeness export` writes it: the mean levels that random filters let through."""
    filters = np.random.default_rng(seed).normal(size=(6, 1, 80)).astype(np.float32)
    constants = {"filters": filters, "axes": np.array([1]), "last": np.array([2])}
    lines = ["signal = Unsqueeze (waves, axes)", "bands = Conv <strides = [40]> (signal, filters)"]
    lines += ["levels = Abs (bands)", "embeddings = ReduceMean <keepdims = 0> (levels, last)"]
    outputs = ["float[batch,6] embeddings"]
    net = load_onnx(str(save_onnx(path, "float[batch,samples] waves", outputs, lines, constants)))
    description = {"format": onnx.FORMAT, "modality": "speaker", "similarity": similarity, "dim": 6}
    description |= {"digest": str(seed) * 64, "norm_is_quality": False, "shape": [None]} | stated
    description["read"] = describe(partial(audio.read, rate_hz=rate_hz))
    net.metadata_props.add(key=onnx.KEY, value=json.dumps(description))
    path.write_bytes(net.SerializeToString())
    return path


@pytest.fixture(scope="module")
def models(module_path: Path) -> Path:
    """Models a and b; slow, at half of their rate; dot and far, by their similarity; dlib, by its
    frame; and run, of torch.
    """
    in_onnx(module_path / "a.onnx", 1)
    in_onnx(module_path / "b.onnx", 2)
    in_onnx(module_path / "slow.onnx", 3, rate_hz=8000)
    in_onnx(module_path / "dot.onnx", 4, similarity="dot")
    in_onnx(module_path / "far.onnx", 5, similarity="euclidean")
    in_onnx(module_path / "dlib.onnx", 6, frame="dlib")
    backbone = partial(ResNet, dim=6, width=2, blocks=(1, 1, 1, 1))
    parts = {"frontend": partial(KaldiFbank, num_mels=16), "backbone": backbone}
    recipe = replace(tiny.BASE, **parts, read=partial(audio.read, rate_hz=16_000))
    tiny.untrained(module_path / "run", recipe)
    return module_path


def fusion_of(first: Path, second: Path, weights: tuple[float, ...] = WEIGHTS) -> Fusion:
    systems = tuple(Scoring().system(likeness.load(each).meta) for each in (first, second))
    return Fusion(weights, OFFSET, systems)


def all_scores(name: Path, voices: Path) -> np.ndarray:
    """The scores of a model of all pairs of voices."""
    embeddings = likeness.load(name).embed(voices)
    i, j = np.triu_indices(len(embeddings.ids), 1)
    similarity = likeness.load(name).similarity
    return pairs(embeddings.matrix, embeddings.matrix, i, j, similarity)


@pytest.mark.parametrize("second", ["b", "slow", "dot"])
def test_the_score_is_that_of_the_fusion(second, models, voices, tmp_path):
    a, other = models / "a.onnx", models / f"{second}.onnx"
    fusion = fusion_of(a, other)
    joined = likeness.join(a, None, tmp_path / "both", beside=other, fusion=fusion)
    assert (joined.dim, joined.modality) == (12, "speaker")
    assert joined.similarity == ("dot" if second == "dot" else "cosine")
    expected = fusion.apply(np.stack([all_scores(a, voices), all_scores(other, voices)], axis=1))
    found = all_scores(tmp_path / "both", voices)
    np.testing.assert_allclose(joined.calibration.apply(found), expected, rtol=1e-6, atol=1e-6)
    scale = 1 if second == "dot" else sum(WEIGHTS)
    np.testing.assert_allclose(found * scale + OFFSET, expected, rtol=1e-6, atol=1e-6)
    files = sorted(voices.rglob("*.flac"))[:2]
    assert joined.verify(*files).llr == pytest.approx(expected[0], abs=1e-5)


def test_three_models_are_one_without_torch(models, voices, tmp_path):
    """A joint model of one reading is joined again, as a file or a folder."""
    a, b = models / "a.onnx", models / "b.onnx"
    likeness.join(a, None, tmp_path / "two.onnx", beside=b)
    three = likeness.join(tmp_path / "two.onnx", None, tmp_path / "three", beside=b)
    assert three.calibration is None
    parts = [all_scores(models / name, voices) for name in ("a.onnx", "b.onnx")]
    # the score of the first two is the mean of both
    expected = (np.mean(parts, axis=0) + parts[1]) / 2
    found = all_scores(tmp_path / "three", voices)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_joint_model_serves_all_commands(models, voices, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b = models / "run", models / "b.onnx"  # one in torch, one not
    fusion_of(a, b).save("fusion.json")
    words = ("export", a, "--beside", b, "--fusion", "fusion.json", "--out", "both")
    assert "calibration is that of the fusion" in printed(*words)
    printed("lists", voices, "--split", "all", "--out", "lists")
    printed("embed", "--model", "both", "--items", "lists/items.txt", "--out", "e.npz")
    printed("score", "--trials", "lists/trials.txt", "--embeddings", "e.npz", "--out", "s.txt")
    printed("evaluate", "s.txt", "--far", "0.1", "--save-to", "both")
    files = sorted(voices.rglob("*.flac"))[:2]
    lines = printed("verify", *files, "--model", "both", "--far", "0.1")
    assert "llr" in lines
    assert "FAR 10 %" in lines
    printed("gallery", "enrol", voices, "--model", "both", "--gallery", "gallery")
    printed("gallery", "search", files[0], "--model", "both", "--gallery", "gallery")
    printed("export", "both", "--out", "one.onnx")
    assert printed("verify", *files, "--model", "one.onnx", "--far", "0.1") == lines


def test_what_is_no_sum_of_two_scores_is_refused(models, tmp_path):
    a, b = models / "a.onnx", models / "b.onnx"
    fusions = {
        "other": fusion_of(b, a),
        "falling": fusion_of(a, b, (1.0, -1.0)),
        "three": Fusion((1.0, 1.0, 1.0), 0.0, ("", "", "")),
        "measured": Fusion((1.0, 1.0), 0.0, ("", ""), (1.0,), ("log_norm_low",)),
    }
    for name, fusion in fusions.items():
        fusion.save(tmp_path / f"{name}.json")
    words = ("export", a, "--beside", b, "--out", tmp_path / "both")
    for name in fusions:
        says = "weights above 0" if name in ("falling", "measured") else "is for other scores"
        assert says in refused(*words, "--fusion", tmp_path / f"{name}.json")
    assert "euclidean" in refused(*words[:3], models / "far.onnx", *words[4:])
    assert "arcface and dlib" in refused(*words[:3], models / "dlib.onnx", *words[4:])
    assert "would change nothing" in refused(*words, "--precision", "float16")
    assert "give a head, or another" in refused(*words, "--head", a)
    fused = ("--fusion", tmp_path / "other.json")
    alone = ("export", a, "--out", tmp_path / "x.onnx")
    assert "without --beside" in refused(*alone, *fused)
    assert "--size is of images" in refused(*alone, "--size", "9x9")
    assert not (tmp_path / "both").exists()
    likeness.join(models / "a.onnx", None, tmp_path / "two", beside=models / "slow.onnx")
    with pytest.raises(LikenessError, match="two readings"):
        likeness.join(tmp_path / "two", None, tmp_path / "three", beside=a)


def test_what_is_there_is_replaced_by_force_alone(models, tmp_path):
    pair, out, folder = (models / "a.onnx", models / "b.onnx"), tmp_path / "x.onnx", tmp_path / "x"
    folder.mkdir()
    for file in (out, folder / "thesis.tex"):
        file.write_text("mine")
    words = ("export", pair[0], "--beside", pair[1], "--out")
    assert "--force replaces it" in refused(*words, out)
    assert "give a new folder" in refused(*words, folder, "--force")
    with pytest.raises(LikenessError, match="exists already"):
        likeness.join(pair[0], None, out, beside=pair[1])
    assert {file.read_text() for file in (out, folder / "thesis.tex")} == {"mine"}
    calibration = tmp_path / "x.onnx.calibration.json"
    Fusion((1.0,), 0.0).save(calibration)  # of the model that was there
    printed(*words, out, "--force")
    assert likeness.load(out).dim == 12
    assert not calibration.exists()


def test_an_export_has_its_model_s_calibration_or_none(models, tmp_path):
    a, b = (shutil.copy(models / name, tmp_path) for name in ("a.onnx", "b.onnx"))
    calibration = tmp_path / "x.onnx.calibration.json"
    Fusion((1.0,), 0.0).save(f"{a}.calibration.json")
    calibration.write_text("mine")
    words = ("export", a, "--out", tmp_path / "x.onnx")
    assert f"{calibration.name} exists; --force replaces it" in refused(*words)
    assert calibration.read_text() == "mine"
    for name, left in ((a, True), (b, False), (b, False)):
        printed("export", name, "--out", tmp_path / "x.onnx", "--force")
        assert calibration.exists() == left
    own = Scoring().system(likeness.load(b).meta)
    Fusion((2.0,), 0.0, (own,)).save(calibration)
    printed("export", b, "--out", tmp_path / "x.onnx", "--force")
    assert likeness.load(tmp_path / "x.onnx").calibration.weights == (2.0,)


def test_the_file_states_both_models(models, tmp_path):
    files = [tmp_path / name for name in ("ab.onnx", "ba.onnx")]
    likeness.join(models / "a.onnx", None, files[0], beside=models / "b.onnx")
    likeness.join(models / "b.onnx", None, files[1], beside=models / "a.onnx")
    stated = [json.loads(onnx.Session(file).text or "") for file in files]
    assert stated[0]["digest"] != stated[1]["digest"]
    assert stated[0]["norm_is_quality"] is False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_a_kill_leaves_of_voice_plus_goes(models, tmp_path, monkeypatch):
    shutil.copy(models / "a.onnx", tmp_path / bundled.RESEMBLYZER)
    pair = bundled.onnx_file(bundled.VOICE), tmp_path / bundled.RESEMBLYZER
    made = joint.write(pair, (1.0, 2.0), tmp_path / "sum.onnx")
    (tmp_path / "sum.onnx").unlink()
    (tmp_path / "sum.json").write_text(json.dumps({"model": made, "weight": 2.0}))
    monkeypatch.setitem(bundled._FOLDERS, bundled.VOICE_PLUS, tmp_path)
    monkeypatch.setenv("LIKENESS_MODELS", str(tmp_path))
    child = os.fork()
    if not child:
        monkeypatch.setattr(os, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        bundled.onnx_file(bundled.VOICE_PLUS)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert list(tmp_path.glob(".*.part"))
    file = bundled.onnx_file(bundled.VOICE_PLUS)
    assert {*tmp_path.iterdir()} == {pair[1], tmp_path / "sum.json", file}


@pytest.mark.parametrize("size", [65_535, 65_536, 200_001])
def test_sizes_of_two_readings_are_exact(size):
    item = Item("a", Path("a"))
    reads = [lambda item: np.zeros((1, size)), lambda item: np.ones(size)]
    packed = onnx.read_both(item, reads=reads)
    assert [part.shape for part in onnx._unpacked(packed)] == [(1, size), (size,)]
    halves = packed[1:5].astype(int)
    assert halves.max() < 2**16  # so that sizes beyond 2 ** 24 are exact in float32 as well
