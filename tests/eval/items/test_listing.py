"""Lists of items: every way to state them, and what is written."""

import os
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.errors import LikenessError
from likeness.eval.formats.subjects import read_mapping
from likeness.eval.items.item_lists import read_items, write_items
from likeness.eval.items.items import Item, Items
from likeness.eval.items.labels import LabelPattern
from likeness.eval.items.listing import list_items
from likeness.eval.types import item_id
from tests.scripts import touch

SUFFIXES = (".wav", ".flac")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """voices/ann/1.wav, voices/ann/2.wav, voices/bob/1.wav, without content."""
    return touch(tmp_path / "voices", "ann/1.wav", "ann/2.wav", "bob/1.wav")


def listed(data: Path, **how: object) -> Items:
    return list_items(data, suffixes=SUFFIXES, **how)  # type: ignore[arg-type]


def test_every_way_gives_the_same_items(folder: Path) -> None:
    expected = listed(folder)
    assert [(item.id, item.label) for item in expected] == [
        ("ann/1.wav", "ann"),
        ("ann/2.wav", "ann"),
        ("bob/1.wav", "bob"),
    ]
    frame = pandas.DataFrame(
        {"File Name": list(expected.ids), "accent": "x", "speaker_id": list(expected.labels)}
    )
    frame.to_csv(folder / "a.csv")
    frame.to_csv(folder / "b.tsv", sep="\t", index=False)
    frame.to_csv(folder / "c.csv", sep=";", index=False, encoding="utf-16")
    frame.to_csv(folder / "d.txt", index=False)
    frame.assign(score=0.5).to_parquet(folder / "e.parquet")  # a number, not that of a trial
    own = {"m/f": "f", "SNR (dB/A)": "3", "name.old": "x"}
    frame.assign(**own).to_csv(folder / "j.csv", index=False)
    frame.iloc[:, [0]].assign(**{"m/f": "f"}).to_csv(folder / "k.csv", index=False)
    frame.rename(columns={"File Name": "clip", "speaker_id": "who"}).to_csv(folder / "f.csv")
    frame.iloc[:, [2, 0]].to_csv(folder / "g.csv", index=False, header=False)
    rows = [
        f"{id}\t{id}\t{label}\n" for id, label in zip(expected.ids, expected.labels, strict=True)
    ]
    (folder / "h.txt").write_text("".join(rows))
    frame["File Name"] = frame["File Name"].str.replace("/", "\\")
    frame.to_csv(folder / "i.csv", index=False)
    for name in ("a.csv", "b.tsv", "c.csv", "d.txt", "e.parquet", "h.txt", "i.csv", "j.csv"):
        assert listed(folder / name) == expected, name
    assert listed(folder / "e.parquet").column("score") == ["0.5"] * 3
    assert listed(folder / "j.csv").further == ["accent", *own]
    assert listed(folder / "k.csv").column("m/f") == ["f"] * 3
    assert listed(folder / "f.csv", columns="path=clip,label=who") == expected
    assert listed(folder / "f.csv", columns={"path": "clip", "label": "who"}) == expected
    assert listed(folder / "g.csv", columns="label=1,path=2") == expected
    assert listed(folder, label="{label}/*.wav") == expected
    assert read_items(frame, folder) == expected


def test_stretches_of_a_table(folder: Path) -> None:
    (folder / "t.csv").write_text(
        "file;speaker;start;end\nann/1.wav;ann;0,5;1,5\nann/1.wav;ann;1,5;\nann/1.wav;ann;;\n"
    )
    items = listed(folder / "t.csv")
    assert list(items.ids) == ["ann/1.wav@0.5-1.5", "ann/1.wav@1.5-", "ann/1.wav"]
    assert [item.stretch for item in items] == [(0.5, 1.5), (1.5, np.inf), None]
    (folder / "d.csv").write_text("file,start,duration\nann/1.wav,0.5,1\n")
    assert listed(folder / "d.csv")[0].stretch == (0.5, 1.5)
    (folder / "d.csv").write_text("file,duration\nann/1.wav,7\n")  # of the whole file
    assert listed(folder / "d.csv")[0].stretch is None
    assert listed(folder / "d.csv").column("duration") == ["7"]


