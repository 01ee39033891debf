"""likeness:voice-plus is likeness:voice beside the network that `likeness prepare voice` writes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import likeness
from likeness.models import bundled
from tests.prepared import prepared
from tests.scripts import printed, program, refused

FOLDER = Path(bundled.resolve_model(bundled.VOICE_PLUS))
SUM = json.loads((FOLDER / "sum.json").read_text(encoding="utf-8"))
TAKEN = ("--model", bundled.VOICE_PLUS)
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from likeness.cli import main; "


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    """What `likeness prepare voice` writes."""
    from likeness.models import _resemblyzer

    return prepared(request, lambda: _resemblyzer.prepare(say=lambda line: None))


@pytest.fixture
def models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIKENESS_MODELS", str(folder))
    return folder


def test_its_numbers_are_of_one_model():
    files = {"CARD.md", "calibration.json", "sum.json", "thresholds.json"}
    assert {path.name for path in FOLDER.iterdir()} == files
    for name in ("calibration.json", "thresholds.json"):
        assert f"dot, model {SUM['model'][:16]}" in (FOLDER / name).read_text(encoding="utf-8")


def test_what_has_to_be_prepared_says_so(spoken, tmp_path, monkeypatch):
    monkeypatch.setenv("LIKENESS_MODELS", str(tmp_path))
    files = sorted(spoken.rglob("*.flac"))
    assert "likeness prepare voice" in refused("verify", *files[:2], *TAKEN)
    assert bundled.model_for(files) == bundled.VOICE


def test_its_score_is_the_sum_of_both(models, spoken):
    first, second = sorted(spoken.rglob("*.flac"))[1:3]
    names = bundled.VOICE_PLUS, bundled.VOICE, models / bundled.RESEMBLYZER
    plus, voice, other = map(likeness.load, names)
    assert plus.meta["model"] == SUM["model"]
    assert (plus.similarity, plus.dim) == ("dot", voice.dim + other.dim)
    both = voice.verify(first, second).score, other.verify(first, second).score
    found = plus.verify(first, second)
    assert found.score == pytest.approx(both[0] + SUM["weight"] * both[1], rel=1e-5)
    assert plus.thresholds.at("eer").value < plus.thresholds.at(0.01).value
    assert found.accepted == (found.probability >= 0.5)


def test_it_is_a_model_of_the_commands(models, spoken, tmp_path):
    files = sorted(spoken.rglob("*.flac"))
    words = ["verify", *map(str, files[:2]), *TAKEN, "--far", "0.01"]
    said = program("-c", f"{WITHOUT_TORCH}main({words})").stdout
    assert "at FAR 1 %, measured on speechocean, AN4 and LibriSpeech" in said

    (tmp_path / "pairs.csv").write_text(f"first,second\n{files[0]},{files[3]}\n")
    assert ",false," in printed("verify", "--pairs", tmp_path / "pairs.csv", *TAKEN)
    printed("embed", *TAKEN, "--items", spoken, "--out", tmp_path / "plus.npz")
    expected = likeness.load(bundled.VOICE_PLUS).embed(spoken)
    with np.load(tmp_path / "plus.npz") as stored:
        assert any(np.array_equal(stored[name], expected.matrix) for name in stored.files)
    gallery = ("--gallery", tmp_path / "people")
    printed("gallery", "enrol", spoken, *gallery, *TAKEN)
    assert ",1,spk001," in printed("gallery", "search", files[3], *gallery, *TAKEN)


def test_it_is_written_where_only_its_parts_are(models, tmp_path):
    """As after `likeness prepare voice` of an earlier version."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIKENESS_MODELS", str(tmp_path))
        shutil.copy(models / bundled.RESEMBLYZER, tmp_path)
        assert likeness.load(bundled.VOICE_PLUS).thresholds is not None
    assert len(list(tmp_path.glob("voice-plus-*.onnx"))) == 1


def test_it_is_exported_with_its_thresholds(models, spoken, tmp_path):
    printed("export", bundled.VOICE_PLUS, "--out", tmp_path / "plus.onnx")
    exported, model = likeness.load(tmp_path / "plus.onnx"), likeness.load(bundled.VOICE_PLUS)
    assert exported.thresholds is not None
    np.testing.assert_array_equal(exported.embed(spoken).matrix, model.embed(spoken).matrix)


def test_without_torch_it_cannot_be_prepared(tmp_path):
    script = f"{WITHOUT_TORCH}main(['prepare', 'voice'])"
    ended = program("-c", script, code=2, LIKENESS_MODELS=str(tmp_path))
    assert "with torch" in ended.stderr
    assert not list(tmp_path.iterdir())
