"""How far embeddings of networks of the hub are from those of transformers, family by family.

python benchmarks/hub_parity.py

Every network is random and tiny (tests/tiny_hub.py) and is saved into a folder. It embeds files of
several sizes or lengths here, in mixed batches, and one by one by transformers' own processor and
network, with the same pooling in plain torch. The largest absolute difference of any value is
printed beside the largest value. docs/reference/backbones.md has the numbers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import soundfile
import torch

from likeness.models.load import load
from tests import tiny_hub
from tests.likeness.models import test_hub as parity
from toolkit.models.embed import embed


def measure(name: str, folder: Path) -> tuple[float, float]:
    """Return the largest difference and the largest value of the embeddings of one family."""
    network = tiny_hub.save(name, folder / "net")
    images = name in tiny_hub.IMAGES
    items = parity.pictures(folder) if images else parity.recordings(folder)
    model = load(f"hub:{folder / 'net'}")
    matrix = embed(model.embedder, items, model.read, batch_size=4)[0].matrix
    rows = []
    with torch.no_grad():
        for item in items:
            if images:
                out = parity.image_tower(network)(**parity.expected_pixels(name, item))
                rows.append(parity.usual(name, out)[0].numpy())
            else:
                wave = soundfile.read(item.path, dtype="float32")[0]
                rows.append(parity.expected_speech(name, network, wave))
    return float(np.abs(matrix - np.stack(rows)).max()), float(np.abs(matrix).max())


def main() -> None:
    """Print a line for each family."""
    for name in (*tiny_hub.IMAGES, *tiny_hub.SPEECH):
        with tempfile.TemporaryDirectory() as folder:
            difference, largest = measure(name, Path(folder))
        print(f"{name:24} {difference:.1e} of {largest:.1f}", flush=True)


if __name__ == "__main__":
    main()
