"""`likeness verify`, and what embed and verify say of every kind of bad recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from likeness.cli import main
from likeness.eval.calibration import Calibration
from likeness.eval.formats import embeddings
from likeness.modalities import folders
from likeness.model import Model
from likeness.model import load as load_model
from likeness.models import load
from likeness.toolkit.models.embed import embed
from likeness.toolkit.training import recipe
from likeness.toolkit.training.train import fit
from likeness.verification import Verification

TINY = Path(__file__).parents[1] / "tiny.py"


def likeness(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


@pytest.fixture(scope="module")
def run(voices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "run"
    fit(recipe.override(recipe.load(str(TINY))[0], ["schedule.steps=2"]), data=voices, out=folder)
    return folder


def test_the_score_is_that_of_the_embeddings(run: Path, voices: Path) -> None:
    model = Model(load.load(str(run)))
    first, second = folders.items(voices, split="all")[:2]
    embedded, _ = embed(model.loaded.embedder, [first, second], model.loaded.read)
    unit = embedded.unit()
    got = model.verify(first.path, second.path)
    assert got.score == pytest.approx(float(unit[0] @ unit[1]), abs=1e-6)
    assert got.norms == pytest.approx(embedded.norms, rel=1e-5)
    assert (got.similarity, got.llr, got.same) == ("cosine", None, None)
    assert model.verify(first.path, first.path).score == pytest.approx(1, abs=1e-6)
    for threshold, same in ((got.score, True), (got.score + 1e-6, False)):
        assert model.verify(first.path, second.path, threshold=threshold).same is same


def test_a_calibration_gives_the_probability(run: Path, voices: Path) -> None:
    loaded = load.load(str(run))
    first, second = (item.path for item in folders.items(voices, split="all")[:2])

    def verified(*calibration: Any, **more: Any) -> Verification:
        return Model(loaded, Calibration(*calibration, **more)).verify(first, second)

    plain = Model(loaded).verify(first, second)
    for prior in (0.5, 0.01):
        got = verified(8.0, -3.0, p_target=prior)
        assert got.llr == pytest.approx(8 * plain.score - 3)
        odds = np.exp(got.llr or 0) * prior / (1 - prior)
        assert got.probability == pytest.approx(odds / (1 + odds))
        assert got.same is bool(odds >= 1)
    low, high = sorted(np.log(plain.norms))
    got = verified(8.0, -3.0, (0.5, 0.25), ("log_norm_low", "log_norm_high"))
    assert got.llr == pytest.approx(8 * plain.score - 3 + 0.5 * low + 0.25 * high, abs=1e-5)
    far = verified(1e9, -1e12)
    assert (far.probability, far.same) == (pytest.approx(0), False)


def test_from_the_command_line(
    run: Path, voices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (item.path for item in folders.items(voices, split="all")[:2])
    base = ("verify", first, second, "--model", run)
    assert likeness(*base) == 0
    shown = capsys.readouterr().out
    assert "(cosine)" in shown
    assert "decision     none: name a stored threshold" in shown
    assert likeness(*base, "--threshold", -1, "--json", tmp_path / "v.json") == 0
    assert "decision     the same subject (score at least -1)" in capsys.readouterr().out
    document = json.loads((tmp_path / "v.json").read_text())
    assert document["files"] == [str(first), str(second)]
    assert (document["schema"], document["same"], document["threshold"]) == (
        "likeness.verification/1",
        True,
        -1.0,
    )
    assert {
        "score",
        "norms",
        "llr",
        "probability",
        "similarity",
        "model",
        "modality",
    } <= document.keys()
    Calibration(1.0, -50.0, p_target=0.01).save(run / "calibration.json")
    try:
        assert likeness(*base) == 0
        shown = capsys.readouterr().out
        assert "probability  0.0000 of the same subject, if 0.01 of all pairs are" in shown
        assert "different subjects (probability below 0.5)" in shown
        Calibration(1.0, 50.0).save(tmp_path / "c.json")
        assert likeness(*base, "--calibration", tmp_path / "c.json") == 0
        assert "probability  1.0000" in capsys.readouterr().out
    finally:
        (run / "calibration.json").unlink()
    assert "none" in str(Verification(0.5, "cosine", (1.0, 2.0)))


def test_a_calibration_of_another_system_beside_a_run(
    run: Path, voices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is left out with a warning; where somebody named it, it is refused."""
    first, second = (item.path for item in folders.items(voices, split="all")[:2])
    for other in (
        Calibration(1.0, 0.0, system="plda"),
        Calibration(1.0, 0.0, (1.0, 1.0), ("log_duration_low", "log_duration_high")),
    ):
        other.save(tmp_path / "other.json")
        other.save(run / "calibration.json")
        try:
            with pytest.warns(UserWarning, match="is left out") as warned:
                model = load_model(run)
            assert [warning.filename for warning in warned] == [__file__]
            assert model.verify(first, second, threshold=-1).same is True
            assert model.verify(first, second).same is None
            assert load_model(run, calibration=False).verify(first, second).same is None
            with pytest.raises(ValueError, match="fit"):
                load_model(run, calibration=tmp_path / "other.json")

            base = ("verify", first, second, "--model", run, "--threshold", -1)
            capsys.readouterr()
            assert likeness(*base) == 0
            shown = capsys.readouterr()
            assert "the same subject" in shown.out
            assert shown.err.startswith("warning: calibration.json")
            assert shown.err.count("\n") == 1
            assert likeness(*base[:-2]) == 0
            assert likeness(*base, "--calibration", tmp_path / "other.json") == 2
        finally:
            (run / "calibration.json").unlink()


