"""`likeness bench`: cells against embed, score and evaluate by hand, what models refuse, groups;
recordings and pictures in each condition against what it says.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import likeness
from likeness import Item, LikenessError, Scores, Trials, condition_scores, conditions
from likeness.benchmark import Bench
from likeness.condition_scores import Cells, ConditionScores
from likeness.conditions import damaged, parse, respond
from likeness.eval.intervals.bootstrap import bounds_of, drawn_from, paired_bounds
from likeness.eval.metrics.verification import eer
from likeness.eval.results import Result
from likeness.modalities.speaker import audio
from likeness.toolkit.data.images import decode_bytes, encode
from likeness.toolkit.models.embed import embed_where_readable
from tests.scripts import ROOT, printed, refused
from tests.test_json_schemas import check
from tests.tiny import BASE, untrained

FEW = likeness.VerificationSettings((), fars=(), num_resamples=50)


@pytest.fixture(scope="module")
def world(voices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trials of all pairs of voices, the sex of each speaker, a model with thresholds, and one that
    refuses what has nothing above 5 kHz.
    """
    folder = tmp_path_factory.mktemp("bench")
    (folder / "voices").symlink_to(voices)
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
    cell = condition, system
    results = [of for of in found.results if (of.conventions["condition"], of.system) == cell]
    return {of.metric: of for of in results}


def benched(world: Path, *conditions: str, models: Any = ("plain",), **options: Any) -> Bench:
    """What a bench of models by their names, or elsewhere, finds on the trials of `world`."""
    options = {"root": world / "voices", "num_resamples": 0} | options
    trials = world / "trials.txt"
    return likeness.bench([world / name for name in models], trials, conditions, **options)


@pytest.mark.parametrize("both_sides", [False, True])
def test_a_cell_is_what_embed_score_and_evaluate_give(both_sides, world, voices, tmp_path):
    found = benched(world, "quiet20", both_sides=both_sides, far=0.1, num_resamples=50)
    for path in voices.rglob("*.flac"):
        wave, rate_hz = soundfile.read(path, dtype="float32")
        quiet = tmp_path / path.relative_to(voices)
        quiet.parent.mkdir(exist_ok=True)
        soundfile.write(quiet, wave / np.float32(10), rate_hz, subtype="PCM_16")
    model = likeness.load(world / "plain")
    clean, tested = model.embed(voices), model.embed(tmp_path)
    limit = model.thresholds.at(0.1).value
    enrolled = tested if both_sides else clean
    for name, enrol, probe in (("clean", clean, clean), ("quiet20", enrolled, tested)):
        scored = likeness.score(world / "trials.txt", enrol, probe=probe)
        by_hand = likeness.evaluate(scored, FEW)
        cell, values, target = results_of(found, name), scored.values, scored.trials.target
        assert cell["eer"].value == pytest.approx(by_hand.eer, abs=1e-6)
        assert cell["eer"].interval == pytest.approx(by_hand.interval, abs=1e-6)
        assert cell["far"].value == pytest.approx(np.mean(values[~target] >= limit))
        assert cell["frr"].value == pytest.approx(np.mean(values[target] < limit))
        assert cell["frr"].interval[0] <= cell["frr"].value <= cell["frr"].interval[1]
        assert [*cell["refused"].counts.values()] == [48, 448, 8, 62, 0]


def test_what_a_model_refuses_is_counted_and_not_scored(world):
    found = benched(world, "8khz", models=("plain", "wide"), far=0.1, num_resamples=20)
    assert results_of(found, "clean", "wide")["refused"].value == 0
    assert results_of(found, "8khz", "wide").keys() == {"refused"}
    assert results_of(found, "8khz", "wide")["refused"].value == 31 / 62  # the test sides
    assert "eer" in results_of(found, "8khz", "plain")
    assert any(note.startswith("wide, 8khz: ") and "5 kHz" in note for note in found.notes)
    # The other model has no threshold, and the same network: all that differs is what it refuses.
    differences = {key: of.value for key, of in found.paired.differences.items()}
    assert differences == {("wide, clean", "eer"): 0.0}


