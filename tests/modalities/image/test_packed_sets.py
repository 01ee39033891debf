"""MNIST, CIFAR, Omniglot, digits: real data beside the checkout, files written by other code;
damage and code in pickles are refused.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import struct
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalities.image import cifar, digits, images, mnist, omniglot, pickled
from toolkit.data import shards
from toolkit.data.batch import Item
from toolkit.data.images import BadImage

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write_idx(
    folder: Path, part: str, pixels: np.ndarray, labels: np.ndarray, *, compressed: bool
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, held in (
        ("images-idx3", struct.pack(">4I", 0x803, *pixels.shape) + pixels.tobytes()),
        ("labels-idx1", struct.pack(">2I", 0x801, len(labels)) + labels.tobytes()),
    ):
        (folder / f"{part}-{kind}-ubyte{'.gz' if compressed else ''}").write_bytes(
            gzip.compress(held) if compressed else held
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
    np.testing.assert_array_equal([images.read(one)[0] for one in every], pixels)
    assert [one.label for one in every] == [str(one) for one in labels]
    parts = [
        {one.id for one in mnist.items(tmp_path, split=split, validation_share=0.3)}
        for split in ("train", "validation")
    ]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == {one.id for one in every}
    assert {one.id.split("/")[0] for one in mnist.items(tmp_path, split="test")} == {"test"}
    with pytest.raises(ValueError, match="validation_share 0"):
        mnist.items(tmp_path, split="validation")
    with pytest.raises(FileNotFoundError, match="fetch"):
        mnist.items(tmp_path / "absent", name="fashion_mnist")
    if compressed:
        with pytest.raises(
            ValueError, match="cannot be packed"
        ):  # a span of the compressed bytes would be something else
            shards.write(every, tmp_path / "shards")
    else:
        shards.write(every, tmp_path / "shards")
        read = {one.id: images.read(one)[0] for one in shards.items(tmp_path / "shards")}
        np.testing.assert_array_equal([read[one.id] for one in every], pixels)


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
        found = mnist.items(tmp_path, split=split, validation_share=0.15, name=name)  # type: ignore[arg-type]
        assert [int(one.id.removeprefix("train/")) for one in found] == sorted(places.tolist())
        assert [one.label for one in found] == [
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
    with pytest.raises(
        ValueError, match=r"2 of 4 files are missing \('t10k-images-idx3-ubyte.gz', 't10k-labels"
    ):
        mnist.verify(tmp_path)
    with pytest.raises(
        FileNotFoundError,
        match=r"neither t10k-images-idx3-ubyte.gz nor t10k-images-idx3-ubyte is there; fetch the "
        r"four files of MNIST",
    ):
        mnist.items(tmp_path, split="test")


def test_real_mnist(shared: Path) -> None:
    shared = shared / "data"
    mnist.verify(shared)
    items = mnist.items(shared)
    assert (len(items), len(mnist.items(shared, split="test"))) == (60_000, 10_000)
    counts = np.unique(
        [one.label for one in mnist.items(shared, split="validation", validation_share=0.15)],
        return_counts=True,
    )[1]
    np.testing.assert_allclose(
        counts, 0.15 * np.unique([one.label for one in items], return_counts=True)[1], atol=1
    )
    assert (
        images.read(items[0]).sum() == 27525
    )  # the first training digit, a 5: its known sum of levels


def py2_pickle(pixels: np.ndarray, labels: list[int], *, by_columns: bool = False) -> bytes:
    """As Python 2's cPickle wrote the distribution: byte strings, numpy.core.multiarray."""
    held = (pixels.T if by_columns else pixels).tobytes()
    shape = b"".join(b"J" + struct.pack("<i", one) for one in pixels.shape) + b"\x86"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
        b"K\x00\x85U\x01b\x87Rq\x05(K\x01" + shape
    )
    array += (
        b"cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array += (
        (b"\x88" if by_columns else b"\x89") + b"T" + struct.pack("<i", len(held)) + held + b"tb"
    )
    return (
        b"\x80\x02}q\x01(U\x04dataq\x02"
        + array
        + b"U\x06labelsq\x08]q\x09("
        + b"".join(b"K" + bytes([one]) for one in labels)
        + b"eu."
    )