def test_rows_of_separators_are_skipped_and_an_empty_label_is_none(folder: Path) -> None:
    rows = "ann/1.wav,\nann/2.wav,nan\n,\nbob/1.wav,bob\n,\n"
    (folder / "t.csv").write_text(f"file,speaker\n{rows}")
    assert listed(folder / "t.csv").labels == [None, "nan", "bob"]  # nan is a name


# ---------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    ("pattern", "path", "label"),
    [
        ("{word}/{label}_NO_*.wav", "yes/ann_NO_3.wav", "ann"),
        ("{label}_{session}.wav", "ann_bob_3.wav", "ann"),
        ("**/{label}/*.wav", "a/b/ann/1.wav", "ann"),
        ("**/{label}/*.wav", "ann/1.wav", "ann"),
        ("{label}/**.wav", "ann/b/c.wav", "ann"),
        ("{x}-{x}-{label}.wav", "a-a-ann.wav", "ann"),
        ("{x}-{x}-{label}.wav", "a-b-ann.wav", None),
        ("{label}.?av", "a.b.wav", "a.b"),
        ("{label}.wav", "ann/1.wav", None),
        ("{label}+(1).wav", "ann+(1).wav", "ann"),
    ],
)
def test_patterns(pattern: str, path: str, label: str | None) -> None:
    fields = LabelPattern(pattern).fields(path)
    assert (None if fields is None else fields["label"]) == label


def test_what_does_not_fit_a_pattern_is_counted(folder: Path) -> None:
    with pytest.warns(UserWarning, match=r"1 of 3 files.*bob/1\.wav"):
        items = listed(folder, label="ann/{session}.{label}")
    assert list(items.labels) == ["wav", "wav"]
    assert list(items.column("session")) == ["1", "2"]
    with pytest.raises(ValueError, match="3 of 3"):
        listed(folder, label="{label}.wav")
    for wrong in ("*.wav", "{label", "{label}}", "{la bel}{label}"):
        with pytest.raises(ValueError, match="label"):
            LabelPattern(wrong)


# ---------------------------------------------------------------- Kaldi and RTTM


def kaldi(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("wav_scp", "wav.scp")).write_text(text)
    return folder


