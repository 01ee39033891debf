"""Whatever is killed while it writes leaves the old file or the new one: every write goes through
atomic_path, or is here with the reason why it need not.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

_METHODS = {
    "write_text",
    "write_bytes",
    "tofile",
    "savefig",
    "imwrite",
    "savez",
    "savez_compressed",
    "savetxt",
    "save",
    "save_file",
    "write_table",
    "mkstemp",
}
_METHODS |= {
    "copyfile",
    "copy2",
    "copytree",
    "move",
    "rename",
    "dcp_save",
    "write_index",
    "to_csv",
    "to_parquet",
    "SummaryWriter",
    "create_table",
}
_OPENERS = {"open", "File", "ZipFile", "GzipFile", "SoundFile", "fdopen", "memmap"}
_CONNECTS = {
    ("sqlite3", "connect"),
    ("lancedb", "connect"),
    ("soundfile", "write"),
    ("shutil", "copy"),
    ("os", "replace"),
}

_MADE = (
    "the same call makes the same data again from its beginning, and a half image or recording is "
    "refused by its decoder"
)
_ATOMIC = "calls a save that is atomic"
_MOVE = (
    "is what the others go through: what was written, and the new name, are on the disk before it "
    "returns"
)
_TABLE = "a version of a LanceDB table counts from the moment in which its manifest is there"
# file -> function -> why a kill there leaves nothing that is taken for a whole file
ALLOWED = {
    "toolkit/models/export.py": {"write": "is given the name that atomic_path gave"},
    "likeness/exports/openvino.py": {
        "write": "writes where staged says",
        "_replace": "moves whole files; the .xml file, without which there is no model, comes last",
    },
    "toolkit/models/precision.py": {
        "_quantised": "a temporary folder, which goes when its graph was read"
    },
    "eval/formats/tables.py": {"_write_lance": _TABLE},
    "eval/formats/kaldi.py": {"_write_vectors": "is given the names that staged gave"},
    "likeness/inputs.py": dict.fromkeys(
        ("_Maker._write_bytes", "_Maker._write_wave", "_Maker._write_image"),
        "a temporary folder, which goes when its inputs were read",
    ),
    "likeness/commands/plda.py": {"fit_files": _ATOMIC},
    "likeness/commands/gallery.py": {"search": _ATOMIC, "cluster": _ATOMIC},
    "likeness/commands/verify.py": {"_verify_pairs": _ATOMIC},
    "likeness/pairs.py": {
        "VerifiedPairs._write_parquet": "is given the name that atomic_path gave"
    },
    "likeness/joining.py": {"join": _ATOMIC},
    "likeness/shared_pieces.py": {"_get": "a temporary folder, which goes when its piece was read"},
    "toolkit/parallel/claims.py": {
        "_create_in_place": "a claim counts by its name; half a plan is refused as damaged",
        "Folder.remove": "a folder gets another name, by which it counts as nothing",
    },
    "likeness/held_out.py": {"write_held_out": _ATOMIC},
    "toolkit/gallery/media.py": {"erase_file": "what is erased shall not stay whole"},
    "likeness/commands/score.py": dict.fromkeys(
        ("score_files", "calibrate_files", "_fuse"), _ATOMIC
    ),
    "eval/formats/writing.py": {"move": _MOVE},
    "modalities/face/align.py": {
        "_align_all": "NAME.part, hidden, is renamed when it is whole; half a line of "
        "several.tsv is dropped by the next run"
    },
    "modalities/image/digits.py": {"write": _MADE},
    "modalities/synthetic.py": {"write_voices": _MADE},
    "modalities/synthetic_faces.py": {"write_faces": _MADE},
    "modalities/synthetic_glyphs.py": {"write_glyphs": _MADE},
    "likeness/all_demos.py": {"_work": "the process's own output, which is a pipe"},
    "toolkit/models/checkpoint.py": {"_sort_metadata": "is given the name that atomic_path gave"},
    "likeness/prepare/fetch.py": {
        "download": "FILE.part is renamed when all is there",
        "_attempt": "half a tag fits no file of the server, which then sends it anew",
        "_receive": "FILE.part, which the next download goes on with",
    },
    "likeness/prepare/archives.py": {
        "_put": "all is unpacked in a hidden folder, which is renamed when it is whole",
    },
    "toolkit/gallery/lance.py": dict.fromkeys(
        ("LanceGallery.__init__", "LanceGallery._erase_older"), _TABLE
    ),
    "toolkit/gallery/qdrant/pickles.py": {"refuse_hostile": "only reads"},
    "toolkit/gallery/qdrant/points.py": {"Collections.erase": "SQLite's transactions"},
    "toolkit/gallery/store.py": {"Enrolments.__init__": "SQLite's transactions"},
    "toolkit/training/log.py": {
        "Log.__init__": "entries are appended; a half line is dropped when the run goes on"
    },
    "likeness/prepare/prepare.py": {
        "_place": "all is unpacked in a hidden folder, which is renamed when it is whole",
    },
    "toolkit/training/run.py": {
        "save_run": "the folder counts once its state.json is there, which is written last"
    },
    "likeness/service/work.py": {
        "private_items": "temporary: gone with the process",
        "_in_memory": "anonymous memory: gone with the process",
    },
    "toolkit/data/shards.py": {
        "_cut_out": "a temporary folder, which goes when its items were packed",
        "_write": "renames what is whole; a kill between the names is finished by the next packing",
    },
}


class Write(NamedTuple):
    file: str
    function: str
    line: int
    text: str


def writes(file: Path) -> Iterator[Write]:
    """The calls in a file that write files, but for those into memory and those to a name that
    atomic_path or staged gave.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    yield from _within(tree, file, "", frozenset())


