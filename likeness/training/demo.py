"""The job of every recipes/*/demo.py: train, embed, score, evaluate, and say how to do each step by
hand.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats import embeddings
from likeness.eval.formats import trials as trial_lists
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.items.item_lists import write_items
from likeness.eval.items.items import Item
from likeness.eval.metrics import similarity
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.protocols.verification import evaluate
from likeness.eval.reports.page import block
from likeness.eval.reports.page import write as write_report
from likeness.eval.reports.verification import glance
from likeness.eval.scoring.score import score
from likeness.eval.types import Trials
from likeness.models.run import load_model
from likeness.toolkit.console import say, shown
from likeness.toolkit.models.embed import embed
from likeness.toolkit.models.parts import Part
from likeness.toolkit.signals import held
from likeness.toolkit.training.lock import only_writer
from likeness.toolkit.training.recipe import Recipe, Verification
from likeness.toolkit.training.train import fit

_FARS = (0.01, 0.1)  # whose thresholds are stored beside that of the EER
Baseline = Callable[[list[Item]], np.ndarray[Any, Any]]


class Made(NamedTuple):
    """What a demo leaves for a report: score files, the embeddings behind each, and where the media
    of their ids lie.
    """

    scores: list[Path]
    embeddings: list[Path]
    media: Path


@shown()
def run(
    recipe: Recipe,
    *,
    write: Callable[[Path], object],
    contents: str,
    baseline: tuple[str, Baseline],
    out: Path,
    own_data: str,
    trials: Part | None = None,
) -> Made:
    """Run a demo: make its data, train, embed, score, evaluate, and print the commands by hand.

    Args:
        recipe: What is trained.
        write: Makes the data in the folder that it gets.
        contents: What the data are, in words, such as "1,797 handwritten digits".
        baseline: The name of what the trained model is set against by the cosine, and a function
            that gives the embeddings (N, D) of items by it.
        out: The folder of the demo.
        own_data: The end of the last line of advice: a command for the user's own files.
        trials: Lists the trials, for a recipe that is measured item by item. By default those of
            the recipe's measure.

    Returns:
        The files for a report.

    """
    with only_writer(out):
        data, model_folder = out / "data", out / "run"
        say(f"1/4 {contents} into {data}")
        write(data)
        say("2/4 training")
        model = load_model(fit(recipe, data=data, out=model_folder, resume=True))
        say("3/4 embedding and scoring what was not trained on")
        if trials is None:
            assert isinstance(recipe.measure, Verification)
            trials = recipe.measure.trials
        items, pairs = trials(data)
        write_items(out / "items.txt", items, data)
        trial_lists.write_trials(out / "trials.txt", pairs)
        (out / "scores").mkdir(exist_ok=True)
        ours, _ = embed(model.embedder, items, model.read, meta=model.meta)
        about = {"similarity": "cosine", "modality": recipe.modality}
        plain = Embeddings(tuple(item.id for item in items), baseline[1](items), about)
        made = Made([], [], data)
        for name, embedded in (
            (f"{recipe.modality}-likeness", ours),
            (f"{recipe.modality}-{baseline[0]}", plain),
        ):
            made.embeddings.append(out / f"{name}.npz")
            made.scores.append(out / "scores" / f"{name}.txt")
            embeddings.write_embeddings(made.embeddings[-1], embedded)
            values = similarity.score_trials(pairs, embedded)
            trial_lists.write_scores(made.scores[-1], pairs, values)
        say("4/4 evaluating")
        measured = VerificationSettings(fars=_FARS, num_resamples=0)
        evaluate(score(pairs, ours).of_list(contents), measured).save_thresholds(model_folder)
        say(report(made, out))  # the last file: with it the demo is finished
        example = _first_target(items, pairs)
        say(_by_hand(made, model_folder, out, example, own_data=own_data))
        return made


def _first_target(items: Sequence[Item], pairs: Trials) -> tuple[Path, Path]:
    """The two files of the first target trial."""
    assert pairs.target is not None
    first = int(np.flatnonzero(pairs.target)[0])
    paths = {item.id: item.path for item in items}
    return paths[pairs.enrol_ids[pairs.enrol[first]]], paths[pairs.probe_ids[pairs.probe[first]]]


def _by_hand(
    made: Made, model: Path, out: Path, example: tuple[Path, Path], *, own_data: str
) -> str:
    """What the demo made, and the commands that do each of its steps.

    Args:
        made: The files of the demo.
        model: The folder of the trained model.
        out: The folder of the demo.
        example: Two files that `likeness verify` compares.
        own_data: As for `run`.
    """
    listed, pairs_file, mine = out / "items.txt", out / "trials.txt", f"my-{out.resolve().name}"
    embeds = ("--model", model, "--items", listed, "--root", made.media, "--out", f"{mine}.npz")
    scores = ("--trials", pairs_file, "--embeddings", f"{mine}.npz", "--out", f"{mine}.txt")
    shows = ("--embeddings", f"{mine}.npz", "--media", made.media, "--report", f"{mine}-report")
    return f"""