def test_a_kaldi_folder(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    kaldi(data, wav_scp=f"r1 {folder}/ann/1.wav\nr2 {folder}/bob/1.wav\n")
    assert [(item.id, item.label) for item in listed(data)] == [("r1", None), ("r2", None)]
    kaldi(data, utt2spk="r1 ann\nr2 bob\nr3 cid\n", spk2gender="ann f\nbob m\n")
    with pytest.warns(UserWarning, match=r"1 of 3 utterances \('r3'\)"):
        items = listed(data / "wav.scp")
    assert list(items.labels) == ["ann", "bob"]
    assert list(items.column("sex")) == ["f", "m"]
    kaldi(data, segments="u1 r1 0.5 1.5\nu2 r2 1 -1\n", utt2spk="u1 ann\nu2 bob\n")
    assert list(listed(data)) == [
        Item("u1", folder / "ann" / "1.wav", "ann", stretch=(0.5, 1.5)),
        Item("u2", folder / "bob" / "1.wav", "bob", stretch=(1.0, np.inf)),
    ]


def rttm(*turns: str) -> str:
    return "".join(f"SPEAKER {turn.replace(' by ', ' <NA> <NA> ')} <NA> <NA>\n" for turn in turns)


def test_turns_of_an_rttm(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "m.flac").touch()
    head = ";; a comment\nSPKR-INFO m 1 <NA> <NA> <NA> unknown ann <NA>\n"
    (tmp_path / "m.rttm").write_text(head + rttm("m 1 0.5 2.25 by ann", "m 1 1 2 by bob"))
    assert list(listed(tmp_path / "m.rttm")) == [
        Item("ann/m@0.5-2.75", tmp_path / "deep" / "m.flac", "ann", stretch=(0.5, 2.75), channel=1),
        Item("bob/m@1-3", tmp_path / "deep" / "m.flac", "bob", stretch=(1.0, 3.0), channel=1),
    ]
    assert len(listed(tmp_path / "m.rttm", root=tmp_path / "deep")) == 2
    with pytest.raises(FileNotFoundError, match="absent"):
        listed(tmp_path / "m.rttm", root=tmp_path / "absent")
    (tmp_path / "m.wav").touch()
    with pytest.raises(ValueError, match="2 recordings"):
        listed(tmp_path / "m.rttm")


def test_an_rttm_finds_recordings_whose_names_have_blanks(tmp_path: Path) -> None:
    recording = touch(tmp_path, "my  first meeting.wav") / "my  first meeting.wav"
    (tmp_path / "m.rttm").write_text(rttm("my_first_meeting 1 0.5 1.5 by ann"))
    assert [item.path for item in listed(tmp_path / "m.rttm")] == [recording]
    (tmp_path / "m.rttm").write_text(rttm(f"my_first_meeting{recording.suffix} 1 0.5 1.5 by ann"))
    assert [item.path for item in listed(tmp_path / "m.rttm")] == [recording]


# what is listed, its text -> a part of the message; m.wav is there for the turns
WRONG = {
    "t.csv": {
        "file,speaker,class\nann/1.wav,a,b\n": r"2 of its columns .*speaker, class.*--columns",
        "clip,who\nann/1,a\n": r"\(clip, who\).*--columns path=clip",
        "file,speaker\n": "no rows",
        "file,speaker\n,ann\n\nann/1.wav,ann\n,bob\n": "the row .*ann.* has no path",
        "file,speaker\nann/1.wav,ann\nann/1.wav,ann\n": "twice|repeated",
        "file,speaker\nann/9.wav,ann\nbob/1.wav,b\n": r"1 of 2 files.*9\.wav",
        "ann/1.wav,ann\nbob/1.wav,bob\n": "path,label",
    },
    "wav.scp": {
        "r1 a.wav\nr2 sph2pipe x |\n": r"r2 sph2pipe.*pipe",
        "r1 x.ark:17\n": "archive",
        "r1 a.wav\nr1 b.wav\n": "r1 b",
        "r1 a.wav\n": "1 of 1 files do not exist",
    },
    "segments": {"u r9 0 1\n": r"r9.*wav.scp", "u r1 1 0\n": r"from 1 to 0 s"},
    "m.rttm": {
        rttm("n 1 0.5 2.25 by ann"): r"0 recordings.*'n'.*--root",
        rttm("m 1 x 1 by ann"): "m 1 x 1",
        "m 0 1 ann\n": "no rows",
        rttm("m 1 0 1 by ann", "m both 0 1 by bob"): "m both 0 1",
        rttm("m 1 0 1 by ann", "m 1 0 1 by ann"): "twice",
        rttm("m 1 -1 3 by ann"): "from -1 to 2 s",
    },
}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [(name, text, says) for name, cases in WRONG.items() for text, says in cases.items()],
)
def test_a_wrong_list_is_one_sentence(folder: Path, name: str, text: str, says: str) -> None:
    (folder / "m.wav").touch()
    (folder / "wav.scp").write_text("r1 a.wav\n")
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        listed(folder / "wav.scp" if name == "segments" else folder / name)
    assert str(caught.value).startswith(str(folder))


def test_items_of_shards_are_not_written_as_their_shard(tmp_path: Path) -> None:
    files = [Item("a/1", tmp_path / "a b/1.wav"), Item("a/2", tmp_path / "2.wav")]
    inside = [Item(f"s/{i}", tmp_path / "0.tar", span=(i, 1), ending=".wav") for i in range(2)]
    write_items(tmp_path / "list.txt", files, tmp_path)
    assert read_items(tmp_path / "list.txt") == files
    with pytest.raises(ValueError, match=r"2 of 4 items .*'s/0', 's/1'"):
        write_items(tmp_path / "list.txt", files + inside, tmp_path)
    assert read_items(tmp_path / "list.txt") == files