@pytest.mark.parametrize("by_columns", [False, True])
def test_pickles_give_what_unpickling_gives(by_columns: bool) -> None:
    pixels, labels = (
        np.random.default_rng(0).integers(0, 256, (7, 12), dtype=np.uint8),
        list(range(7)),
    )
    sources = [py2_pickle(pixels, labels, by_columns=by_columns)]
    sources += [
        pickle.dumps(
            {"data": np.asfortranarray(pixels) if by_columns else pixels, "labels": labels},
            protocol=one,
        )
        for one in (3, 4)
    ]
    for source in sources:
        np.testing.assert_array_equal(pickle.loads(source, encoding="latin1")["data"], pixels)
        held = pickled.load(source, "batch")
        place = held["data"]
        assert (place.rows, place.columns, place.by_columns, held["labels"]) == (
            7,
            12,
            by_columns,
            labels,
        )
        stored = np.frombuffer(source, dtype=np.uint8, count=84, offset=place.start)
        np.testing.assert_array_equal(
            stored.reshape(12, 7).T if by_columns else stored.reshape(7, 12), pixels
        )


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_pickles_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"not run|nothing was run"):
        pickled.load(pickle.dumps({"data": Evil()}, protocol=protocol), "batch")
    assert not (tmp_path / "executed").exists()


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_pickles_give_value_errors_only(data: st.DataObject) -> None:
    source = bytearray(py2_pickle(np.zeros((3, 4), dtype=np.uint8), [1, 2, 3]))
    for _ in range(data.draw(st.integers(1, 4))):
        source[data.draw(st.integers(0, len(source) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(source)))
    with contextlib.suppress(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in text instructions
        assert isinstance(pickled.load(bytes(source[:cut]), "batch"), dict)


def test_cifar_distributions_agree(tmp_path: Path) -> None:
    """The test part of CIFAR-10 written three ways; 10,000 images are demanded, most are black."""
    pixels, labels = np.zeros((10_000, 3072), dtype=np.uint8), [i % 10 for i in range(10_000)]
    pixels[[0, 77, 9_999]] = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    py, binary, packed = (tmp_path / one for one in ("py", "binary", "packed"))
    (py / "cifar-10-batches-py").mkdir(parents=True)
    (py / "cifar-10-batches-py" / "test_batch").write_bytes(py2_pickle(pixels, labels))
    (py / "cifar-10-batches-py" / "batches.meta").write_bytes(
        pickle.dumps({"label_names": NAMES, "num_vis": 3072}, protocol=2)
    )
    folder = binary / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (folder / "test_batch.bin").write_bytes(
        np.column_stack((np.array(labels, dtype=np.uint8), pixels)).tobytes()
    )
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n")
    packed.mkdir()
    with tarfile.open(packed / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as tar:
        tar.add(folder, "cifar-10-batches-bin")
    for data in (py, binary, packed):
        items = cifar.items(data, split="test")
        assert [one.label for one in items[:11]] == [*NAMES, "airplane"]
        for i in (0, 1, 77, 9_999):
            np.testing.assert_array_equal(images.read(items[i]).reshape(-1), pixels[i])
    with pytest.raises(ValueError, match=r"data_batch_1.bin is missing"):
        cifar.items(binary)
    with pytest.raises(ValueError, match="wrong MD5 sum"):
        cifar.verify(packed)
    (folder / "test_batch.bin").write_bytes((folder / "test_batch.bin").read_bytes()[:-3073])
    with pytest.raises(ValueError, match=r"9999 images.*10000 with 0 to 9"):
        cifar.items(binary, split="test")
    archive = packed / "cifar-10-binary.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged or cut short"):
        cifar.items(packed, split="test")
    with pytest.raises(FileNotFoundError, match=r"cifar-100-python.tar.gz"):
        cifar.items(binary, num_classes=100)
    batch = py / "cifar-10-batches-py" / "test_batch"
    batch.write_bytes(batch.read_bytes()[: 10_000 * 3072 // 2])
    with pytest.raises(ValueError, match=r"test_batch.*damaged or cut short.*; fetch it again$"):
        cifar.items(py, split="test")


def test_real_omniglot(shared: Path) -> None:
    shared = shared / "data"
    parts = {
        split: omniglot.items(shared, split=split, validation_alphabets=4)
        for split in ("train", "validation", "test")
    }
    alphabets = {split: {one.id.split("/")[0] for one in part} for split, part in parts.items()}
    assert {split: len(one) for split, one in alphabets.items()} == {
        "train": 16,
        "validation": 4,
        "test": 10,
    }
    assert sum(len(one) for one in parts.values()) == 19_280
    assert len(set.union(*alphabets.values())) == 30
    with np.load(shared / "omniglot" / "images_background.npz") as held:
        ink = np.unpackbits(held["ink_packed"][:40], axis=1)[:, :11025].reshape(-1, 105, 105)
        first = f"{held['class_name'][held['label'][0]]}/{held['name'][0]}"
    item = next(one for one in parts["train"] if one.id == first)
    np.testing.assert_array_equal(omniglot.read(item)[0], 255 * ink[0])
    turned = omniglot.turned([item], turns=(90,))[1]
    np.testing.assert_array_equal(omniglot.read(turned)[0], 255 * np.rot90(ink[0]))
    assert omniglot.read(item, edge=28).shape == (1, 28, 28)
    with pytest.raises(BadImage, match="the turn '45'"):
        omniglot.read(item._replace(id=f"{item.id}#turn=45"))


def test_digits_are_scikit_learns(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    every, truth = digits.items(split="all"), load_digits()
    assert [one.label for one in every] == [str(one) for one in truth.target]
    np.testing.assert_array_equal(
        np.stack([digits.read(one)[0] for one in every]), np.round(truth.images * (255 / 16))
    )
    assert {one.label for one in digits.items(protocol="open", split="test")} == set("6789")
    parts = [
        {one.id for one in digits.items(split=split, validation_share=0.1)}
        for split in ("train", "validation", "test")
    ]
    assert [len(one) for one in parts] == [1212, 135, 450]
    assert len(set.union(*parts)) == 1797
    with pytest.raises(ValueError, match="cannot be packed"):
        shards.write(every[:3], tmp_path)
    (tmp_path / "x.digits").write_bytes(b"1,2,3")
    with pytest.raises(BadImage, match="64 levels"):
        digits.read(Item("x", tmp_path / "x.digits"))


def test_a_bomb_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from modalities.image import packed

    monkeypatch.setattr(packed, "MAX_SPAN", 1000)
    held = io.BytesIO(gzip.compress(bytes(2000)))
    (tmp_path / "a.gz").write_bytes(held.getvalue())
    with pytest.raises(ValueError, match=r"over 1000 bytes when decompressed"):
        packed.stretch(Item("a", tmp_path / "a.gz"))
