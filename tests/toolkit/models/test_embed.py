"""Embedding of items in batches, and what is not finite."""

import math
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor, nn

from likeness.backbones import ECAPA, ResNet, XVector
from likeness.data import Item, audio, folders
from likeness.embedding import extraction
from likeness.eval.formats.embeddings import Embeddings
from likeness.modalities.speaker import decoding, long
from likeness.modalities.speaker.features import KaldiFbank
from likeness.toolkit.data.reading import remark
from likeness.toolkit.losses.simple import polarlike
from likeness.toolkit.models.embed import (
    NO_NUMBERS,
    Diverged,
    embed,
    embed_where_readable,
    warn_if_alike,
)
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded
from tests.sounds import chatter


def make(kind: str) -> TorchEmbedder:
    torch.manual_seed(0)
    backbone = ResNet(20, dim=12, width=4) if kind == "resnet" else ECAPA(20, dim=12, channels=16)
    for module in backbone.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            # as after training: padded frames are no longer zero behind it
            nn.init.uniform_(module.running_mean, -1, 1)
    return TorchEmbedder(KaldiFbank(num_mels=20), backbone).eval()


def numbered(voices: Path, count: int | None = None) -> list[Item]:
    """Items whose ids end in their numbers."""
    items = folders.items(voices, split="all")[:count]
    return [item._replace(id=f"{item.id}-{k}") for k, item in enumerate(items)]


@pytest.mark.parametrize("kind", ["resnet", "ecapa"])
def test_embeddings_do_not_depend_on_the_batch(kind, voices):
    """Items of many lengths, embedded together in buckets, equal those embedded alone."""
    items = folders.items(voices, split="all")
    embedder = make(kind)
    together, bad = embed(embedder, items, audio.read, batch_size=8)
    assert not bad
    assert together.ids == tuple(item.id for item in items)
    for item, row in zip(items, together.matrix, strict=True):
        with torch.no_grad():
            alone = embedder(torch.from_numpy(audio.read(item))[None])[0].numpy()
        np.testing.assert_allclose(row, alone, atol=1e-5 * np.abs(alone).max())


def test_unreadable_items_are_returned_with_their_reasons(voices, tmp_path):
    (tmp_path / "empty.wav").write_bytes(b"")
    first, second = folders.items(voices, split="all")[:2]
    empty, none = (Item(name, tmp_path / f"{name}.wav") for name in ("empty", "none"))
    embeddings, bad = embed(make("resnet"), [first, empty, none, second], audio.read)
    assert embeddings.ids == (first.id, second.id)
    assert [item.id for item in bad] == ["empty", "none"]
    assert "empty.wav" in bad[0].reason
    embedder = make("resnet").train()
    for items, says in (([none], "none of 1 items could be read"), ([], "no items")):
        with pytest.raises(ValueError, match=says):
            embed(embedder, items, audio.read)
    assert embedder.training


def test_polarlike_is_what_is_scored_and_raw_is_what_is_trained():
    raw = make("resnet")
    polar = TorchEmbedder(raw.frontend, raw.backbone, features="polarlike").eval()
    wave = torch.randn(2, 8000)
    with torch.no_grad():
        torch.testing.assert_close(polar(wave), polarlike(raw(wave)))
        torch.testing.assert_close(polar.encode(wave), raw.encode(wave))
    assert polar.dim == raw.dim - 1


def in_halves(item: Item) -> Iterator[np.ndarray]:
    """An item in two pieces of unequal length."""
    wave = audio.read(item)
    yield wave[:4000]
    if item.id.endswith("0"):
        raise decoding.BadAudio(f"{item.name}: damaged behind 4000 samples")
    yield wave[4000:]


@pytest.mark.parametrize("workers", [0, 2])
def test_items_in_several_inputs_are_averaged_by_length(voices, workers):
    items, embedder = numbered(voices, 12), make("resnet")
    embedded, bad = embed(embedder, items, in_halves, batch_size=3, workers=workers)
    refused = [item.id for item in items if item.id.endswith("0")]
    assert [item.id for item in bad] == refused
    assert embedded.ids == tuple(item.id for item in items if item.id not in refused)
    for item, row in zip(items[1:4], embedded.matrix, strict=False):
        wave = audio.read(item)
        halves = (wave[:4000], wave[4000:])
        with torch.no_grad():
            parts = [embedder(torch.from_numpy(half)[None])[0].numpy() for half in halves]
        expected = np.average(parts, axis=0, weights=[len(half) for half in halves])
        np.testing.assert_allclose(row, expected, atol=1e-5 * np.abs(expected).max())


def read_very_short(item: Item) -> np.ndarray:
    wave: np.ndarray = audio.read(item)[: 2000 if item.id.endswith("-3") else None]
    return wave


