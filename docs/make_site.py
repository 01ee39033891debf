"""Builds the documentation as HTML pages, without a network: `make docs`.

    python docs/make_site.py --out build/docs

The pages are those of docs/index.md, in its order, beside the change log and the other pages of the
clone's root. Others are made here: the Python API from the docstrings, and the command line from
its own help. A link that leads nowhere, and a public name without a docstring, end it with exit
code 1. It needs the extra docs (Sphinx, MyST, Furo).
"""

from __future__ import annotations

import argparse
import base64
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (".md", ".ipynb", ".png", ".svg")
PARTS = {
    "likeness": "What `import likeness` gives.",
    "likeness.losses": "Every loss is a torch module: `loss(z, y)` gives a scalar.",
    "likeness.backbones": "Every network gives raw embeddings (B, dim).",
    "likeness.metrics": "Metrics of arrays, without torch.",
}
# Pages of the clone's root and of packages, which pages of docs/ link to.
OTHERS = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "likeness/voice/CARD.md": "voice_card.md",
    "likeness/voice-plus/CARD.md": "voice_plus_card.md",
    "likeness/face/CARD.md": "face_card.md",
}
CONF = """
import re

project = "Likeness"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Likeness"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["likeness.css"]
napoleon_use_ivar = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
suppress_warnings = ["myst.header"]


def plain(app, what, name, obj, options, lines):
    # Docstrings are plain text with formulas: |z| and a * b are no markup.
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[number] = re.sub(r"[|*]|_(?=\\W|$)", r"\\\\\\g<0>", line)


def setup(app):
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon
"""

# Code has lines of up to 100 characters, which are wider than a page of Furo. The column is widened
# where the screen has room for it: Furo shows a second menu from 82em on. Commands are wrapped on a
# narrow screen; copied from there, a wrapped line is still one line.
STYLE = """
@media (min-width: 67em) and (max-width: 81.9em), (min-width: 87.5em) {
    .content { width: 51.5em; }
}
.highlight-sh pre, .highlight-default:not(.doctest) pre {
    white-space: pre-wrap;
    overflow-wrap: anywhere;
}
"""


def public_names() -> dict[str, list[str]]:
    """Return the public names of each part, without modules and constants."""
    names: dict[str, list[str]] = {}
    for part in PARTS:
        module = importlib.import_module(part)
        public = getattr(module, "__all__", dir(module))
        found = {name: getattr(module, name) for name in public}
        names[part] = [
            name
            for name, value in found.items()
            if inspect.isclass(value) or inspect.isroutine(value)
        ]
    return names


def undocumented() -> list[str]:
    """Return the public names, and their public methods, that have no docstring."""
    missing: list[str] = []
    for part, names in public_names().items():
        for name in names:
            value = getattr(importlib.import_module(part), name)
            members = [(f"{part}.{name}", value)]
            if inspect.isclass(value):
                members += [
                    (f"{part}.{name}.{method}", made)
                    for method, made in vars(value).items()
                    if not method.startswith("_")
                    and inspect.isroutine(made)
                    and method not in ("forward", "estimate", "param_groups", "at_step", "reads")
                ]
            missing += [called for called, made in members if not inspect.getdoc(made)]
    return missing


def python_pages() -> dict[str, str]:
    """Return the pages of the Python API by the names of their files, one for each part."""
    pages: dict[str, str] = {}
    for part, names in public_names().items():
        lines = [f"# {part}", "", PARTS[part], ""]
        module: Any = importlib.import_module(part)
        for name in names:
            value = getattr(module, name)
            kind = "autoclass" if inspect.isclass(value) else "autofunction"
            options = ":members:\n:exclude-members: forward\n" if inspect.isclass(value) else ""
            where = f"{value.__module__}.{value.__qualname__}"
            lines += [f"## {name}", "", f"```{{eval-rst}}\n.. {kind}:: {where}"]
            lines += [*(f"   {option}" for option in options.splitlines()), "```", ""]
        pages["python_" + part.replace(".", "_")] = "\n".join(lines)
    return pages


