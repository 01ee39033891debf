"""CN-Celeb's lists on a made-up tree with its formats: .wav in the lists, .flac on the disk, models
of several utterances.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likeness.eval.formats import embeddings
from likeness.eval.formats.trials import read_scores
from likeness.eval.scoring.templates import enrol
from likeness.eval.similarity import score_trials
from likeness.eval.types import Embeddings
from likeness.modalities.speaker import cnceleb
from likeness.toolkit.data.item_lists import read_items
from tests.scripts import run_command, touch


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "CN-Celeb_flac"
    names = [
        "data/id00800/drama-01-001.flac",
        "data/id00800/vlog-01-002.flac",
        "data/id00801/vlog-01-001.flac",
    ]
    names += [
        "eval/test/id00800-singing-01-001.flac",
        "eval/test/id00801-vlog-01-001.flac",
        "eval/test/id00801-vlog-01-002.flac",
    ]
    touch(root, *names)
    lists = {
        "eval/lists/enroll.map": "id00800-enroll id00800/drama-01-001.wav "
        "id00800/vlog-01-002.wav\nid00801-enroll "
        "id00801/vlog-01-001.wav\n",
        "eval/lists/trials.lst": "id00800-enroll test/id00801-vlog-01-001.wav 0\nid00800-enroll "
        "test/id00800-singing-01-001.wav 1\n"
        "id00801-enroll test/id00801-vlog-01-001.wav 1\n",
    }
    for name, text in lists.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_models_of_several_utterances_are_what_score_wants(data: Path, tmp_path: Path) -> None:
    chosen, models, made = cnceleb.enrolment(data)
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
    commands = cnceleb.write_lists(data, tmp_path / "lists")
    assert read_items(tmp_path / "lists" / "items.txt", data) == chosen
    embeddings.write(tmp_path / "eval.npz", embedded)
    written = ("eval.npz", "scores.txt")
    words = commands.splitlines()[1].split()[1:]
    assert run_command(*(tmp_path / word if word in written else word for word in words)) == 0
    np.testing.assert_allclose(read_scores(tmp_path / "scores.txt", made)[1], ours, atol=1e-7)
