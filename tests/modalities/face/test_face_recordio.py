"""RecordIO: layout byte by byte, round trips, parts, large keys, damage; the reference reader here
is a plain loop after dmlc's description.
"""

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.eval.items.items import Item
from likeness.modalities.face import images, recordio
from tests.scripts import loaded

MAGIC = struct.pack("<I", 0xCED7230A)
recordio_writer = loaded(Path(__file__).parents[2] / "recordio_writer.py")


def loop(rec: bytes) -> list[tuple[int, bytes]]:
    """(offset, payload) of each record."""
    records, place = [], 0
    while place < len(rec):
        begin, payload = place, b""
        while True:
            assert rec[place : place + 4] == MAGIC
            (word,) = struct.unpack_from("<I", rec, place + 4)
            kind, length = word >> 29, word & (2**29 - 1)
            payload += rec[place + 8 : place + 8 + length]
            place += 8 + (length + 3) // 4 * 4
            if kind in (0, 3):
                break
            payload += MAGIC
        records.append((begin, payload))
    return records


def write_items(folder: Path, contents: dict[str, list[bytes]]) -> list[Item]:
    folder.mkdir(exist_ok=True)
    made = []
    for label, payload in contents.items():
        for number, value in enumerate(payload):
            path = folder / f"{label}{number}.jpg"
            path.write_bytes(value)
            made.append(Item(path.name, path, label))
    return made


def record(payload: bytes, kind: int = 0) -> bytes:
    head = MAGIC + struct.pack("<I", kind << 29 | len(payload))
    return head + payload + b"\0" * (-len(payload) % 4)


def image_record(label: float, image: bytes = b"\xff\xd8image", key: int = 1) -> bytes:
    return record(struct.pack("<IfQQ", 0, label, key, 0) + image)


def write_records(rec: Path, records: dict[int, bytes]) -> Path:
    """Write records with their keys in an index."""
    places = np.cumsum([0, *map(len, records.values())]).tolist()
    rec.write_bytes(b"".join(records.values()))
    lines = [f"{key}\t{place}\n" for key, place in zip(records, places, strict=False)]
    rec.with_suffix(".idx").write_text("".join(lines))
    return rec


def test_round_trip_and_layout(tmp_path: Path) -> None:
    contents = {"b": [b"\xff\xd8one", b"\x89Ptwo+"], "a": [b"\xff\xd8" + bytes(range(50))]}
    items = write_items(tmp_path / "in", contents)
    rec = recordio_writer.write(items, tmp_path / "out")
    listed_items = recordio.items(rec)
    found = [(item.id, item.label, item.suffix) for item in listed_items]
    assert found == [("1", "0", ".jpg"), ("2", "1", ".jpg"), ("3", "1", ".png")]
    assert [images.encoded(value) for value in listed_items] == [*contents["a"], *contents["b"]]
    assert (tmp_path / "out" / "property").read_text() == "2,112,112\n"

    records = loop(rec.read_bytes())
    lines = (tmp_path / "out" / "train.idx").read_text().splitlines()
    index = [tuple(map(int, line.split("\t"))) for line in lines]
    assert [key for key, _ in index] == [1, 2, 3, 4, 5, 0]  # record 0 is written last
    assert [offset for _, offset in index] == [offset for offset, _ in records]
    assert struct.unpack("<IfQQff", records[-1][1]) == (2, 0.0, 0, 1, 4.0, 6.0)
    assert struct.unpack("<IfQQff", records[4][1]) == (2, 0.0, 5, 0, 2.0, 4.0)
    assert records[1][1][:24] == struct.pack("<IfQQ", 0, 1.0, 2, 0)


PARTS = st.sampled_from([MAGIC, b"\xff\xd8", b"a", b"bcd", bytes(4)])


