"""What one command writes, every command that takes this kind of thing reads, without an option.

Commands, their outputs and their inputs are those that likeness.commands._signature found: a new
output needs a line in WRITERS or UNREAD, a new input one in READERS or FOREIGN. Then each file is
read by each reader of its kind.
"""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from likeness.commands._outputs import OUTPUTS
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.writing import write_rows
from likeness.modalities import synthetic
from tests.likeness.commands.test_contract import COMMANDS
from tests.scripts import ROOT, run_command

VOICE, TINY = "likeness:voice", ROOT / "tests" / "tiny.py"
# What is typed, {w} being the folder of all, and each file that it writes there behind its kinds.
WRITERS = """
    lists {w}/voices --split all --out {w}/lists ->
        items lists/items.txt, trials lists/trials.txt,
        labels lists/labels.txt, labels lists/items.txt
    lists {w}/voices --split all --durations whole --out {w}/timed -> durations timed/durations.txt
    lists {w}/voices --split all --durations 1,whole --out {w}/cut -> items cut/items.txt
    check {w}/voices --out {w}/checked.csv ->
        items checked.csv, labels checked.csv, groups checked.csv:label
    embed --model {m} --items {w}/some.txt --bad-items skip --out {w}/f.npz ->
        failures f.npz.skipped.txt
    embed --model {m} --items {w}/lists/items.txt --out {w}/e.npz -> embeddings all-embeddings e.npz
    embed --model {m} --items {w}/checked.csv --out {w}/k.ark ->
        embeddings all-embeddings k.ark, embeddings all-embeddings k.scp
    embed --model {m} --items {w}/voices --out {w}/p.parquet -> embeddings all-embeddings p.parquet
    embed --model {m} --items {w}/voices --part 1/1 --out {w}/part.npz -> parts part.npz
    score --trials {l} --embeddings {w}/e.npz --out {w}/s.txt -> scores trials s.txt
    score --trials {l} --embeddings {w}/e.npz --out {w}/s.csv -> scores trials s.csv
    score --trials {l} --embeddings {w}/e.npz --out {w}/s.txt.gz -> scores trials s.txt.gz
    score --trials {l} --embeddings {w}/e.npz --out {w}/s.parquet -> scores trials s.parquet
    fit plda {w}/many.npz --out {w}/plda.json -> plda plda.json
    fit calibration --trials {l} --embeddings {w}/e.npz --out {w}/c.json -> calibration c.json
    fit fusion {w}/s.txt {w}/s.csv --out {w}/fusion.json -> fusion fusion.json
    verify --pairs {l} --model {m} --root {w}/voices --out {w}/v.csv --save-to {w}/vt.json ->
        scores trials v.csv, thresholds vt.json
    verify --pairs {w}/pairs.csv --root {w}/voices --out {w}/v.tsv -> scores trials v.tsv
    evaluate {w}/s.txt --far 0.1 --save-to {w}/t.json -> thresholds t.json
    gallery enrol {w}/voices --model {m} --gallery {w}/gallery -> gallery gallery
    gallery cluster {w}/e.npz --num-clusters 4 --out {w}/clusters.csv -> clusters clusters.csv
    gallery cluster {w}/e.npz --num-clusters 4 --out {w}/clusters.tsv -> clusters clusters.tsv
    train {tiny} schedule.steps=2 --data {w}/voices --out {w}/run -> model run run,
        embeddings run/held-out/embeddings.npz, trials run/held-out/trials.txt,
        run trials run/held-out/scores.txt, labels run/held-out/labels.txt,
        labels few-items run/held-out/items.txt
    export {w}/run --out {w}/m.onnx -> model m.onnx"""