def test_an_utterance_that_the_network_cannot_take_is_named(voices):
    """2,000 samples are 11 frames of 25 ms every 10 ms, and an x-vector needs 15."""
    items = numbered(voices, 6)
    short, network = items[3].id, XVector(20, dim=4, channels=8, pooled=12)
    embedder = TorchEmbedder(KaldiFbank(num_mels=20), network).eval()
    for read in (read_very_short, lambda item: iter([read_very_short(item)])):
        with pytest.raises(ValueError, match=rf"context of 15; it is among \('{short}'"):
            embed(embedder, items, read)
    embedded, _ = embed(embedder, [item for item in items if item.id != short], read_very_short)
    assert len(embedded.ids) == 5


def test_embeddings_that_are_nearly_the_same_are_warned_of():
    rng = np.random.default_rng(0)
    ids = tuple("abcdefgh")
    apart, offset = rng.standard_normal((8, 16)), np.full(16, 10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_alike(Embeddings(ids, apart))
        warn_if_alike(Embeddings(ids[:7], (apart + offset)[:7]))
    with pytest.warns(UserWarning, match="nearly the same .* 0.99"):
        warn_if_alike(Embeddings(ids, apart + offset))


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


def items(ids: Iterable[str]) -> list[Item]:
    return [Item(id, Path(id)) for id in ids]


def read(item: Item) -> Any:
    return np.full(8, LEVELS[item.id[0]], np.float32)


def in_parts(item: Item) -> Iterator[Any]:
    yield np.ones(8, np.float32)
    yield read(item)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("reading", [read, in_parts])
def test_an_item_that_overflows_is_left_out(reading, workers):
    embedded, bad = embed(NETWORK, items("abcde"), reading, workers=workers)
    assert embedded.ids == ("a", "c", "d", "e")
    assert np.isfinite(embedded.matrix).all()
    assert [(item.id, item.reason) for item in bad] == [("b", NO_NUMBERS)]
    some, bad = embed_where_readable(NETWORK, items("ba"), reading)
    assert some.ids == ("a",)
    assert [item.id for item in bad] == ["b"]


def remarked(item: Item) -> Any:
    if item.id == "b":
        remark("two faces")
    return read(item._replace(id="a"))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_remarked_of_an_item_is_handed_on(workers):
    remarks: dict[int, str] = {}
    sizes: Any = {"workers": workers, "remarks": remarks}
    embedded, _ = embed_where_readable(NETWORK, items("abc"), remarked, **sizes)
    assert (embedded.ids, remarks) == (("a", "b", "c"), {1: "two faces"})
    assert embed(NETWORK, items("abc"), remarked, workers=workers)[0].ids == ("a", "b", "c")


def test_items_that_are_not_finite_are_named_before_the_network_sees_them():
    def spoilt(item: Item) -> Any:
        return np.array([1.0, math.nan if item.id == "c" else 2.0], np.float32)

    embedded, bad = embed(NETWORK, items("acd"), spoilt)
    assert embedded.ids == ("a", "d")
    assert [item.id for item in bad] == ["c"]
    assert "NaN" in bad[0].reason


def test_a_network_that_gives_little_else_has_diverged():
    with pytest.raises(Diverged, match="2 of 3 items"):
        embed(NETWORK, items(["b/1", "b/2", "a"]), read)
    with pytest.raises(Diverged, match="1 of 1 items"):
        embed_where_readable(NETWORK, items("b"), read)


def loaded(reading: Any) -> Loaded:
    return Loaded(NETWORK, reading, "speaker", "cosine", "digest", 0)


def test_long_lists_judge_by_all_of_their_pieces(tmp_path):
    """The item that overflows is alone in its piece, of which it is all."""
    made = extraction.extract(loaded(read), items("acdeb"), tmp_path / "out.npz", piece_items=4)
    assert made[0].ids == ("a", "c", "d", "e")
    assert [item.id for item in made[1]] == ["b"]
    many = items(["b1", "a1", "b2", "a2", "b3", "a3", "b4"])
    with pytest.raises(Diverged, match="4 of 7 items"):
        extraction.extract(loaded(read), many, tmp_path / "more.npz", piece_items=4)


def test_levels_of_integers_stored_as_floats_are_read_and_absurd_ones_are_refused(tmp_path):
    item = Item("a", tmp_path / "a.wav")
    loud = chatter(0.6)
    loud *= np.float32(2.0**31) / np.abs(loud).max()
    soundfile.write(item.path, loud, 16_000, subtype="FLOAT")
    assert np.abs(audio.read(item)).max() == 2.0**31
    wave = np.full((9600, 3), 0.1, np.float32)
    wave[5000] = -1e10
    soundfile.write(item.path, wave, 16_000, subtype="FLOAT")
    for ask in (audio.read, lambda item: list(long.read(item, chunk_seconds=0.3))):
        with pytest.raises(decoding.BadAudio, match="absurd"):
            ask(item)
