"""Data sets of faces and how their images are read."""

import shutil
import struct
import zlib
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.io import savemat

from likeness import Item, LikenessError, Trials
from likeness.eval.protocols import lfw
from likeness.modalities.face import _pairs, align, ijb, images, validation
from likeness.toolkit.data.images import BadImage, as_channels, encode, to_pixels
from tests.modalities.data_set import DataSet
from tests.modalities.face import bin_file

TINY = encode(np.full((112, 112, 3), 7, np.uint8))


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(TINY)
    return path


def rows(trials: Trials) -> list[tuple[str, str, bool]]:
    enrol = [trials.enrol_ids[i] for i in trials.enrol]
    probe = [trials.probe_ids[i] for i in trials.probe]
    return list(zip(enrol, probe, trials.target.tolist(), strict=True))


def test_lfw_pairs_and_missing_images(shared: Path, tmp_path: Path) -> None:
    shutil.copy(shared / "data" / "protocols" / "lfw" / "pairs.txt", tmp_path)
    loaded = _pairs.read_folder(tmp_path)
    assert len(loaded) == 6000
    touch(tmp_path / loaded.enrol_ids[0])
    num_ids = len({*loaded.enrol_ids, *loaded.probe_ids})
    with pytest.raises(ValueError, match=f"{num_ids - 1} of {num_ids} images"):
        _pairs.find_images(loaded, tmp_path)


def test_images_of_a_list_are_found_with_or_without_suffix(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "1.jpg")
    touch(tmp_path / "2.png")
    first, second = _pairs.find_images(Trials(("a/1.jpg",), ("2",), [0], [0]), tmp_path)
    assert (first.id, first.path, first.label) == ("a/1.jpg", tmp_path / "a/1.jpg", "a")
    assert (second.id, second.path, second.label) == ("2", tmp_path / "2.png", None)
    outside = Trials(("../x.jpg",), (str(tmp_path / "2.png"),), [0], [0])
    with pytest.raises(ValueError, match="2 of 2 images"):
        _pairs.find_images(outside, tmp_path / "a")


def test_calfw_and_cplfw(tmp_path: Path) -> None:
    lines = [f"s{i}_{side}.jpg {1 + i // 2}\n" for i in range(20) for side in "ab"]
    lines += [f"d{i}_{side}.jpg 0\n" for i in range(10) for side in "ab"]
    (tmp_path / "pairs.txt").write_text("".join(lines))
    loaded = _pairs.read_two_lines(tmp_path / "pairs.txt")
    names = [name for i in range(10) for name in (f"s{2 * i}", f"s{2 * i + 1}", f"d{i}")]
    assert rows(loaded) == [(f"{name}_a.jpg", f"{name}_b.jpg", name[0] == "s") for name in names]
    assert loaded.target is not None
    scores = np.where(loaded.target, 0.9, 0.1)
    assert lfw.ten_fold_accuracy(scores, loaded.target, folds=10).mean == 1.0
    for text, reason in [
        ("".join(lines[:-1]), "59 lines"),
        ("a.jpg 1\nb.jpg 0\n", "1 same and 0 different"),
        ("a b c\n", "line 1 is not"),
        ("", "0 same and 0 different"),
        ("".join(lines[:-2]), "divide into 10 folds"),
    ]:
        (tmp_path / "bad.txt").write_text(text)
        with pytest.raises(ValueError, match=reason):
            _pairs.read_two_lines(tmp_path / "bad.txt")


def write_cfp(protocol: Path) -> None:
    """Two folds of two same pairs and a different one, frontal-frontal and frontal-profile."""
    protocol.mkdir(parents=True, exist_ok=True)
    for side, pose in (("F", "frontal"), ("P", "profile")):
        lines = [f"{i} ../Data/Images/00{i}/{pose}/01.jpg\n" for i in (1, 2)]
        (protocol / f"Pair_list_{side}.txt").write_text("".join(lines))
    for kind in ("FF", "FP"):
        for fold in ("01", "02"):
            split = protocol / "Split" / kind / fold
            split.mkdir(parents=True)
            (split / "same.txt").write_text("1,1\n2,2\n")
            (split / "diff.txt").write_text("1,2\n")