def test_differences_are_on_the_trials_that_all_models_scored(world, tmp_path):
    untrained(tmp_path / "other", replace(BASE, read=partial(audio.read, min_seconds=0.75)))
    found = benched(world, models=("plain", tmp_path / "other"))
    cell = results_of(found, "clean", "other")
    assert 0 < cell["refused"].value < 1
    assert cell["eer"].value != results_of(found, "clean")["eer"].value
    assert found.paired.differences["other, clean", "eer"].value == 0  # one network, these trials


def test_groups_split_the_trials_by_both_sides(world, voices):
    found = benched(world, groups=world / "sex.txt", far=0.1)
    scored = likeness.score(world / "trials.txt", likeness.load(world / "plain").embed(voices))
    limit = likeness.load(world / "plain").thresholds.at(0.1).value
    sexes = likeness.read_mapping(world / "sex.txt")
    trials = scored.trials
    sides = (trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe)
    first, second = ([sexes[ids[row].split("/")[0]] for row in rows] for ids, rows in sides)
    pairs = [a + b for a, b in zip(first, second, strict=True)]
    for first, second in sorted(set(pairs)):
        rows = np.array(pairs) == first + second
        cell = results_of(found, f"clean, {first} / {second}")
        values, target = scored.values[rows], trials.target[rows]
        assert cell["far"].value == pytest.approx(np.mean(values[~target] >= limit))
        assert ("eer" in cell) == (first == second)
        assert cell["refused"].counts["nontargets"] == np.sum(~target)


@pytest.fixture
def hear(voices: Path, tmp_path: Path) -> Callable[..., Any]:
    """Gives the wave of a recording in a condition, or as it is."""

    def heard(name: str = "", id: str = "a") -> Any:
        file = min(voices.rglob("*.flac"))
        for one in parse([name] if name else [], "speaker"):
            file = damaged(Item(id, file), one, "speaker", tmp_path)
        wave, rate_hz = soundfile.read(file)
        assert rate_hz == 16_000
        return wave

    return heard


def gain_db(after: Any, before: Any, low: float, high: float) -> float:
    """The gain between two frequencies in Hz."""
    hz = np.fft.rfftfreq(len(before), 1 / 16_000)
    power = [np.sum(np.abs(np.fft.rfft(w))[(hz > low) & (hz < high)] ** 2) for w in (after, before)]
    return float(10 * np.log10(power[0] / power[1]))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        *[("mulaw", 0.6), ("alaw", 0.6), ("gsm", 0.6), ("ogg", 0.9)],
        *[("opus6", 0.5), ("opus12", 0.8), ("opus24", 0.9), ("opus", 0.8)],
        *[("mp3-16", 0.9), ("mp3-32", 0.95), ("mp3", 0.99)],
    ],
)
def test_a_codec_keeps_the_length_and_the_time(name, least, hear):
    wave, heard = hear(), hear(name)
    assert len(heard) == len(wave)
    assert least < np.corrcoef(heard, wave)[0, 1] < 0.99999
    shifts = [np.dot(heard[1000 + k : 5000 + k], wave[1000:5000]) for k in range(-300, 301)]
    assert abs(int(np.argmax(shifts)) - 300) <= 1


def test_higher_rates_are_nearer(hear):
    for kind, rates in (("opus", (6, 12, 24, 64)), ("mp3-", (16, 32, 64))):
        errors = [np.mean((hear(f"{kind}{rate}") - hear()) ** 2) for rate in rates]
        assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("name", ["mulaw", "alaw", "gsm", "8khz"])
def test_a_line_has_nothing_above_4_khz(name, hear):
    assert gain_db(hear(name), hear(), 4200, 8000) < -20
    if name.endswith("law"):
        assert gain_db(hear(name), hear(), 20, 120) < -15


