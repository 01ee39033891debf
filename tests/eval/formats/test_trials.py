"""Trial lists and score files: every format of the field, round trips, and the files that must be
refused.
"""

import gzip
import os
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from likeness.eval.errors import LikenessError
from likeness.eval.formats import files
from likeness.eval.formats.trials import (
    read_pairs,
    read_scores,
    read_trials,
    write_scores,
    write_trials,
)
from likeness.eval.intervals.subjects import subjects_of
from likeness.eval.types import Trials, item_id, item_keys
from tests.eval.formats.triples import PLAIN, made, rows


@pytest.fixture
def put(tmp_path):
    def put(content: str | bytes, name: str = "list.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return put


@pytest.mark.parametrize(
    "words", ["1 0", "target nontarget", "tgt imp", "True False", "TRUE false", "Yes No"]
)
@pytest.mark.parametrize("separator", [" ", "\t", ",", ", ", ";", "   ", " \t "])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_format(put, words, separator, last, end):
    yes, no = words.split()
    triples = [(e, p, yes if label else no) for e, p, label in PLAIN]
    lines = [separator.join((e, p, word) if last else (word, e, p)) for e, p, word in triples]
    assert rows(read_trials(put(end.join(lines) + end))) == PLAIN
    header = separator.join(["enrol", "probe", "target"] if last else ["label", "enrol", "probe"])
    dressed = end.join(["\ufeff# made by hand", "", header, *lines[:2], "   ", lines[2]])
    assert rows(read_trials(put(dressed))) == PLAIN  # no newline at its end either
    assert rows(read_trials(put(gzip.compress(dressed.encode()), "list.txt.gz"))) == PLAIN


@pytest.mark.parametrize(
    "text",
    [
        "file_x,file_y,Decision\na,x,Yes\na,y,No\nb,x,No\n",
        "file_x;file_y;Decision\na;x;Yes\na;y;No\nb;x;No\n",
        '"path1","note","path2","same"\n"a","1,5","x","same"\n"a","","y","different"\n'
        '"b","","x","different"\n',
        ",left,right,match\n0,a,x,1\n1,a,y,0\n2,b,x,0\n",
        "enrol_id\ttest_id\tscore\ttarget\na\tx\t0.5\t1\na\ty\t0.1\t0\nb\tx\t0\t0\n",
        "a;x;target\na;y;nontarget\nb;x;nontarget\n",
    ],
)
def test_pairs_are_written_in_many_ways(put, text):
    for encoding in ("utf-8", "utf-16"):
        assert rows(read_trials(put(text.encode(encoding), "list.csv"))) == PLAIN
    assert read_pairs(put(text))[2] == [True, False, False]


def test_columns_that_are_stated(put):
    columns = "enrol=mine,probe=theirs,label=verdict"
    text = "mine;verdict;age;theirs\na;yes;7;x\na;no;8;y\nb;no;9;x\n"
    assert rows(read_trials(put(text), columns=columns)) == PLAIN
    scored = text.replace("age", "score")  # which a trial list needs not
    assert rows(read_trials(put(scored), columns=columns)) == PLAIN
    lines = text.partition("\n")[2]
    assert rows(read_trials(put(lines), columns="enrol=1,probe=4,label=2")) == PLAIN
    trials, values = read_scores(put(lines), columns="enrol=1,probe=4,score=3")
    assert rows(trials) == [(enrol, probe, None) for enrol, probe, _ in PLAIN]
    assert values.tolist() == [7, 8, 9]
    first = "first=mine,Second=theirs,same=verdict"  # as a header may name them
    assert rows(read_trials(put(text), columns=first)) == PLAIN
    with pytest.raises(LikenessError, match="there twice"):
        read_trials(put(text), columns="enrol=mine,first=theirs")
    for wrong in ("enrol=mine,probe=other", "enrol=mine,who=theirs"):
        with pytest.raises(LikenessError, match=r"other|who"):
            read_trials(put(text), columns=wrong)
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(put(text), sep=";")
    assert rows(read_trials(frame, columns=columns)) == PLAIN


def test_messages_about_columns_say_what_was_read(put):
    odd = "clip A;clip B;person\na;x;ja\n"
    with pytest.raises(LikenessError, match=r"is \(clip A, clip B, person\)"):
        read_trials(put(odd))
    with pytest.raises(LikenessError, match="'ja' is no label") as raised:
        read_trials(put(odd), columns="enrol=clip A,probe=clip B,label=person")
    assert "name the columns" not in str(raised.value)


BLIND = [("a", "x", None), ("a", "y", None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a x\na y\n", BLIND),
        ("a,x\na,y\n", BLIND),
        ("enrol probe\na x\na y", BLIND),
        ("modelid\tsegmentid\na\tx\na\ty\n", BLIND),
        ("prompt,clone\na,x\na,y\n", BLIND),
        ("Test-ID,Enroll-ID,Is_Target\nx,a,1\ny,b,0\n", [("a", "x", True), ("b", "y", False)]),
        ("key id1 id2\n1 0 1\n0 1 2\n", [("0", "1", True), ("1", "2", False)]),
        ("1 0 7\n0 1 7\n0 0 8\n", [("0", "7", True), ("1", "7", False), ("0", "8", False)]),
        ("0 7 1\n1 7 0\n5 8 0\n", [("0", "7", True), ("1", "7", False), ("5", "8", False)]),
        ("1,J D,Jane\n0,J D,Eve M\n", [("J D", "Jane", True), ("J D", "Eve M", False)]),
        ("1\tJohn Doe\tJane\n", [("John Doe", "Jane", True)]),
        ("1 Doe,J Roe,K\n", [("Doe,J", "Roe,K", True)]),
        ("1 a\tx\n0\ta y\n", [("a", "x", True), ("a", "y", False)]),
        ("1 b x\n0 a x\n1 b x\n", [("b", "x", True), ("a", "x", False), ("b", "x", True)]),
    ],
)
def test_columns_headers_and_odd_ids(put, text, expected):
    trials = read_trials(put(text))
    assert rows(trials) == expected
    # Numbers are by first occurrence.
    assert trials.enrol_ids == tuple(dict.fromkeys(enrol for enrol, _, _ in expected))
    assert trials.enrol.dtype == trials.probe.dtype == np.int32


def test_ids_and_labels_that_cannot_be_told_apart_need_a_header(put):
    with pytest.raises(ValueError, match=r"`label enrol probe` and .*header"):
        read_trials(put("1 0 1\n0 1 1\n"))


@pytest.mark.parametrize(
    "content",
    [
        "# a\n\n",
        "1 a b\n0 a\n1 a c\n0 a d e\n",
        "1 a b c\n0 a b d\n",
        "," * 5_000 + "\n",
        "1 a b\n0 a c\n2 a d\n",
        "# x\n1 a b\ntarget a c\n0 a d\n",
        "foo bar baz\n1 a b\n",
        "1 a b\n0 a c\n0 a b\n1 a c\n1 a d\n",
        "1,a,b\n0,,b\n",
        "1 a b\n0 a\x00 b\n",
        b"1 a J\xfcrgen\n",
        "1 a " + "b" * files.MAX_LINE,
        gzip.compress(b"1 a b\n" * 99)[:-9],
        b"\x1f\x8bnothing of the kind",
    ],
)
def test_refused_in_a_short_sentence(put, content):
    path = put(content)
    with pytest.raises(LikenessError, match=r"list\.txt") as caught:
        read_trials(path)
    assert len(str(caught.value)) < 600 + len(str(path))


def test_a_file_of_embeddings_is_named_as_one(tmp_path):
    np.savez(tmp_path / "e.npz", id=["a"], vector=np.ones((1, 2)))
    with pytest.raises(LikenessError, match="embeddings"):
        read_trials(tmp_path / "e.npz")


def test_gzip_bomb(put, monkeypatch):
    monkeypatch.setattr(files, "FREE_EXPANSION", 1_000)
    with pytest.raises(ValueError, match="expands to over"):
        read_trials(put(gzip.compress(b"1 a b\n" * 1_000_000)))


def test_blocks_do_not_show(put, monkeypatch):
    triples = [(f"e{k % 7}", f"p{k}", k % 3 == 0) for k in range(500)]
    lines = [f"{int(label)} {e} {p}" for e, p, label in triples]
    lines[100:100] = ["", "# in between"]
    path = put("\n".join(lines))
    for size in (1, 17, 64, 1000):
        monkeypatch.setattr(files, "_BLOCK", size)
        assert rows(read_trials(path)) == triples
    for line, wrong in (("1 e", "same fields"), ("2 e p", "'2' is no label")):
        lines[300] = line
        with pytest.raises(LikenessError, match=wrong):
            read_trials(put("\n".join(lines)))


IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6).filter(
    lambda one: one == one.strip(" ") and one[0] not in "#\ufeff"
)
ODD = st.sampled_from(
    ["a b", "a,b", ",", "0", "1", "1.5", "nan", "-7", "1e5", "target", "true", "enrol", "score"]
)
SCORES = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def trial_lists(draw):
    # other forms do not come back as they were: tests/test_names.py
    names = (IDS | ODD).map(item_id)
    pairs = draw(st.lists(st.tuples(names, names), min_size=1, max_size=8))
    blind = draw(st.booleans())
    # a pair has one label, in whichever order and spelling
    keys = [frozenset(item_keys(pair)) for pair in pairs]
    label = {key: None if blind else draw(st.booleans()) for key in keys}
    return [(*pair, label[key]) for pair, key in zip(pairs, keys, strict=True)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([("a", "b", True)], [-0.0] * 8, ".txt")
@example([("00", "0\xa00", False)], [0.0] * 8, ".txt")
@example([("enrol", "probe", None)], [5e-324] * 8, ".txt")
@example([("0.5", "1.5", None), ("1", "2", None)], [1.0] * 8, ".txt")
@example([("1001", "a.wav", True), ("1002", "b.wav", False)], [0.5] * 8, ".txt")
@given(
    trial_lists(),
    st.lists(SCORES, min_size=8, max_size=8),
    st.sampled_from([".txt", ".txt.gz", ".parquet"]),
)
def test_round_trip(tmp_path, triples, values, suffix):
    trials, path = made(triples), tmp_path / f"file{suffix}"
    write_trials(path, trials)
    assert rows(read_trials(path)) == triples
    scores = np.array(values[: len(triples)])
    write_scores(path, trials, scores)
    back, read = read_scores(path)
    assert rows(back) == triples
    assert read.tobytes() == scores.tobytes()
    if trials.target is not None:
        assert rows(read_trials(path)) == triples
        assert read_pairs(path)[2] == [label for _, _, label in triples]
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (suffix == ".txt.gz")


def test_what_no_file_can_hold(tmp_path):
    for bad in ("", "#a", " a", "a ", "a\tb", "a\nb", "\ufeffa"):
        with pytest.raises(LikenessError, match="the id"):
            write_trials(tmp_path / "list", made([("a", bad, True)]))
    for values in ([np.nan, 0, 0], [0, 0]):
        with pytest.raises(LikenessError, match="finite"):
            write_scores(tmp_path / "list", made(PLAIN), np.array(values))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "0.5 a x\n-1e-3 a y\n",
        "a x 0.5\na y -.001\n",
        "a,x,0.5\na,y,-0.001\n",
        "score\tenroll\ttest\n0.5\ta\tx\n-0.001\ta\ty\n",
        "enrol probe score\na x 0.5\na y -0.001\n",
        "12 34 0.5 1\n12 35 -0.001 0\n",
        "12 34 1 0.5\n12 35 0 -0.001\n",
        "12 34 0.5 target\n12 35 -0.001 nontarget\n",
        "modelid\tsegmentid\tside\tLLR\na\tx\ta\t0.5\na\ty\ta\t-0.001\n",
        "1 12 34 0.5\n0 12 35 -0.001\n",
        "0.5 12 34 target\n-0.001 12 35 nontarget\n",
        "label score enrol probe\n1 0.5 12 34\n0 -0.001 12 35\n",
    ],
)
def test_scores_with_and_without_labels(put, text):
    trials, values = read_scores(put(text))
    labelled = [("12", "34", True), ("12", "35", False)]
    assert rows(trials) == (labelled if "34" in text else BLIND)
    assert values.tolist() == [0.5, -0.001]