Made: the model {model}, raw embeddings {made.embeddings[0]}, scores {made.scores[0]}, the report \
{out / "report" / "index.html"}
Next, the same by hand, on the same files:
  {command(program(), "embed", *embeds)}
  {command(program(), "score", *scores)}
  {command(program(), "evaluate", f"{mine}.txt", *shows)}
  {command(program(), "verify", *example, "--model", model)}
as a web page and REST service on this machine:
  {command(program(), "serve", "--model", model, "--examples", made.media, "--far", "eer")}
and on your own files:
  {command(program())} {own_data}"""


def program() -> str:
    """Return the command as it was called, such as .venv/bin/likeness."""
    return sys.argv[0] if Path(sys.argv[0]).name == "likeness" else "likeness"


def summary(folders: Mapping[str, Path]) -> str:
    """Return a line for each demo with the EER of both systems, of its results.json."""
    lines = ["All of them: the EER on files that no model was trained on, with 95 % intervals", ""]
    for name, folder in folders.items():
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))["results"]
        cells = []
        for result in (each for each in results if each["metric"] == "eer"):
            ends = ", ".join(f"{100 * end:.1f}" for end in result["interval"] or ())
            value = f"{100 * result['value']:.1f} %"
            system = result["system"].partition("-")[2]
            cells.append((system, f"{value} [{ends}]" if ends else value))
        (_, ours), (plain, other) = cells
        lines.append(f"  {name:8}  Likeness {ours:20}  {plain} alone {other}")
    return "\n".join(lines)


def report(made: Made, out: Path) -> str:
    """Write the page of a demo, out/report/index.html, and out/results.json; returns the table."""
    each = [part for file in made.embeddings for part in ("--embeddings", file)]
    shown = ("--media", made.media, "--report", out / "report")
    again = command("likeness", "evaluate", *made.scores, *each, *shown)
    evaluation = evaluate(made.scores, embeddings=made.embeddings)
    evaluation.report(out / "report", media=made.media, command=again)
    evaluation.save(out / "results.json")
    return str(evaluation)


def run_all(folders: Mapping[str, Path], out: Path) -> None:
    """Run all demos at the same time, each on one thread, and print what each prints.

    Args:
        folders: Name of a demo -> its folder, below `out`.
        out: The page that leads to all reports is out/report/index.html.

    Raises:
        LikenessError: A demo failed. The others have run to their end.
        KeyboardInterrupt: A signal ended the work. No process is left behind.
    """
    say(f"{len(folders)} demos run at the same time: {', '.join(folders)}; their lines follow")
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, folder in folders.items():
            if (folder / "results.json").is_file():
                continue
            with held():
                running[name] = _start(name, folder)
        for name, process in running.items():
            assert process.stdout is not None
            say(f"\n{name}:")
            for line in process.stdout:
                say(line.rstrip("\n"))
            process.wait()
    finally:
        for process in running.values():  # after Ctrl-C those that are still there
            process.kill()
            process.wait()
    failed = [name for name, process in running.items() if process.returncode]
    if failed:
        raise LikenessError(
            f"{len(failed)} of {len(folders)} demos failed, {', '.join(failed)}; the lines above "
            "say why; start again with another --out"
        )
    face = out / "face"
    serve = ("serve", "--model", face / "run", "--examples", face / "data", "--far", "eer")
    say(
        f"\n{summary(folders)}\n\n"
        f"The reports, to open in a browser:\n  {overview(folders, out)}\n"
        f"A model as a web page, which compares two faces:\n  {command(program(), *serve)}\n"
        f"Two recordings of your own:\n  {command(program(), 'verify')} FIRST.wav SECOND.wav"
    )


def _start(name: str, folder: Path) -> subprocess.Popen[str]:
    """Start a demo on one thread, which imports what this process does; its output is read here."""
    return subprocess.Popen(
        [sys.executable, "-m", "likeness", "demo", "--only", name, "--out", str(folder)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="backslashreplace",
    )


def overview(folders: Mapping[str, Path], out: Path) -> Path:
    """Write one page that opens what all demos found; each has a part, with a link to its report.

    Args:
        folders: Name of a demo -> its folder, below `out`.
        out: The page is out/report/index.html.

    Returns:
        The page.
    """
    parts = {}
    for name, folder in folders.items():
        scores = sorted(
            (folder / "scores").glob("*.txt"), key=lambda file: "-likeness" not in file.stem
        )
        compared = evaluate(scores).compared
        target = f"../{folder.relative_to(out).as_posix()}/report/index.html"
        parts[name.capitalize()] = glance(
            compared.results, compared.scores, list(compared.scores)
        ) + block("link", href=target, text=f"The whole report of {name}")
    about = "synthetic faces, real digits and synthetic voices, each in a part of its own"
    return write_report(out / "report" / "index.html", "What the demo found", about, parts)


def command(*parts: str | Path) -> str:
    """What a shell takes for these words, whatever blanks they hold."""
    return shlex.join(map(str, parts))
