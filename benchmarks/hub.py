"""Measures what `likeness embed` adds to a network of the Hugging Face hub.

    OMP_NUM_THREADS=1 python benchmarks/hub.py [FOLDER] [--items 20] [--repeats 3]

Measures: the embedding of recordings of random lengths. "embed" is what `likeness embed` does with
    the files: reading, batching, front-end, network, pooling. CPU seconds of one thread, the least
    of the repeats; both sides take turns.
Limit: transformers alone. The waves are in memory, normalised, sorted by length, padded in batches
    of at most 20 % padding and of the size that `embed` takes, and pooled to their mean.
Needs: `pip install 'likeness[hub]'`. Without a FOLDER (as `save_pretrained` writes it) a random
    network of the size of wav2vec2-base with layer norm is saved into a temporary folder.
Takes: four minutes of one core and 2 GB of memory.
Gives: the table of section hub of docs/reference/performance.md. The aim is a ratio of at most 1.1.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from performance import in_turn, parser_of, row, table, warn_of_many_threads

from likeness.models.load import load
from toolkit.backbones.hub import import_transformers
from toolkit.data.items import Item
from toolkit.models.embed import embed

RATE_HZ = 16_000
BATCH_SAMPLES = 2**14  # as toolkit.models.embed batches waves on a CPU
BATCH_VALUES = 2**24  # and elsewhere
LENGTHS = ((1.0, 3.0), (2.0, 8.0))  # of the recordings, in seconds


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
def run_bare(network: Any, waves: list[np.ndarray], batch_size: int, device: torch.device) -> None:
    """Embed waves in memory by transformers alone."""
    most = BATCH_SAMPLES if device.type == "cpu" else BATCH_VALUES
    for group in batches(waves, batch_size, most):
        longest = max(map(len, group))
        inputs, mask = torch.zeros(len(group), longest), torch.zeros(len(group), longest).long()
        for index, wave in enumerate(group):
            inputs[index, : len(wave)] = torch.from_numpy((wave - wave.mean()) / wave.std())
            mask[index, : len(wave)] = 1
        padded = len({len(wave) for wave in group}) > 1
        mask = mask.to(device)
        out = network(inputs.to(device), attention_mask=mask if padded else None)
        frames = network._get_feat_extract_output_lengths(mask.sum(1))
        hidden = out.last_hidden_state
        valid = torch.arange(hidden.shape[1], device=device)[None] < frames[:, None]
        ((hidden * valid[..., None]).sum(1) / frames[:, None]).cpu()


def main() -> None:
    """Print the table: both sides and their ratio, for short and for long recordings."""
    warn_of_many_threads()
    parser = parser_of(__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    arguments = parser.parse_args()
    batch_size = arguments.batch_size
    table("recordings", "audio, s", "embed, s", "limit, s", "embed / limit")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder
        if folder is None:
            folder = Path(temporary, "network")
            save_random(folder)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = load(f"hub:{folder}")
        embedder = model.embedder.to(device)
        network: Any = embedder.backbone.network
        for low, high in LENGTHS:
            files = Path(temporary, f"{low}-{high}")
            files.mkdir()
            items = write_recordings(files, arguments.items, low, high)
            waves = [soundfile.read(item.path, dtype="float32")[0] for item in items]
            through, bare = in_turn(
                [
                    partial(embed, embedder, items, model.read, batch_size=batch_size),
                    partial(run_bare, network, waves, batch_size, device),
                ],
                arguments.repeats,
            )
            seconds = sum(map(len, waves)) / RATE_HZ
            row(
                f"{len(items)} of {low:g} to {high:g} s",
                f"{seconds:.0f}",
                f"{through:.2f}",
                f"{bare:.2f}",
                f"{through / bare:.3f}",
            )


if __name__ == "__main__":
    main()
