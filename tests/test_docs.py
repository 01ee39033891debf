"""Generated pages are up to date; the commands of README.md and docs/*.md run, or at least name
recipes, settings and options that exist.

Blocks marked `sh` and `python` in README.md and the pages of RUN are run as they stand, in one
folder of small synthetic voices, faces and images; `likeness train` gets four steps of small
batches and one thread besides. A `python` block that begins with `# NAME.py` is written to that
file instead. The command line itself parses the commands in other blocks and in tables.
"""

import contextlib
import io
import json
import re
import shlex
import subprocess
import tomllib
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import click
import numpy as np
import pytest
import torch

from likeness.cli import command_of, main
from likeness.commands import _signature
from likeness.eval.errors import LikenessError
from likeness.toolkit.data.images import encode
from likeness.toolkit.training import recipe as recipes
from likeness.training.recipe_files import locate, names
from tests import tiny
from tests.scripts import ROOT, loaded, program, run_script, touch
from tests.tiny_yunet import network, tiny_yunet

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# in this order: later ones use files of the first
RUN = """
    tutorials/first_verifier how-to/score_trials how-to/choose_threshold
    tutorials/first_face_system tutorials/first_retrieval how-to/images how-to/data_layouts
    how-to/check_data how-to/calibrate how-to/search_gallery how-to/delete_person
    how-to/group_files how-to/segments how-to/group_differences how-to/compare_systems
    how-to/clones
    how-to/bench how-to/normalise_scores README.md explanation/limits reference/losses
    reference/backbones tutorials/own_network how-to/photographs how-to/own_networks
    how-to/other_loops how-to/fine_tuning how-to/adapt_head how-to/deployment how-to/export
    reference/formats how-to/galleries how-to/service how-to/many_machines reference/protocols
"""
QUICK = [*tiny.QUICK, "schedule.steps=4", "schedule.warmup_steps=1", "sampling.batch_size=16"]
NAMES = ("ann", "bob", *(f"who{i:02d}" for i in range(18)))  # who is in the photographs


load = cache(recipes.load)


class Block(NamedTuple):
    page: str
    line: int
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    matched = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    name = page.relative_to(ROOT).as_posix()
    return [Block(name, text.count("\n", 0, m.start()) + 2, m[1], m[2]) for m in matched]


def file_of(block: Block) -> str:
    """The name of the file that a block is; "" where it is run."""
    named = re.match(r"# (\w+\.py)\n", block.text)
    return named[1] if named and block.kind == "python" else ""


def lines(block: Block) -> list[str]:
    """Its commands: continued lines are joined, blank ones and comments left out."""
    joined = re.sub(r"\s*\\\n\s*", " ", block.text).splitlines()
    return [text for text in map(str.strip, joined) if text and not text.startswith("#")]


BLOCKS = [value for page in PAGES for value in blocks(page)]
CODE = [block for block in BLOCKS if block.kind in ("sh", "python")]
NAMED_PAGES = [(name, f"docs/{name}.md") for name in RUN.split()]
RUNNABLE = [block for page in NAMED_PAGES for block in CODE if block.page in page]
TYPED = re.compile(r"(likeness|python|torchrun|make|pip|curl) ")
IN_BLOCKS = [(block, line) for block in BLOCKS if block.kind != "python" for line in lines(block)]
SHOWN = [(block, line) for block, line in IN_BLOCKS if TYPED.match(line)]
for page in PAGES:
    for number, row in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        commands = re.findall(r"`(likeness [a-z]+ [^`]*)`", row) if row.startswith("| ") else ()
        where = Block(page.relative_to(ROOT).as_posix(), number, "", "")
        SHOWN += [(where, command) for command in commands]