def noise(seconds: float, rate_hz: int = 16_000) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(round(seconds * rate_hz)) * 0.1).astype(
        np.float32
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of every kind."""
    made = tmp_path_factory.mktemp("kinds")
    kinds = {
        "plain.wav": (noise(1), 16_000, "PCM_16"),
        "8 kHz.wav": (noise(1, 8_000), 8_000, "PCM_16"),
        "96.kHz.flac": (noise(1, 96_000), 96_000, "PCM_24"),
        "stéréo 立体.wav": (np.stack([noise(1), noise(1)], axis=1), 16_000, "PCM_16"),
        "24-bit.wav": (noise(1), 16_000, "PCM_24"),
        "float.wav": (noise(1), 16_000, "FLOAT"),
        "clipped.wav": (np.clip(noise(1) * 40, -1, 1), 16_000, "PCM_16"),
        "silent.wav": (np.zeros(16_000), 16_000, "PCM_16"),
        "zero.wav": (np.zeros(0), 16_000, "PCM_16"),
    }
    for name, (wave, rate_hz, subtype) in kinds.items():
        soundfile.write(made / name, wave, rate_hz, subtype=subtype)
    (made / "corrupt.flac").write_bytes((made / "96.kHz.flac").read_bytes()[:60] + bytes(500))
    (made / "face.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    second = (noise(1) * 32767).astype(np.int16)
    with soundfile.SoundFile(made / "3 hours.wav", "w", 16_000, 1, "PCM_16") as file:
        for _ in range(108):
            file.write(np.tile(second, 100))
    return made


GOOD = (
    "plain.wav",
    "8 kHz.wav",
    "96.kHz.flac",
    "stéréo 立体.wav",
    "24-bit.wav",
    "float.wav",
    "clipped.wav",
)
BAD = {
    "silent.wav": "silent",
    "zero.wav": "too short, 0.000 s",
    "corrupt.flac": "unreadable",
    "face.jpg": "unreadable",
    "3 hours.wav": "too long, 10800.0 s",
}


def test_every_kind_of_recording_embeds_or_is_named(
    run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.txt").write_text(
        "".join(f"{name}\t{name}\n" for name in (*GOOD, *BAD)), encoding="utf-8"
    )
    out = tmp_path / "em beddings.v1.npz"
    listed = ("--items", tmp_path / "list.txt", "--root", folder)
    assert likeness("embed", "--model", run, *listed, "--out", out) == 0
    shown = capsys.readouterr()
    assert "5 unreadable items left out" in shown.out
    for name, reason in BAD.items():
        start = f"skipped {name}: {folder / name}: "
        assert any(line.startswith(start) and reason in line for line in shown.err.splitlines()), (
            name
        )
    loaded = embeddings.read(out)
    assert loaded.ids == GOOD
    same = loaded.unit() @ loaded.unit()[0]
    # the same noise in another container
    for name in ("stéréo 立体.wav", "24-bit.wav", "float.wav"):
        assert same[GOOD.index(name)] > 0.999


@pytest.mark.parametrize("name", BAD)
def test_verify_names_the_file_that_is_bad(
    run: Path, folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert likeness("verify", folder / "plain.wav", folder / name, "--model", run) == 2
    output = capsys.readouterr().err
    assert name in output
    assert BAD[name] in output
    assert "plain.wav" not in output
    assert output.count("\n") == 1
