"""Every command that takes labels from folders stops where their level is in doubt, with the levels
and the option that says it.
"""

from pathlib import Path

import numpy as np
import pytest

from likeness.eval.formats.embeddings import Embeddings
from tests.likeness.commands.test_contract import COMMANDS
from tests.scripts import refused, run_command, touch
from tests.tiny import untrained

NAMES = ("ann", "bob", "cyd", "dan")
FILES = [f"{split}/{name}/{i}.wav" for split in ("train", "Val") for name in NAMES for i in "12"]
OF_DATA = {
    "check": "{data}",
    "lists": "{data} --out {out}",
    "train": "speaker/folders --data {data} --out {out}",
    "compare": "speaker/folders --data {data} --out {out} --seeds 1",
    "bench": "--model {model} --items {data} --max-items 8",
    "gallery enrol": "{data} --gallery {out} --model {model}",
}
OF_IDS = {
    "fit plda": "{ids} --out {out}.json",
    "retrieve": "--embeddings {ids}",
    "identify": "--gallery {ids} --probes {ids}",
}
NOT_BY_FOLDER = {  # why labels are no folders there
    "gallery search": "probes have no label",
    "gallery cluster": "the labels of ids are a hint, which is left out",
    "score": "without a list, each item of a cohort is a subject",
    "fit calibration": "as score",
    "evaluate": "folders that contradict the trials are no subjects",
}


def test_every_command_that_takes_labels_is_known():
    names = {"--label", "--labels", "--subjects", "--gallery-labels", "--gallery-subjects"}
    names.add("--cohort-subjects")
    taking = {name for name, command in COMMANDS.items() if names & command.sources.keys()}
    assert taking == {*OF_DATA, *OF_IDS, *NOT_BY_FOLDER}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    touch(tmp_path / "data", *FILES)
    vectors = np.random.default_rng(0).normal(size=(len(FILES), 4)).astype(np.float32)
    Embeddings(tuple(FILES), vectors).save(tmp_path / "ids.npz")
    return {Path(name).stem: tmp_path / name for name in ("data", "out", "model", "ids.npz")}


def words_of(name: str, line: str, places: dict[str, Path]) -> list[str]:
    return [*name.split(), *(word.format(**places) for word in line.split())]


@pytest.mark.parametrize("name", OF_DATA)
def test_data_whose_folders_are_in_doubt(name, places):
    if "{model}" in OF_DATA[name]:
        untrained(places["model"])
    words = words_of(name, OF_DATA[name], places)
    said = refused(*words)
    assert "level 1 has 2 names" in said
    assert "level 2 has 4 such as 'ann' (--label \"{split}/{label}/*\")" in said
    assert not places["out"].exists()
    if name in ("check", "bench"):
        assert run_command(*words, "--label", "{split}/{label}/*") == 0
    elif name != "compare":  # the option is obeyed: the empty files are next
        assert "level" not in refused(*words, "--label", "{label}/**")


@pytest.mark.parametrize("name", OF_IDS)
def test_ids_whose_folders_are_in_doubt(name, places):
    said = refused(*words_of(name, OF_IDS[name], places))
    assert "level 2 has 4" in said
    assert "--label " not in said
    assert "list of lines `id " in said