@pytest.mark.parametrize("name", ["#a", "a\tb", "a\nb", "a\rb", " a", "a ", ""])
def test_a_list_holds_no_name_that_would_be_read_back_as_another(name: str, tmp_path: Path) -> None:
    files = [
        Item("good", tmp_path / "good.wav"),
        Item(f"{name}/1.wav", tmp_path / name / "1.wav") if name else Item("", tmp_path / "1.wav"),
    ]
    if name == "a ":  # a blank before the suffix or a slash stays
        write_items(tmp_path / "list.txt", files, tmp_path)
        assert read_items(tmp_path / "list.txt") == files
        files[1] = Item("a ", tmp_path / "a ")
    with pytest.raises(ValueError, match="1 of 2"):
        write_items(tmp_path / "other.txt", files, tmp_path)
    assert not (tmp_path / "other.txt").exists()


@given(st.lists(st.text(min_size=1, max_size=8).map(item_id), min_size=1, max_size=5, unique=True))
def test_what_a_list_takes_it_gives_back(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("list")
    try:
        items = [Item(name, Path(f"{number}.wav"), name) for number, name in enumerate(names)]
        write_items(folder / "list.txt", items)
    except ValueError:
        return
    assert read_items(folder / "list.txt", Path()) == items
    assert read_mapping(folder / "list.txt") == {name: name for name in names}


def test_further_columns_are_carried(tmp_path: Path) -> None:
    rows = [f"{i}.wav,s{i % 3},{i / 8},{'f' if i % 2 else ''},{i}-{i + 9},x" for i in range(2000)]
    rows[1500] = '"1500.wav",s0,,"m",a b,x'
    (tmp_path / "list.csv").write_text(
        "\n".join(["path,label,start,sex,age,codec", *rows]), encoding="utf-8"
    )
    items = read_items(tmp_path / "list.csv")
    starts = items.column("start")
    assert isinstance(starts, np.ndarray)
    assert starts[:3].tolist() == [0.0, 0.125, 0.25]
    assert np.flatnonzero(np.isnan(starts)).tolist() == [1500]
    assert [items.column("sex")[i] for i in (0, 1, 1500)] == [None, "f", "m"]
    assert items[::-1].column("age")[499] == "a b"
    assert items[2].stretch == (0.25, np.inf)
    assert items[1500].stretch is None
    assert items.column("codec")[1999] == "x"  # the user's own, under its own name
    with pytest.raises(ValueError, match="device"):
        items.column("device")


@pytest.mark.parametrize("times", ["late,9", "-1,9", "3,3", "3,2", "inf,inf", ",0"])
def test_times_that_are_no_stretch_are_refused(tmp_path: Path, times: str) -> None:
    (tmp_path / "list.csv").write_text(f"path,start,end\na.wav,0,1\nb.wav,{times}\n")
    with pytest.raises(ValueError, match=r"list\.csv: .*(b\.wav|late)"):
        read_items(tmp_path / "list.csv")


def test_a_first_line_like_a_header_gets_one_above_it(tmp_path: Path) -> None:
    files = [Item("Path", tmp_path / "a"), Item("b", tmp_path / "Path")]
    write_items(tmp_path / "list.txt", files, tmp_path)
    assert read_items(tmp_path / "list.txt") == files


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("ending", [".wav", ".m4a", ".png", ".rec"])
def test_a_pipe_is_no_recording_and_no_picture(ending: str, tmp_path: Path) -> None:
    """Nothing may ever be written into it, so that reading it would not end."""
    pipe = tmp_path / f"x{ending}"
    os.mkfifo(pipe)
    for read in (lambda: list_items(pipe, suffixes=[".wav"]), Item("x", pipe).open):
        with pytest.raises(LikenessError, match="is a pipe"):
            read()
