"""`likeness verify`, and what embed and verify say of every kind of bad recording."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from likeness.eval.formats import embeddings
from likeness.eval.metrics.calibration import Fusion
from likeness.models import load
from likeness.models.model import Model
from likeness.models.model import load as load_model
from likeness.models.verdicts import Verification
from tests.scripts import printed, refused, run_command
from tests.sounds import chatter


@pytest.fixture
def run(_world: Path, tmp_path: Path) -> Path:
    return shutil.copytree(_world / "runs" / "voices", tmp_path / "run")


@pytest.fixture
def pair(_world: Path) -> tuple[Path, Path]:
    first, second, *_ = sorted((_world / "voices").rglob("*.flac"))
    return first, second


def test_the_score_is_that_of_the_embeddings(run: Path, pair: tuple[Path, Path]) -> None:
    model = load_model(run)
    embedded = model.embed(list(pair))
    unit = embedded.unit()
    got = model.verify(*pair)
    assert got.score == pytest.approx(float(unit[0] @ unit[1]), abs=1e-6)
    assert got.norms == pytest.approx(embedded.norms, rel=1e-5)
    assert (got.similarity, got.llr, got.same) == ("cosine", None, None)
    assert "none" in str(got)
    for threshold, same in ((got.score, True), (got.score + 1e-6, False)):
        assert model.verify(*pair, threshold=threshold).same is same


def test_a_calibration_gives_the_probability(run: Path, pair: tuple[Path, Path]) -> None:
    loaded = load.load_named(str(run))

    def verified(slope: float, offset: float, *quality: Any, **more: Any) -> Verification:
        return Model(loaded, Fusion((slope,), offset, ("",), *quality, **more)).verify(*pair)

    plain = Model(loaded).verify(*pair)
    for prior in (0.5, 0.01):
        got = verified(8.0, -3.0, p_target=prior)
        assert got.llr == pytest.approx(8 * plain.score - 3)
        odds = np.exp(got.llr or 0) * prior / (1 - prior)
        assert got.probability == pytest.approx(odds / (1 + odds))
        assert got.same is bool(odds >= 1)
    low, high = sorted(np.log(plain.norms))
    got = verified(8.0, -3.0, (0.5, 0.25), ("log_norm_low", "log_norm_high"))
    assert got.llr == pytest.approx(8 * plain.score - 3 + 0.5 * low + 0.25 * high, abs=1e-5)
    assert verified(1e9, -1e12).probability == pytest.approx(0)


def test_from_the_command_line(
    run: Path, pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ("verify", *pair, "--model", run)
    assert "decision     none" in printed(*base)
    assert run_command(*base, "--threshold", -1, "--json", tmp_path / "v.json") == 0
    assert "decision     the same subject (score at least -1)" in capsys.readouterr().out
    document = json.loads((tmp_path / "v.json").read_text())
    assert document["files"] == list(map(str, pair))
    assert (document["same"], document["threshold"]) == (True, -1.0)
    Fusion((1.0,), -50.0, p_target=0.01).save(run / "calibration.json")
    assert run_command(*base) == 0
    shown = capsys.readouterr().out
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
def test_a_calibration_of_another_system_beside_a_run(
    other: Fusion, run: Path, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """It is left out with a warning; where somebody named it, it is refused."""
    other.save(tmp_path / "other.json")
    other.save(run / "calibration.json")
    with pytest.warns(UserWarning, match="is left out") as warned:
        model = load_model(run)
    assert [warning.filename for warning in warned] == [__file__]
    assert model.verify(*pair, threshold=-1).same is True
    assert model.verify(*pair).same is None
    assert load_model(run, calibration=False).verify(*pair).same is None
    with pytest.raises(ValueError, match="fit"):
        load_model(run, calibration=tmp_path / "other.json")


GOOD = ("plain.wav", "8 kHz.wav", "96.kHz.flac", "stéréo 立体.wav")
BAD = {
    "silent.wav": "silent",
    "corrupt.flac": "unreadable",
    "face.jpg": "unreadable",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Recordings of every kind."""
    made = tmp_path / "kinds"
    made.mkdir()
    noise = chatter(1.0)
    soundfile.write(made / "plain.wav", noise, 16_000)
    soundfile.write(made / "8 kHz.wav", chatter(1.0, 8_000), 8_000)
    soundfile.write(made / "96.kHz.flac", chatter(1.0, 96_000), 96_000)
    soundfile.write(made / "stéréo 立体.wav", np.stack([noise] * 2, axis=1), 16_000)
    soundfile.write(made / "silent.wav", np.zeros(16_000), 16_000)
    (made / "corrupt.flac").write_bytes((made / "96.kHz.flac").read_bytes()[:60] + bytes(500))
    (made / "face.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    return made


def test_every_kind_of_recording_is_embedded_or_named(
    run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(f"{name}\t{name}\n" for name in (*GOOD, *BAD))
    (tmp_path / "list.txt").write_text(lines, encoding="utf-8")
    out = tmp_path / "em beddings.v1.npz"
    listed = ("--items", tmp_path / "list.txt", "--root", folder)
    assert run_command("embed", "--model", run, *listed, "--out", out) == 0
    shown = capsys.readouterr()
    assert "3 unreadable items left out" in shown.out
    for name, reason in BAD.items():
        assert re.search(rf"^skipped {name}: .*{reason}", shown.err, re.MULTILINE)
    loaded = embeddings.read_embeddings(out)
    assert loaded.ids == GOOD
    same = loaded.unit() @ loaded.unit()[0]
    assert same[GOOD.index("stéréo 立体.wav")] > 0.999  # the same noise in another container
    for name, reason in BAD.items():
        said = refused("verify", folder / "plain.wav", folder / name, "--model", run)
        assert name in said
        assert reason in said
