"""`likeness prepare` for images and faces: the table's own entries against a server of our own,
with small archives of the published layouts.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from likeness.prepare.prepare import prepare
from likeness.prepare.sources import named
from modalities.image import cars, cifar, mnist, omniglot
from tests.likeness.prepare.serving import Server, packed, serving, zipped
from toolkit.data.source import Dataset


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as first:
        yield first


def served(name: str, server: Server, bodies: dict[str, bytes], *, sums: bool = True) -> Dataset:
    """The table's entry with its archives fetched from here, and the sums of what is served
    (sums=False: the published ones).
    """
    known = named(name)
    server.files.update(bodies)
    archives = []
    for archive in known.archives:
        (file,) = archive.names
        body = bodies[file]
        if sums:
            archive = replace(
                archive,
                sha256=hashlib.sha256(body).hexdigest() if archive.sha256 else "",
                md5=hashlib.md5(body).hexdigest() if archive.md5 else "",
            )
        archives.append(replace(archive, urls=(server.url(file),), files=(file,)))
    return replace(known, archives=tuple(archives))


def sized(dataset: Dataset, size: int) -> Dataset:
    """The same with archives of this size."""
    return replace(
        dataset, archives=tuple(replace(archive, size=size) for archive in dataset.archives)
    )


def said(dataset: Dataset, data: Path) -> tuple[list[str], str]:
    """What it says, and the sentence that it ends with ("" if all is there)."""
    lines: list[str] = []
    try:
        prepare(dataset, data, say=lines.append, wait_seconds=0.01)
    except ValueError as error:
        return lines, str(error)
    return lines, ""


def idx(*sizes: int) -> bytes:
    head = (0x800 + len(sizes)).to_bytes(4, "big") + b"".join(
        size.to_bytes(4, "big") for size in sizes
    )
    return gzip.compress(head + bytes(int(np.prod(sizes))))


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_four_files_are_fetched_to_where_they_are_read(
    name: str, server: Server, tmp_path: Path
) -> None:
    bodies = {"train-images-idx3-ubyte.gz": idx(5, 28, 28), "train-labels-idx1-ubyte.gz": idx(5)}
    bodies |= {"t10k-images-idx3-ubyte.gz": idx(3, 28, 28), "t10k-labels-idx1-ubyte.gz": idx(3)}
    lines, error = said(served(name, server, bodies), tmp_path)
    assert f"DIFFERS  {name}: training images: 5 of 60,000" in lines
    assert f"DIFFERS  {name}: testing images: 3 of 10,000" in lines
    assert sum("MD5 is right" in line for line in lines) == 4
    assert error.startswith(f"{name}: 2 of 2 counts are not what they should be")
    assert len(mnist.items(tmp_path, name=name)) == 5  # type: ignore[arg-type]
    assert len(server.requests) == 4
    said(served(name, server, bodies), tmp_path)
    assert len(server.requests) == 4


def test_mnist_of_the_right_size_and_other_pixels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for part, number in (("train", 60_000), ("t10k", 10_000)):
        (tmp_path / "mnist" / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(number, 28, 28))
        (tmp_path / "mnist" / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(number))
    _, error = said(named("mnist"), tmp_path)
    assert (
        f"mnist: {tmp_path / 'mnist'}: 4 of 4 files have a wrong MD5 sum "
        "('train-images-idx3-ubyte.gz has " in error
    )
    assert error.endswith(f"from {tmp_path} and run the command again")


@pytest.mark.parametrize("end", [".gz", ""])
def test_mnist_is_summed_by_what_its_files_hold(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another compression of the same bytes, or none, is right; one pixel more is wrong."""
    contents = {
        f"{part}-{kind}-ubyte": gzip.decompress(idx(*sizes))
        for part in ("train", "t10k")
        for kind, sizes in (("images-idx3", (4, 2, 3)), ("labels-idx1", (4,)))
    }
    monkeypatch.setattr(mnist, "_COUNTS", (("train", 4), ("test", 4)))
    monkeypatch.setattr(
        mnist,
        "MD5",
        {f"{name}.gz": hashlib.md5(body).hexdigest() for name, body in contents.items()},
    )
    for name, body in contents.items():
        (tmp_path / f"{name}{end}").write_bytes(
            gzip.compress(body, compresslevel=1, mtime=7) if end else body
        )
    assert [entry.found for entry in mnist.check(tmp_path)] == [4, 4]
    name = "t10k-images-idx3-ubyte"
    changed = contents[name][:-1] + b"\1"
    (tmp_path / f"{name}{end}").write_bytes(gzip.compress(changed) if end else changed)
    with pytest.raises(
        ValueError,
        match=rf"1 of 4 files have a wrong MD5 sum \('{name}{end} has "
        rf"{hashlib.md5(changed).hexdigest()} instead of",
    ):
        mnist.check(tmp_path)


