"""Which level of nested folders is the label, and that the option that is proposed takes it."""

import re

import pytest

from likeness.eval.errors import LikenessError
from likeness.eval.items.labels import LabelPattern
from likeness.eval.items.levels import check_levels, doubt_of_levels

NAMES = ("ann", "bob", "cyd", "dan")
HASHES = ("_GlaxQwEFi", "1xZq89a", "a7-kd2", "zzTop9", "Qw3", "k4dkd")
FRUIT = ("Fruit/Apple/Golden", "Fruit/Apple/Red", "Fruit/Pear/Anjou", "Packages/Milk/Arla")


@pytest.mark.parametrize(
    ("folders", "counts"),
    [
        ([f"{s}/{n}" for s in ("train", "Test", "VAL") for n in NAMES], [3, 4]),
        ([f"{s}/{n}" for s in ("train2017", "val2017") for n in NAMES], [2, 4]),
        ([f"{s}_set/{n}" for s in ("query", "gallery") for n in "0123"], [2, 4]),
        ([f"trainset/{n}" for n in NAMES] + ["testdata"], [2, 4]),
        (["bounding_box_train", "bounding_box_test", "query"], [3]),
        ([f"dev-clean/{n}/8" for n in NAMES] + ["other_set/cyd/9"], [2, 4, 2]),
        ([f"TRAIN/DR{d}/F{n}{d}" for d in "12" for n in NAMES], [1, 2, 8]),
        ([*FRUIT, "Vegetables/Leek"], [3, 4, 4]),
        ([f"{year}/{month:02d}" for year in (2021, 2022) for month in range(1, 13)], [2, 12]),
        ([f"2021-0{month}/{n}" for month in (1, 2) for n in "123"], [2, 3]),
        ([f"session{s}/{n:03d}" for s in "12" for n in range(5)], [2, 5]),
        ([f"part{k}/{n}{k}" for k in (1, 2) for n in "ab"], [2, 4]),
        ([f"wav/{n}" for n in NAMES], [1, 4]),
        ([f"{sex}/{n}{sex[0]}" for sex in ("male", "female") for n in range(3)], [2, 6]),
        ([f"{where}/00{n}" for where in ("clean", "Noisy") for n in range(3)], [2, 3]),
        ([f"dr{region}/fcj{region}" for region in range(1, 5)], [4, 4]),
        ([f"data/all/{n}" for n in NAMES], [1, 1, 4]),
        ([f"{number}/{n}" for number, n in enumerate(NAMES)], [4, 4]),
        ([f"{shard:03d}/{n:04d}" for shard in range(3) for n in range(5)], [3, 5]),
        ([f"{n}/{mood}" for n in NAMES for mood in ("happy", "sad")], [4, 2]),
    ],
)
def test_levels_that_are_in_doubt(folders: list[str], counts: list[int]) -> None:
    ids = [f"{folder}/x_{i}.wav" for folder in folders for i in (1, 2)]
    doubt = doubt_of_levels(ids)
    assert [int(count) for count in re.findall(r"level \d+ has (\d+)", doubt)] == counts
    options = re.findall(r'--label "([^"]+)"\)', doubt)
    for option, count in zip(options, counts, strict=True):
        fields = [LabelPattern(option).fields(id) for id in ids]
        assert len({each["label"] for each in fields if each is not None}) == count
    with pytest.raises(LikenessError, match=r"^here: which folder .* a list of ids$"):
        check_levels(ids, "here", remedy="give a list of ids")


@pytest.mark.parametrize(
    "folders",
    [
        NAMES,
        [f"{n}/session{s}" for n in NAMES for s in "12"],
        [f"{n}/{hash}{k}" for k, n in enumerate(NAMES) for hash in HASHES],
        [f"{n}/{part}" for n in NAMES for part in ("train", "test")],
        [f"{n}/2021-0{month}" for n in NAMES for month in (1, 2)],
        [f"{n}/{n}" for n in NAMES],
        [f"{n}/photos" for n in NAMES],
        ["ann/session1", "ann/session2"],
        [f"id{k:05d}/{v:05d}" for k in range(3) for v in range(4)],
        ["test1", "test2", "test3"],
        ["2001", "2002", "2003"],
        ["train", "bus", "car"],
        [""],
        [],
    ],
)
def test_folders_of_one_label_each_are_left_alone(folders: list[str]) -> None:
    assert doubt_of_levels([f"{folder}/x_{i}.wav" for folder in folders for i in (1, 2)]) == ""


def test_files_that_name_their_first_folder_are_left_alone() -> None:
    ids = [f"{k}/{b}/{k}-{b}-{i}.flac" for k in (84, 174) for b in (121, 423) for i in "12"]
    assert doubt_of_levels(ids) == ""
