"""`likeness bench`: cells against embed, score and evaluate by hand, what models refuse, groups;
recordings and pictures in each condition against what it says.
"""

import json
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import likeness
from likeness.benchmark import Bench
from likeness.conditions import damaged, parse
from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.results import Result
from likeness.modalities.speaker import audio
from likeness.toolkit.data.images import decode_bytes, encode
from tests.scripts import printed, refused
from tests.test_json_schemas import check
from tests.tiny import BASE, untrained

FEW = likeness.VerificationSettings((), fars=(), num_resamples=50)


@pytest.fixture(scope="module")
def world(voices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trials of all pairs of voices, the sex of each speaker, a model with thresholds, and one that
    refuses what has nothing above 5 kHz.
    """
    folder = tmp_path_factory.mktemp("bench")
    names = [path.relative_to(voices).as_posix() for path in sorted(voices.rglob("*.flac"))]
    lines = [f"{a} {b} {int(a[:6] == b[:6])}\n" for a, b in combinations(names, 2)]
    (folder / "trials.txt").write_text("".join(lines))
    speakers = sorted({name.split("/")[0] for name in names})
    (folder / "sex.txt").write_text("".join(f"{s} {'fm'[k % 2]}\n" for k, s in enumerate(speakers)))
    untrained(folder / "plain")
    untrained(folder / "wide", replace(BASE, read=partial(audio.read, needs_hz=5000.0)))
    model = likeness.load(folder / "plain")
    scores = likeness.score(folder / "trials.txt", model.embed(voices))
    settings = likeness.VerificationSettings(fars=(0.1,), num_resamples=0)
    likeness.evaluate(scores, settings).save_thresholds(model)
    return folder


def results_of(found: Bench, condition: str, system: str = "plain") -> dict[str, Result]:
    return {
        of.metric: of
        for of in found.results
        if (of.conventions["condition"], of.system) == (condition, system)
    }


@pytest.mark.parametrize("both_sides", [False, True])
def test_a_cell_is_what_embed_score_and_evaluate_give(both_sides, world, voices, tmp_path):
    options: dict[str, Any] = {"root": voices, "far": 0.1, "num_resamples": 50}
    found = likeness.bench(
        [world / "plain"], world / "trials.txt", ["quiet20"], both_sides=both_sides, **options
    )
    for path in voices.rglob("*.flac"):
        wave, rate_hz = soundfile.read(path, dtype="float32")
        quiet = tmp_path / path.relative_to(voices)
        quiet.parent.mkdir(exist_ok=True)
        soundfile.write(quiet, wave / np.float32(10), rate_hz, subtype="PCM_16")
    model = likeness.load(world / "plain")
    clean, tested = model.embed(voices), model.embed(tmp_path)
    limit = model.thresholds.at(0.1).value
    for name, enrol, probe in (
        ("clean", clean, clean),
        ("quiet20", tested if both_sides else clean, tested),
    ):
        scored = likeness.score(world / "trials.txt", enrol, probe=probe)
        by_hand = likeness.evaluate(scored, FEW)
        cell, values, target = results_of(found, name), scored.values, scored.trials.target
        assert cell["eer"].value == pytest.approx(by_hand.eer, abs=1e-6)
        assert cell["eer"].interval == pytest.approx(by_hand.interval, abs=1e-6)
        assert cell["far"].value == pytest.approx(np.mean(values[~target] >= limit))
        assert cell["frr"].value == pytest.approx(np.mean(values[target] < limit))
        assert cell["frr"].interval[0] <= cell["frr"].value <= cell["frr"].interval[1]
        assert [*cell["refused"].counts.values()] == [48, 448, 8, 62, 0]


def test_what_a_model_refuses_is_counted_and_not_scored(world, voices):
    models = [world / "plain", world / "wide"]
    found = likeness.bench(
        models, world / "trials.txt", ["8khz"], root=voices, far=0.1, num_resamples=20
    )
    assert results_of(found, "clean", "wide")["refused"].value == 0
    assert results_of(found, "8khz", "wide").keys() == {"refused"}
    assert results_of(found, "8khz", "wide")["refused"].value == 31 / 62  # the test sides
    assert "eer" in results_of(found, "8khz", "plain")
    assert any(note.startswith("wide, 8khz: ") and "5 kHz" in note for note in found.notes)
    # The other model has no threshold, and the same network: all that differs is what it refuses.
    assert {key: of.value for key, of in found.paired.differences.items()} == {
        ("wide, clean", "eer"): 0.0
    }


def test_differences_are_on_the_trials_that_all_models_scored(world, voices, tmp_path):
    untrained(tmp_path / "other", replace(BASE, read=partial(audio.read, min_seconds=0.75)))
    found = likeness.bench(
        [world / "plain", tmp_path / "other"], world / "trials.txt", root=voices, num_resamples=0
    )
    cell = results_of(found, "clean", "other")
    assert 0 < cell["refused"].value < 1
    assert cell["eer"].value != results_of(found, "clean")["eer"].value
    assert found.paired.differences["other, clean", "eer"].value == 0  # one network, these trials


def test_groups_split_the_trials_by_both_sides(world, voices):
    options: dict[str, Any] = {"groups": world / "sex.txt", "far": 0.1, "num_resamples": 0}
    found = likeness.bench([world / "plain"], world / "trials.txt", root=voices, **options)
    scored = likeness.score(world / "trials.txt", likeness.load(world / "plain").embed(voices))
    limit = likeness.load(world / "plain").thresholds.at(0.1).value
    sexes = likeness.read_mapping(world / "sex.txt")
    trials = scored.trials
    pairs = [
        sexes[trials.enrol_ids[i].split("/")[0]] + sexes[trials.probe_ids[j].split("/")[0]]
        for i, j in zip(trials.enrol, trials.probe, strict=True)
    ]
    for first, second in sorted(set(pairs)):
        rows = np.array(pairs) == first + second
        cell = results_of(found, f"clean, {first} / {second}")
        values, target = scored.values[rows], trials.target[rows]
        assert cell["far"].value == pytest.approx(np.mean(values[~target] >= limit))
        assert ("eer" in cell) == (first == second)
        assert cell["refused"].counts["nontargets"] == np.sum(~target)


def test_recordings_are_what_the_condition_says(voices, tmp_path):
    path = min(voices.rglob("*.flac"))
    wave, _ = soundfile.read(path)
    heard = {}
    for one in parse(["mp3", "ogg", "opus", "8khz", "noise15", "reverb0.3", "quiet40"], "speaker"):
        file = damaged(Item("a", path), one, "speaker", tmp_path)
        heard[one.kind], rate_hz = soundfile.read(file)
        assert rate_hz == 16_000
        assert abs(len(heard[one.kind]) - len(wave)) <= 1
    for kind in ("mp3", "ogg", "opus"):
        assert 0.5 < np.corrcoef(heard[kind], wave)[0, 1] < 0.99999
    power = np.abs(np.fft.rfft(heard["8khz"])) ** 2
    assert power[len(power) // 2 + 50 :].sum() < 1e-5 * power.sum()
    noise = heard["noise"] - wave * np.dot(heard["noise"], wave) / np.dot(wave, wave)
    assert 10 * np.log10(np.mean(wave**2) / np.mean(noise**2)) == pytest.approx(15, abs=0.5)
    assert np.std(heard["quiet"]) == pytest.approx(np.std(wave) / 100, rel=0.05)
    assert not np.allclose(heard["reverb"], wave, atol=0.01)


def test_pictures_are_what_the_condition_says(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    (tmp_path / "a.png").write_bytes(encode(pixels))
    seen = {}
    for one in parse(["jpeg40", "blur3", "small10", "dark50", "mirror"], "face"):
        file = damaged(Item("a", tmp_path / "a.png"), one, "face", tmp_path)
        seen[one.kind] = decode_bytes(file.read_bytes(), one.name).astype(float)
        assert seen[one.kind].shape == pixels.shape
    assert np.array_equal(seen["mirror"], pixels[:, ::-1])
    assert np.abs(seen["dark"] - pixels / 2).max() <= 0.5
    jpeg = decode_bytes(encode(pixels, ".jpg", quality=40), "a")
    assert np.array_equal(seen["jpeg"], jpeg)
    assert np.std(seen["blur"]) < np.std(pixels) / 3
    assert np.std(seen["small"]) < np.std(pixels) / 2


@pytest.mark.parametrize("name", ["mp4", "noise0", "noise101", "mp33", "dark50"])
def test_an_unknown_condition_is_named_with_the_known_ones(name):
    with pytest.raises(LikenessError, match=f"{name!r}.*reverbN"):
        parse(["ogg", name], "speaker")


def test_the_command_writes_the_table_json_and_a_page(world, voices, tmp_path):
    command = ["bench", "--model", world / "plain", "--trials", world / "trials.txt"]
    command += ["--root", voices, "--resamples", 20]
    assert "'mp4'" in refused(*command, "--conditions", "mp4")
    out = ["--json", tmp_path / "bench.json", "--report", tmp_path / "report"]
    text = printed(*command, "--model", world / "wide", "--conditions", "opus,8khz", *out)
    assert text.splitlines()[1].split()[:2] == ["clean", "plain"]
    document = json.loads((tmp_path / "bench.json").read_text())
    check(document, "results")
    tried = {of["conventions"]["condition"] for of in document["results"]}
    assert tried == {"clean", "opus", "8khz"}
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    (row,) = [row for row in page.split("<tr") if "8khz" in row and "31 of 62" in row]
    assert "wide" in row