def test_damaged_pairs_of_cfp_are_refused(tmp_path: Path) -> None:
    write_cfp(tmp_path)
    (tmp_path / "Split" / "FP" / "02" / "diff.txt").write_text("1,3\n1;2\n")
    with pytest.raises(ValueError, match="line 1 is not"):
        _pairs.read_cfp(tmp_path)


def write_agedb(path: Path) -> None:
    """Two folds of three pairs, NUMBER_SIDE_PAIR: same, different, same."""
    splits = np.empty((2, 1), dtype=object)
    for fold in (0, 1):
        sides = np.empty((2, 3), dtype=object)
        for side, i in np.ndindex(2, 3):
            sides[side, i] = {"name": f"{fold}_{side}_{i}"}
        splits[fold, 0] = {"pairs": sides, "labels": np.array([[1, -1, 1]])}
    savemat(path, {"splits": splits})


def test_damaged_pairs_of_agedb_are_refused(tmp_path: Path) -> None:
    savemat(tmp_path / "other.mat", {"splits": np.eye(2)})
    (tmp_path / "no.mat").write_bytes(b"no mat")
    packed = zlib.compress(b"")
    head = (tmp_path / "other.mat").read_bytes()[:128] + struct.pack("<II", 15, len(packed))
    (tmp_path / "empty.mat").write_bytes(head + packed)  # scipy raises OSError
    for name in ("other.mat", "no.mat", "empty.mat"):
        with pytest.raises(LikenessError, match=name):
            _pairs.read_agedb(tmp_path / name)


def miniature(folder: Path) -> None:
    """LFW of two pairs."""
    touch(folder / "lfw" / "pairs.txt").write_text("1\nAnn 1 2\nAnn 1 Bob 3\n")
    for name in ("Ann/Ann_0001", "Ann/Ann_0002", "Bob/Bob_0003"):
        touch(folder / "lfw" / f"{name}.jpg")


LFW = partial(validation.trials, sets=("lfw",))
DATA_SETS = {"validation sets": DataSet(miniature, trials=LFW, fetch="put NAME.bin")}


def test_sets_as_they_come_are_told_apart(tmp_path: Path) -> None:
    """Each list of the field, in the folder that it comes in, is one validation set; which reader
    that takes is seen by what the pairs are.
    """
    pairs = [(kind, i) for kind in "sd" for i in range(10)]
    two_lines = [f"{k}{i}_{side}.jpg {(1 + i) * (k == 's')}\n" for k, i in pairs for side in "ab"]
    for name in ("cfp_fp", "cfp_ff"):
        write_cfp(tmp_path / name / "Protocol")
    for name in ("lfw", "calfw", "agedb_30"):
        (tmp_path / name).mkdir()
    (tmp_path / "lfw" / "pairs.txt").write_text("1\nAnn 1 2\nAnn 1 Bob 3\n")
    (tmp_path / "calfw" / "pairs_CALFW.txt").write_text("# a comment\n\n" + "".join(two_lines))
    write_agedb(tmp_path / "agedb_30" / "new_protocol_30.mat")
    images_of = "Data/Images/00{}/{}/01.jpg".format
    frontal = images_of(1, "frontal")
    expected = {
        "lfw": (2, 1, ("Ann/Ann_0001.jpg", "Bob/Bob_0003.jpg", False)),
        "calfw": (20, 10, ("d0_a.jpg", "d0_b.jpg", False)),
        "agedb_30": (6, 4, ("0_0_1.jpg", "0_1_1.jpg", False)),
        "cfp_fp": (6, 4, (frontal, images_of(2, "profile"), False)),
        "cfp_ff": (6, 4, (frontal, images_of(2, "frontal"), False)),
    }
    for name in expected:
        for row in rows(_pairs.read_folder(tmp_path / name)):
            for image in row[:2]:
                touch(tmp_path / name / image)
    for name, (number, num_same, reference) in expected.items():
        result, listed = validation.trials(tmp_path, sets=(name,))
        read = rows(listed)
        assert (len(listed), listed.target.sum()) == (number, num_same)
        assert (f"{name}/{reference[0]}", f"{name}/{reference[1]}", reference[2]) in read
        assert {item.id for item in result} == {value for row in read for value in row[:2]}
        assert all(item.path.is_file() for item in result)
    assert len(validation.trials(tmp_path, sets=tuple(expected))[1]) == 40
    packed, listed = validation.trials(tmp_path, sets=("lfw",))
    bin_file.write(packed, listed, tmp_path / "cplfw.bin")
    items, joined = validation.trials(tmp_path, sets=("cplfw", "lfw"))
    assert [images.encoded(item) for item in items] == [TINY] * (4 + len(packed))
    assert rows(joined)[:2] == [("cplfw/0", "cplfw/1", True), ("cplfw/2", "cplfw/3", False)]
    assert rows(joined)[2:] == rows(listed)
    for name in ("lfw", "calfw"):
        (tmp_path / name / "pairs_again.txt").write_text("1\n")
    # pairs.txt is the list, whatever lies beside it
    assert len(validation.trials(tmp_path, sets=("lfw",))[1]) == 2
    with pytest.raises(ValueError, match=r"lists .*pairs_CALFW.*pairs_again"):
        validation.trials(tmp_path, sets=("calfw",))
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="no list of pairs"):
        _pairs.read_folder(tmp_path / "none")


