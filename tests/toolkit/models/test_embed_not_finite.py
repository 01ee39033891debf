"""An item whose embedding is NaN or infinite is left out and named, and blames no network; one that
gives little else has diverged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor, nn

from likeness import extraction
from likeness.modalities.speaker import audio, decoding, long
from likeness.toolkit.data.items import Item
from likeness.toolkit.models.embed import NO_NUMBERS, Diverged, embed, embed_where_readable
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded


class Squares(nn.Module):
    """(B, S) -> (B, 2): sums of squares, which overflow for numbers beyond 1e19."""

    dim = 2
    pads_exactly = False

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        return torch.stack([inputs.square().sum(1), inputs.sum(1)], dim=1)


class AsTheyAre(nn.Module):
    """A front-end that passes waves on."""

    dim = 1

    def forward(self, inputs: Tensor, lengths: Any = None) -> tuple[Tensor, Any]:
        return inputs, lengths


NETWORK = TorchEmbedder(AsTheyAre(), Squares())
LEVELS = {"a": 1.0, "b": 1e25, "c": 2.0, "d": 3.0, "e": 4.0}


def items(ids: str) -> list[Item]:
    return [Item(id, Path(id)) for id in ids]


def read(item: Item) -> Any:
    return np.full(8, LEVELS[item.id], np.float32)


def in_parts(item: Item) -> Iterator[Any]:
    yield np.ones(8, np.float32)
    yield read(item)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("reading", [read, in_parts])
def test_an_item_that_overflows_is_left_out(reading: Any, workers: int) -> None:
    embedded, bad = embed(NETWORK, items("abcde"), reading, workers=workers)
    assert embedded.ids == ("a", "c", "d", "e")
    assert np.isfinite(embedded.matrix).all()
    assert [(item.id, item.reason) for item in bad] == [("b", NO_NUMBERS)]
    some, bad = embed_where_readable(NETWORK, items("ba"), reading)
    assert some is not None
    assert some.ids == ("a",)
    assert [item.id for item in bad] == ["b"]


def test_items_that_are_not_finite_are_named_before_the_network_sees_them() -> None:
    def spoilt(item: Item) -> Any:
        return np.array([1.0, math.nan if item.id == "c" else 2.0], np.float32)

    embedded, bad = embed(NETWORK, items("acd"), spoilt)
    assert embedded.ids == ("a", "d")
    assert [item.id for item in bad] == ["c"]
    assert "NaN" in bad[0].reason


def test_a_network_that_gives_little_else_has_diverged() -> None:
    with pytest.raises(Diverged, match="2 of 3 items"):
        embed(
            NETWORK,
            [Item("x", Path()), *items("ba")],
            lambda item: read(item._replace(id="b") if item.id == "x" else item),
        )
    with pytest.raises(Diverged, match="1 of 1 items"):
        embed_where_readable(NETWORK, items("b"), read)


def loaded(reading: Any) -> Loaded:
    return Loaded(NETWORK, reading, "speaker", "cosine", "digest", 0)


def test_long_lists_judge_by_all_of_their_pieces(tmp_path: Path) -> None:
    """The item that overflows is alone in its piece, of which it is all."""
    made = extraction.extract(loaded(read), items("acdeb"), tmp_path / "out.npz", piece_items=4)
    assert made is not None
    assert made[0].ids == ("a", "c", "d", "e")
    assert [item.id for item in made[1]] == ["b"]
    many = [Item(str(place), Path()) for place in range(7)]
    with pytest.raises(Diverged, match="4 of 7 items"):
        extraction.extract(
            loaded(lambda item: read(Item("b" if int(item.id) % 2 == 0 else "a", Path()))),
            many,
            tmp_path / "more.npz",
            piece_items=4,
        )


@pytest.mark.parametrize("level", [1.0, 32_768.0, 2.0**31, -(2.0**31)])
def test_levels_of_integers_stored_as_floats_are_read(level: float, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.full(9600, level, np.float32), 16_000, subtype="FLOAT")
    assert np.abs(audio.read(Item("a", path))).max() == abs(level)


@pytest.mark.parametrize("level", [1e10, -1e10, 1e25, 1e38])
@pytest.mark.parametrize("channels", [1, 3])
def test_absurd_levels_are_refused(level: float, channels: int, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    made = np.full((9600, channels), 0.1, np.float32)
    made[5000] = level
    soundfile.write(path, made, 16_000, subtype="FLOAT")
    with pytest.raises(decoding.BadAudio, match="absurd"):
        audio.read(Item("a", path))
    with pytest.raises(decoding.BadAudio, match="absurd"):
        list(long.read(Item("a", path), chunk_seconds=0.3))
