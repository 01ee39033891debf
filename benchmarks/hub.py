"""Throughput of a network of the hub through `likeness embed` over the bare network, by length.

python benchmarks/hub.py [FOLDER] [--items 200] [--repeats 3] [--seconds 2 8]

Without a FOLDER (as `save_pretrained` writes it) a random network of the size of wav2vec2-base with
layer norm is saved into a temporary folder. Recordings of random lengths are written as WAV files.
Both sides read nothing from a network.

- bare: transformers alone. The waves are in memory, normalised, sorted by length, padded in
  batches of at most 20 % padding and of the size that `embed` takes, and pooled to their mean.
- embed: what `likeness embed` does with the files: reading, batching, front-end, network, pooling.

The ratio is the time of `embed` over that of `bare`; the aim is at most 1.1. The sides alternate,
and the median of the repeats counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from likeness.models.load import load
from toolkit.backbones.hub.network import import_transformers
from toolkit.data.items import Item
from toolkit.models.embed import TorchEmbedder, embed

RATE_HZ = 16_000
BATCH_SAMPLES = 2**14  # as toolkit.models.embed batches waves on a CPU
BATCH_VALUES = 2**24  # and elsewhere


def save_random(folder: Path) -> None:
    """Save a random network of the size of wav2vec2-base, whose padding changes nothing."""
    transformers = import_transformers()
    config = transformers.Wav2Vec2Config(feat_extract_norm="layer", do_stable_layer_norm=True)
    transformers.Wav2Vec2Model(config).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)


def write_recordings(folder: Path, num: int, low: float, high: float) -> list[Item]:
    """Write noise of random lengths, in seconds, as WAV files."""
    rng = np.random.default_rng(0)
    items = []
    for number in range(num):
        samples = round(rng.uniform(low, high) * RATE_HZ)
        path = folder / f"{number}.wav"
        soundfile.write(path, 0.05 * rng.standard_normal(samples), RATE_HZ)
        items.append(Item(str(number), path, None))
    return items


def batches(waves: list[np.ndarray], batch_size: int, most: int) -> list[list[np.ndarray]]:
    """Group waves by length as `embed` does."""
    groups: list[list[np.ndarray]] = [[]]
    for wave in sorted(waves, key=len):
        group = groups[-1]
        full = len(group) == batch_size or (len(group) + 1) * len(wave) > most
        if group and (full or len(wave) > 1.2 * len(group[0])):
            groups.append([])
        groups[-1].append(wave)
    return groups


@torch.no_grad()
def run_bare(network: Any, waves: list[np.ndarray], batch_size: int, device: torch.device) -> float:
    """Time transformers alone over waves in memory, in seconds."""
    started = time.perf_counter()
    most = BATCH_SAMPLES if device.type == "cpu" else BATCH_VALUES
    for group in batches(waves, batch_size, most):
        longest = max(map(len, group))
        inputs, mask = torch.zeros(len(group), longest), torch.zeros(len(group), longest).long()
        for row, wave in enumerate(group):
            inputs[row, : len(wave)] = torch.from_numpy((wave - wave.mean()) / wave.std())
            mask[row, : len(wave)] = 1
        padded = len({len(wave) for wave in group}) > 1
        mask = mask.to(device)
        out = network(inputs.to(device), attention_mask=mask if padded else None)
        frames = network._get_feat_extract_output_lengths(mask.sum(1))
        hidden = out.last_hidden_state
        valid = torch.arange(hidden.shape[1], device=device)[None] < frames[:, None]
        ((hidden * valid[..., None]).sum(1) / frames[:, None]).cpu()
    return time.perf_counter() - started


def run_embed(embedder: TorchEmbedder, items: list[Item], read: Any, batch_size: int) -> float:
    """Time the way of `likeness embed` over files, in seconds."""
    started = time.perf_counter()
    embed(embedder, items, read, batch_size=batch_size)
    return time.perf_counter() - started


def main() -> None:
    """Print both throughputs and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seconds", type=float, nargs=2, default=(2.0, 8.0))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder
        if folder is None:
            folder = Path(temporary, "network")
            save_random(folder)
        items = write_recordings(Path(temporary), arguments.items, *arguments.seconds)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = load(f"hub:{folder}")
        embedder = model.embedder.to(device)
        network: Any = embedder.backbone.network
        waves = [soundfile.read(item.path, dtype="float32")[0] for item in items]
        seconds = sum(map(len, waves)) / RATE_HZ
        run_bare(network, waves[:4], arguments.batch_size, device)
        pairs = [
            (
                run_bare(network, waves, arguments.batch_size, device),
                run_embed(embedder, items, model.read, arguments.batch_size),
            )
            for _ in range(arguments.repeats)
        ]
    bare, through = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{len(items)} recordings, {seconds:.0f} s, batches of {arguments.batch_size}, {device}")
    print(f"bare   {seconds / bare:8.1f} s of audio a second  ({bare:.2f} s)")
    print(f"embed  {seconds / through:8.1f} s of audio a second  ({through:.2f} s)")
    print(f"embed over bare: {through / bare:.3f}")


if __name__ == "__main__":
    main()
