"""`gallery check`: planted faults are named, and so is how often strangers pass for somebody."""

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import likeness
from likeness.modalities.synthetic import write_voices
from likeness.toolkit.gallery.checks import check
from tests.scripts import run_command
from tests.tiny import untrained

META = {"similarity": "cosine"}


def people(num: int, each: int, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Rows of people whose directions are far apart, and their names."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(num, 32))
    rows = np.repeat(5.6 * centres / np.linalg.norm(centres, axis=1)[:, None], each, axis=0)
    names = [f"p{i // each}" for i in range(len(rows))]
    return rows + rng.normal(scale=0.4, size=rows.shape), names


def gallery_of(rows: np.ndarray, names: list[str]) -> Any:
    gallery = likeness.open_gallery(None, META)
    ids = tuple(f"file-{i}" for i in range(len(rows)))
    gallery.enrol(likeness.Embeddings(ids, rows, META), names)
    return gallery


def test_planted_faults_are_named_and_nothing_else():
    rows, names = people(40, 6)
    clean = check(gallery_of(rows, names))
    assert not clean.doubts
    assert "no enrolments that may be damaged" in clean.summary()
    names[3], names[60] = "p20", "p7"
    names[90:93] = ["cut"] * 3  # half of p15
    rows[200] = 0.25 * rows[200] + 0.75 * np.random.default_rng(1).normal(size=32)  # hardly anybody
    checked = check(gallery_of(rows, names))
    doubts = {(each.finding, each.subject, each.item): each.looks_like for each in checked.doubts}
    assert doubts.pop(("twins", "cut", "")) == "p15"
    assert doubts.pop(("misfit", "p20", "file-3")) == "p0"
    assert doubts.pop(("misfit", "p7", "file-60")) == "p10"
    assert list(doubts) == [("low", "p33", "file-200")]


def test_doubts_are_in_the_unit_of_the_thresholds():
    rows, names = people(20, 4)
    names[3] = "p7"
    meta = {"similarity": "euclidean"}
    gallery = likeness.open_gallery(None, meta)
    gallery.enrol(likeness.Embeddings(tuple(map(str, range(80))), rows, meta), names)
    (doubt,) = check(gallery).doubts
    assert (doubt.item, doubt.subject, doubt.looks_like) == ("3", "p7", "p0")
    means = [rows[of].mean(axis=0) for of in (slice(28, 32), slice(3))]
    apart = [-np.linalg.norm(rows[3] - mean) for mean in means]
    assert (doubt.own, doubt.other) == pytest.approx(apart, abs=1e-4)


def test_strangers_are_those_of_a_loop_over_the_other_subjects():
    rows, names = people(12, 3, seed=2)
    checked = check(gallery_of(rows, names), threshold=0.3)
    means = {name: rows[[one == name for one in names]].mean(axis=0) for name in set(names)}
    best = []
    for row, name in zip(rows, names, strict=True):
        others = np.stack([mean for other, mean in means.items() if other != name])
        best.append((others @ row / np.linalg.norm(others, axis=1) / np.linalg.norm(row)).max())
    assert not checked.doubts
    assert checked.strangers == pytest.approx(best, abs=1e-5)
    hits = sum(score >= 0.3 for score in best)
    assert f"({hits} of 36) at the threshold 0.3" in checked.summary()
    some = replace(checked, strangers=np.arange(11) / 10, threshold=0.0).summary()
    assert "somebody in 18.2 % of searches at the threshold 0.9" in some  # 2 of 11
    assert "somebody in 100 % (11 of 11) at the threshold 0" in some


def test_a_gallery_of_single_enrolments_says_what_it_cannot_say():
    rows, names = people(5, 1)
    checked = check(gallery_of(rows, names))
    assert (checked.alone, list(checked.doubts)) == (5, [])
    assert "5 subjects with one enrolment" in checked.summary()
    empty = check(likeness.open_gallery(None, META))
    assert empty.summary().startswith("0 enrolments of 0 subjects")


def test_enrol_warns_and_check_writes_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    untrained(tmp_path / "run")
    write_voices(tmp_path / "voices", num_speakers=3, num_utterances=3, seed=0)
    first, second, _ = sorted((tmp_path / "voices").iterdir())
    shutil.rmtree(second)  # one voice enrolled twice, under two names
    shutil.copytree(first, second)
    use = ("--gallery", "people", "--model", "run")
    assert run_command("gallery", "enrol", "voices", *use) == 0
    assert "may be" in capsys.readouterr().err
    assert run_command("gallery", "check", "--gallery", "people", "--out", "doubts.csv") == 0
    assert "9 enrolments of 3 subjects" in capsys.readouterr().out
    assert (tmp_path / "doubts.csv").read_text().startswith("finding,subject,item,looks_like")
    probe = next(first.iterdir())
    assert run_command("gallery", "search", probe, *use, "--by", "item", "-k", 1) == 0
    head, row = capsys.readouterr().out.splitlines()[:2]
    assert head.split(",")[5:7] == ["margin", "item"]
    assert row.split(",")[6].startswith((first.name, second.name))