def _within(node: ast.AST, file: Path, function: str, safe: frozenset[str]) -> Iterator[Write]:
    """safe: names of temporary paths, of what was opened from them, and of what lies in memory."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    if isinstance(node, ast.FunctionDef):
        safe = frozenset(_in_memory(node))
    if isinstance(node, ast.With):
        for item in node.items:
            yield from _within(item.context_expr, file, function, safe)
            called = item.context_expr
            if (
                isinstance(item.optional_vars, ast.Name)
                and isinstance(called, ast.Call)
                and (_name(called) in ("atomic_path", "staged") or _mentions(called, safe))
            ):
                safe |= {item.optional_vars.id}
        for statement in node.body:
            yield from _within(statement, file, function, safe)
        return
    if isinstance(node, ast.Call) and _writes(node) and not _mentions(node, safe):
        yield Write(
            file.relative_to(ROOT).as_posix(), function, node.lineno, ast.unparse(node)[:80]
        )
    for child in ast.iter_child_nodes(node):
        yield from _within(child, file, function, safe)


def _in_memory(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _name(node.value) in ("BytesIO", "StringIO")
        ):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        if isinstance(node, ast.With):
            yield from (
                item.optional_vars.id
                for item in node.items
                if isinstance(item.optional_vars, ast.Name)
                and isinstance(item.context_expr, ast.Call)
                and _name(item.context_expr) == "BytesIO"
            )


def _name(call: ast.Call) -> str:
    return (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )


def _mentions(call: ast.Call, names: frozenset[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(call))


def _writes(call: ast.Call) -> bool:
    name = _name(call)
    if (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and (call.func.value.id, name) in _CONNECTS
    ):
        return True
    if name in _OPENERS:
        arguments = (*call.args, *(key.value for key in call.keywords))
        inputs = [node for argument in arguments for node in ast.walk(argument)]
        modes = [
            node.value
            for node in inputs
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        return any(
            set(mode) <= set("rwaxbt+:gz") and set(mode) & set("wax+")
            for mode in modes
            if 0 < len(mode) <= 4
        )
    if not isinstance(call.func, ast.Attribute):
        return name in _METHODS - {"save"}  # checkpoint.save, in its own module
    if name == "replace":  # a path's, to one other; a text's takes two
        return len(call.args) == 1 and not call.keywords
    return name in _METHODS


def test_every_write_is_whole_or_known() -> None:
    result = [
        value
        for folder in ("eval", "toolkit", "modalities", "likeness")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for value in writes(file)
    ]
    strangers = [entry for entry in result if entry.function not in ALLOWED.get(entry.file, {})]
    assert not strangers, (
        "write through eval.formats.writing.atomic_path, or say in ALLOWED why a kill leaves "
        "nothing half-written that is taken for whole"
    )
    gone = {(file, function) for file, functions in ALLOWED.items() for function in functions} - {
        (entry.file, entry.function) for entry in result
    }
    assert not gone, "these no longer write: remove them"


PLAIN = """
def report(out, text, image):
    out.write_text(text)
    with (out / "a").open("w") as file:
        file.write(text)
    np.savez(out, a=1)
    os.replace(out, text)
    image.save(out)
    part.replace(out)
    move(part, out)