# Outputs that are results, pages or folders of data of which each is what another command writes.
UNREAD = {
    **dict.fromkeys(
        [(name, out) for name in COMMANDS for out in ("--json", "--report", "--page")],
        "results and pages are for people and other programs",
    ),
    ("check", "--page"): "a page",
    ("gallery check", "--out"): "findings",
    ("gallery search", "--out"): "findings",
    ("align", "--out"): "a folder of pictures, as of anybody: tests/modalities/face",
    ("prepare", "--data"): "a folder of recordings or pictures: tests/likeness/prepare",
    ("demo", "--out"): "what lists, train, embed and score write: tests/likeness/training",
    ("compare", "--out"): "folders of runs, as of train: tests/toolkit/training",
    ("reproduce", "--out"): "folders of runs, as of train: tests/likeness/training",
    ("threshold", "--out"): "thresholds of 50 files and more: tests/eval/scoring",
}
# Kind -> a line for each input that takes this kind of file: {x} is the file as what is tested.
READERS = {
    "items": """
        check {x}
        check {w}/others --test {x}
        lists {x} --split all --out {o}
        train {tiny} schedule.steps=2 --data {x} --out {o}
        train {tiny} schedule.steps=2 --data {w}/others --test {x} --out {o}
        embed --model {m} --items {x} --out {o}.npz
        bench --model {m} --items {x} --conditions quiet20 --resamples 0
        gallery enrol {x} --model {m} --gallery {o}
        gallery search {x} --model {m} --gallery {w}/gallery
        gallery cluster {x} --model {m} --num-clusters 2 --out {o}.csv
        gallery cluster {w}/e.npz --num-clusters 2 --out {o}.csv --report {o} --media {x}
        evaluate {w}/s.txt --resamples 0 --report {o} --media {x}
        retrieve --embeddings {w}/e.npz --report {o} --media {x}
        identify --gallery {w}/e.npz --probes {w}/e.npz --resamples 0 --report {o} --media {x}
        export {w}/run --precision int8 --calibrate {x} --out {o}.onnx""",
    "few-items": """
        embed --model {m} --items {x} --out {o}.npz
        evaluate {w}/run --resamples 0 --report {o} --media {x}""",
    "trials": """
        score --trials {x} --embeddings {w}/e.npz --out {o}
        fit calibration --trials {x} --embeddings {w}/e.npz --out {o}.json
        score --trials {f} --embeddings {w}/e.npz --out {o} && evaluate {o} --trials {x}
        bench --model {m} --trials {x} --root {w}/voices --conditions quiet20 --resamples 0
        verify --pairs {x} --root {w}/voices --out {o}.csv""",
    "scores": """
        evaluate {x} --resamples 0 --far 0.1 --save-to {o}.json
        score --trials {f} --embeddings {w}/k.ark --out {o} && fit fusion {x} {o} --out {o}.json
        score --trials {f} --embeddings {w}/k.ark --out {o} &&
            score {x} {o} --fusion {w}/fusion.json --out {o}.fused""",
    "run": "evaluate {x} --resamples 0",
    "embeddings": """
        check {w}/voices --embeddings {x}
        score --trials {t} --embeddings {x} --out {o}
        score --trials {t} --embeddings {f} --probe {x} --out {o}
        score --trials {t} --embeddings {f} --cohort {x} --norm s --out {o}
        score --trials {t} --embeddings {f} --subtract-mean {x} --out {o}
        evaluate {s} --embeddings {x} --quality norm --resamples 0
        identify --gallery {x} --probes {f} --resamples 0
        identify --gallery {f} --probes {x} --resamples 0
        retrieve --embeddings {x}
        retrieve --embeddings {f} --gallery {x}
        gallery enrol --embeddings {x} --gallery {o}
        gallery cluster {x} --num-clusters 2 --out {o}.csv""",
    "all-embeddings": """
        fit calibration --trials {l} --embeddings {x} --out {o}.json
        fit calibration --trials {l} --embeddings {f} --probe {x} --out {o}.json
        fit calibration --trials {l} --embeddings {f} --cohort {x} --norm s --out {o}.json
        fit calibration --trials {l} --embeddings {f} --subtract-mean {x} --out {o}.json
        fit fusion {w}/s.txt {w}/s.csv --quality log_norm --embeddings {x} --out {o}.json
        gallery search --embeddings {x} --gallery {w}/gallery""",
    "parts": "embed {x} --join --out {o}.npz",
    "labels": """
        evaluate {s} --subjects {x} --resamples 0
        evaluate {s} --groups {x} --resamples 0
        bench --model {m} --trials {t} --root {w}/voices --conditions quiet20 --subjects {x}
        bench --model {m} --trials {t} --root {w}/voices --conditions quiet20 --groups {x}
        identify --gallery {e} --probes {e} --gallery-subjects {x} --probe-subjects {f}
        identify --gallery {e} --probes {e} --gallery-subjects {f} --probe-subjects {x}
        retrieve --embeddings {e} --labels {x}
        gallery enrol --embeddings {e} --labels {x} --gallery {o}
        retrieve --embeddings {e} --gallery {e} --labels {f} --gallery-labels {x}
        score --trials {t} --embeddings {e} --cohort {e} --norm s --cohort-subjects {x}
            --out {o}""",
    "durations": """
        fit calibration --trials {l} --embeddings {w}/e.npz --quality log_duration
            --durations {x} --out {o}.json
        fit calibration --trials {l} --embeddings {w}/e.npz --quality log_duration
            --durations {f} --out {o}.json && score --trials {l} --embeddings {w}/e.npz
            --calibration {o}.json --durations {x} --out {o}
        fit fusion {w}/s.txt {w}/s.csv --quality log_duration --embeddings {w}/e.npz
            --durations {x} --out {o}.json""",
    "clusters": """
        retrieve --embeddings {w}/e.npz --labels {x}
        evaluate {w}/s.txt --groups {x} --resamples 0""",
    "groups": "evaluate {w}/s.txt --groups {x} --resamples 0",
    "failures": "evaluate {w}/s.txt --trials {w}/lost.txt --failures {x} --resamples 0",
    "plda": """
        score --trials {w}/many.txt --embeddings {w}/many.npz --plda {x} --out {o}
        fit calibration --trials {w}/many.txt --embeddings {w}/many.npz --plda {x} --out {o}.json
        """,
    "calibration": """
        score --trials {l} --embeddings {w}/e.npz --calibration {x} --out {o}
        verify {a} {b} --calibration {x}""",
    "fusion": "score {w}/s.txt {w}/s.csv --fusion {x} --out {o}",
    "thresholds": """
        verify {a} {b} --far eer --thresholds {x}
        gallery check --gallery {w}/gallery --model {m} --far eer --thresholds {x}
        gallery search {a} --model {m} --gallery {w}/gallery --far eer --thresholds {x}
        gallery cluster {w}/e.npz --far eer --thresholds {x} --out {o}.csv""",
    "gallery": """
        gallery search {a} --model {m} --gallery {x}
        gallery check --gallery {x} --threshold 0.5
        gallery list --gallery {x}
        gallery enrol {w}/others --model {m} --gallery {x}
        gallery remove ann --gallery {x}""",
    "model": """
        embed --model {x} --items {w}/others --out {o}.npz
        verify {a} {b} --model {x}
        bench --model {x} --trials {t} --root {w}/voices --conditions quiet20 --resamples 0
        gallery enrol {w}/others --gallery {o} --model {x}
        gallery cluster {w}/others --model {x} --num-clusters 2 --out {o}.csv
        evaluate {s} --far 0.1 --save-to {x}
        verify --save-to {x} --pairs {l} --model {x} --root {w}/voices --force""",
}
ELSEWHERE = {
    ("compare", "--data"): "as of train",
    ("reproduce", "--data"): "folders of data sets",
    ("threshold", "--unlabelled"): "50 files and more: tests/eval/scoring",
    ("threshold", "--model"): "the same",
    ("gallery enrol", "--thresholds"): "those of `threshold`: tests/eval/scoring",
    ("evaluate", "--countermeasure"): "scores of spoofs: tests/eval/metrics",
    ("fit calibration", "--cohort-subjects"): "as of score",
    ("fit plda", "EMBEDDINGS"): "more items than dimensions: this test's own many.npz",
    ("fit plda", "--labels"): "the same",
    ("fit plda", "--adapt"): "the same",
    ("gallery search", "--model"): "that of the gallery",
    ("gallery check", "--model"): "that of the gallery",
    ("export", "MODEL"): "a run; not what it writes itself",
    ("export", "--fusion"): "of two models: tests/likeness/models/test_joint.py",
    ("verify", "--fusion"): "of two kinds: tests/likeness/models/test_multimodal.py",
    **{
        ("serve", option): "a server: tests/likeness/service"
        for option in ("--model", "--gallery", "--thresholds", "--calibration", "--fusion")
    },
}
# What no command writes.
FOREIGN = {
    *("--root", "--detector", "--ijb", "--trust", "--examples", "--tls-certificate", "--tls-key"),
    *("--enrolment", "--head", "PHOTOGRAPHS", "--quality"),
}
NAMED = {"--model", "MODEL", "--gallery", "--groups", "--test", "--media", "--save-to"}


