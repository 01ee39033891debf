"""CN-Celeb: models of several utterances, and the lists that are written for commands."""

import shutil
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
from tests.modalities.speaker.spoken import write_voices_to
from tests.scripts import touch

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
    names = ["data/id00800/drama-01-001", "data/id00800/vlog-01-002", "data/id00801/vlog-01-001"]
    names += [f"data/{one}/vlog-01-00{i}" for one in TRAINED for i in (1, 2)]
    names += ["eval/enroll/id00800-enroll", "eval/enroll/id00801-enroll"]
    tested = ("id00800-singing-01-001", "id00801-vlog-01-001", "id00801-vlog-01-002")
    names += [f"eval/test/{name}" for name in tested]
    write_voices_to(root, *(f"{name}.flac" for name in names))
    write_voices_to(second, *(f"data/{one}/play-01-00{i}.flac" for one in SECOND for i in (1, 2)))
    lists = {"enroll.map": ENROLMENT, "enroll.lst": RECORDINGS, "trials.lst": TRIALS}
    touch(root, "dev/dev.lst", *(f"eval/lists/{name}" for name in lists))
    for name, text in lists.items():
        (root / "eval" / "lists" / name).write_text(text, encoding="utf-8")
    (root / "dev" / "dev.lst").write_text("".join(f"{speaker}\n" for speaker in TRAINED))
    (second / "spk.lst").write_text("".join(f"{speaker}\n" for speaker in SECOND))


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
    other, own = "test/id00801-vlog-01-001.flac", "test/id00800-singing-01-001.flac"
    assert [made.probe_ids[j] for j in made.probe] == [other, own, other]
    # cosine of the models' mean rows, in a loop
    for value, i, j in zip(ours, made.enrol, made.probe, strict=True):
        mean = np.mean([rows[ids.index(model)] for model in models[made.enrol_ids[i]]], axis=0)
        probe = rows[ids.index(made.probe_ids[j])]
        cosine = mean @ probe / np.linalg.norm(mean) / np.linalg.norm(probe)
        assert value == pytest.approx(cosine, abs=1e-6)
    commands = cnceleb.write_lists(tmp_path, tmp_path / "lists")
    assert read_items(tmp_path / "lists" / "items.txt", tmp_path) == chosen
    assert read_enrolment(tmp_path / "lists" / "enrolment.txt") == models
    assert "--enrolment" in commands