"""
WHOLE = """
def report(out, text, image):
    with atomic_path(out) as temporary, temporary.open("wb") as file:
        np.savez(file, a=1)
        temporary.write_text(text.replace("a", "b"))
    with staged(out) as temporary:
        move(temporary, out)
    held = io.BytesIO()
    image.save(held, "PNG")
    with out.open("rb") as file:
        return replace(text, a=1)
"""


def test_the_search_finds_plain_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(PLAIN)
    assert [entry.line for entry in writes(tmp_path / "a.py")] == [3, 4, 6, 7, 8, 9, 10]
    (tmp_path / "a.py").write_text(WHOLE)
    assert not [*writes(tmp_path / "a.py")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "kinds",
    [
        ("npz", "ark", "gallery"),  # one file, several files, a database
        pytest.param(("scores", "plda", "model", "shards"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_a_kill_leaves_the_old_file_or_the_new_file(kinds: tuple[str, ...], tmp_path: Path) -> None:
    """Processes that replace a file are killed at some 20 of their calls, those around the renames
    among them; what is there is then read.
    """
    command = [
        sys.executable,
        "-P",
        str(Path(__file__).with_name("killed.py")),
        str(tmp_path),
        *kinds,
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    output = json.loads(ended.stdout.splitlines()[-1])
    assert [*output] == [*kinds]
    for kind, (kills, old, new, other) in output.items():
        assert kills >= 15, kind
        assert not other, (kind, other)
        assert old, kind  # kills came before the end ...
        assert new or kind == "shards", kind  # ... and after the rename


WRITERS = (
    ".npz",
    ".ark",
    ".parquet",
    ".h5",
    ".lance",
    "scores",
    "zipped scores",
    "trials",
    "items",
    "page",
    "model",
    "resume",
    "log",
    "tensorboard",
)
WRITERS += ("gallery", "LanceDB gallery", "shards", "records")
IMPORT_MUCH = (".parquet", ".h5", ".lance", "LanceDB gallery", "tensorboard", "page")


@pytest.fixture(scope="module")
def on_a_full_disk(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """What became of each writer that is asked for."""
    pytest.importorskip("resource")
    for name in ("pyarrow", "h5py", "lancedb", "tensorboard"):
        pytest.importorskip(name)
    here = [
        item
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function)
    ]
    asked = [item.callspec.params["kind"] for item in here if "on_a_full_disk" in item.fixturenames]
    command = [
        sys.executable,
        "-P",
        str(Path(__file__).with_name("full_disk.py")),
        str(tmp_path_factory.mktemp("disk")),
        *asked,
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "Traceback" not in ended.stderr
    output: dict[str, list[Any]] = json.loads(ended.stdout.splitlines()[-1])
    return output


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(writer, marks=[pytest.mark.slow] if writer in IMPORT_MUCH else [])
        for writer in WRITERS
    ],
)
def test_a_full_disk_leaves_the_old_file_and_is_reported(
    kind: str, on_a_full_disk: dict[str, list[Any]]
) -> None:
    exception, message, old_is_there, left = on_a_full_disk[kind]
    assert exception == "OSError"
    assert "make room" in message
    assert "\n" not in message
    assert old_is_there
    assert left == ([".v1.unfinished"] if kind == "shards" else [])  # a packing goes on from there
