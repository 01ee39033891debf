"""`likeness lists`, and training and embedding from a table: the slice from a CSV to scores."""

import re
from pathlib import Path

import numpy as np
import pandas
import pytest
import soundfile

import likeness
from likeness import read_durations, read_mapping, read_trials
from likeness.eval.items.item_lists import read_items
from likeness.eval.items.listing import list_items
from likeness.modalities import folders, synthetic
from tests.scripts import printed, refused, run_command, touch
from tests.tiny import QUICK


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 speakers of 4 recordings each, and a table of stretches of them."""
    folder = tmp_path_factory.mktemp("lists")
    synthetic.write_voices(folder / "wavs", num_speakers=12, num_utterances=4, seconds=(0.8, 0.9))
    files = sorted((folder / "wavs").rglob("*.flac"))
    pandas.DataFrame(
        {
            "file": [file.relative_to(folder).as_posix() for file in files],
            "speaker": [file.parent.name for file in files],
            "gender": ["fm"[int(file.parent.name[-1]) % 2] for file in files],
            "session": [i % 4 // 2 for i in range(len(files))],
            "start": 0.1,
            "end": 0.7,
        }
    ).to_csv(folder / "voices.csv", index=False)
    return folder / "voices.csv"


def test_from_a_table_to_scores(table, tmp_path):
    lists = tmp_path / "lists"
    shown = printed("lists", table, "--out", lists)
    whose = re.search(r"8 items of (\d+) of (\d+) subjects \(held out; --split all", shown)
    assert int(whose[1]) < int(whose[2])
    items, trials = read_items(lists / "items.txt", table.parent), read_trials(lists / "trials.txt")
    recipe_items, recipe_trials = folders.trials(table, split="test")
    assert list(items.ids) == list(recipe_items.ids)
    assert [item.stretch for item in items] == [(0.1, 0.7)] * 8
    assert set(trials.enrol_ids) <= set(items.ids)
    assert len(trials) == len(recipe_trials) == 28
    labels = dict(zip(items.ids, recipe_items.labels, strict=True))
    assert read_mapping(lists / "labels.txt") == labels

    out = tmp_path / "run"
    assert run_command("train", "speaker/folders", *QUICK, "--data", table, "--out", out) == 0
    model = likeness.load(out)
    found = model.embed(lists / "items.txt", root=table.parent)
    assert found.ids == (*items.ids,)
    wave, rate = soundfile.read(items[0].path)
    cut = wave[round(0.1 * rate) : round(0.7 * rate)]
    (expected,) = model.embed(cut, rate_hz=rate).matrix
    np.testing.assert_allclose(found.matrix[0], expected, rtol=1e-4, atol=1e-5)
    both = model.embed(table)
    np.testing.assert_array_equal(both.matrix[both.rows(found.ids)], found.matrix)
    frame = pandas.read_csv(table).head(3)
    assert model.embed(frame, root=table.parent).ids == both.ids[:3]
    assert len(likeness.score(lists / "trials.txt", found)) == 28


def test_the_lists_follow_from_the_seed(table, tmp_path):
    asked = ("lists", table, "--num-trials", 12, "--out")
    for name, options in (("a", []), ("b", []), ("c", ["--seed", 1])):
        assert run_command(*asked, tmp_path / name, *options) == 0
    texts = [(tmp_path / name / "trials.txt").read_bytes() for name in "abc"]
    assert texts[0] == texts[1] != texts[2]
    assert [text.count(b"\n") for text in texts] == [12] * 3


def test_trials_of_one_sex_and_across_sessions(table, tmp_path):
    options = ["--same-sex", "--cross-session", "--split", "all"]
    assert run_command("lists", table, "--out", tmp_path, *options) == 0
    items, trials = list_items(table, suffixes=[".flac"]), read_trials(tmp_path / "trials.txt")
    place = {id: number for number, id in enumerate(items.ids)}
    for i, j, target in zip(trials.enrol, trials.probe, trials.target, strict=True):
        a, b = place[trials.enrol_ids[i]], place[trials.probe_ids[j]]
        assert items.column("sex")[a] == items.column("sex")[b]
        if target:
            assert items.column("session")[a] != items.column("session")[b]
    assert int(trials.target.sum()) == 12 * 4


def test_recordings_are_cut_to_the_durations_that_they_are_long_enough_for(table, tmp_path, capsys):
    broken = table.parent / "wavs" / "spk000" / "broken.flac"
    broken.touch()
    wavs, options = table.parent / "wavs", ["--durations", "0.2,0.5,whole", "--split", "all"]
    assert run_command("lists", wavs, "--out", tmp_path / "a", *options) == 0
    broken.unlink()
    assert "1 of 49 items" in capsys.readouterr().err
    items = read_items(tmp_path / "a/items.txt")
    seconds = read_durations(tmp_path / "a/durations.txt")
    assert len(items) == len({item.path for item in items}) == 48
    assert seconds.keys() == set(items.ids)
    seen = {0.2: 0, 0.5: 0, 0.0: 0}
    for item in items:
        length = soundfile.info(item.path).duration
        if item.stretch is None:
            assert seconds[item.id] == pytest.approx(length, rel=1e-5)
            assert item.id == f"{item.path.parent.name}/{item.path.name}"
        else:
            start, end = item.stretch
            assert 0 <= start < end <= length
            assert end - start == pytest.approx(seconds[item.id])
            assert item.id.endswith(f".flac@{start:g}-{end:g}")
        seen[0.0 if item.stretch is None else seconds[item.id]] += 1
    assert min(seen.values()) >= 8
    trials = read_trials(tmp_path / "a/trials.txt")
    assert {*trials.enrol_ids, *trials.probe_ids} <= set(items.ids)
    assert int(trials.target.sum()) == 12 * 6

    options = ["--durations", "0.25,0.7", "--same-sex", "--split", "all"]
    assert run_command("lists", table, "--out", tmp_path / "b", *options) == 0
    inside = read_items(tmp_path / "b/items.txt", table.parent)
    assert {round(end - start, 6) for start, end in (item.stretch for item in inside)} == {0.25}
    assert all(item.stretch[0] >= 0.1 and item.stretch[1] <= 0.7 for item in inside)


def test_two_stretches_of_one_file_under_two_ids_are_no_trial(table, tmp_path):
    rows = [f"{id},wavs/spk00{id[0]}/utt0{id[1]}.flac,{id[0]}" for id in ("00", "01", "10")]
    rows.append(rows[0].replace("00,", "copy,", 1))
    (table.parent / "twice.csv").write_text("\n".join(["id,path,label", *rows]))
    options = ["--durations", "0.2", "--split", "all", "--out", tmp_path / "o"]
    assert run_command("lists", table.parent / "twice.csv", *options) == 0
    assert len(read_trials(tmp_path / "o/trials.txt")) == 5


@pytest.mark.parametrize(
    ("durations", "message"),
    [("2,six", "whole"), ("0", "whole"), ("-1,2", "whole"), ("nan", "whole"), ("9", "9 s")],
)
def test_durations_that_cannot_be_cut_are_refused(table, tmp_path, durations, message):
    assert message in refused("lists", table, "--out", tmp_path / "o", "--durations", durations)
    assert not (tmp_path / "o").exists()


def test_a_pattern_trains_and_lists_the_same_speakers(table, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in (table.parent / "wavs").rglob("*.flac"):
        (flat / f"{file.parent.name}_{file.name}").write_bytes(file.read_bytes())
    pattern = "{label}_*.flac"
    assert run_command("lists", flat, "--out", tmp_path / "lists", "--label", pattern) == 0
    held_out = set(read_mapping(tmp_path / "lists" / "labels.txt").values())
    trained = {item.label for item in folders.items(flat, label=pattern)}
    assert len(held_out) == 2
    assert not held_out & trained
    assert len(likeness.items(flat, label=pattern)) == 48


def test_a_pattern_matches_below_the_root(tmp_path):
    touch(tmp_path, "2024/ann/1.wav", "2024/bob/1.wav")
    found = likeness.items(tmp_path / "2024", root=tmp_path, label="{year}/{label}/*")
    assert list(found.labels) == ["ann", "bob"]
    with pytest.raises(ValueError, match="root: the files of the folder"):
        likeness.items(tmp_path / "2024", root=tmp_path)


def test_the_files_say_what_they_are(tmp_path):
    for label in ("a", "b", "c", "d"):
        touch(tmp_path / "things" / label, "1.png", "2.png", "notes.wav")
    listed = likeness.items(tmp_path / "things")
    assert {item.suffix for item in listed} == {".png"}
    assert {item.suffix for item in likeness.items(tmp_path / "things", "speaker")} == {".wav"}
    assert run_command("lists", tmp_path / "things", "--out", tmp_path / "lists") == 0
    assert len(read_trials(tmp_path / "lists" / "trials.txt")) == 6


def test_lists_of_what_is_no_file_show_what_was_read(tmp_path):
    line = '{"key": "u1", "wav": "voices/ann/1.flac", "spk": "ann"}\n'
    (tmp_path / "raw.list").write_text(line)
    assert '"wav": "voices' in refused("lists", tmp_path / "raw.list", "--out", tmp_path / "lists")
