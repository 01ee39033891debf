"""`likeness evaluate --report` end to end: which embeddings belong to which scores, what is refused
before the long work, what the page can be redone from.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import likeness
from likeness.eval.formats import embeddings as files
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.trials import write_scores
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.scoring.origin import Origin, write_origin
from likeness.eval.types import Trials
from tests.scripts import printed, refused

FAST = VerificationSettings(num_resamples=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ids = tuple(f"s{i // 3}/{i}" for i in range(12))
    rng = np.random.default_rng(0)
    a, b = np.triu_indices(12, 1)
    trials = Trials(ids, ids, a, b, a // 3 == b // 3)
    for name in ("x", "y"):
        write_scores(
            tmp_path / f"{name}.txt", trials, 1.0 * (a // 3 == b // 3) + rng.standard_normal(66)
        )
        files.write_embeddings(
            tmp_path / f"{name}.npz", Embeddings((*ids, "unused"), rng.standard_normal((13, 4)))
        )
    for item_id in ids:
        (tmp_path / "faces" / item_id).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (20, 20), dtype=np.uint8)).save(
            tmp_path / "faces" / f"{item_id}.png"
        )
    return tmp_path


def test_the_command_writes_the_page_with_what_it_was_made_of(folder: Path) -> None:
    media, out = folder / "faces", ("--report", folder / "out", "--resamples", 20)
    inputs = ("--embeddings", folder / "x.npz", "--media", media)
    assert "EER" in printed("evaluate", folder / "x.txt", *inputs, *out)
    page = (folder / "out" / "index.html").read_text()
    assert hashlib.sha256((folder / "x.npz").read_bytes()).hexdigest() in page
    assert f"--media {media}" in page
    assert page.count("<img") >= 12
    assert "unused" not in page  # items outside the trials
    assert "12 of 12 items, from 4 of 4 classes" in page
    written = sorted(path.name for path in (folder / "out").iterdir())
    assert written == ["index.html", "report.json"]


def test_one_file_serves_all_systems_or_each_has_its_own(folder: Path) -> None:
    scores = [folder / "x.txt", folder / "y.txt"]
    for inputs, maps in (([folder / "x.npz"], 1), ([folder / "x.npz", folder / "y.npz"], 2)):
        likeness.evaluate(scores, FAST, embeddings=inputs).report(folder / "out")
        assert (folder / "out" / "index.html").read_text().count("Map of the embeddings") == maps


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--save-to", "nowhere"), "no place"),
        (("--save-to", "t.json", "--guarantee", "95"), "0.95"),
        (("--save-to", "t.json", "--report", "out", "--embeddings", "few.npz"), "has no embedding"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(
    folder: Path, options: tuple[str, ...], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    files.write_embeddings(Path("few.npz"), Embeddings(("s0/0",), np.ones((1, 4))))
    write_origin("x.txt", Origin("cosine", {"model": "one"}))
    assert word in refused("evaluate", "x.txt", *options, "--json", "r.json")
    assert not any(Path(name).exists() for name in ("t.json", "r.json", "out"))


def test_a_quality_is_measured_by_norm_or_from_a_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    norms = files.read_embeddings(Path("x.npz"))
    lines = [f"{id} {norm!r}\n" for id, norm in zip(norms.ids, norms.norms.tolist(), strict=True)]
    Path("q.txt").write_text("".join(lines))
    evaluate = partial(likeness.evaluate, ["x.txt", "y.txt"], FAST)
    by_norm, by_list = evaluate(quality="norm", embeddings=norms), evaluate(quality="q.txt")
    assert "AUROC of the quality" in str(by_norm)
    values = [[result.value for result in found.results] for found in (by_norm, by_list)]
    assert values[0] == values[1]
    by_list.save("r.json")
    assert "q.txt" in json.loads(Path("r.json").read_text())["inputs"]
    Path("q.txt").write_text("id quality\ns0/0 1.5\ns0/1 nan\n")
    for quality, word in (("q.txt", "finite number"), ("norm", "embeddings that were scored")):
        with pytest.raises(ValueError, match=word):
            evaluate(quality=quality)