@settings(max_examples=30)
@given(st.lists(st.lists(PARTS, min_size=1, max_size=8).map(b"".join), min_size=1, max_size=6))
def test_images_that_hold_the_magic_number(tmp_path_factory, contents: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("rec")
    rec = recordio_writer.write(write_items(folder / "in", {"a": contents}), folder / "out")
    assert [payload[24:] for _, payload in loop(rec.read_bytes())][: len(contents)] == contents
    assert [images.encoded(item) for item in recordio.items(rec)] == contents


def test_order_of_the_index_and_several_labels(tmp_path: Path) -> None:
    labels = struct.pack("<IfQQfff", 3, 0.0, 2, 0, 9.0, 1.5, 2.5)
    first, second = image_record(7.0), record(labels + b"\xff\xd8second")
    (tmp_path / "x.rec").write_bytes(first + second)
    # out of order, no newline at the end
    (tmp_path / "x.idx").write_text(f"12\t{len(first)}\n3\t0")
    items = recordio.items(tmp_path / "x.rec")
    found = [(item.id, item.label, images.encoded(item)) for item in items]
    assert found == [("3", "7", b"\xff\xd8image"), ("12", "9", b"\xff\xd8second")]


def test_images_are_told_from_identities_by_what_they_hold(tmp_path: Path) -> None:
    # 16,777,217 is no float32: beyond 2^24 record 0 is rounded, and only the records themselves say
    # which are images.
    for announced, fits in ((3.0, True), (4.0, False), (float(2**24), False)):
        zero = record(struct.pack("<IfQQff", 2, 0.0, 0, 1, announced, announced + 1))
        identity = record(struct.pack("<IfQQff", 2, 0.0, 3, 0, 1.0, 3.0))
        # an identity between the images
        records = {0: zero, 1: image_record(0), 2: identity, 3: image_record(0)}
        rec = write_records(tmp_path / "x.rec", records)
        if fits:
            assert [item.id for item in recordio.items(rec)] == ["1", "3"]
        else:
            with pytest.raises(ValueError, match=rf"2 images .*announces {announced - 1:.0f}"):
                recordio.items(rec)


@pytest.mark.parametrize("label", [float(2**24), -1.0, 0.5, float("nan"), float("inf")])
def test_labels_that_float32_cannot_tell_apart_are_refused(tmp_path: Path, label: float) -> None:
    rec = write_records(tmp_path / "x.rec", {1: image_record(3), 2: image_record(label)})
    with pytest.raises(ValueError, match=r"1 records have a label .*16777215"):
        recordio.items(rec)


def test_damage_is_counted_and_named(tmp_path: Path) -> None:
    contents = {"a": [b"\xff\xd8" + bytes(100)] * 2, "b": [b"\xff\xd8"] * 2}
    rec = recordio_writer.write(write_items(tmp_path / "in", contents), tmp_path / "out")
    whole, index = rec.read_bytes(), rec.with_suffix(".idx")
    lines = index.read_text()
    rec.write_bytes(whole[:150])
    with pytest.raises(ValueError, match=r"records .*'3'"):
        recordio.items(rec)
    rec.write_bytes(whole)
    index.unlink()
    with pytest.raises(ValueError, match=r"train\.idx: no such file"):
        recordio.items(rec)
    for text, reason in [
        ("1\tx\n2 3\n", "its lines are not"),
        ("", "empty"),
        ("\n \n", r"train\.idx: its lines"),
        ("1\t0\n1\t4\n", "listed twice"),
        ("1\t4\n", "magic number"),
        ("1\t2\n", "magic"),
    ]:
        index.write_text(text)
        with pytest.raises(ValueError, match=reason):
            recordio.items(rec)
    index.write_text(lines.replace("2\t", "77\t"))
    assert [item.id for item in recordio.items(rec)] == ["1", "3", "4", "77"]
    index.write_text(re.sub("^2\t.*\n", "", lines, flags=re.MULTILINE))
    with pytest.raises(ValueError, match=r"3 images .*announces 4"):
        recordio.items(rec)
