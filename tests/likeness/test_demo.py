"""The commands that a demo tells are what a shell takes, also in a folder named with blanks."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from likeness import demo
from likeness.eval.types import Embeddings, Trials
from likeness.toolkit.console import Interrupted
from likeness.toolkit.data.items import Item
from tests.scripts import run_command

IDS = ("s0/a b", "s0/c", "s1/d", "s1/e")


def embedded(items: list[Item]) -> Embeddings:
    return Embeddings(
        tuple(item.id for item in items), np.random.default_rng(0).standard_normal((len(items), 3))
    )


def test_every_command_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my demo"
    data = out / "data"

    def part(folder: Path) -> tuple[list[Item], Trials]:
        a, b = np.triu_indices(4, 1)
        return [Item(item_id, folder / item_id, item_id[:2]) for item_id in IDS], Trials(
            IDS, IDS, a, b, a // 2 == b // 2
        )

    def write(folder: Path) -> None:
        for value in IDS:
            (folder / value).parent.mkdir(parents=True, exist_ok=True)
            (folder / value).write_text("")

    asked: dict[str, Any] = {}
    evaluation = SimpleNamespace(
        save=lambda path: None,
        report=lambda folder, **more: asked.update(more),
        save_thresholds=lambda model, data: None,
    )
    monkeypatch.setattr(demo, "fit", lambda *_, **more: out / "run")
    monkeypatch.setattr(
        demo, "load_model", lambda _: SimpleNamespace(embedder=None, read=None, meta={})
    )
    monkeypatch.setattr(demo, "embed", lambda _, items, read, meta: (embedded(items), []))
    monkeypatch.setattr(demo, "score", lambda trials, embeddings: None)
    monkeypatch.setattr(demo, "evaluate", lambda scores, *_, **__: evaluation)
    (out / "scores").mkdir(parents=True)  # of one that was stopped before it trained
    recipe: Any = SimpleNamespace(modality="speaker", measure=None)
    made = demo.run(
        recipe,
        write=write,
        contents="voices",
        baseline=("raw", embedded),
        out=out,
        own_data="train",
        trials=part,
    )
    output = capsys.readouterr().out.splitlines()
    commands = {
        words[1]: words for words in (shlex.split(line) for line in output if line.startswith("  "))
    }
    listed, pairs = ("--items", f"{out}/items.txt"), ("--trials", f"{out}/trials.txt")
    mine = f"my-{out.name}"
    model, embedding = ("--model", f"{out}/run"), ("--embeddings", f"{mine}.npz")
    media = ("--media", str(data))
    expected = {
        "embed": [*model, *listed, "--root", str(data), "--out", f"{mine}.npz"],
        "score": [*pairs, *embedding, "--out", f"{mine}.txt"],
        "evaluate": [f"{mine}.txt", *embedding, *media, "--report", f"{mine}-report"],
        "verify": [str(data / IDS[0]), str(data / IDS[1]), *model],
        "serve": [*model, "--examples", str(data), "--far", "eer"],
    }
    assert {name: commands[name][2:] for name in expected} == expected
    files = [str(path) for path in made.scores]
    for path in made.embeddings:
        files += ["--embeddings", str(path)]
    again = ["likeness", "evaluate", *files, *media, "--report", f"{out}/report"]
    assert shlex.split(asked["command"]) == again
    assert len(made.embeddings) == 2


def test_a_demo_that_is_stopped_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_: Path) -> None:
        raise Interrupted("stopped after step 3 of 10; go on with --resume")

    monkeypatch.setattr("runpy.run_path", lambda _: {"main": stop})
    assert run_command("demo", "--only", "speaker", "--out", tmp_path / "demo") == 130
    assert "the demo was stopped" in capsys.readouterr().err
