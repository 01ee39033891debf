"""Embedding items: the batch, the workers and the padding change no embedding."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from likeness.eval.types import Embeddings
from likeness.modalities import folders
from likeness.modalities.speaker import audio, decoding
from likeness.modalities.speaker.features import KaldiFbank
from likeness.toolkit.backbones.ecapa import ECAPA
from likeness.toolkit.backbones.resnet import ResNet34
from likeness.toolkit.backbones.xvector import XVector
from likeness.toolkit.data.items import Item
from likeness.toolkit.losses.simple import polarlike
from likeness.toolkit.models.embed import embed, warn_if_alike
from likeness.toolkit.models.embedder import TorchEmbedder


def make(kind: str) -> TorchEmbedder:
    torch.manual_seed(0)
    backbone = (
        ResNet34(20, dim=12, width=4)
        if kind == "resnet"
        else ECAPA(20, dim=12, channels=16, attention_channels=8, se_channels=8)
    )
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
def test_embeddings_do_not_depend_on_the_batch(kind: str, voices: Path) -> None:
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


def test_unreadable_items_are_returned_with_their_reasons(voices: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.wav").write_bytes(b"")
    first, second = folders.items(voices, split="all")[:2]
    empty, none = (Item(name, tmp_path / f"{name}.wav") for name in ("empty", "none"))
    embeddings, bad = embed(make("resnet"), [first, empty, none, second], audio.read)
    assert embeddings.ids == (first.id, second.id)
    assert [item.id for item in bad] == ["empty", "none"]
    assert "empty.wav" in bad[0].reason
    with pytest.raises(ValueError, match="none of 1 items could be read"):
        embed(make("resnet"), [none], audio.read)


def test_training_mode_comes_back() -> None:
    embedder = make("resnet").train()
    with pytest.raises(ValueError, match="no items"):
        embed(embedder, [], audio.read)
    assert embedder.training


def test_polarlike_is_what_is_scored_and_raw_is_what_is_trained() -> None:
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
def test_items_in_several_inputs_are_averaged_by_length(voices: Path, workers: int) -> None:
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


def read_short(item: Item) -> np.ndarray:
    wave: np.ndarray = audio.read(item)[: 3000 if item.id.endswith(("0", "1")) else None]
    return wave


def test_on_a_cpu_only_short_inputs_are_batched(voices: Path) -> None:
    seen: list[tuple[int, ...]] = []
    embedder = make("resnet")
    embedder.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    embed(embedder, numbered(voices), read_short, batch_size=4)
    assert max(batch for batch, _ in seen) == 4
    assert all(batch * samples <= 2**14 for batch, samples in seen if batch > 1)


def read_very_short(item: Item) -> np.ndarray:
    wave: np.ndarray = audio.read(item)[: 2000 if item.id.endswith("-3") else None]
    return wave


def test_an_utterance_that_the_network_cannot_take_is_named(voices: Path) -> None:
    """2,000 samples are 11 frames of 25 ms every 10 ms, and an x-vector needs 15."""
    items = numbered(voices, 6)
    short, network = items[3].id, XVector(20, dim=4, channels=8, pooled=12)
    embedder = TorchEmbedder(KaldiFbank(num_mels=20), network).eval()
    for read in (read_very_short, lambda item: iter([read_very_short(item)])):
        with pytest.raises(ValueError, match=rf"context of 15; it is among \('{short}'"):
            embed(embedder, items, read)
    embedded, _ = embed(embedder, [item for item in items if item.id != short], read_very_short)
    assert len(embedded.ids) == 5


def test_embeddings_that_are_nearly_the_same_are_warned_of() -> None:
    rng = np.random.default_rng(0)
    ids = tuple("abcdefgh")
    apart, offset = rng.standard_normal((8, 16)), np.full(16, 10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_alike(Embeddings(ids, apart))
        warn_if_alike(Embeddings(ids[:7], (apart + offset)[:7]))
    with pytest.warns(UserWarning, match="nearly the same .* 0.99"):
        warn_if_alike(Embeddings(ids, apart + offset))
