"""CN-Celeb: models of several utterances, and the lists that are written for commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.subjects import read_enrolment
from likeness.eval.items.item_lists import read_items
from likeness.eval.metrics.similarity import score_trials
from likeness.eval.scoring.templates import enrol
from likeness.modalities import synthetic
from likeness.modalities.speaker import cnceleb
from tests.modalities.data_set import DataSet

ENROLMENT = """\
id00800-enroll id00800/drama-01-001.wav id00800/vlog-01-002.wav
id00801-enroll id00801/vlog-01-001.wav
"""
RECORDINGS = """\
id00800-enroll enroll/id00800-enroll.wav
id00801-enroll enroll/id00801-enroll.wav
"""
TRIALS = """\
id00800-enroll test/id00801-vlog-01-001.wav 0
id00800-enroll test/id00800-singing-01-001.wav 1
id00801-enroll test/id00801-vlog-01-001.wav 1
"""


TRAINED = ("id00000", "id00001", "id00002", "id00003")
SECOND = ("id10000", "id10001")


def miniature(folder: Path) -> None:
    """Two speakers of eval/, of whom one file is in no trial, and six to train on."""
    root, second = folder / "CN-Celeb_flac", folder / "CN-Celeb2_flac"
    pool = ["id00800/drama-01-001", "id00800/vlog-01-002", "id00801/vlog-01-001"]
    names = [f"CN-Celeb_flac/data/{name}" for name in pool]
    names += [f"CN-Celeb_flac/data/{one}/vlog-01-00{i}" for one in TRAINED for i in (1, 2)]
    names += [f"CN-Celeb2_flac/data/{one}/play-01-00{i}" for one in SECOND for i in (1, 2)]
    names += [f"CN-Celeb_flac/eval/enroll/{one}-enroll" for one in ("id00800", "id00801")]
    tested = ("id00800-singing-01-001", "id00801-vlog-01-001", "id00801-vlog-01-002")
    names += [f"CN-Celeb_flac/eval/test/{name}" for name in tested]
    for number, name in enumerate(names):
        path = folder / f"{name}.flac"
        path.parent.mkdir(parents=True, exist_ok=True)
        wave = synthetic.voice(number // 2, number % 2, seconds=(0.5, 0.8))
        soundfile.write(path, wave, 16_000, subtype="PCM_16")
    lists = {
        root / "eval" / "lists" / "enroll.map": ENROLMENT,
        root / "eval" / "lists" / "enroll.lst": RECORDINGS,
        root / "eval" / "lists" / "trials.lst": TRIALS,
        root / "dev" / "dev.lst": "".join(f"{speaker}\n" for speaker in TRAINED),
        second / "spk.lst": "".join(f"{speaker}\n" for speaker in SECOND),
    }
    for path, text in lists.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


DATA_SETS = {
    "cnceleb": DataSet(
        miniature,
        items=cnceleb.items,
        trials=cnceleb.trials,
        labels=("id00800", "id00801", *TRAINED, *SECOND),
    ),
    "cnceleb enrolment": DataSet(
        miniature, trials=cnceleb.enrolment, fetch="likeness prepare cnceleb"
    ),
}


def test_cnceleb_1_alone_trains_and_a_missing_list_is_named(tmp_path: Path) -> None:
    miniature(tmp_path)
    shutil.rmtree(tmp_path / "CN-Celeb2_flac")
    chosen = cnceleb.items(tmp_path, speeds=(0.9,), speed_items="one")
    assert {str(label).partition("#")[0] for label in chosen.labels} == set(TRAINED)
    assert len(chosen) == 3 * len(TRAINED)
    listed = tmp_path / "CN-Celeb_flac" / "eval" / "lists" / "enroll.lst"
    listed.write_text(RECORDINGS.splitlines()[0] + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="1 models"):
        cnceleb.trials(tmp_path)
    (tmp_path / "CN-Celeb_flac" / "dev" / "dev.lst").unlink()
    with pytest.raises(ValueError, match=r"dev\.lst: there is no"):
        cnceleb.items(tmp_path)


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
