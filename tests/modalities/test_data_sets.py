"""The contract of all data sets, on miniatures of them: what is listed, how it is divided, and what
is said where something else lies in their place. A data set without a miniature fails it.
"""

import importlib
import inspect
import itertools
import pkgutil
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import likeness.modalities
from likeness.eval.errors import LikenessError
from tests.modalities.data_set import DataSet
from tests.scripts import touch

HERE = Path(__file__).parent
LISTS = re.compile(r"(\w+_)?(items|trials)|enrolment")


def stated() -> dict[str, DataSet]:
    """The data sets of all test files."""
    found: dict[str, DataSet] = {}
    for path in sorted(HERE.rglob("test_*.py")):
        if path != Path(__file__) and "\nDATA_SETS = {" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(HERE).with_suffix("").parts)
            found |= importlib.import_module(f"tests.modalities.{name}").DATA_SETS
    return found


DATA_SETS = stated()
WITH_FILES = [name for name, data_set in DATA_SETS.items() if data_set.fetch is not None]
WITH_ITEMS = [name for name, data_set in DATA_SETS.items() if data_set.items]
WITH_TRIALS = [name for name, data_set in DATA_SETS.items() if data_set.trials]
WITH_COUNTS = [name for name, data_set in DATA_SETS.items() if data_set.whole]


def listing_functions() -> dict[str, Callable[..., Any]]:
    """The functions of the modalities that list a data set below a folder `data`, by name."""
    found = {}
    for entry in pkgutil.walk_packages(likeness.modalities.__path__, "likeness.modalities."):
        for name, function in vars(importlib.import_module(entry.name)).items():
            if not LISTS.fullmatch(name) or not inspect.isfunction(function_of(function)):
                continue
            if function_of(function).__module__ != entry.name:
                continue
            if next(iter(inspect.signature(function).parameters)) == "data":
                found[f"{entry.name}.{name}"] = function_of(function)
    return found


def function_of(listing: Any) -> Any:
    """The function behind its settings."""
    while isinstance(listing, partial):
        listing = listing.func
    return listing


def test_every_data_set_has_a_miniature() -> None:
    every = [(*listings(data_set), data_set.whole) for data_set in DATA_SETS.values()]
    covered = {function_of(listing) for listing in itertools.chain(*every)}
    functions = listing_functions()
    assert len(functions) > 15
    assert {name for name, function in functions.items() if function not in covered} == set()


def listings(data_set: DataSet) -> list[Callable[..., Any]]:
    return [listing for listing in (data_set.items, data_set.trials) if listing]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """name -> the folder of its miniature, drawn once and only read."""

    @cache
    def draw(name: str) -> Path:
        folder = tmp_path_factory.mktemp("miniature")
        DATA_SETS[name].draw(folder)
        return folder

    return draw


@pytest.mark.parametrize("place", ["missing", "empty", "of something else"])
@pytest.mark.parametrize("name", WITH_FILES)
def test_what_is_not_there_is_one_sentence(name: str, place: str, tmp_path: Path) -> None:
    """It names the folder and says what belongs there."""
    data, fetch = tmp_path / "data", DATA_SETS[name].fetch or f"likeness prepare {name}"
    if place == "empty":
        data.mkdir()
    if place == "of something else":
        touch(data, "notes.txt", "letters/ann/1.txt", "letters/bob/.1.wav")
    for listing in listings(DATA_SETS[name]):
        with pytest.raises((LikenessError, FileNotFoundError), match=fetch) as refused:
            listing(data)
        assert str(data) in str(refused.value)
        assert "\n" not in str(refused.value)


def by_number(id: str) -> list[tuple[int, str]]:
    """A key by which s2 comes before s10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", id)]


@pytest.mark.parametrize("name", WITH_ITEMS)
def test_items_are_distinct_sorted_and_labelled(name: str, drawn: Callable[[str], Path]) -> None:
    data_set = DATA_SETS[name]
    every = data_set.items(drawn(name), split="all")
    ids = [item.id for item in every]
    assert len(set(ids)) == len(ids)
    assert data_set.keeps_order or ids == sorted(ids, key=by_number)
    assert {item.label for item in every} == set(data_set.labels)
    assert all(item.path.is_file() for item in every)


@pytest.mark.parametrize("name", WITH_ITEMS)
def test_splits_divide_the_items(name: str, drawn: Callable[[str], Path]) -> None:
    """In the order of all items; the first split trains, and has more than what validates it."""
    data_set = DATA_SETS[name]
    places = {item.id: place for place, item in enumerate(data_set.items(drawn(name), split="all"))}
    parts = [data_set.items(drawn(name), split=split) for split in data_set.splits]
    numbers = [[places[item.id] for item in part] for part in parts]
    assert all(parts)
    assert len(parts[0]) > len(parts[1])
    assert sorted(itertools.chain(*numbers)) == sorted(places.values())
    assert all(part == sorted(part) for part in numbers)
    if not data_set.mixes_labels:
        labels = [label for part in parts for label in {item.label for item in part}]
        assert len(labels) == len(set(labels))
        assert len(parts[0]) == max(map(len, parts))
    with pytest.raises(LikenessError, match="'most'"):
        data_set.items(drawn(name), split="most")


@pytest.mark.parametrize("name", WITH_TRIALS)
def test_trials_are_of_the_items(name: str, drawn: Callable[[str], Path]) -> None:
    """Target trials are those of one label, where the items have any."""
    *listed, trials = DATA_SETS[name].trials(drawn(name))
    items, *models = listed
    labels = {item.id: item.label for item in items}
    assert len(labels) == len(items)
    assert all(item.path.is_file() for item in items)
    enrol = [trials.enrol_ids[place] for place in trials.enrol]
    probe = [trials.probe_ids[place] for place in trials.probe]
    if models:
        assert {*enrol} <= models[0].keys()
        used = [id for ids in models[0].values() for id in ids]
    else:
        used = enrol
        pairs = zip(enrol, probe, strict=True)
        same = [labels[one] == labels[other] for one, other in pairs]
        assert None in labels.values() or trials.target.tolist() == same
    assert {*used, *probe} == labels.keys()
    assert 0 < np.count_nonzero(trials.target) < len(trials)


@pytest.mark.parametrize("name", WITH_COUNTS)
def test_a_part_of_a_data_set_is_noticed(name: str, drawn: Callable[[str], Path]) -> None:
    data_set = DATA_SETS[name]
    with pytest.raises(LikenessError, match=data_set.counts) as refused:
        data_set.whole(drawn(name))
    assert str(drawn(name)) in str(refused.value)


@pytest.mark.parametrize("name", [name for name in WITH_ITEMS if name in WITH_FILES])
def test_an_item_that_is_gone_is_not_listed(name: str, tmp_path: Path) -> None:
    """Where its file has other items too, the data set is refused."""
    data_set = DATA_SETS[name]
    data_set.draw(tmp_path)
    *left, gone = data_set.items(tmp_path, split="all")
    gone.path.unlink()
    if any(item.path == gone.path for item in left):
        with pytest.raises((LikenessError, FileNotFoundError)):
            data_set.items(tmp_path, split="all")
    else:
        again = data_set.items(tmp_path, split="all")
        assert [item.id for item in again] == [item.id for item in left]