def test_fashion_mnist_is_summed_as_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {
        f"{part}-{kind}-ubyte.gz": idx(*sizes)
        for part in ("train", "t10k")
        for kind, sizes in (("images-idx3", (4, 2, 3)), ("labels-idx1", (4,)))
    }
    monkeypatch.setattr(mnist, "_COUNTS", (("train", 4), ("test", 4)))
    for name, body in contents.items():
        (tmp_path / name).write_bytes(body)
    with pytest.raises(ValueError, match="4 of 4 files have a wrong MD5 sum"):
        mnist.check_fashion(tmp_path)
    monkeypatch.setattr(
        mnist,
        "FASHION_MD5",
        {name: hashlib.md5(body).hexdigest() for name, body in contents.items()},
    )
    assert [entry.found for entry in mnist.check_fashion(tmp_path)] == [4, 4]


def test_a_published_sum_refuses_what_is_served_instead(server: Server, tmp_path: Path) -> None:
    body = packed({"CUB_200_2011/images.txt": b"1 001.a/b.jpg\n"})
    _, error = said(served("cub200", server, {"CUB_200_2011.tgz": body}, sums=False), tmp_path)
    assert error.startswith(
        f"CUB_200_2011.tgz: its md5 is {hashlib.md5(body).hexdigest()}, but "
        "97eceeb196236b17998738112f37df78 is expected; it was removed"
    )
    assert not (tmp_path / "CUB_200_2011").exists()
    assert not list((tmp_path / "downloads").glob("*.tgz"))