def make_pack(root: Path) -> None:
    rng = np.random.default_rng(0)
    (root / "loose_crop").mkdir(parents=True)
    (root / "meta").mkdir()
    names = ["1.jpg", "2.jpg", "3.jpg"]
    for name in names:
        pixels = rng.integers(0, 256, (150, 130, 3), dtype=np.uint8)
        (root / "loose_crop" / name).write_bytes(encode(pixels))
    points = np.array([[40, 50], [80, 52], [60, 75], [45, 95], [78, 96.5]])
    (root / "meta" / "ijbc_face_tid_mid.txt").write_text("1.jpg 5 1\n2.jpg 5 2\n3.jpg 6 1\n")
    moved = [" ".join(f"{value:.3f}" for value in (points + i).ravel()) for i in range(3)]
    lines = [f"{name} {moved[i]} 0.{9 - i}\n" for i, name in enumerate(names)]
    (root / "meta" / "ijbc_name_5pts_score.txt").write_text("".join(lines[::-1]))


def test_ijb_pack_and_its_aligned_faces(tmp_path: Path) -> None:
    make_pack(tmp_path)
    items, landmarks = ijb.pack(tmp_path)
    assert [item.id for item in items] == ["1.jpg", "2.jpg", "3.jpg"]
    where = str(landmarks)
    points = np.array([[41, 51], [81, 53], [61, 76], [46, 96], [79, 97.5]])
    expected = as_channels(align.crop(images.decode(items[1]), points))
    assert np.array_equal(ijb.read(items[1], landmarks=where), expected)
    with pytest.raises(BadImage, match="no landmarks"):
        ijb.read(items[0]._replace(id="9.jpg"), landmarks=where)
    for size in ((64, 64), (112, 111), (112, 128)):
        with pytest.raises(ValueError, match=f"{size[0]} x {size[1]}") as caught:
            ijb.read(items[1], landmarks=where, size=size)
        assert not isinstance(caught.value, BadImage)  # no image is at fault


RNG = np.random.default_rng(0)
SMOOTH = cv2.GaussianBlur(RNG.integers(0, 256, (40, 56, 3), dtype=np.uint8), (0, 0), 4)


def test_fit_resizes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encode(SMOOTH))
    item = Item("a", tmp_path / "a.png")
    resized = images.read(item, size=(20, 28), fit="resize")
    expected = cv2.resize(SMOOTH, (28, 20), interpolation=cv2.INTER_AREA)
    assert np.array_equal(to_pixels(resized), expected)
    with pytest.raises(BadImage, match="40 x 56 pixels, but 112 x 112"):
        images.read(item)
    with pytest.raises(ValueError, match="fit is 'crop'"):
        images.read(item, fit="crop")  # type: ignore[arg-type]
