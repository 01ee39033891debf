"""Search of the speakers of a meeting, whose segments an RTTM file lists."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import soundfile

import likeness
from likeness.embedding.galleries import enrol, list_subjects
from tests.scripts import printed, refused, run_command

TURNS = [("S0", 0), ("S1", 2), ("S0", 1), ("S1", 3)]  # who speaks, and which recording it is
MODEL = ("--model", "runs/voices")
SEARCH = ("gallery", "search", "meeting.rttm", "--gallery", "people", *MODEL)


@pytest.fixture
def meeting(_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """A recording of two speakers with its RTTM file, and a gallery; the files of each speaker."""
    monkeypatch.chdir(tmp_path)
    Path("runs").symlink_to(_world / "runs")
    recordings = sorted((_world / "voices").rglob("*.flac"))
    waves, lines, start = [], [], 0.0
    for speaker, number in TURNS:
        wave, rate_hz = soundfile.read(recordings[number])
        lines.append(f"SPEAKER the_meeting 1 {start} {len(wave) / rate_hz} . . {speaker} . .\n")
        waves.append(wave)
        start += len(wave) / rate_hz
    soundfile.write("the meeting.flac", np.concatenate(waves), rate_hz)
    Path("meeting.rttm").write_text("".join(lines))
    printed("gallery", "enrol", _world / "voices", "--gallery", "people", *MODEL)
    return [[recordings[n] for who, n in TURNS if who == speaker] for speaker in ("S0", "S1")]


def rows_of(*words: object) -> list[dict[str, str]]:
    return list(csv.DictReader(printed(*words).splitlines()))


def test_each_speaker_is_one_row_of_all_its_segments(meeting):
    rows = rows_of(*SEARCH)
    assert [row["probe"] for row in rows] == ["S0/the_meeting", "S1/the_meeting"]
    assert [row["subject"] for row in rows] == [files[0].parent.name for files in meeting]
    model = likeness.load("runs/voices")
    for row, files in zip(rows, meeting, strict=True):
        probe, template = (model.embed(files).matrix.mean(axis=0) for _ in range(2))
        cosine = probe @ template / np.linalg.norm(probe) / np.linalg.norm(template)
        assert float(row["score"]) == pytest.approx(cosine, abs=1e-3)
    assert len(rows_of(*SEARCH, "-k", 3)) == 6


def test_each_segment_is_searched_where_that_is_asked_for(meeting):
    rows = rows_of(*SEARCH, "--each", "-k", 1)
    assert [row["probe"].split("/")[0] for row in rows] == [speaker for speaker, _ in TURNS]
    assert len(rows_of(*SEARCH, "--each")) == 16
    assert ".rttm" in refused(*SEARCH[:2], "the meeting.flac", *SEARCH[3:], "--each")


def test_a_folder_that_is_called_like_a_file_of_segments_has_files(meeting):
    voices = meeting[0][0].parents[1]
    shutil.copytree(voices, "folder.rttm")
    rows = rows_of(*SEARCH[:2], "folder.rttm", *SEARCH[3:], "-k", 1)
    assert len(rows) == len([*voices.rglob("*.flac")])


def test_neither_a_file_alone_nor_a_whole_path_names_a_subject(meeting):
    file, model = Path("Zoe\u0308/1.flac"), likeness.load("runs/voices")
    file.parent.mkdir()
    shutil.copy(meeting[0][0], file)
    starts = ("/", "C:\\", "s3://bucket/")
    whole = ([likeness.Item(f"{start}photos/ann/1.flac", file)] for start in starts)
    for data in (file, f"./{file}", *whole):
        with pytest.raises(likeness.LikenessError, match="1 of 1 files have no subject"):
            enrol("g", model, data)
    for data in ([file], pd.DataFrame({"path": [file], "label": ["ann"]})):
        assert enrol("g", model, data).subjects == 1
    assert [entry.subject for entry in list_subjects("g")] == ["Zo\u00eb", "ann"]


def test_what_cannot_be_read_and_who_is_unknown(meeting, capsys):
    with Path("meeting.rttm").open("a") as file:
        file.write("SPEAKER the_meeting 1 0.1 0.001 . . S1 . .\n")  # too short
        file.write("SPEAKER the_meeting 1 0.2 0.001 . . S2 . .\n")
        for start in (0, 1):
            file.write(f"SPEAKER the_meeting 1 {start} 0.9 . . <NA> . .\n")
    assert run_command(*SEARCH, "--out", "names.csv") == 0
    shown = capsys.readouterr()
    assert "2 of 8 segments cannot be read" in shown.err
    assert "speakers searched: 4" in shown.out + shown.err
    table = csv.DictReader(Path("names.csv").read_text().splitlines())
    rows = {row["probe"]: row for row in table}
    parts = ("S0", ""), ("S1", ""), ("<NA>", "@0-0.9"), ("<NA>", "@1-1.9"), ("S2", "")
    assert [*rows] == [f"{speaker}/the_meeting{stretch}" for speaker, stretch in parts]
    assert rows["S2/the_meeting"]["note"]
    assert not rows["S2/the_meeting"]["subject"]