def test_ids_that_are_numbers_need_a_header(put):
    text = "1.1 1.2 0.53 1\n1.1 1.3 -0.2 0\n1.2 1.3 0.1 0\n"
    for unclear in (text, "3 12 34\n4 12 35\n", "a x 1 1\na y 0 1\nb x 0 0\n"):
        with pytest.raises(LikenessError, match=r" and as .*header"):
            read_scores(put(unclear))
    scored, values = read_scores(put("enrol probe score label\n" + text))
    assert rows(scored) == [("1.1", "1.2", True), ("1.1", "1.3", False), ("1.2", "1.3", False)]
    assert values.tolist() == [0.53, -0.2, 0.1]
    # ids, which are kept as they are written
    assert read_scores(put("a 1.2 0.5\nb 1.10 -2\n"))[0].probe_ids == ("1.2", "1.10")


def test_labels_are_no_scores_unless_they_are_marked_as_scores(put):
    """Those of a trial list would separate the trials perfectly."""
    for text in ("1 a x\n0 a y\n0 b x\n", "a x 1\na y 0\nb x 0\n", "a,x,1\n"):
        for trials in (None, made(PLAIN)):
            with pytest.raises(LikenessError, match=r"0 or 1.*header"):
                read_scores(put(text), trials)
    for text in (
        "enrol probe score\na x 1\na y 0\nb x 0\n",
        "a x 1.0\na y 0.0\nb x 0.0\n",
        "a x 1 1\na y 0 0\nb x 0 0\n",
    ):
        assert read_scores(put(text), made(PLAIN))[1].tolist() == [1, 0, 0]