def outputs() -> Iterator[tuple[str, str]]:
    for name, command in COMMANDS.items():
        for source in command.sources.values():
            if source.option.path.startswith("output"):
                yield name, source.name
        for key in command.own.keys() & {*OUTPUTS, "save_to"}:
            yield name, f"--{key.replace('_', '-')}"
    yield "gallery enrol", "--gallery"


def inputs() -> Iterator[tuple[str, str]]:
    for name, command in COMMANDS.items():
        for source in command.sources.values():
            is_output = source.option.path.startswith("output")
            reads = (source.option.path and not is_output) or source.name in NAMED
            is_path = source.kind is Path and not is_output
            if (reads or is_path) and source.name not in FOREIGN:
                yield name, source.name
        for key in command.own.keys() & {"media", "save_to"}:
            yield name, f"--{key.replace('_', '-')}"


def lines_of(text: str, indent: int) -> list[str]:
    """The lines of a text, of which those that are indented further go on with the one above."""
    return [line.strip() for line in re.sub(f"\n {{{indent + 1},}}", " ", text).strip().split("\n")]


def command_in(words: list[str]) -> str:
    return words[0] if words[0] in COMMANDS else " ".join(words[:2])


def cells() -> Iterator[tuple[str, str, str, str]]:
    """The kind of file, the command, its input and the line of each reader."""
    for kind, text in READERS.items():
        for line in lines_of(text, 8):
            words = next(part for part in line.split("&&") if "{x}" in part).split()
            name, before = command_in(words), words[words.index("{x}") - 1]
            arguments = [each for each in COMMANDS[name].sources if not each.startswith("-")]
            yield kind, name, before if before.startswith("--") else arguments[0], line


