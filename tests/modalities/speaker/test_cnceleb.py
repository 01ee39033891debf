"""CN-Celeb: models of several utterances, and the lists that are written for commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.subjects import read_enrolment
from likeness.eval.items.item_lists import read_items
from likeness.eval.metrics.similarity import score_trials
from likeness.eval.scoring.templates import enrol
from likeness.modalities.speaker import cnceleb
from tests.modalities.data_set import DataSet
from tests.scripts import touch

ENROLMENT = """\
id00800-enroll id00800/drama-01-001.wav id00800/vlog-01-002.wav
id00801-enroll id00801/vlog-01-001.wav
"""
TRIALS = """\
id00800-enroll test/id00801-vlog-01-001.wav 0
id00800-enroll test/id00800-singing-01-001.wav 1
id00801-enroll test/id00801-vlog-01-001.wav 1
"""


def miniature(folder: Path) -> None:
    """Two speakers, without sound; one file of the test is in no trial."""
    root = folder / "CN-Celeb_flac"
    pool = ("id00800/drama-01-001", "id00800/vlog-01-002", "id00801/vlog-01-001")
    tested = ("id00800-singing-01-001", "id00801-vlog-01-001", "id00801-vlog-01-002")
    touch(root / "data", *(f"{name}.flac" for name in pool))
    touch(root / "eval" / "test", *(f"{name}.flac" for name in tested))
    (root / "eval" / "lists").mkdir()
    (root / "eval" / "lists" / "enroll.map").write_text(ENROLMENT, encoding="utf-8")
    (root / "eval" / "lists" / "trials.lst").write_text(TRIALS, encoding="utf-8")


DATA_SETS = {"cnceleb": DataSet(miniature, trials=cnceleb.enrolment)}


def test_models_of_several_utterances_are_what_score_wants(tmp_path: Path) -> None:
    miniature(tmp_path)
    chosen, models, made = cnceleb.enrolment(tmp_path)
    assert models["id00800-enroll"] == ("id00800/drama-01-001.flac", "id00800/vlog-01-002.flac")
    ids = tuple(item.id for item in chosen)
    rows = np.random.default_rng(0).standard_normal((len(ids), 4)).astype(np.float32)
    embedded = Embeddings(ids, rows)
    ours = score_trials(made, enrol(embedded, models), embedded)
    assert [made.probe_ids[j].removesuffix(".flac") for j in made.probe] == [
        f"test/{name}"
        for name in ("id00801-vlog-01-001", "id00800-singing-01-001", "id00801-vlog-01-001")
    ]
    # cosine of the models' mean rows, in a loop
    for value, i, j in zip(ours, made.enrol, made.probe, strict=True):
        mean = np.mean([rows[ids.index(model)] for model in models[made.enrol_ids[i]]], axis=0)
        probe = rows[ids.index(made.probe_ids[j])]
        assert value == pytest.approx(
            mean @ probe / np.linalg.norm(mean) / np.linalg.norm(probe), abs=1e-6
        )
    commands = cnceleb.write_lists(tmp_path, tmp_path / "lists")
    assert read_items(tmp_path / "lists" / "items.txt", tmp_path) == chosen
    assert read_enrolment(tmp_path / "lists" / "enrolment.txt") == models
    assert "--enrolment" in commands
