"""`likeness verify`, and what embed and verify say of every kind of bad recording."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from likeness import Fusion, LikenessError, Model
from likeness.models import load
from likeness.models.model import load as load_model
from likeness.models.verdicts import Verification, list_pairs
from tests.scripts import printed, refused


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Path:
    """A run that a test may change."""
    return shutil.copytree(run, tmp_path / "run")


@pytest.fixture
def pair(example: Path) -> tuple[Path, Path]:
    return example / "a.wav", example / "b.wav"


def test_the_score_is_that_of_the_embeddings(run, pair):
    model = load_model(run)
    embedded = model.embed(list(pair))
    unit = embedded.unit()
    got = model.verify(*pair)
    assert got.score == pytest.approx(float(unit[0] @ unit[1]), abs=1e-6)
    assert got.norms == pytest.approx(embedded.norms, rel=1e-5)
    assert (got.similarity, got.llr, got.accepted) == ("cosine", None, None)
    assert "none" in str(got)
    for threshold, same in (
        (got.score, True),
        (got.score + 1e-6, False),
        (np.float32(-1), True),
        (np.float64(2), False),
    ):
        verdict = model.verify(*pair, threshold=threshold)
        assert verdict.accepted is bool(verdict) is same


def test_a_recording_that_cannot_be_read_is_named(run, example, pair, tmp_path):
    recording = next((example / "voices").rglob("*.flac"))
    soundfile.write(tmp_path / "silent.wav", np.zeros(16_000), 16_000)
    (tmp_path / "corrupt.flac").write_bytes(recording.read_bytes()[:60] + bytes(500))
    (tmp_path / "face.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    reasons = {"silent.wav": "silent", "corrupt.flac": "unreadable", "face.jpg": "a picture"}
    for name, reason in reasons.items():
        said = refused("verify", pair[0], tmp_path / name, "--model", run)
        assert name in said
        assert reason in said


def test_rows_of_an_earlier_comparison_are_pairs_without_its_scores(run, pair):
    (row,) = load_model(run).verify_pairs([(*pair, True)]).rows
    assert row.score is not None
    (again,), _ = list_pairs([row])
    assert (again[:3], again.score) == (row[:3], None)
    with pytest.raises(LikenessError, match="columns"):
        list_pairs([row], columns="enrol=first")


def test_labels_of_pairs_are_booleans_or_1_and_0(run, example):
    first, second, third, *_ = sorted((example / "voices").rglob("*.flac"))  # two of each speaker
    model, same, other = load_model(run), (first, second), (first, third)
    texts = {
        str(model.verify_pairs([(*same, kind(1)), (*other, kind(0))], threshold=-1))
        for kind in (bool, int, float, np.int8)
    }
    (text,) = texts
    assert "of 2 compared pairs with a label: 1 false accept, 0 false rejects" in text
    with pytest.raises(LikenessError, match="labels"):
        model.verify_pairs([(*same, "target")])


def test_a_calibration_gives_the_probability(run, pair):
    loaded = load.load_named(str(run))

    def verified(slope: float, offset: float, *quality: Any, **more: Any) -> Verification:
        return Model(loaded, Fusion((slope,), offset, ("",), *quality, **more)).verify(*pair)

    plain = Model(loaded).verify(*pair)
    for prior in (0.5, 0.01):
        got = verified(8.0, -3.0, p_target=prior)
        assert got.llr == pytest.approx(8 * plain.score - 3)
        odds = np.exp(got.llr or 0) * prior / (1 - prior)
        assert got.probability == pytest.approx(odds / (1 + odds))
        assert got.accepted is bool(odds >= 1)
    low, high = sorted(np.log(plain.norms))
    got = verified(8.0, -3.0, (0.5, 0.25), ("log_norm_low", "log_norm_high"))
    assert got.llr == pytest.approx(8 * plain.score - 3 + 0.5 * low + 0.25 * high, abs=1e-5)
    assert verified(1e9, -1e12).probability == pytest.approx(0)


def test_from_the_command_line(own, pair, tmp_path):
    base = ("verify", *pair, "--model", own)
    assert "decision     none" in printed(*base)
    shown = printed(*base, "--threshold", -1, "--json", tmp_path / "v.json")
    assert "decision     the same subject (score at least -1)" in shown
    document = json.loads((tmp_path / "v.json").read_text())
    assert document["files"] == list(map(str, pair))
    assert (document["accepted"], document["threshold"]) == (True, -1.0)
    Fusion((1.0,), -50.0, p_target=0.01).save(own / "calibration.json")
    shown = printed(*base)
    assert "probability  0.0000 of the same subject, if 0.01 of all pairs are" in shown
    assert "different subjects (probability below 0.5)" in shown
    Fusion((1.0,), 50.0).save(tmp_path / "c.json")
    assert "probability  1.0000" in printed(*base, "--calibration", tmp_path / "c.json")


@pytest.mark.parametrize(
    "other",
    [
        Fusion((1.0,), 0.0, ("plda",)),
        Fusion((1.0,), 0.0, ("",), (1.0, 1.0), ("log_duration_low", "log_duration_high")),
    ],
)
def test_a_calibration_of_another_system_beside_a_run(other, own, pair, tmp_path):
    """It is left out with a warning; where somebody named it, it is refused."""
    other.save(tmp_path / "other.json")
    other.save(own / "calibration.json")
    with pytest.warns(UserWarning, match="is left out") as warned:
        model = load_model(own)
    assert [warning.filename for warning in warned] == [__file__]
    assert model.verify(*pair, threshold=-1).accepted is True
    assert model.verify(*pair).accepted is None
    assert load_model(own, calibration=False).verify(*pair).accepted is None
    with pytest.raises(ValueError, match="fit"):
        load_model(own, calibration=tmp_path / "other.json")


def test_norms_are_called_quality_where_the_loss_gave_them_this_meaning():
    kinds = [False, True]
    texts = [str(Verification(0.5, "cosine", (1.0, 2.0), norm_is_quality=known)) for known in kinds]
    assert "1 and 2" in texts[0]
    assert ["quality" in text for text in texts] == kinds
