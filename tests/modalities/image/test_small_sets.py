"""MNIST, CIFAR, Omniglot, digits: real data beside the checkout and files written by other code."""

import gzip
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from likeness import Item, LikenessError
from likeness.data import shards, synthetic_glyphs
from likeness.modalities.image import _packed, images, small_sets
from likeness.toolkit.data.images import BadImage
from tests.modalities.data_set import DataSet
from tests.modalities.image.drawn import coloured, drawn

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write_idx(folder: Path, part: str, pixels: Any, labels: Any, compressed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images_file = struct.pack(">4I", 0x803, *pixels.shape) + pixels.tobytes()
    labels_file = struct.pack(">2I", 0x801, len(labels)) + labels.tobytes()
    for kind, payload in (("images-idx3", images_file), ("labels-idx1", labels_file)):
        path = folder / f"{part}-{kind}-ubyte{'.gz' if compressed else ''}"
        path.write_bytes(gzip.compress(payload) if compressed else payload)


def write_cifar(root: Path, pixels: np.ndarray, fine: np.ndarray, coarse: Any) -> Path:
    """A CIFAR in the binary layout, of which every file has the same images."""
    folder = root / ("cifar-10-batches-bin" if coarse is None else "cifar-100-binary")
    folder.mkdir(parents=True)
    heads = [fine] if coarse is None else [coarse, fine]
    content = np.column_stack([part.astype(np.uint8) for part in (*heads, pixels)]).tobytes()
    if coarse is None:
        (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
        names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    else:
        for kind, count in (("fine", 100), ("coarse", 20)):
            text = "\n".join(f"{kind}_{i}" for i in range(count))
            (folder / f"{kind}_label_names.txt").write_text(text + "\n")
        names = ["train.bin", "test.bin"]
    for name in names:
        (folder / name).write_bytes(content)
    return folder


def miniature(folder: Path) -> None:
    """Every set; MNIST's two with 80 images to train and 40 to test."""
    digits = np.arange(80, dtype=np.uint8) % 10
    for name, first in (("mnist", 0), ("fashion_mnist", 10)):
        pixels = np.stack([drawn(first + int(digit), i // 10) for i, digit in enumerate(digits)])
        write_idx(folder / name, "train", pixels, digits)
        write_idx(folder / name, "t10k", pixels[:40], digits[:40])
    for num_classes, each in ((10, 2), (100, 7)):
        labels = np.tile(np.arange(num_classes, dtype=np.uint8), each)
        shown = [coloured(int(label), i // num_classes) for i, label in enumerate(labels)]
        planes = [cv2.resize(pixels, (32, 32)).transpose(2, 0, 1).ravel() for pixels in shown]
        write_cifar(folder, np.stack(planes), labels, labels if num_classes == 100 else None)
    background = folder / "omniglot" / "images_background"
    sizes = {"num_alphabets": 23, "num_characters": 2, "num_drawers": 3, "size": 35}
    synthetic_glyphs.write_glyphs(background, **sizes, by_alphabet=True)


def closed(items: Any, labels: Sequence[str], **more: Any) -> DataSet:
    """A set whose classes are trained on and tested, in the order of its files."""
    usual: dict[str, Any] = {"draw": miniature, "mixes_labels": True, "keeps_order": True}
    splits = ("train", "validation", "test")
    items = partial(items, validation_share=0.15)
    return DataSet(**usual | more, items=items, labels=labels, splits=splits)


FASHION = partial(small_sets.mnist_items, name="fashion_mnist")
CIFAR100 = partial(small_sets.cifar_items, num_classes=100)
DATA_SETS = {
    "mnist": closed(small_sets.mnist_items, "0123456789"),
    "fashion_mnist": closed(FASHION, small_sets.MNIST_CLASSES["fashion_mnist"]),
    "cifar10": closed(
        partial(small_sets.cifar_items, whole=False),
        NAMES,
        whole=small_sets.cifar_items,
        counts="100 images to train; 50000",
    ),
    "cifar100": closed(
        partial(CIFAR100, whole=False),
        [f"fine_{number}" for number in range(100)],
        whole=partial(CIFAR100, split="test"),
        counts="700 images to test; 10000",
    ),
    "omniglot": DataSet(
        miniature,
        items=small_sets.omniglot_items,
        labels=[f"alphabet{i:02d}/character{j:02d}" for i in range(23) for j in range(2)],
    ),
    "digits": closed(small_sets.digits_items, "0123456789", fetch=None),
    "files of digits": closed(
        partial(small_sets.digits_items, files=True),
        "0123456789",
        draw=small_sets.write_digits,
        trials=small_sets.digits_trials,
        fetch=None,
    ),
}


@pytest.mark.parametrize(
    ("compressed", "folder"), [(True, "mnist"), (False, "MNIST/raw"), (True, ".")]
)
def test_mnist_files(tmp_path: Path, compressed: bool, folder: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 9), dtype=np.uint8)
    labels = np.tile(np.arange(4, dtype=np.uint8), 10)
    for part in ("train", "t10k"):
        write_idx(tmp_path / folder, part, pixels, labels, compressed=compressed)
    every = small_sets.mnist_items(tmp_path, split="all")
    assert [item.id for item in every[39:41]] == ["train/00039", "test/00000"]
    assert [item.label for item in every] == 2 * [str(label) for label in labels]
    shown = [images.read(item)[0] for item in every]
    np.testing.assert_array_equal(shown, np.concatenate([pixels, pixels]))
    assert small_sets.mnist_items(tmp_path, split="test") == every[40:]
    with pytest.raises(LikenessError):
        small_sets.mnist_items(tmp_path, split="validation")


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_held_out_share_is_drawn_by_class_number(tmp_path: Path, name: Any) -> None:
    """As the vMF paper's release draws it, which knows numbers alone: FashionMNIST's names sort
    otherwise, and would hold out other images.
    """
    sizes = np.arange(20, 40, 2)
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(10, dtype=np.uint8), sizes))
    pixels = np.zeros((labels.size, 2, 2), dtype=np.uint8)
    write_idx(tmp_path / name, "train", pixels, labels)
    every, classes = np.arange(labels.size), small_sets.MNIST_CLASSES[name]
    drawn = train_test_split(every, test_size=0.15, random_state=1234, stratify=labels)
    for split, places in zip(("train", "validation"), drawn, strict=True):
        chosen: Any = {"split": split, "validation_share": 0.15, "name": name}
        listed = [(item.id, item.label) for item in small_sets.mnist_items(tmp_path, **chosen)]
        assert listed == [(f"train/{i:05d}", classes[labels[i]]) for i in sorted(places)]


def test_real_mnist(shared: Path) -> None:
    items = small_sets.mnist_items(shared / "data")
    assert len(items) == 60_000
    assert len(small_sets.mnist_items(shared / "data", split="test")) == 10_000
    # The first training digit is a 5: its known sum of levels.
    assert (items[0].label, images.read(items[0]).sum()) == ("5", 27525)


def test_cifar10_has_its_files_one_behind_the_other(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 3072), dtype=np.uint8)
    folder = write_cifar(tmp_path, pixels, np.arange(20) % 10, None)
    items = small_sets.cifar_items(tmp_path, whole=False)
    assert [item.id for item in items] == [f"train/{i:05d}" for i in range(100)]
    assert [item.label for item in items] == 10 * NAMES
    np.testing.assert_array_equal(images.read(items[23]).reshape(-1), pixels[3])
    # Only the files of the split are needed.
    (folder / "data_batch_1.bin").unlink()
    assert len(small_sets.cifar_items(tmp_path, split="test", whole=False)) == 20
    with pytest.raises(LikenessError, match=r"data_batch_1.bin"):
        small_sets.cifar_items(tmp_path, whole=False)
    test = folder / "test_batch.bin"
    test.write_bytes(test.read_bytes()[:-1])
    with pytest.raises(LikenessError, match=test.name):
        small_sets.cifar_items(tmp_path, split="test", whole=False)
    (folder / "batches.meta.txt").write_text("a b")
    with pytest.raises(LikenessError, match="names"):
        small_sets.cifar_items(tmp_path, whole=False)


def test_cifar100_has_two_labels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
    fine = np.array([99, 0, 5, 5, 7, 8])
    write_cifar(tmp_path, pixels, fine, fine % 20)
    items = small_sets.cifar_items(tmp_path, num_classes=100, whole=False)
    assert [item.label for item in items] == [f"fine_{i}" for i in fine]
    np.testing.assert_array_equal([images.read(item).reshape(-1) for item in items], pixels)


def test_the_first_twenty_alphabets_of_omniglot_train(tmp_path: Path) -> None:
    miniature(tmp_path)
    train = small_sets.omniglot_items(tmp_path)
    assert len(train) == 20 * 2 * 3
    assert small_sets.omniglot_items(tmp_path, split="test")[0].label == "alphabet20/character00"
    drawing = synthetic_glyphs.glyph(0, 0, 0, size=35)
    np.testing.assert_array_equal(small_sets.read(train[0])[0], drawing)


def test_digits_are_scikit_learns(tmp_path: Path) -> None:
    every, truth = small_sets.digits_items(split="all"), load_digits()
    assert [item.label for item in every] == [str(value) for value in truth.target]
    shown = [small_sets.read(item)[0] for item in every]
    np.testing.assert_array_equal(shown, np.round(truth.images * (255 / 16)))
    unseen = small_sets.digits_items(protocol="open", split="test")
    assert {item.label for item in unseen} == set("6789")
    for split, number in (("train", 1212), ("validation", 135), ("test", 450)):
        assert len(small_sets.digits_items(split=split, validation_share=0.1)) == number
    with pytest.raises(ValueError, match="with a suffix such as"):
        shards.write(every[:3], tmp_path)
    with pytest.raises(BadImage):
        small_sets.read(every[0]._replace(span=(0, 9)))


def test_a_bomb_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_packed, "MAX_SPAN", 1000)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(2000)))
    with pytest.raises(LikenessError, match="1000 bytes"):
        _packed.stretch(Item("a", tmp_path / "a.gz"))