@pytest.mark.parametrize(
    ("device", "gains"),
    [
        ("webcam", {50: -18, 100: -18, 1000: 0, 2828: 2.5, 6000: 6, 8000: -6}),
        ("laptop", {100: -30, 141: -22.5, 1600: 6, 2500: 0}),
        ("phone", {200: -12, 1000: 1.29, 3400: -3, 4000: -24}),
        ("headset", {50: -20, 1000: 0, 3000: 4, 6500: -6}),
        ("loudspeaker", {283: -16, 700: 0, 3000: 4, 5000: -2}),
    ],
)
def test_a_device_has_its_response(device, gains):
    seconds = np.arange(32_000) / 16_000
    for hz, db in gains.items():
        tone = np.cos(2 * np.pi * hz * seconds).astype(np.float32) / 10
        heard = respond(tone, device)
        assert (heard.shape, heard.dtype) == (tone.shape, np.float32)
        middle = slice(8_000, 24_000)
        gain = 20 * np.log10(np.std(heard[middle]) / np.std(tone[middle]))
        assert gain == pytest.approx(db, abs=0.5)
        assert np.corrcoef(heard[middle], tone[middle])[0, 1] > 0.99  # no delay


def test_a_recording_has_the_response_of_its_device(hear):
    assert gain_db(hear("laptop"), hear(), 1550, 1650) == pytest.approx(6, abs=0.5)
    assert gain_db(hear("phone"), hear(), 195, 205) == pytest.approx(-12, abs=0.5)


@pytest.mark.parametrize("kind", ["noise", "pink"])
@pytest.mark.parametrize("db", [5, 15, 25])
def test_noise_has_its_ratio_and_its_colour(kind, db, hear):
    wave, heard = hear(), hear(f"{kind}{db}")
    noise = heard - wave * np.dot(heard, wave) / np.dot(wave, wave)
    assert 10 * np.log10(np.mean(wave**2) / np.mean(noise**2)) == pytest.approx(db, abs=0.5)
    hz = np.fft.rfftfreq(len(noise), 1 / 16_000)
    power = np.abs(np.fft.rfft(noise)) ** 2
    octaves = [np.sum(power[(hz > low) & (hz < 2 * low)]) for low in (1000, 2000, 4000)]
    steps = 10 * np.log10(np.array(octaves[1:]) / octaves[:-1])
    assert steps == pytest.approx([0 if kind == "pink" else 3] * 2, abs=1)


def test_a_room_and_a_level(hear):
    wave = hear()
    assert np.std(hear("quiet40")) == pytest.approx(np.std(wave) / 100, rel=0.05)
    dry = np.dot(hear("reverb0.3"), wave) / np.sqrt(np.sum(hear("reverb0.3") ** 2) * wave.dot(wave))
    assert 0.4 < dry < 0.95


def test_the_steps_of_a_chain_happen_in_their_order(hear):
    line, heard = hear("gsm"), hear("gsm+noise15")
    noise = heard - line * np.dot(heard, line) / np.dot(line, line)
    assert 10 * np.log10(np.mean(line**2) / np.mean(noise**2)) == pytest.approx(15, abs=0.5)
    assert gain_db(hear("noise15+gsm"), hear(), 4200, 8000) < gain_db(heard, hear(), 4200, 8000)


def test_an_item_has_the_same_noise_each_time(hear):
    for name in ("pink5", "reverb0.3", "gsm+loudspeaker+reverb0.5+webcam+pink20"):
        assert np.array_equal(hear(name), hear(name))
        assert not np.array_equal(hear(name), hear(name, id="b"))


def test_case_has_its_groups():
    case = parse(["case"], "speaker")
    groups = {"codec": 8, "microphone": 4, "noise": 5, "room": 1, "chain": 3}
    assert Counter(one.group for one in case) == groups
    assert len({one.name for one in case}) == 21
    assert "then" in case[-1].text
    assert parse(["opus12", "case"], "speaker")[0] == case[4]


