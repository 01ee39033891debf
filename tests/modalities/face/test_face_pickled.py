""".bin verification sets: round trips, InsightFace's own way of loading, Python 2's pickles,
arrays; nothing in a file is ever executed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.types import Trials
from modalities.face import images, pickled
from toolkit.data.items import Item

BLOBS = [b"\xff\xd8" + bytes([i]) * (5 + 60 * i) for i in range(8)]
SAME = [True, False, True, False]


def contents(path: Path) -> tuple[list[bytes], list[bool]]:
    items, trials = pickled.items(path)
    assert trials.target is not None
    assert trials.enrol.tolist() == list(range(0, len(items), 2))
    assert (trials.probe - trials.enrol == 1).all()
    return [images.encoded(item) for item in items], trials.target.tolist()


def python2(blobs: list[bytes], same: list[bool]) -> bytes:
    """pickle.dump((bins, issame_list), f, protocol=2) of Python 2: str are BINSTRING and
    SHORT_BINSTRING.
    """
    payload = b"\x80\x02]q\x00("
    for number, blob in enumerate(blobs):
        payload += (
            (
                b"U" + bytes([len(blob)])
                if len(blob) < 256
                else b"T" + len(blob).to_bytes(4, "little")
            )
            + blob
            + b"q"
            + bytes([number + 1])
        )
    return (
        payload
        + b"e]q\xf0("
        + b"".join(b"\x88" if value else b"\x89" for value in same)
        + b"e\x86q\xf1."
    )


def test_round_trip_and_insightface_loading(tmp_path: Path) -> None:
    items = []
    for number, blob in enumerate(BLOBS):
        (tmp_path / f"{number}.jpg").write_bytes(blob)
        items.append(Item(str(number), tmp_path / f"{number}.jpg"))
    ids = tuple(item.id for item in items)
    order = np.array([3, 0, 3, 5], dtype=np.int32)  # an image may occur in several pairs
    trials = Trials(ids, ids, order, np.array([1, 2, 4, 5], dtype=np.int32), np.array(SAME))
    path = tmp_path / "own.bin"
    pickled.write(items, trials, path)
    expected = [BLOBS[i] for i in (3, 1, 0, 2, 3, 4, 5, 5)]
    assert contents(path) == (expected, SAME)
    # load_bin of insightface/recognition/arcface_torch/eval/verification.py
    with path.open("rb") as file:
        bins, issame = pickle.load(file, encoding="bytes")
    assert (bins, issame) == (expected, SAME)
    assert pickled.items(path)[0][0].id == "own/0"
    with pytest.raises(ValueError, match="2 ids"):
        pickled.write(
            items[:6], Trials(("0", "7"), ("1", "6"), [0, 1], [0, 1], [True, False]), path
        )  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("kind", ["bytes", "array", "array of labels", "numpy labels"])
def test_kinds_of_python_3(tmp_path: Path, protocol: int, kind: str) -> None:
    blobs: list[Any] = (
        [np.frombuffer(blob, np.uint8).copy() for blob in BLOBS] if kind == "array" else BLOBS
    )
    same: Any = (
        np.array(SAME)
        if kind == "array of labels"
        else list(np.array(SAME))
        if kind == "numpy labels"
        else SAME
    )
    (tmp_path / "x.bin").write_bytes(pickle.dumps((blobs, same), protocol))
    assert contents(tmp_path / "x.bin") == (BLOBS, SAME)


def test_python_2_and_old_encodings(tmp_path: Path) -> None:
    stored = python2(BLOBS, SAME)
    assert pickle.loads(stored, encoding="bytes") == (BLOBS, SAME)
    (tmp_path / "x.bin").write_bytes(stored)
    assert contents(tmp_path / "x.bin") == (BLOBS, SAME)
    # Python 3 writes bytes as text here, in UTF-8 (2) or with escapes, of which the first has some
    # (0)
    for protocol in (0, 2):
        blobs = [b"\xff\xd8\x80" + blob for blob in BLOBS]
        (tmp_path / "old.bin").write_bytes(pickle.dumps((blobs, SAME), protocol))
        with pytest.raises(
            ValueError,
            match=rf"{1 if protocol == 0 else 8} of 8 images",
        ):
            pickled.items(tmp_path / "old.bin")
        pickled.rewrite(tmp_path / "old.bin", tmp_path / "new.bin")
        assert contents(tmp_path / "new.bin") == (blobs, SAME)


class Bomb:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_code_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    for bomb in (
        Bomb(os.mkdir, str(mark)),
        Bomb(eval, f"__import__('os').mkdir({str(mark)!r})"),
        Bomb(getattr, b"", "join"),
    ):
        (tmp_path / "x.bin").write_bytes(pickle.dumps(([bomb, *BLOBS[1:]], SAME), protocol))
        with pytest.raises(ValueError, match=r"refused.* asks for .* not run"):
            pickled.items(tmp_path / "x.bin")
    assert not mark.exists()


def test_other_ways_to_run_code_are_refused(tmp_path: Path) -> None:
    ways = [
        b"\x80\x02cnumpy\nndarray\n)\x81.",  # NEWOBJ
        b"(inumpy\nndarray\n.",  # INST
        b"(cnumpy\nndarray\no.",  # OBJ
        b"Pid\n.",  # PERSID
        b"\x80\x02\x82\x01.",  # EXT1
        b"}.",  # a dictionary
        b"\x80\x02cnumpy\nndarray\nK\x01b.",  # the state of a class
        b"\x80\x02K\x01K\x02R.",  # a number is called
        b"\x80\x02cnumpy\nndarray\nK\x01a.",  # append to a class
        b"\x80\x02c_codecs\nencode\nX\x03\x00\x00\x00\x61\x62\x63X\x03\x00\x00\x00rot\x86R.",
    ]
    for way in ways:
        (tmp_path / "x.bin").write_bytes(way)
        with pytest.raises(ValueError, match="refused"):
            pickled.items(tmp_path / "x.bin")


def test_only_text_names_something(tmp_path: Path) -> None:
    """The text of nested tuples doubles with every two bytes of a file."""
    nested = b")" + b"2\x86" * 12
    for value in (
        b"\x80\x02cnumpy\ndtype\n" + nested + b"\x85R.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00a" + nested + b"\x86R.",
    ):
        (tmp_path / "x.bin").write_bytes(value)
        with pytest.raises(ValueError, match=r"refused.* no text"):
            pickled.items(tmp_path / "x.bin")


def test_images_of_an_old_encoding_are_not_all_looked_for(tmp_path: Path) -> None:
    """Each of them is looked for through the whole file."""
    for number, message in ((21, "at least 20 of 42"), (10, " 20 of 20")):
        blobs = [b"\xff\xd8\x80" + bytes([i]) for i in range(2 * number)]
        (tmp_path / "old.bin").write_bytes(pickle.dumps((blobs, [True] * number), 2))
        with pytest.raises(ValueError, match=f"{message} images"):
            pickled.items(tmp_path / "old.bin")


def test_what_is_announced_is_not_allocated(tmp_path: Path) -> None:
    for value in (
        b"\x80\x04\x8e" + (2**40).to_bytes(8, "little"),
        b"\x80\x05\x96" + (2**40).to_bytes(8, "little"),
        b"\x80\x02]r\xff\xff\xff\x7f.",
    ):
        (tmp_path / "x.bin").write_bytes(value)
        with pytest.raises(ValueError, match=r"fetch it again|verification set"):
            pickled.items(tmp_path / "x.bin")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ((BLOBS[:7], SAME), "7 images and 4 labels"),
        (([], []), "0 images"),
        (([*BLOBS[:7], b""], SAME), "1 of 8 images are empty"),
        (([*BLOBS[:6], "text", 3], SAME), "2 of 8 images"),
        ((BLOBS, [1, 0, 2, None]), "2 of 4 labels"),
        (BLOBS, "no pair"),
        ((3, 4), "two lists"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: object, reason: str) -> None:
    (tmp_path / "x.bin").write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=reason):
        pickled.items(tmp_path / "x.bin")


@settings(max_examples=200)
@given(st.data())
def test_damaged_files_raise_only_value_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    protocol = data.draw(st.integers(0, 5))
    arrays = [np.frombuffer(blob, np.uint8) for blob in BLOBS[:4]]
    stored = bytearray(
        pickletools.optimize(
            pickle.dumps((arrays if data.draw(st.booleans()) else BLOBS[:4], SAME[:2]), protocol)
        )
    )
    for place in data.draw(st.lists(st.integers(0, len(stored) - 1), max_size=4)):
        stored[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "x.bin"
    path.write_bytes(stored[: data.draw(st.integers(0, len(stored)) | st.just(len(stored)))])
    with contextlib.suppress(ValueError):
        pickled.items(path)
