"""The class of docs/how-to/many_machines.md in Ray's local engine gives the embeddings of a plain
run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import likeness
from modalities.synthetic import write_voices

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # Ray starts a cluster of processes
def test_batches_of_ray_are_embedded_as_by_a_plain_run(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="pip install 'ray[data]', which takes 240 MB")
    page = (ROOT / "docs" / "how-to" / "many_machines.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(# embed_batches\.py\n.*?)```", page, re.DOTALL)
    assert block is not None
    written: dict[str, type] = {}
    exec(block[1], written)
    write_voices(tmp_path / "voices", num_speakers=2, num_utterances=3, seconds=(1.2, 1.6))
    paths = [str(path) for path in sorted((tmp_path / "voices").rglob("*.flac"))]
    plain = likeness.load("likeness:voice").embed(paths)
    ray.init(
        num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, logging_level="ERROR"
    )
    try:
        rows = (
            ray.data.from_items([{"path": path} for path in paths])
            .map_batches(
                written["Embed"],
                fn_constructor_args=("likeness:voice",),
                batch_size=2,
                compute=ray.data.ActorPoolStrategy(size=1),
            )
            .take_all()
        )
    finally:
        ray.shutdown()
    made = {row["path"]: row["embedding"] for row in rows}
    assert len(made) == len(paths)
    whole = np.array([made[id] for id in plain.ids])
    np.testing.assert_allclose(whole, plain.matrix, rtol=1e-4, atol=1e-5)