def command_page() -> str:
    """Return the page of the command line: the help of every command."""
    from likeness.cli import whole_command

    group: Any = whole_command()
    lines = ["# The command line", "", "This is what `likeness COMMAND --help` prints.", ""]
    commands: list[tuple[str, Any]] = []
    for name in sorted(group.commands):
        command = group.get_command(None, name)
        commands.append((name, command))
        commands += [
            (f"{name} {sub}", getattr(command, "commands", {})[sub])
            for sub in sorted(getattr(command, "commands", {}))
        ]
    for name, command in commands:
        context = command.make_context(
            f"likeness {name}", [], resilient_parsing=True, obj=f"likeness {name}"
        )
        help_text = command.get_help(context)
        lines += [f"## likeness {name}", "", "```text", help_text.strip(), "```", ""]
    return "\n".join(lines)


def indexed() -> str:
    """Return the index with a table of contents for each section, of the pages in its lists."""
    text = linked((DOCS / "index.md").read_text(encoding="utf-8"), "docs/index.md")
    contents: list[str] = []
    for section in text.split("\n## ")[1:]:
        title = section.partition("\n")[0]
        rows = "\n".join(line for line in section.splitlines() if line.startswith("- "))
        pages = re.findall(r"\]\(([\w/-]+)\.md\)", rows)
        if title == "Reference":
            made = ["command_line", *("python_" + part.replace(".", "_") for part in PARTS)]
            pages += [f"reference/{name}" for name in made]
        contents += ["```{toctree}", ":hidden:", f":caption: {title}", *pages, "```", ""]
    rest = [Path(name).stem for name in OTHERS.values()]
    contents += ["```{toctree}", ":hidden:", ":caption: The project", *rest, "```", ""]
    return text + "\n" + "\n".join(contents)


def linked(text: str, page: str) -> str:
    """Return a page of the clone with links to other files led to their copies in the site."""
    at = Path(OTHERS.get(page, page.removeprefix("docs/"))).parent

    def led(match: re.Match[str]) -> str:
        target, anchor = match[2], match[3] or ""
        path = ((ROOT / page).parent / target).resolve()
        if not path.is_relative_to(ROOT):
            return match[0]
        name = path.relative_to(ROOT).as_posix()
        if name in OTHERS or (path.is_relative_to(DOCS) and path.suffix in PAGES):
            copy = OTHERS.get(name, name.removeprefix("docs/")).replace(".ipynb", ".md")
            return f"[{match[1]}]({os.path.relpath(copy, at)}{anchor})"
        return f"{match[1]} (`{name}`)" if path.exists() else match[0]

    return re.sub(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)", led, text)


def write_notebook(path: Path, page: Path) -> None:
    """Write a notebook as a page: its text, its code, and what the code gave, as it is stored."""
    parts: list[str] = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(linked(source, path.relative_to(ROOT).as_posix()))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = page.with_name(f"{page.stem}_{number}.png")
                picture.write_bytes(base64.b64decode("".join(data["image/png"])))
                parts.append(f"![What the code above draws]({picture.name})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                parts.append(f"```text\n{text}\n```")
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def write_pages(folder: Path) -> None:
    """Write all pages into a folder, as Sphinx reads them."""
    for path in sorted(DOCS.rglob("*")):
        copy = folder / path.relative_to(DOCS)
        if path.suffix not in PAGES:
            continue
        copy.parent.mkdir(exist_ok=True)
        if path.suffix == ".ipynb":
            write_notebook(path, copy.with_suffix(".md"))
        elif path.suffix == ".md":
            name = path.relative_to(ROOT).as_posix()
            copy.write_text(linked(path.read_text(encoding="utf-8"), name), encoding="utf-8")
        else:
            shutil.copy(path, copy)
    for name, page in OTHERS.items():
        text = linked((ROOT / name).read_text(encoding="utf-8"), name)
        (folder / page).write_text(text, encoding="utf-8")
    (folder / "index.md").write_text(indexed(), encoding="utf-8")
    for name, text in python_pages().items():
        (folder / "reference" / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / "reference" / "command_line.md").write_text(command_page(), encoding="utf-8")
    (folder / "_static").mkdir()
    (folder / "_static" / "likeness.css").write_text(STYLE, encoding="utf-8")
    (folder / "conf.py").write_text(CONF, encoding="utf-8")


def main() -> None:
    """Build the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs")
    out = parser.parse_args().out
    if missing := undocumented():
        sys.exit(f"{len(missing)} public names have no docstring: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        write_pages(Path(folder))
        command = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", folder, str(out)]
        done = subprocess.run([sys.executable, *command], check=False)
    if done.returncode:
        sys.exit("the pages have errors, which stand above")
    print(f"the pages are in {out}/index.html")


if __name__ == "__main__":
    main()