@pytest.mark.parametrize("cut", [0.3, 0.97])
def test_an_archive_cut_short_leaves_nothing_under_its_name(
    cut: float, server: Server, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    tar = packed(
        {f"cifar-100-binary/{name}.bin": rng.bytes(5_000) for name in ("train", "test", "more")}
    )
    _, error = said(
        served("cifar100", server, {"cifar-100-binary.tar.gz": tar[: int(cut * len(tar))]}),
        tmp_path,
    )
    assert "cifar-100-binary.tar.gz: damaged or cut short" in error
    contents = zipped({"Stanford_Online_Products/Ebay_train.txt": rng.bytes(5_000)})
    _, error = said(
        served(
            "sop", server, {"Stanford_Online_Products.zip": contents[: int(cut * len(contents))]}
        ),
        tmp_path,
    )
    assert "Stanford_Online_Products.zip: damaged or cut short" in error
    assert not (tmp_path / "cifar-100-binary").exists()
    assert not (tmp_path / "Stanford_Online_Products").exists()


def test_missing_split_files_and_images_are_named_with_what_to_do(
    server: Server, tmp_path: Path
) -> None:
    listed = b"image_id class_id super_class_id path\n1 1 1 bicycle_final/a.JPG\n"
    sop = zipped({"Stanford_Online_Products/Ebay_train.txt": listed})
    lines, error = said(served("sop", server, {"Stanford_Online_Products.zip": sop}), tmp_path)
    assert "Stanford_Online_Products is ready" in lines
    assert "Ebay_test.txt" in error
    assert error.endswith(
        f"to have it all anew, remove 'Stanford_Online_Products' from {tmp_path} and run the "
        "command again"
    )
    cub = packed(
        {
            "CUB_200_2011/images.txt": b"1 001.a/b.jpg\n",
            "CUB_200_2011/images/001.a/b.jpg": b"",
            "attributes.txt": b"",
        }
    )
    _, error = said(served("cub200", server, {"CUB_200_2011.tgz": cub}), tmp_path)
    assert "1 images are listed, the data set has 11788" in error
    assert not (tmp_path / "attributes.txt").exists()


def test_cifar_is_counted_by_its_reader(server: Server, tmp_path: Path) -> None:
    batch = b"".join(bytes([label]) + bytes(3072) for label in range(3))
    members = {
        f"cifar-10-batches-bin/{name}.bin": batch
        for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    }
    members["cifar-10-batches-bin/batches.meta.txt"] = "\n".join(
        f"class_{i}" for i in range(10)
    ).encode()
    _, error = said(
        served("cifar10", server, {"cifar-10-binary.tar.gz": packed(members)}), tmp_path
    )
    assert "data_batch_1.bin: 3 images with labels" in error
    assert "10000 with 0 to 9" in error
    assert "remove 'cifar-10-batches-bin' from" in error
    assert len(cifar.items(tmp_path, whole=False)) == 15


def test_omniglot_has_two_parts(server: Server, tmp_path: Path) -> None:
    parts = {
        f"{part}.zip": zipped({f"{part}/{alphabet}/character01/0001_0{i}.png": b"" for i in (1, 2)})
        for part, alphabet in (("images_background", "Greek"), ("images_evaluation", "Tengwar"))
    }
    lines, _ = said(served("omniglot", server, parts), tmp_path)
    assert "DIFFERS  Omniglot: train images: 2 of 19,280" in lines
    assert "DIFFERS  Omniglot: test images: 2 of 13,180" in lines
    assert [item.id for item in omniglot.items(tmp_path, protocol="official", split="test")] == [
        "Tengwar/character01/0001_01",
        "Tengwar/character01/0001_02",
    ]


def test_cars_put_there_by_hand_are_verified_and_unpacked(tmp_path: Path) -> None:
    lines, error = said(named("cars196"), tmp_path)
    assert (
        "fetch car_ims.tgz and cars_annos.mat from a mirror into " + str(tmp_path / "downloads")
        in error
    )
    (tmp_path / "downloads" / "car_ims.tgz").write_bytes(packed({"car_ims/000001.jpg": b"x"}))
    lines, error = said(named("cars196"), tmp_path)
    assert "but d5c8f0aa497503f355e17dc7886c3f14 is expected; remove it" in error
    known = named("cars196")
    here = replace(known, archives=tuple(replace(archive, md5="") for archive in known.archives))
    (tmp_path / "downloads" / "cars_annos.mat").write_bytes(b"no matrix")
    lines, error = said(here, tmp_path)
    assert (tmp_path / "car_ims" / "000001.jpg").is_file()
    assert "cars_annos.mat: no annotations with the fields" in error
    assert (tmp_path / "downloads" / "car_ims.tgz").is_file()  # the user's stay
    assert "MD5" not in " ".join(lines)
    assert (
        cars.FETCH.partition(";")[0].partition(" (")[0]
        in known.by_hand.partition(" from")[0].partition(": ")[2]
    )


def test_faces(server: Server, tmp_path: Path) -> None:
    bodies = {
        "lfw.tgz": packed({"lfw/A_B/A_B_0001.jpg": b"x", "lfw/A_B/A_B_0002.jpg": b"y"}),
        "pairs.txt": b"10\t300\n",
    }
    lines, error = said(served("lfw", server, bodies), tmp_path)
    assert "DIFFERS  files in lfw-original/images: 2 of 13,233" in lines
    assert "ok       files in lfw-original: 1 of 1" in lines
    assert "SHA-256 is right" in " ".join(lines)
    assert error.startswith("lfw: 1 of 2 counts")
    body = b"a detector"
    file = "face_detection_yunet_2023mar.onnx"
    lines, error = said(sized(served("yunet", server, {file: body}), len(body)), tmp_path)
    assert lines[-1] == "ok       files in yunet: 1 of 1"
    assert (tmp_path / "yunet" / file).read_bytes() == body
    assert "SHA-256 is right" in " ".join(lines)
    assert "MIT" in lines[0]
    assert not error
    # Another file of the same size is not taken, by the published sum.
    served_as_it_is = sized(served("yunet", server, {file: body}, sums=False), len(body))
    _, error = said(served_as_it_is, tmp_path / "again")
    assert "8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4" in error
    assert not (tmp_path / "again" / "yunet").exists()
    for folder, top in (("flat", ""), ("nested", "att_faces/")):  # copies of both kinds go round
        body = zipped(
            {f"{top}s{i}/{j}.pgm": b"P5" for i in range(1, 41) for j in range(1, 11)}
            | {f"{top}README": b""}
        )
        lines, error = said(served("orl", server, {"att_faces.zip": body}), tmp_path / folder)
        assert lines[-1] == "ok       files in orl: 400 of 400"
        assert error == ""
        assert (tmp_path / folder / "orl" / "s40" / "10.pgm").is_file()
    assert any("UNVERIFIED, no checksum of it is known" in line for line in lines)


def test_a_server_that_does_not_answer_is_reported_with_a_remedy(
    server: Server, tmp_path: Path
) -> None:
    gone = replace(
        named("orl"),
        archives=tuple(
            replace(archive, urls=(server.url("absent.zip"),)) for archive in named("orl").archives
        ),
    )
    lines, error = said(gone, tmp_path)
    assert any(text.startswith("not fetched: ") and "404" in text for text in lines)
    assert "fetch att_faces.zip from elsewhere" in error