def test_scores_follow_the_list(put):
    trials = read_trials(put("1 a x\n0 a y\n1 a x\n0 b x\n"))
    for text in ("0.25 b x\n1.5 a x\n-1 a y\n", "a y -1 0\nb x 0.25 0\na x 1.5 1\na x 1.5 1\n"):
        same, values = read_scores(put(text, "scores"), trials)
        assert same is trials
        assert values.tolist() == [1.5, -1.0, 1.5, 0.25]
    blind = Trials(trials.enrol_ids, trials.probe_ids, trials.enrol, trials.probe)
    labelled, _ = read_scores(put("a y -1 0\nb x 0.25 0\na x 1.5 1\n", "scores"), blind)
    assert rows(labelled) == rows(trials)


def test_rows_without_a_label_have_that_of_the_list(put):
    """Those of `verify --pairs`, of which some labels were not known."""
    text = "first,second,label,score,accepted,note\na,x,1,1.5,,\na,y,,-1,,\nb,x,,0.25,,\n"
    path, list_of = put(text, "v.csv"), {3: made(PLAIN), 2: made(PLAIN[:2])}
    same, values = read_scores(path, list_of[3])
    assert same is list_of[3]
    assert values.tolist() == [1.5, -1, 0.25]
    with pytest.warns(UserWarning, match="1 of 3 trials have no label"):
        assert read_scores(path, list_of[2])[1].tolist() == [1.5, -1]
    with pytest.raises(LikenessError, match="a x has another label"):
        read_scores(path, made([("a", "x", False), *PLAIN[1:]]))
    with pytest.warns(UserWarning, match="2 of 3 trials have no label"):
        assert rows(read_scores(path)[0]) == PLAIN[:1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1.5 a x\nnan a y\n2 b x\n", "a y"),
        ("1.5 a x\nfail a y\n2 b x\n", "fail"),
        ("1.5 a x\n", "a y"),
        ("1.5 a x\n1 a y\n2 b x\n3 b y\n4 c x\n5 a z\n", "b y"),
        ("1.5 a x\n1 a y\n2 b y\n", "b x"),
        ("1.5 a x\n1 a y\n2 b x\n3.5 b x\n", "b x"),
        ("a x 1.5 0\na y .1 0\nb x 0 0\n", "a x"),
        ("1 a x\n1 a\n", "line 2 has 2 fields"),
        ("# two\n\n1 a x\n1 ann lee y\n", "line 4 has 4 fields"),
        ("a x\n", "2 fields in each line"),
    ],
)
def test_refused_scores_name_what_is_wrong(put, text, says):
    with pytest.raises(LikenessError, match=says):
        read_scores(put(text, "scores"), made(PLAIN))


