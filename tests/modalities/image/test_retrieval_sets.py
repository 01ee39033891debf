"""CUB, Cars196 and SOP in the layouts of their archives, folders, and the splits:
class by class against the tools' own procedures.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import savemat
from sklearn.model_selection import KFold, train_test_split

from likeness.modalities.image._splits import Protocol, divide_classes
from likeness.modalities.image.retrieval_sets import cars_items, items
from tests.modalities.data_set import DataSet
from tests.modalities.image.drawn import write_images
from tests.scripts import touch

SHOTS = range(3)
FOLDERS = ("CUB_200_2011", "cars196", "Stanford_Online_Products")
# whose classes there have to be: (classes, of them to train, protocols)
SETS: dict[str, tuple[int, int, tuple[Protocol, ...]]] = {
    "cub": (200, 100, ("standard", "vmf", "mlrc", "benchmarker")),
    "cars": (196, 98, ("standard", "vmf")),
    "sop": (22_634, 11_318, ("standard", "vmf")),
}


def classes_of(name: str) -> list[int]:
    """Class numbers from 1 that give each split of each protocol some classes."""
    num_classes, num_train, protocols = SETS[name]
    most = {"train": 9, "validation": 3, "test": 4}
    chosen: set[int] = set()
    for protocol in protocols:
        division = divide_classes(num_classes, num_train, protocol=protocol)._asdict()
        for split, classes in division.items():
            chosen |= {int(i) + 1 for i in classes[: most[split]]}
    return sorted(chosen)


def list_cub(root: Path, birds: Sequence[str]) -> None:
    lines = [f"{number} {bird}\n" for number, bird in enumerate(birds, 1)]
    (root / "images.txt").write_text("".join(lines))


def list_cars(path: Path, field: str, cars: Sequence[tuple[str, int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    annotations = np.array(cars, dtype=[(field, "O"), ("class", "O")])
    savemat(path, {"annotations": annotations})


def list_sop(root: Path, products: Sequence[tuple[str, int]]) -> None:
    for part, classes in (("train", range(1, 11_319)), ("test", range(11_319, 22_635))):
        lines = ["image_id class_id super_class_id path\n"]
        lines += [f"{i} {c} 1 {path}\n" for i, (path, c) in enumerate(products, 1) if c in classes]
        (root / f"Ebay_{part}.txt").write_text("".join(lines))


def miniature(folder: Path) -> None:
    """Three images of each class."""
    cub, cars, sop = (folder / name for name in FOLDERS)
    birds = [f"{c:03d}.Bird_{c}/bird_{shot}.jpg" for c in classes_of("cub") for shot in SHOTS]
    write_images([cub / "images" / bird for bird in birds])
    list_cub(cub, birds)
    models = [(f"car_ims/{c:03d}{shot:03d}.jpg", c) for c in classes_of("cars") for shot in SHOTS]
    write_images([cars / path for path, _ in models])
    list_cars(cars / "cars_annos.mat", "relative_im_path", models)
    products = [(f"sofa_final/{c}_{shot}.JPG", c) for c in classes_of("sop") for shot in SHOTS]
    write_images([sop / path for path, _ in products])
    list_sop(sop, products)


NAMED = {"cub": "{0:03d}.Bird_{0}", "cars": "{:03d}", "sop": "{:05d}"}
DATA_SETS = {
    name: DataSet(
        miniature,
        items=partial(items, name=name, protocol="vmf", whole=False),
        labels=[NAMED[name].format(number) for number in classes_of(name)],
        splits=("train", "validation", "test"),
        keeps_order=True,
        fetch="fetch",
        whole=partial(items, name=name),
        counts=f"the data set has {num_images}",
    )
    for name, num_images in (("cub", 11_788), ("cars", 16_185), ("sop", 120_053))
}


@pytest.mark.parametrize(
    ("num_classes", "num_train", "held_out"),
    [(200, 100, 15), (196, 98, 15), (22_634, 11_318, 1_698)],
)
def test_protocols_of_the_three_sets(num_classes: int, num_train: int, held_out: int) -> None:
    sizes = [len(value) for value in divide_classes(num_classes, num_train)]
    assert sizes == [num_train, 0, num_classes - num_train]
    np.random.seed(1234)  # as the vMF paper's scripts do
    drawn = np.random.choice(np.arange(num_train), size=held_out, replace=False)
    result = divide_classes(num_classes, num_train, protocol="vmf")
    assert set(result.validation) == set(drawn)
    assert len(result.train) == num_train - held_out  # 85, 83 and 9,620: App. D.1
    revisited = divide_classes(num_classes, num_train, protocol="revisiting")
    assert revisited.validation.tolist() == list(range(num_train))[int(num_train * 0.8) :]
    trainval, test = train_test_split(np.arange(num_classes), test_size=0.5, shuffle=False)
    for fold, (train, validation) in enumerate(KFold(4).split(trainval)):
        result = divide_classes(num_classes, num_train, protocol="benchmarker", fold=fold)
        expected = (trainval[train], trainval[validation], test)
        assert all(map(np.array_equal, result, expected))


@pytest.mark.parametrize("num_classes", [196, 200, 22_634])
def test_mlrc_folds(num_classes: int) -> None:
    """The split manager's lengths and wrapped ranges, re-derived: train, then validation, going
    round from class int(fold / 4 * half).
    """
    half = num_classes // 2
    num_validation = int(num_classes * 0.125)
    num_train = num_classes - half - num_validation
    for fold in range(4):
        start = int(fold / 4 * half)
        circle = np.roll(np.arange(half), -start)
        result = divide_classes(num_classes, half, protocol="mlrc", fold=fold)
        assert result.train.tolist() == sorted(circle[:num_train])
        assert result.validation.tolist() == sorted(circle[num_train:])


PROTOCOLS = st.sampled_from(["standard", "vmf", "revisiting", "benchmarker", "mlrc"])


@given(num_classes=st.integers(8, 300), share=st.floats(0.5, 0.9), protocol=PROTOCOLS)
def test_every_class_is_in_one_part(num_classes: int, share: float, protocol: Protocol) -> None:
    result = divide_classes(num_classes, int(num_classes * share), protocol=protocol)
    assert sorted(np.concatenate(result).tolist()) == list(range(num_classes))
    assert len(result.train)
    assert len(result.test)


@pytest.mark.parametrize(("name", "folder"), zip(SETS, FOLDERS, strict=True))
def test_the_first_classes_train(name: str, folder: str, tmp_path: Path) -> None:
    miniature(tmp_path)
    num_train = SETS[name][1]
    for split in ("train", "test"):
        listed = items(tmp_path / folder, name=name, split=split, whole=False)
        numbers = {int(re.match(r"\d+", item.label)[0]) for item in listed}
        assert numbers == {n for n in classes_of(name) if (n <= num_train) == (split == "train")}
    with pytest.raises(ValueError, match="holds out no validation classes"):
        items(tmp_path, name=name, split="validation", whole=False)


def test_cars_of_the_first_distribution(tmp_path: Path) -> None:
    numbers = [1, 98, 99, 196]
    for part in ("train", "test"):
        touch(tmp_path, *(f"cars_{part}/{c:05d}.jpg" for c in numbers))
    for name in ("cars_train_annos.mat", "cars_test_annos_withlabels.mat"):
        list_cars(tmp_path / "devkit" / name, "fname", [(f"{c:05d}.jpg", c) for c in numbers])
    ids = [item.id for item in cars_items(tmp_path, split="test", whole=False)]
    assert ids == [f"cars_{part}/{c:05d}.jpg" for part in ("train", "test") for c in (99, 196)]


@pytest.mark.parametrize(
    ("name", "file", "content", "says"),
    [
        ("cub", "CUB_200_2011/images.txt", "1 ../../etc/passwd.jpg\n", "NUMBER.Species"),
        ("cars", "cars196/cars_annos.mat", "no mat" * 40, "no annotations"),
        (
            *("sop", "Stanford_Online_Products/Ebay_test.txt"),
            *("3 7 1 sofa_final/7_0.JPG\n", "of class '7'; 11319 to 22634"),
        ),
    ],
)
def test_damaged_lists(name: str, file: str, content: str, says: str, tmp_path: Path) -> None:
    miniature(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=says):
        items(tmp_path, name=name, whole=False)
