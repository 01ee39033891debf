"""`likeness check`: every planted fault is found, and clean data give no finding."""

import csv
import os
import shutil
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import f_oneway

from likeness import Embeddings, LikenessError
from likeness.checking._confounds import find, goodman_kruskal, intraclass
from likeness.checking._files import Seen
from likeness.checking.check import Checked, Finding, check
from likeness.eval.items.items import Item, Items
from likeness.eval.items.listing import list_items
from likeness.toolkit.data.reading import Header
from tests.scripts import run_command
from tests.sounds import chatter
from tests.toolkit.data.test_shards import tar

RATE_HZ = 8_000


def wave(seed: int, seconds: float = 0.5) -> NDArray[np.float64]:
    return 0.5 * chatter(seconds, RATE_HZ, seed).astype(np.float64)


@pytest.fixture(scope="module")
def clean_voices(module_path: Path) -> Path:
    for number, name in enumerate(("ann", "bob", "cyd")):
        (module_path / name).mkdir()
        for i in range(4):
            soundfile.write(module_path / name / f"{i}.wav", wave(10 * number + i), RATE_HZ)
    return module_path


@pytest.fixture
def voices(clean_voices: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clean_voices, tmp_path / "voices"))


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    for number, name in enumerate(("ann", "bob")):
        (tmp_path / "faces" / name).mkdir(parents=True)
        for i in range(3):
            pixels = np.random.default_rng(9 * number + i).integers(0, 255, (4, 3, 3), np.uint8)
            pixels = pixels.repeat(10, axis=0).repeat(10, axis=1)
            Image.fromarray(pixels).save(tmp_path / "faces" / name / f"{i}.jpg")
    return tmp_path / "faces"


def checked(folder: Path, *, test: Path | None = None, decode: bool = True) -> Checked:
    return check(folder, "speaker", test=test, decode=decode)


def found(result: Checked) -> dict[str, tuple[tuple[str, ...], ...]]:
    return {finding.kind: finding.groups for finding in result.findings}


@pytest.mark.parametrize("decode", [True, False])
def test_clean_data_give_no_finding(clean_voices, decode):
    result = checked(clean_voices, decode=decode)
    assert list(result.findings) == []
    assert set(result.left_out) == {""}