# ---------------------------------------------------------------- commands that run


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, module_path: Path) -> dict[tuple[str, int], str]:
    """Everything runnable as far as the last block that is asked for, once, in order: (page, line
    of the block) -> "" or what went wrong.
    """
    for package in ("onnxruntime", "onnxscript", "pyarrow", "kaldiio"):
        pytest.importorskip(package)
    practice = loaded(ROOT / "examples" / "practice_data.py")
    practice.write(module_path, files=3, seconds=(1.05, 1.3))
    write_photographs(module_path)
    (module_path / "recipes").symlink_to(ROOT / "recipes")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.chdir(module_path), pytest.MonkeyPatch.context() as patch:
            # As in a session of Python that was started in this folder.
            patch.syspath_prepend(str(module_path))
            here = [item for item in request.session.items if item.path == request.path]
            asked = [item.callspec for item in here if "ran" in item.fixturenames]
            last = max(RUNNABLE.index(each.params["block"]) for each in asked)
            return {(entry.page, entry.line): run(entry) for entry in RUNNABLE[: last + 1]}
    finally:
        torch.set_num_threads(threads)


def write_photographs(folder: Path) -> None:
    """Write photographs/SUBJECT/N.png, yunet.onnx, a detector of the faces in them, and
    facenet.onnx, a face network.

    The detector takes a bright red square for a face.
    """
    tiny_yunet(folder / "yunet.onnx")
    network(folder / "facenet.onnx", (112, 112))
    rng = np.random.default_rng(0)
    for k, name in enumerate(NAMES):
        for number in (1, 2, 3):
            pixels = rng.integers(0, 90, (96, 128, 3), dtype=np.uint8)
            top, left = 8 * (4 + number % 2), 8 * (5 + k % 3)
            pixels[top : top + 8, left : left + 8, 0] = 255
            path = folder / "photographs" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(pixels))


def run(block: Block) -> str:
    if file_of(block):
        Path(file_of(block)).write_text(block.text, encoding="utf-8")
        return ""
    output = io.StringIO()
    steps = [block.text] if block.kind == "python" else lines(block)
    for step in steps:
        try:
            with contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
                if block.kind == "python":
                    exec(compile(step, f"{block.page}:{block.line}", "exec"), {"__name__": "docs"})
                else:
                    run_line(step)
        except (Exception, SystemExit) as error:
            return f"{step}\n{type(error).__name__}: {error}\n{output.getvalue()}"
    return ""


def run_line(line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)
    if name == "likeness" and arguments[0] == "serve":
        ask_server(arguments)
    elif name == "likeness":
        try:
            main([*arguments, *(QUICK if arguments[0] == "train" else [])])
        except SystemExit as ended:
            if ended.code:
                raise
    elif name == "python":
        run_script(Path(arguments[0]), *arguments[1:])
    else:
        subprocess.run(["sh", "-c", line], check=True, capture_output=True, text=True)


def ask_server(arguments: list[str]) -> None:
    """Start a server at a free port, and ask it for its threshold."""
    from tests.likeness.service.serving import started

    with (
        started(Path("server"), *arguments[1:]) as (url, _),
        urllib.request.urlopen(f"{url}health", timeout=60) as answer,
    ):
        health = json.load(answer)
    far = arguments[arguments.index("--far") + 1]
    assert health["threshold"] is not None
    assert f"FAR {100 * float(far):g} %" in health["source"]


ORDERED = [
    pytest.param(entry, marks=[pytest.mark.slow] if k else [], id=f"{entry.page}:{entry.line}")
    for k, entry in enumerate(RUNNABLE)
]


@pytest.mark.parametrize("block", ORDERED)
def test_what_is_marked_as_run_runs(block, ran):
    what_went_wrong = ran[block.page, block.line]
    assert not what_went_wrong


# ---------------------------------------------------------------- commands that are shown