CELLS = list(cells())
TYPED = [line.partition("->")[::2] for line in lines_of(WRITERS, 4)]
WRITTEN = [part.split() for _, files in TYPED for part in files.split(",")]


def test_every_output_and_every_input_is_of_a_kind():
    written = {(command_in(line.split()), word) for line, _ in TYPED for word in line.split()}
    assert set(outputs()) <= written | UNREAD.keys()
    assert set(inputs()) == {cell[1:3] for cell in CELLS} | ELSEWHERE.keys()
    assert {kind for *kinds, _ in WRITTEN for kind in kinds} == READERS.keys()


def typed(line: str, **places: object) -> list[list[str]]:
    """The words of each command of a line."""
    words = [[word.format(**places) for word in shlex.split(part)] for part in line.split("&&")]
    return [[word for word in each if word] for each in words]


@pytest.fixture(scope="module")
def world(module_path: Path) -> Path:
    """A folder with what all commands wrote of eight synthetic speakers of odd names."""
    for name, seed in (("voices", 0), ("others", 1)):
        sizes = {"num_speakers": 8 - 4 * seed, "num_utterances": 4, "seconds": (1.1, 1.3)}
        synthetic.write_voices(module_path / name, seed=seed, **sizes)
    # Those with separators in their names are the ones that the recipe holds out.
    names = ["nan", "inf", "Smith,John", "007", "1e5", "a;b", "ann", "Zoe\u0308"]
    for number, name in enumerate(names):
        (module_path / "voices" / f"spk{number:03}").rename(module_path / "voices" / name)
    (module_path / "junk.wav").write_bytes(b"no sound")
    (module_path / "some.txt").write_text("ann/1\tvoices/ann/utt00.flac\nbad/1\tjunk.wav\n")
    ids = tuple(f"{label}/{number}" for label in "abcde" for number in range(8))
    rng = np.random.default_rng(0)
    matrix = np.repeat(rng.normal(size=(5, 4)), 8, axis=0) + rng.normal(size=(40, 4))
    Embeddings(ids, matrix).save(module_path / "many.npz")
    pairs = [(a, b) for a in ids for b in ids if a < b]
    (module_path / "many.txt").write_text("".join(f"{a} {b} {a[0] == b[0]:d}\n" for a, b in pairs))
    places = {"w": module_path, "m": VOICE, "tiny": TINY, "l": module_path / "lists/trials.txt"}
    for line, _ in TYPED:
        (words,) = typed(line, **places)
        assert run_command(*words) == 0, line
        if line.startswith("lists"):
            listed = places["l"].read_text("utf-8")
            _, *rows = [row.split() for row in listed.splitlines()]
            rows[0][2] = ""  # nobody knows whether they are one
            write_rows(module_path / "pairs.csv", ["first", "second", "same"], rows)
            (module_path / "lost.txt").write_text(f"{listed}bad/1 ann/utt00.flac 0\n", "utf-8")
    return module_path


@pytest.mark.parametrize(
    ("kind", "name", "option", "line"), CELLS, ids=lambda text: text.replace(" ", "-")[:20]
)
def test_what_one_command_writes_others_read(kind, name, option, line, world, tmp_path):
    a, b = (world / "voices" / "ann" / f"utt0{number}.flac" for number in (0, 1))
    held = world / "run" / "held-out"
    places = {"w": world, "m": VOICE, "tiny": TINY, "a": a, "b": b, "l": world / "lists/trials.txt"}
    places |= {"t": held / "trials.txt", "s": held / "scores.txt", "e": held / "embeddings.npz"}
    for number, file in enumerate(file for *kinds, file in WRITTEN if kind in kinds):
        source = world / file
        if kind == "gallery":  # some of its readers change it
            source = Path(shutil.copytree(source, tmp_path / f"{number}.copy"))
        for words in typed(line, x=source, f=source, o=tmp_path / str(number), **places):
            assert run_command(*words) == 0, f"{name} {option} does not read {file}"