def test_files_that_cannot_be_trained_on(voices):
    whole = (voices / "ann" / "0.wav").read_bytes()
    (voices / "ann" / "0.wav").write_bytes(whole[: len(whole) // 2])
    (voices / "ann" / "1.wav").write_bytes(b"")
    (voices / "ann" / "text.wav").write_text("no sound at all")
    soundfile.write(voices / "ann" / "short.wav", wave(90, 0.05), RATE_HZ)
    soundfile.write(voices / "bob" / "0.flac", wave(91, 4.0), RATE_HZ)
    flac = (voices / "bob" / "0.flac").read_bytes()
    (voices / "bob" / "0.flac").write_bytes(flac[: len(flac) // 2])
    headers = found(checked(voices, decode=False))
    unreadable = (("ann/1.wav",), ("ann/short.wav",), ("ann/text.wav",))
    assert headers == {"unreadable": unreadable, "cut": (("ann/0.wav",), ("bob/0.flac",))}
    soundfile.write(voices / "cyd" / "quiet.wav", 0.0009 * wave(92), RATE_HZ)
    soundfile.write(voices / "cyd" / "zero.wav", 0 * wave(92), RATE_HZ)
    decoded = checked(voices)
    quiet = {"empty": (("cyd/zero.wav",),), "doubtful": (("cyd/quiet.wav",),)}
    assert found(decoded) == headers | quiet
    assert sum(map(bool, decoded.left_out)) == 6


def test_clipped_recordings_are_named_and_kept(voices):
    loud = np.clip(20 * wave(93), -1, 1)
    soundfile.write(voices / "ann" / "loud.wav", loud, RATE_HZ)
    slow = np.clip(3 * np.sin(np.arange(4000) / 40) + wave(94), -1, 1)
    soundfile.write(voices / "ann" / "slow.wav", slow, RATE_HZ)
    soundfile.write(voices / "ann" / "full.wav", wave(95) / np.abs(wave(95)).max(), RATE_HZ)
    result = checked(voices)
    assert found(result) == {"clipped": (("ann/loud.wav",), ("ann/slow.wav",))}
    assert set(result.left_out) == {""}


def test_copies(voices):
    shutil.copy(voices / "ann" / "0.wav", voices / "ann" / "again.wav")
    shutil.copy(voices / "bob" / "0.wav", voices / "cyd" / "bob.wav")
    samples, rate = soundfile.read(voices / "ann" / "1.wav", dtype="int16")
    soundfile.write(voices / "ann" / "other.flac", samples, rate)
    conflict, same_bytes = (("bob/0.wav", "cyd/bob.wav"),), (("ann/0.wav", "ann/again.wav"),)
    bytewise = found(checked(voices, decode=False))
    assert bytewise == {"conflict": conflict, "duplicate": same_bytes}
    result = checked(voices)
    of_samples = (*same_bytes, ("ann/1.wav", "ann/other.flac"))
    assert found(result) == {"conflict": conflict, "duplicate": of_samples}
    left = [id for id, reason in zip(result.items.ids, result.left_out, strict=True) if reason]
    assert left == ["ann/again.wav", "ann/other.flac", "bob/0.wav", "cyd/bob.wav"]


def test_labels(voices):
    shutil.copytree(voices / "ann", voices / "Ann")
    for file in (voices / "Ann").iterdir():
        soundfile.write(file, wave(50 + int(file.stem)), RATE_HZ)
    (voices / "bob" / "0.wav").unlink()
    (voices / "bob" / "1.wav").unlink()
    (voices / "cyd" / "0.wav").rename(voices / "lone.wav")
    odd = {"alike-labels": (("Ann", "ann"),), "few-items": (("bob",),)}
    assert found(checked(voices)) == odd | {"no-label": (("lone.wav",),)}


def test_one_label_and_folders_that_are_no_speakers(voices):
    with pytest.raises(LikenessError, match="level 2 has 3"):
        checked(voices.parent)
    shutil.rmtree(voices / "bob")
    shutil.rmtree(voices / "cyd")
    assert found(checked(voices)) == {"one-label": (("ann",),)}


def test_leaks(voices, tmp_path):
    test = tmp_path / "test"
    for name, seed in (("Bob", 70), ("dan", 80)):
        (test / name).mkdir(parents=True)
        soundfile.write(test / name / "0.wav", wave(seed), RATE_HZ)
    shutil.copy(voices / "ann" / "2.wav", test / "dan" / "1.wav")
    result = checked(voices, test=test)
    leaks = {"leak-content": (("ann/2.wav", "test: dan/1.wav"),), "leak-subject": (("bob",),)}
    assert found(result) == leaks
    assert sum(map(bool, result.left_out)) == 5


def test_sessions_and_stretches_of_a_table(voices):
    lines = ["path,speaker,session,start,end"]
    for name, session in (("ann", "01"), ("bob", "00"), ("cyd", "01")):
        for i in range(4):
            lines.append(f"{name}/{i}.wav,{name},{session[i % 2]},{0.1 * (i % 2)},0.4")
    lines.append("cyd/1.wav,cyd,1,0.1,0.4")  # the stretch of another row
    lines.append("cyd/1.wav,cyd,1,0.2,0.5")  # another stretch of the same recording
    lines.append("cyd/1.wav,cyd,1,0.2,9")
    lines.append("cyd/none.wav,cyd,1,0,1")
    lines.append("x" * 300 + ".wav,cyd,1,0,1")
    table = voices / "voices.csv"
    lines[-5] = lines[-5].replace("cyd/1.wav", "./cyd/../cyd/1.wav")
    table.write_text("\n".join(lines), encoding="utf-8")
    result = checked(table)
    groups = found(result)
    assert groups["one-session"] == (("bob",),)
    assert groups["missing"] == (("cyd/none.wav@0-1",),)
    assert groups["unreadable"][0] == ("cyd/1.wav@0.2-9",)
    assert len(groups["unreadable"]) == 2
    assert len(groups["duplicate"]) == 1
    assert len(groups) == 4


def test_images(faces, capsys):
    assert run_command("check", faces, "--strict") == 0
    Image.new("RGB", (40, 30), "red").save(faces / "ann" / "blank.png")
    content = (faces / "bob" / "0.jpg").read_bytes()
    (faces / "bob" / "cut.jpg").write_bytes(content[:-200])
    Image.open(faces / "bob" / "0.jpg").save(faces / "bob" / "0.png")
    (faces / "bob" / "no.jpg").write_bytes(b"GIF no")
    (faces / "bob" / "phone.AVIF").write_bytes(b"unread")
    capsys.readouterr()
    assert run_command("check", faces, "--strict") == 1
    shown = capsys.readouterr()
    assert "(.avif 1)" in shown.err
    assert "30x40 (7), 40x30 (1)" in shown.out
    (faces / "bob" / "phone.AVIF").unlink()
    damaged = {"unreadable": (("bob/no.jpg",),), "cut": (("bob/cut.jpg",),)}
    odd = {"empty": (("ann/blank.png",),), "duplicate": (("bob/0.jpg", "bob/0.png"),)}
    assert found(check(faces)) == damaged | odd


def test_swapped_labels_are_found_by_embeddings(voices):
    items = list_items(voices, suffixes=[".wav"])
    numbers = np.repeat(np.arange(3), 4)
    numbers[[1, 6]] = numbers[[6, 1]]
    matrix = np.eye(3, 8)[numbers] + 0.2 * np.random.default_rng(0).normal(size=(12, 8))
    matrix[3] = matrix[2]
    embedded = Embeddings(tuple(items.ids), 5 * matrix, {})
    result = check(voices, embeddings=embedded)
    groups = found(result)
    assert sorted(groups.pop("wrong-label")) == [("ann/1.wav",), ("bob/2.wav",)]
    assert groups == {"near-duplicate": (("ann/2.wav", "ann/3.wav"),)}
    assert "looks like bob" in result.findings[-1].details["ann/1.wav"]
    assert set(result.left_out) == {""}
    cleaned = check(voices, embeddings=embedded, clean=True)
    left = [id for id, reason in zip(items.ids, cleaned.left_out, strict=True) if reason]
    assert left == ["ann/1.wav", "ann/3.wav", "bob/2.wav"]


def test_the_page_shows_and_plays_what_was_found(faces, voices, tmp_path):
    Image.open(faces / "bob" / "0.jpg").save(faces / "bob" / "<b>.png")
    shutil.copy(voices / "ann" / "0.wav", voices / "ann" / "again.wav")
    (voices / "bob" / "0.wav").write_bytes(b"")
    for data, mark in ((faces, "data:image/"), (voices, "data:audio/")):
        assert run_command("check", data, "--page", tmp_path / "page", "--force") == 0
        page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
        assert page.count(mark) == 2
        assert "<b>" not in page
        assert "://" not in page.replace("http://www.w3.org", "")


def test_the_list_to_train_on(voices, tmp_path):
    """Its items are read as they were, whatever their names, stretches and columns."""
    (voices / "ann" / "0.wav").rename(voices / "ann" / 'a, "b" é.wav')
    soundfile.write(voices / "bob" / "0.wav", 0 * wave(0), RATE_HZ)
    lines = ["path\tspeaker\tsession\tstart\tend"]
    for file in sorted(voices.rglob("*.wav")):
        place = file.relative_to(voices).as_posix().replace('"', '""')
        lines.append(f'"{place}"\t{file.parent.name}\t{file.stem}\t\t{0.25}')
    table = voices / "voices.tsv"
    table.write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "lists" / "items.csv"
    out.parent.mkdir()
    assert run_command("check", table, "--out", out) == 0
    before, after = (list_items(path, suffixes=[".wav"]) for path in (table, out))
    expected = [item for item in before if item.path.as_posix() != str(voices / "bob" / "0.wav")]
    assert len(expected) == 11
    assert [(*item[2:], item.id) for item in after] == [(*i[2:], i.id) for i in expected]
    assert all(item.path.samefile(e.path) for item, e in zip(after, expected, strict=True))
    assert {str(name) for name in after.column("session")} == {"0", "1", "2", "3", 'a, "b" é'}
    with (tmp_path / "lists" / "items.left-out.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], row["reason"].partition(":")[0]) for row in rows] == [("bob", "empty")]


def test_the_folders_of_shards_need_not_be_labels(tmp_path):
    for part in ("train", "test"):
        sounds = [(f"{part}/{n}.wav", b"no sound") for n in range(3)]
        labels = [(f"{part}/{n}.cls", str(n).encode()) for n in range(3)]
        tar(tmp_path / f"{part}.tar", [*sounds, *labels])
    result = checked(tmp_path, decode=False)
    assert sorted(result.items.labels) == ["0", "0", "1", "1", "2", "2"]


def test_the_list_to_train_on_has_one_column_of_each_kind(voices, tmp_path):
    table, out = voices / "voices.csv", tmp_path / "items.csv"
    rows = [f"ann/{number}.wav,x,ann,A,7,0" for number in range(4)]
    table.write_text("\n".join(["clip,file,speaker,class,onset,first", *rows]), encoding="utf-8")
    columns = "path=clip,label=class,start=first"
    assert run_command("check", table, "--columns", columns, "--out", out) == 0
    after = list_items(out, suffixes=[".wav"])
    assert set(after.labels) == {"A"}
    assert after[0].path.samefile(voices / "ann" / "0.wav")
    assert after.further == ["other_file", "other_speaker", "other_onset"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_cannot_be_used_are_reported_and_the_others_checked(voices, tmp_path):
    os.rename(voices / "ann" / "0.wav", os.fsencode(voices / "ann") + b"/\xff\xfe.wav")
    os.mkdir(os.fsencode(voices) + b"/d\xff")
    shutil.copy(voices / "bob" / "0.wav", os.fsencode(voices) + b"/d\xff/0.wav")
    result = checked(voices)
    assert set(found(result)["name"]) == {("ann/\\udcff\\udcfe.wav",), ("d\\udcff",)}
    assert len(result.items) == 11
    assert run_command("check", voices, "--out", tmp_path / "i.csv") == 0
    with pytest.warns(
        UserWarning, match=r"not named in UTF-8 .*'d\\udcff', 'ann/\\udcff\\udcfe.wav'"
    ):
        assert list(list_items(voices, suffixes=[".wav"]).ids) == list(result.items.ids)


SPEAKERS = [f"spk{k}" for k in range(6)]


def write(folder: Path, odd: str = "", *, mixed: bool = False, files: int = 4) -> Path:
    """Six speakers; what is odd is so for the first two, or where it is mixed for the first third
    of the recordings of each.
    """
    rng = np.random.default_rng(0)
    for k, name in enumerate(SPEAKERS):
        (folder / name).mkdir(parents=True)
        for i in range(files):
            is_odd = odd if (i < files // 3 if mixed else k < 2) else ""
            rate_hz = 8_000 if is_odd == "rate in Hz" else 16_000
            seconds = (2.0 if is_odd == "duration" else 0.5) * rng.uniform(0.9, 1.1)
            level = (0.01 if is_odd == "level" else 0.1) * rng.uniform(0.8, 1.2)
            suffix = ".flac" if is_odd == "format" else ".wav"
            wave = chatter(seconds, rate_hz, int(rng.integers(2**31)), level)
            soundfile.write(folder / name / f"{i}{suffix}", wave, rate_hz)
    return folder


def confounds_in(data: Path) -> list[Finding]:
    return [of for of in check(data).findings if of.kind == "goes-with-label"]


@pytest.mark.parametrize("odd", ["rate in Hz", "format", "level", "duration"])
def test_what_goes_with_some_speakers_is_found(odd, tmp_path):
    (finding,) = confounds_in(write(tmp_path / "apart", odd))
    assert sorted(group[0] for group in finding.groups) == SPEAKERS[:2]
    assert odd in finding.text
    assert confounds_in(write(tmp_path / "mixed", odd, mixed=True, files=6)) == []
    assert confounds_in(write(tmp_path / "single", odd, files=1)) == []


def test_sizes_of_images_are_width_and_height_everywhere(tmp_path):
    for k in range(6):
        for i in range(4):
            path = tmp_path / f"s{k}" / f"{i}.png"
            path.parent.mkdir(exist_ok=True)
            pixels = np.random.default_rng([k, i]).integers(0, 255, (30, 40 if k < 2 else 20, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    (finding,) = confounds_in(tmp_path)
    assert {tuple(group) for group in finding.groups} == {("s0",), ("s1",)}
    assert finding.details == {"s0": "40x30", "s1": "40x30"}


def test_a_device_of_a_table_is_found_and_the_sex_is_not(tmp_path):
    write(tmp_path)
    rows = []
    for k, name in enumerate(SPEAKERS):
        columns = f"{name},{'fm'[k % 2]},{'phone' if k < 3 else 'studio'}"
        rows += [f"{name}/{i}.wav,{columns}" for i in range(4)]
    table = tmp_path / "items.csv"
    table.write_text("\n".join(["path,speaker,sex,device", *rows]) + "\n")
    (finding,) = confounds_in(table)
    assert "device" in finding.text
    assert finding.count == 3


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=2, max_size=30).filter(
        lambda rows: len({value for value, _ in rows}) > 1
    )
)
def test_lambda_is_what_counting_gives(rows):
    values, labels = zip(*rows, strict=True)
    of_label = defaultdict(list)
    for value, label in rows:
        of_label[label].append(value)
    missed = len(rows) - Counter(values).most_common(1)[0][1]
    still = len(rows) - sum(Counter(of).most_common(1)[0][1] for of in of_label.values())
    assert goodman_kruskal(values, labels) == pytest.approx((missed - still) / missed)


@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 99))
def test_the_correlation_is_that_of_the_f_ratio(num, size, seed):
    values = np.random.default_rng(seed).normal(size=(num, size)) + np.arange(num)[:, None]
    ratio = float(f_oneway(*values).statistic)
    correlation, between = intraclass(values.ravel(), np.repeat(np.arange(num), size))
    assert correlation == pytest.approx(max(0.0, (ratio - 1) / (ratio + size - 1)))
    within = values.var(axis=1, ddof=1).mean()
    assert between**2 == pytest.approx(max(0.0, values.mean(1).var(ddof=1) - within / size))


def test_formats_by_chance_are_not_named():
    rng, named = np.random.default_rng(0), 0
    for _ in range(400):
        labels = np.repeat(np.arange(4), 2).tolist()
        items = Items.of(Item(f"{k}", Path(f"{k}"), f"s{of}") for k, of in enumerate(labels))
        formats = rng.choice(["WAV", "FLAC"], size=8)
        named += bool(find(items, [Seen(Header(str(of), 1)) for of in formats]))
    assert named <= 400 * 0.005 + 3  # of 400 such sets two are expected at most


def test_training_names_the_findings_and_goes_on(tmp_path, capsys):
    data = write(tmp_path / "data", "format")
    recipe = tmp_path / "mine.py"
    recipe.write_text("from tests.tiny import RECIPES as RECIPES\n", encoding="utf-8")
    command = ["train", f"{recipe}:arcface", "--data", data, "--out", tmp_path / "run"]
    assert run_command(*command) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "format" in line]
    assert len(lines) == 1
    assert "gives away: 2." in lines[0]
    assert (tmp_path / "run" / "last.safetensors").is_file()