def problem(arguments: list[str], folder: Path) -> str:
    """What the command line's own parser has against it ("" = nothing), in `folder` with a file or
    folder for every name, before the command runs; then recipe, variants, settings.
    """
    for name in arguments[1:]:
        is_recipe_or_setting = name in names() or any(mark in name for mark in ":=")
        if name.startswith("-") or is_recipe_or_setting or (folder / name).exists():
            continue
        if Path(name).suffix == "" and name not in ("LIST", "utt2spk"):
            (folder / name).mkdir(parents=True)
        else:
            touch(folder, name)
    command: Any = command_of(arguments[0])
    with contextlib.chdir(folder), contextlib.ExitStack() as patches:
        for each in getattr(command, "commands", {"": command}).values():
            patches.enter_context(patch.object(each, "run", lambda *_, **__: None))
        unchecked = patch.object(_signature, "checked_outputs", lambda *_: contextlib.nullcontext())
        patches.enter_context(unchecked)
        try:
            with command.make_context(arguments[0], list(arguments[1:])) as context:
                command.invoke(context)
        except (click.ClickException, LikenessError) as error:
            return getattr(error, "format_message", error.__str__)() or repr(error)
    inputs = context.params
    file, _, variant = str(inputs.get("recipe", "")).partition(":")
    if file:
        try:
            path = locate(file) if not file.startswith("recipes/") else str(ROOT / file)
            of_page = folder / file
            path = str(of_page) if of_page.is_file() and of_page.stat().st_size else path
            chosen = [name for names in inputs.get("variants") or [[""]] for name in names]
            for argument in (".".join(part for part in (variant, name) if part) for name in chosen):
                loaded, _ = load(path + (f":{argument}" if argument else ""))
                recipes.override(loaded, list(inputs.get("field_value") or []))
        except (ValueError, OSError) as error:
            return str(error)
    return ""


NAMED = [f"{block.page}:{block.line} {line[:50]}" for block, line in SHOWN]


@pytest.mark.parametrize(("block", "line"), SHOWN, ids=NAMED)
def test_what_is_shown_names_what_exists(block, line, tmp_path):
    name, *arguments = shlex.split(line, comments=True)
    if name == "torchrun":
        name, arguments = "likeness", arguments[arguments.index("likeness") + 1 :]
    if name == "likeness":
        (tmp_path / "clone").mkdir()
        for file in (entry for entry in BLOCKS if entry.page == block.page and file_of(entry)):
            (tmp_path / "clone" / file_of(file)).write_text(file.text, encoding="utf-8")
        assert not problem(arguments, tmp_path / "clone")
    elif name == "python":
        script = ROOT / arguments[0]
        source = script.read_text(encoding="utf-8")
        if "\nimport shared\n" in source:  # where the scripts of one folder have their command
            source += script.with_name("shared.py").read_text(encoding="utf-8")
        for option in re.findall(r"(?<=\s)--[\w-]+", line):
            # parser_of of benchmarks/performance.py takes "--data" as "data"
            named = {f'"{option}"', f'"{option.removeprefix("--")}"'}
            assert any(name in source for name in named), f"{arguments[0]} has no {option}"
    elif name == "make":
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), line
    elif name == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"]
        named = ",".join(re.findall(r"\[([\w,]+)\]", line))
        assert set(filter(None, named.split(","))) <= set(extras)
    else:
        app = (ROOT / "likeness" / "service" / "_app.py").read_text(encoding="utf-8")
        routes = re.findall(r'(?:@app\.\w+\(|"(?:GET|POST|PUT|DELETE)",)\s*"(/\w*)', app)
        assert re.findall(r"http://127\.0\.0\.1:8000(/\w+)", line)[0] in routes


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere_and_no_page_names_a_machine(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            words = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings]
            assert anchor in [text.replace(" ", "-") for text in words], f"{target}#{anchor}"
    assert not re.findall(r"(?<![\w.])/(?:work|tmp|home|root|Users|mnt)/\S*", text)


@pytest.mark.slow  # imports everything, and makes fifty pages
def test_the_site_is_built_without_a_warning(tmp_path):
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package)
    program(ROOT / "docs" / "make_site.py", "--out", tmp_path / "site", cwd=tmp_path)
    reference = tmp_path / "site" / "reference"
    losses = (reference / "python_likeness_losses.html").read_text(encoding="utf-8")
    assert 'id="likeness.toolkit.losses.simple.SimPLE"' in losses
    assert "likeness.css" in losses
    assert "likeness verify" in (reference / "command_line.html").read_text("utf-8")


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages - {"index.md"} == set(re.findall(r"\]\(([\w/-]+\.md)", index))
