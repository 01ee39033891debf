"""The job of every recipes/*/demo.py: train, embed, score, evaluate, and say how to do each step by
hand.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats import trials as trial_lists
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.items.item_lists import write_items
from likeness.eval.items.items import Item
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.protocols.verification import evaluate
from likeness.eval.reports.page import block
from likeness.eval.reports.page import write as write_report
from likeness.eval.reports.verification import glance
from likeness.eval.results import Result
from likeness.eval.scoring.score import score
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
) -> None:
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
        systems = {f"{recipe.modality}-likeness": ours, f"{recipe.modality}-{baseline[0]}": plain}
        files = {out / "scores" / f"{name}.txt": out / f"{name}.npz" for name in systems}
        for (scores, file), embedded in zip(files.items(), systems.values(), strict=True):
            embedded.save(file)
            trial_lists.write_scores(scores, pairs, score(pairs, embedded).values)
        say("4/4 evaluating")
        measured = VerificationSettings(fars=_FARS, num_resamples=0)
        evaluate(score(pairs, ours).of_list(contents), measured).save_thresholds(model_folder)
        each = [part for file in files.values() for part in ("--embeddings", file)]
        page = ("--media", data, "--report", out / "report")
        evaluation = evaluate([*files], embeddings=[*files.values()])
        line = command("likeness", "evaluate", *files, *each, *page)
        evaluation.report(out / "report", media=data, command=line)
        evaluation.save(out / "results.json")  # the last file: with it the demo is finished
        say(str(evaluation))
        paths = {item.id: item.path for item in items}
        first = int(np.argmax(pairs.target))  # the first target trial
        enrol, probe = pairs.enrol_ids[pairs.enrol[first]], pairs.probe_ids[pairs.probe[first]]
        example, (scores, file) = (paths[enrol], paths[probe]), next(iter(files.items()))
        page_file, lines = out / "report" / "index.html", _by_hand(out, example, own_data)
        say(
            f"\nMade: the model {model_folder}, raw embeddings {file}, scores {scores}, the report "
            f"{page_file}\n{lines}"
        )


def _by_hand(out: Path, example: tuple[Path, Path], own_data: str) -> str:
    """The commands that do each step of a demo.

    Args:
        out: The folder of the demo.
        example: Two files that `likeness verify` compares.
        own_data: As for `run`.
    """
    data, model, mine = out / "data", out / "run", f"my-{out.resolve().name}"
    listed, pairs_file = out / "items.txt", out / "trials.txt"
    embeds = ("--model", model, "--items", listed, "--root", data, "--out", f"{mine}.npz")
    scores = ("--trials", pairs_file, "--embeddings", f"{mine}.npz", "--out", f"{mine}.txt")
    shows = ("--embeddings", f"{mine}.npz", "--media", data, "--report", f"{mine}-report")
    return f"""\
Next, the same by hand, on the same files:
  {command(program(), "embed", *embeds)}
  {command(program(), "score", *scores)}
  {command(program(), "evaluate", f"{mine}.txt", *shows)}
  {command(program(), "verify", *example, "--model", model)}
as a web page and REST service on this machine:
  {command(program(), "serve", "--model", model, "--examples", data, "--far", "eer")}
and on your own files:
  {command(program())} {own_data}"""


def program() -> str:
    """Return the command as it was called, such as .venv/bin/likeness."""
    return sys.argv[0] if Path(sys.argv[0]).name == "likeness" else "likeness"


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
    if failed := [name for name, process in running.items() if process.returncode]:
        raise LikenessError(
            f"{len(failed)} of {len(folders)} demos failed, {', '.join(failed)}; the lines above "
            "say why; start again with another --out"
        )
    face, (page, lines) = out / "face", overview(folders, out)
    serve = ("serve", "--model", face / "run", "--examples", face / "data", "--far", "eer")
    say(
        "\nAll of them: the EER on files that no model was trained on, with 95 % intervals\n\n"
        f"{lines}\n\nThe reports, to open in a browser:\n  {page}\n"
        f"A model as a web page, which compares two faces:\n  {command(program(), *serve)}\n"
        f"Two recordings of your own:\n  {command(program(), 'verify')} FIRST.wav SECOND.wav"
    )


def _start(name: str, folder: Path) -> subprocess.Popen[str]:
    """Start a demo on one thread, which imports what this process does; its output is read here."""
    line = [sys.executable, "-m", "likeness", "demo", "--only", name, "--out", str(folder)]
    search = os.pathsep.join(filter(None, sys.path))
    own = {"PYTHONPATH": search, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    env = {**os.environ, **own, "OMP_NUM_THREADS": "1"}
    output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    return subprocess.Popen(line, env=env, errors="backslashreplace", **output)


def overview(folders: Mapping[str, Path], out: Path) -> tuple[Path, str]:
    """Write one page that opens what all demos found; each has a part, with a link to its report.

    Args:
        folders: Name of a demo -> its folder, below `out`.
        out: The page is out/report/index.html.

    Returns:
        The page, and a line for each demo with the EER of both systems.
    """
    parts, lines = {}, []
    for name, folder in folders.items():
        files = (folder / "scores").glob("*.txt")
        scores = sorted(files, key=lambda file: "-likeness" not in file.stem)
        compared = evaluate(scores).compared
        ours, other = (_percent(of) for of in compared.results if of.metric == "eer")
        plain = scores[1].stem.partition("-")[2]
        lines.append(f"  {name:8}  Likeness {ours:20}  {plain} alone {other}")
        target = f"../{folder.relative_to(out).as_posix()}/report/index.html"
        link = block("link", href=target, text=f"The whole report of {name}")
        seen = glance(compared.results, compared.scores, list(compared.scores))
        parts[name.capitalize()] = seen + link
    about = "synthetic faces, real digits and synthetic voices, each in a part of its own"
    page = write_report(out / "report" / "index.html", "What the demo found", about, parts)
    return page, "\n".join(lines)


def _percent(result: Result) -> str:
    """A rate with its interval, if there is one."""
    ends = ", ".join(f"{100 * end:.1f}" for end in result.interval or ())
    return f"{100 * result.value:.1f} %" + f" [{ends}]" * bool(ends)


def command(*parts: str | Path) -> str:
    """What a shell takes for these words, whatever blanks they hold."""
    return shlex.join(map(str, parts))
