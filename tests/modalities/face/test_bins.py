""".bin verification sets: round trips, InsightFace's own way of loading, Python 2's pickles,
arrays; nothing in a file is ever executed.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from likeness import Item, LikenessError, Trials
from likeness.modalities.face import _bins, images
from tests.modalities.face import bin_file

BLOBS = [b"\xff\xd8" + bytes([i]) * (5 + 60 * i) for i in range(8)]
SAME = [True, False, True, False]


def contents(path: Path) -> tuple[list[bytes], list[bool]]:
    items, trials = _bins.items(path)
    assert trials.enrol.tolist() == list(range(0, len(items), 2))
    assert (trials.probe - trials.enrol == 1).all()
    return [images.encoded(item) for item in items], trials.target.tolist()


def python2(blobs: list[bytes], same: list[bool]) -> bytes:
    """pickle.dump((bins, issame_list), f, protocol=2) of Python 2: str are BINSTRING and
    SHORT_BINSTRING.
    """
    payload = b"\x80\x02]q\x00("
    for number, blob in enumerate(blobs):
        short, long = b"U" + bytes([len(blob) % 256]), b"T" + len(blob).to_bytes(4, "little")
        payload += (short if len(blob) < 256 else long) + blob + b"q" + bytes([number + 1])
    labels = b"".join(b"\x88" if value else b"\x89" for value in same)
    return payload + b"e]q\xf0(" + labels + b"e\x86q\xf1."


def test_round_trip_and_insightface_loading(tmp_path: Path) -> None:
    items = []
    for number, blob in enumerate(BLOBS):
        (tmp_path / f"{number}.jpg").write_bytes(blob)
        items.append(Item(str(number), tmp_path / f"{number}.jpg"))
    ids = tuple(item.id for item in items)
    trials = Trials(ids, ids, [3, 0, 3, 5], [1, 2, 4, 5], SAME)  # one image in several pairs
    path = tmp_path / "own.bin"
    bin_file.write(items, trials, path)
    expected = [BLOBS[i] for i in (3, 1, 0, 2, 3, 4, 5, 5)]
    assert contents(path) == (expected, SAME)
    # load_bin of insightface/recognition/arcface_torch/eval/verification.py
    with path.open("rb") as file:
        loaded, issame = pickle.load(file, encoding="bytes")
    assert (loaded, issame) == (expected, SAME)
    assert _bins.items(path)[0][0].id == "own/0"


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize(
    "content",
    [
        (BLOBS, SAME),
        ([np.frombuffer(blob, np.uint8).copy() for blob in BLOBS], SAME),
        (BLOBS, np.array(SAME)),
        (BLOBS, list(np.array(SAME))),
    ],
    ids=["bytes", "array", "array of labels", "numpy labels"],
)
def test_kinds_of_python_3(tmp_path: Path, protocol: int, content: Any) -> None:
    (tmp_path / "x.bin").write_bytes(pickle.dumps(content, protocol))
    assert contents(tmp_path / "x.bin") == (BLOBS, SAME)


def test_python_2_and_old_encodings(tmp_path: Path) -> None:
    stored = python2(BLOBS, SAME)
    assert pickle.loads(stored, encoding="bytes") == (BLOBS, SAME)
    (tmp_path / "x.bin").write_bytes(stored)
    assert contents(tmp_path / "x.bin") == (BLOBS, SAME)
    # Python 3 writes bytes as text here, in UTF-8 (2) or with escapes (0).
    for protocol in (0, 2):
        blobs = [b"\xff\xd8\x80" + blob for blob in BLOBS]
        (tmp_path / "old.bin").write_bytes(pickle.dumps((blobs, SAME), protocol))
        assert contents(tmp_path / "old.bin") == (blobs, SAME)
    escaped = b"(lp0\nS'\\xff\\xd8'\naS'\\xff\\xd9'\na(lp1\nI01\na\x86."
    assert pickle.loads(escaped, encoding="bytes") == ([b"\xff\xd8", b"\xff\xd9"], [True])
    (tmp_path / "old.bin").write_bytes(escaped)
    assert contents(tmp_path / "old.bin") == ([b"\xff\xd8", b"\xff\xd9"], [True])


@pytest.mark.parametrize(
    "way",
    [
        b"\x80\x02cnumpy\nndarray\n)\x81.",  # NEWOBJ
        b"(inumpy\nndarray\n.",  # INST
        b"(cnumpy\nndarray\no.",  # OBJ
        b"Pid\n.",  # PERSID
        b"\x80\x02\x82\x01.",  # EXT1
        b"}.",  # a dictionary
        b"\x80\x02cnumpy\nndarray\nK\x01b.",  # the state of what is no object
        b"\x80\x02cnumpy\ndtype\nN}X\x08\x00\x00\x00__self__K\x01s\x86b.",  # of a method
        b"\x80\x02K\x01K\x02R.",  # a number is called
        b"\x80\x02c_codecs\nencode\nX\x03\x00\x00\x00abcX\x03\x00\x00\x00rot\x86R.",
    ],
)
def test_other_ways_to_run_code_are_refused(tmp_path: Path, way: bytes) -> None:
    (tmp_path / "x.bin").write_bytes(way)
    with pytest.raises(LikenessError):
        _bins.items(tmp_path / "x.bin")


@pytest.mark.parametrize(
    "content",
    [
        (BLOBS[:7], SAME),
        ([], []),
        ([*BLOBS[:7], b""], SAME),
        ([*BLOBS[:6], "text", 3], SAME),
        (BLOBS, [1, 0, 2, None]),
        BLOBS,
        (3, 4),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: object) -> None:
    (tmp_path / "x.bin").write_bytes(pickle.dumps(content))
    with pytest.raises(LikenessError):
        _bins.items(tmp_path / "x.bin")