def test_pictures_are_what_the_condition_says(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    (tmp_path / "a.png").write_bytes(encode(pixels))
    seen = {}
    for one in parse(["jpeg40", "blur3", "small10", "dark50", "mirror"], "face"):
        file = damaged(Item("a", tmp_path / "a.png"), one, "face", tmp_path)
        seen[one.group] = decode_bytes(file.read_bytes(), one.name).astype(float)
        assert seen[one.group].shape == pixels.shape
    assert np.array_equal(seen["mirror"], pixels[:, ::-1])
    assert np.abs(seen["dark"] - pixels / 2).max() <= 0.5
    jpeg = decode_bytes(encode(pixels, ".jpg", quality=40), "a")
    assert np.array_equal(seen["jpeg"], jpeg)
    assert np.std(seen["blur"]) < np.std(pixels) / 3
    assert np.std(seen["small"]) < np.std(pixels) / 2


@pytest.mark.parametrize(
    "name",
    ["mp4", "noise0", "noise101", "mp33", "opus5", "mp3-161", "gsm13", "dark50", ""],
)
def test_an_unknown_condition_is_named_with_the_known_ones(name):
    for written in (name, f"{name}+gsm", f"gsm+{name}"):
        with pytest.raises(LikenessError, match=f"{name!r}.*reverbN"):
            parse(["ogg", written], "speaker")
    with pytest.raises(LikenessError, match=r"'case'.*jpegN"):
        parse(["case"], "face")


def test_what_conditions_add_is_averaged_in_groups_and_drawn_by_subjects(world, tmp_path):
    untrained(tmp_path / "other", replace(BASE, seed=BASE.seed + 1))
    models, names = ("plain", tmp_path / "other"), ("noise1", "noise5", "reverb5")
    found = benched(world, *names, models=models, num_resamples=50)
    cells = {}
    for of in found.results:
        if of.metric == "eer":
            cells[of.system, of.conventions["condition"]] = of.value
    values = {}
    for name in ("plain", "other"):
        clean = cells[name, "clean"]
        noise = (cells[name, "noise1"] + cells[name, "noise5"]) / 2 - clean
        (added,) = results_of(found, "all conditions", name).values()
        values[name] = added.value
        assert added.metric == "eer_added"
        assert added.value == pytest.approx((noise + cells[name, "reverb5"] - clean) / 2)
        assert added.interval[0] < added.value < added.interval[1]
        assert [*added.counts.values()] == [48, 448, 8, 3]
        assert f"{100 * clean:.2f}" in next(row[1] for row in found.summary() if row[0] == name)
    difference = found.paired.differences["other, all conditions", "eer_added"]
    assert difference.value == pytest.approx(values["other"] - values["plain"])


def test_the_interval_of_what_is_added_is_paired_by_subject():
    ids = tuple(f"{subject}/{item}" for subject in range(12) for item in range(3))
    enrol, probe = np.triu_indices(36, 1)
    pairs = np.stack([enrol // 3, probe // 3], axis=1)
    target, rng = pairs[:, 0] == pairs[:, 1], np.random.default_rng(0)
    clean = target + rng.normal(size=target.size)
    values = {name: clean + rng.normal(size=target.size) for name in ("pink9", "pink5", "gsm")}
    lost = np.zeros((target.size, 2), dtype=np.bool_)

    def added(values: dict[str, Any]) -> Result:
        every = {"clean": clean, **values}.items()
        scored = {name: ConditionScores(of, lost, "") for name, of in every}
        groups = {name: name.rstrip("0123456789") for name in values}
        trials = Trials(ids, ids, enrol, probe, target)
        cells = Cells(trials, pairs, "", {"m": scored}, {"m": None}, groups, FEW)
        *_, last = cells.table({"": np.ones(target.size, dtype=np.bool_)})[0]
        return last

    eers, draws = {}, {}
    for name, of in {"clean": clean, **values}.items():
        eers[name] = eer(of[target], of[~target])
        drawn = bounds_of({"eer": eer}, Scores(of, target), pairs, num_resamples=50)[1]
        draws[name] = drawn["eer"]
    value, more = (
        (of["pink9"] / 2 + of["pink5"] / 2 + of["gsm"]) / 2 - of["clean"] for of in (eers, draws)
    )
    by_hand = paired_bounds(more, value, 0.95, drawn_from(target, pairs), 1.0)
    assert added(values).value == pytest.approx(value)
    assert added(values).interval == pytest.approx(by_hand.ends)
    same = added({"gsm": clean + 1})
    assert same.value == 0
    assert same.interval is None  # no draw has any difference


def test_what_a_model_refuses_is_left_out_of_what_is_added(world):
    found = benched(world, "8khz", "quiet20", models=("plain", "wide"))
    assert [row[-1] for row in found.summary()[1:]] == ["2 of 2", "1 of 2"]
    (wide,) = results_of(found, "all conditions", "wide").values()
    level = results_of(found, "quiet20", "wide")["eer"].value
    assert wide.value == pytest.approx(level - results_of(found, "clean", "wide")["eer"].value)
    assert found.paired.differences["wide, all conditions", "eer_added"].value == 0


def test_every_model_hears_the_same_files_written_once(world, monkeypatch):
    written, embedded = [], []

    def write(item, *others):
        written.append(item.id)
        return damaged(item, *others)

    def embed(embedder, items, read):
        embedded.append(len(items))
        return embed_where_readable(embedder, items, read)

    monkeypatch.setattr(condition_scores, "damaged", write)
    monkeypatch.setattr(condition_scores, "embed_where_readable", embed)
    benched(world, "quiet20", "pink5", models=("plain", "wide"))
    assert len(written) == 2 * 31  # the test sides
    assert embedded == [32, 32] + [31] * 4


def test_trials_are_drawn_among_a_few_items_of_many_subjects(world, voices, tmp_path):
    options: dict[str, Any] = {"num_resamples": 0}
    found = likeness.bench([world / "plain"], items=voices, max_items=10, **options)
    clean = results_of(found, "clean")
    assert [*clean["refused"].counts.values()][:3] == [5, 40, 5]  # two of each of five speakers
    again = likeness.bench([world / "plain"], items=voices, max_items=10, **options)
    assert results_of(again, "clean")["eer"] == clean["eer"]
    every = likeness.bench([world / "plain"], items=voices, **options)
    listed = benched(world)
    assert results_of(every, "clean")["eer"].value == results_of(listed, "clean")["eer"].value
    lines = [f"{p.relative_to(voices)},{p.parent.name}" for p in voices.rglob("*.flac")]
    (tmp_path / "my items.csv").write_text("\n".join(["clip,who", *lines]))
    folders: dict[str, Any] = {"items": voices, "label": "{label}/*"}
    labelled = likeness.bench([world / "plain"], **folders, **options)
    assert results_of(labelled, "clean")["eer"].value == results_of(listed, "clean")["eer"].value
    table: dict[str, Any] = {"items": tmp_path / "my items.csv", "columns": "path=clip,label=who"}
    named = likeness.bench([world / "plain"], root=voices, **table, **options)
    assert results_of(named, "clean")["eer"].value == results_of(listed, "clean")["eer"].value


def test_trials_and_items_are_not_mixed(world, voices):
    trials = world / "trials.txt"
    mixed: list[dict[str, Any]] = [{}, {"items": voices, "trials": trials}]
    mixed += [{"max_items": 8, "trials": trials}, {"label": "{label}/*", "trials": trials}]
    for options in mixed:
        with pytest.raises(LikenessError, match="one of them"):
            likeness.bench([world / "plain"], **options)
    lonely = {"items": min(voices.iterdir()), "num_resamples": 0}
    with pytest.raises(LikenessError, match="label"):
        likeness.bench([world / "plain"], **lonely)


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
    assert tried == {"clean", "opus", "8khz", "all conditions"}
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    (row,) = [row for row in page.split("<tr") if "8khz" in row and "31 of 62" in row]
    assert "wide" in row


def test_the_page_has_the_devices_and_the_conditions():
    page = (ROOT / "docs" / "how-to" / "bench.md").read_text(encoding="utf-8")
    for device in conditions.RESPONSES:
        assert device in page
    for one in parse(["case"], "speaker"):
        assert one.group == "chain" or one.steps[0][0] in page