def test_lines_hold_what_repr_and_join_write(tmp_path):
    rng = np.random.default_rng(0)
    usual, single = rng.standard_normal(500), rng.standard_normal(500).astype(np.float32)
    of_all_sizes = 10.0 ** rng.uniform(-320, 308, 500)
    near = np.ldexp(1 + 2.0**-52 * rng.integers(-2, 3, 500), rng.integers(-60, 60, 500))
    edges = [0.0, -0.0, 1e-4, 9.999e-5, 1e9, 1e15, 1e16, 1e22, 5e-324, 100.0, -3.0]
    values = np.concatenate([usual, single, of_all_sizes, near, edges])
    ids = ("a", "b/\u00fc", "'c'", "1.5")
    triples = [(ids[k % 4], ids[k % 3], k % 4 == k % 3) for k in range(values.size)]
    write_scores(tmp_path / "list", made(triples), values)
    pairs = zip(triples, values.tolist(), strict=True)
    text = "".join(f"{enrol} {probe} {x!r} {label:d}\n" for (enrol, probe, label), x in pairs)
    assert (tmp_path / "list").read_text() == text


def test_voxceleb1_o(shared):
    path = shared / "data" / "protocols" / "voxceleb1_o" / "veri_test2_cleaned.txt.gz"
    text = gzip.decompress(path.read_bytes())
    assert md5(text).hexdigest() == "b73110731c9223c1461fe49cb48dddfc"
    trials = read_trials(path)
    assert trials.target is not None
    assert len(trials) == 37_611
    lines = [line.split() for line in text.decode().splitlines()]
    assert rows(trials) == [(e, p, label == "1") for label, e, p in lines]
    subjects, how = subjects_of(trials)
    assert subjects is not None
    assert how == "first path component of the ids"
    assert np.unique(np.concatenate(subjects)).size == 40


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="this system names no open files")
def test_lists_come_from_pipes():
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "wb") as pipe:
        pipe.write(b"1 a b\n0 a c\n")
        pipe.close()
        assert read_trials(f"/dev/fd/{read}").probe_ids == ("b", "c")


@pytest.mark.parametrize("header", ["enrol,probe,same_person", "enrol,probe,score,same_person"])
def test_labels_under_another_name_are_not_passed_over_in_silence(put, header):
    score = ",2" * ("score" in header)
    path = put(f"{header}\na,b{score},1\na,c{score},0\n", "list.csv")
    read = read_scores if score else read_trials
    with pytest.warns(UserWarning, match="same_person"):
        read(path)
    found = read(path, columns="label=same_person")
    listed = found[0] if isinstance(found, tuple) else found
    assert listed.target.tolist() == [True, False]
