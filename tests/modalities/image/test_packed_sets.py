"""MNIST, CIFAR, Omniglot, digits: real data beside the checkout, files written by other code;
damage is refused.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modalities.image import cifar, digits, images, mnist, omniglot
from toolkit.data import shards
from toolkit.data.images import BadImage
from toolkit.data.items import Item

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write_idx(
    folder: Path, part: str, pixels: np.ndarray, labels: np.ndarray, *, compressed: bool
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, payload in (
        ("images-idx3", struct.pack(">4I", 0x803, *pixels.shape) + pixels.tobytes()),
        ("labels-idx1", struct.pack(">2I", 0x801, len(labels)) + labels.tobytes()),
    ):
        (folder / f"{part}-{kind}-ubyte{'.gz' if compressed else ''}").write_bytes(
            gzip.compress(payload) if compressed else payload
        )


@pytest.mark.parametrize(
    ("compressed", "folder"), [(True, "mnist"), (False, "MNIST/raw"), (True, ".")]
)
def test_mnist_files(tmp_path: Path, compressed: bool, folder: str) -> None:
    rng = np.random.default_rng(0)
    pixels, labels = (
        rng.integers(0, 256, (40, 5, 6), dtype=np.uint8),
        np.tile(np.arange(4, dtype=np.uint8), 10),
    )
    for part in ("train", "t10k"):
        write_idx(tmp_path / folder, part, pixels, labels, compressed=compressed)
    every = mnist.items(tmp_path)
    np.testing.assert_array_equal([images.read(value)[0] for value in every], pixels)
    assert [item.label for item in every] == [str(label) for label in labels]
    parts = [
        {item.id for item in mnist.items(tmp_path, split=split, validation_share=0.3)}
        for split in ("train", "validation")
    ]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == {item.id for item in every}
    assert {item.id.split("/")[0] for item in mnist.items(tmp_path, split="test")} == {"test"}
    with pytest.raises(ValueError, match="validation_share 0"):
        mnist.items(tmp_path, split="validation")
    with pytest.raises(ValueError, match="fetch"):
        mnist.items(tmp_path / "absent", name="fashion_mnist")
    if compressed:
        # a span of the compressed bytes would be something else
        with pytest.raises(ValueError, match="cannot be packed"):
            shards.write(every, tmp_path / "shards")
    else:
        shards.write(every, tmp_path / "shards")
        read = {item.id: images.read(item)[0] for item in shards.items(tmp_path / "shards")}
        np.testing.assert_array_equal([read[item.id] for item in every], pixels)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_held_out_share_is_drawn_by_class_number(tmp_path: Path, name: mnist.Name) -> None:
    """As the vMF paper's release draws it, which knows numbers alone: Fashion-MNIST's names sort
    otherwise, and would hold out other images.
    """
    from sklearn.model_selection import train_test_split

    labels = np.random.default_rng(3).permutation(
        np.repeat(np.arange(10, dtype=np.uint8), np.arange(20, 40, 2))
    )
    write_idx(
        tmp_path / name,
        "train",
        np.zeros((labels.size, 2, 2), dtype=np.uint8),
        labels,
        compressed=False,
    )
    drawn = train_test_split(
        np.arange(labels.size), test_size=0.15, random_state=1234, stratify=labels
    )
    for split, places in zip(("train", "validation"), drawn, strict=True):
        chosen: Any = {"split": split, "validation_share": 0.15, "name": name}
        items = mnist.items(tmp_path, **chosen)
        assert [int(item.id.removeprefix("train/")) for item in items] == sorted(places.tolist())
        assert [item.label for item in items] == [
            mnist.CLASSES[name][labels[place]] for place in sorted(places)
        ]


def test_mnist_damage(tmp_path: Path) -> None:
    pixels, labels = np.zeros((9, 5, 6), dtype=np.uint8), np.arange(9, dtype=np.uint8)
    write_idx(tmp_path, "train", pixels, labels, compressed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match="damaged or cut short"):
        mnist.items(tmp_path)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:-1]))
    with pytest.raises(ValueError, match="its header states 286"):
        mnist.items(tmp_path)
    path.write_bytes(gzip.compress(b"text"))
    with pytest.raises(ValueError, match="no IDX file"):
        mnist.items(tmp_path)
    write_idx(tmp_path, "train", pixels, labels[:8], compressed=True)
    with pytest.raises(ValueError, match=r"9 images.*8 labels"):
        mnist.items(tmp_path)
    with pytest.raises(ValueError, match="neither t10k-images"):
        mnist.items(tmp_path, split="test")


def test_real_mnist(shared: Path) -> None:
    shared = shared / "data"
    items = mnist.items(shared)
    assert (len(items), len(mnist.items(shared, split="test"))) == (60_000, 10_000)
    counts = np.unique(
        [item.label for item in mnist.items(shared, split="validation", validation_share=0.15)],
        return_counts=True,
    )[1]
    np.testing.assert_allclose(
        counts, 0.15 * np.unique([item.label for item in items], return_counts=True)[1], atol=1
    )
    # the first training digit, a 5: its known sum of levels
    assert images.read(items[0]).sum() == 27525


def write_cifar(
    root: Path, pixels: np.ndarray, fine: np.ndarray, coarse: np.ndarray | None
) -> Path:
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
    (folder / names[0]).write_bytes(content)
    for name in names[1:]:
        (folder / name).hardlink_to(folder / names[0])
    return folder


def compressed(folder: Path, archive: Path) -> Path:
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for name in ("batches.meta.txt", "test_batch.bin"):
            tar.add(folder / name, f"{folder.name}/{name}")
    return archive


def test_cifar10_unpacked_and_packed(tmp_path: Path) -> None:
    """10,000 images are demanded of each file; most are black."""
    pixels, labels = np.zeros((10_000, 3072), dtype=np.uint8), np.arange(10_000) % 10
    pixels[[0, 77, 9_999]] = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    folder = write_cifar(tmp_path / "folder", pixels, labels, None)
    (folder / "data_batch_1.bin").unlink()
    archive = compressed(folder, tmp_path / "packed" / "cifar-10-binary.tar.gz")
    for data in (folder.parent, archive.parent):
        items = cifar.items(data, split="test")
        assert [item.label for item in items[:11]] == [*NAMES, "airplane"]
        assert [items[i].id for i in (0, 77, 9_999)] == ["test/00000", "test/00077", "test/09999"]
        for i in (0, 1, 77, 9_999):
            np.testing.assert_array_equal(images.read(items[i]).reshape(-1), pixels[i])
    with pytest.raises(ValueError, match=r"data_batch_1.bin is missing"):
        cifar.items(folder.parent)
    test = folder / "test_batch.bin"
    test.write_bytes(test.read_bytes()[:-3073])  # of all files, which are one
    with pytest.raises(ValueError, match=r"9999 images.*10000 with 0 to 9"):
        cifar.items(folder.parent, split="test")
    test.write_bytes(test.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"no whole number"):
        cifar.items(folder.parent, split="test")
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged or cut short"):
        cifar.items(archive.parent, split="test")
    with pytest.raises(ValueError, match=r"cifar-100-binary.tar.gz"):
        cifar.items(folder.parent, num_classes=100)


def test_cifar100_has_two_labels_and_five_files_count_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 3072), dtype=np.uint8)
    fine = np.array([99, 0, 5, 5, 7, 8])
    write_cifar(tmp_path, pixels, fine, fine % 20)
    items = cifar.items(tmp_path, num_classes=100, whole=False)
    assert [item.label for item in items] == [f"fine_{i}" for i in fine]
    np.testing.assert_array_equal([images.read(item).reshape(-1) for item in items], pixels)
    coarse = cifar.items(tmp_path, num_classes=100, coarse=True, split="all", whole=False)
    assert [item.label for item in coarse] == 2 * [f"coarse_{i % 20}" for i in fine]
    assert [item.id for item in coarse[4:8]] == [
        "train/00004",
        "train/00005",
        "test/00000",
        "test/00001",
    ]
    write_cifar(tmp_path, pixels, fine % 10, None)
    five = cifar.items(tmp_path, whole=False)
    assert [item.id for item in five] == [f"train/{i:05d}" for i in range(30)]
    np.testing.assert_array_equal(images.read(five[13]).reshape(-1), pixels[1])


@pytest.mark.parametrize("name", ["cifar-10-batches-py", "cifar-10-python.tar.gz"])
def test_the_python_version_of_cifar_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match="Python version") as caught:
        cifar.items(tmp_path)
    assert name in str(caught.value)
    assert "fetch cifar-10-binary.tar.gz from https://" in str(caught.value)


@pytest.mark.parametrize("text", ["a b", " ".join(["a"] * 10), ""])
def test_names_of_classes_that_do_not_fit_are_refused(tmp_path: Path, text: str) -> None:
    folder = write_cifar(tmp_path, np.zeros((1, 3072)), np.array([0]), None)
    (folder / "batches.meta.txt").write_text(text)
    with pytest.raises(ValueError, match="10 different ones"):
        cifar.items(tmp_path, whole=False)


def test_real_omniglot(shared: Path) -> None:
    shared = shared / "data"
    parts = {
        split: omniglot.items(shared, split=split, validation_alphabets=4)
        for split in ("train", "validation", "test")
    }
    alphabets = {split: {item.id.split("/")[0] for item in part} for split, part in parts.items()}
    assert {split: len(alphabet) for split, alphabet in alphabets.items()} == {
        "train": 16,
        "validation": 4,
        "test": 10,
    }
    assert sum(len(part) for part in parts.values()) == 19_280
    assert len(set.union(*alphabets.values())) == 30
    with np.load(shared / "omniglot" / "images_background.npz") as arrays:
        ink = np.unpackbits(arrays["ink_packed"][:40], axis=1)[:, :11025].reshape(-1, 105, 105)
        first = f"{arrays['class_name'][arrays['label'][0]]}/{arrays['name'][0]}"
    item = next(item for item in parts["train"] if item.id == first)
    np.testing.assert_array_equal(omniglot.read(item)[0], 255 * ink[0])
    turned = omniglot.turned([item], turns=(90,))[1]
    np.testing.assert_array_equal(omniglot.read(turned)[0], 255 * np.rot90(ink[0]))
    assert omniglot.read(item, edge=28).shape == (1, 28, 28)
    with pytest.raises(BadImage, match="the turn '45'"):
        omniglot.read(item._replace(id=f"{item.id}#turn=45"))


def test_drawn_characters_of_omniglot_are_whole_and_nested(shared: Path) -> None:
    shared = shared / "data"
    every = omniglot.items(shared)
    few, more = (omniglot.items(shared, num_classes=number) for number in (50, 100))
    labels = {item.label for item in few}
    assert len(labels) == 50
    assert labels < {item.label for item in more}
    # Of a drawn character all drawings are there, in the order of all.
    assert few == [item for item in every if item.label in labels]
    assert len({item.label for item in omniglot.items(shared, num_classes=50, turns=(90,))}) == 100
    assert omniglot.items(shared, num_classes=633) == every
    for wrong in (1, -1, 634, 2.5):
        with pytest.raises(ValueError, match="2 to 633 are allowed, or 0 for all"):
            omniglot.items(shared, num_classes=wrong)  # type: ignore[arg-type]


def test_digits_are_scikit_learns(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    every, truth = digits.items(split="all"), load_digits()
    assert [item.label for item in every] == [str(value) for value in truth.target]
    np.testing.assert_array_equal(
        np.stack([digits.read(value)[0] for value in every]), np.round(truth.images * (255 / 16))
    )
    assert {item.label for item in digits.items(protocol="open", split="test")} == set("6789")
    parts = [
        {item.id for item in digits.items(split=split, validation_share=0.1)}
        for split in ("train", "validation", "test")
    ]
    assert [len(part) for part in parts] == [1212, 135, 450]
    assert len(set.union(*parts)) == 1797
    with pytest.raises(ValueError, match="cannot be packed"):
        shards.write(every[:3], tmp_path)
    (tmp_path / "x.digits").write_bytes(b"1,2,3")
    with pytest.raises(BadImage, match="64 levels"):
        digits.read(Item("x", tmp_path / "x.digits"))


def test_a_bomb_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from modalities.image import packed

    monkeypatch.setattr(packed, "MAX_SPAN", 1000)
    buffer = io.BytesIO(gzip.compress(bytes(2000)))
    (tmp_path / "a.gz").write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match=r"over 1000 bytes when decompressed"):
        packed.stretch(Item("a", tmp_path / "a.gz"))
