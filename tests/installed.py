"""Likeness as others install it: copies of the clone, what is built of them, fresh environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("eval", "toolkit", "modalities", "likeness", "recipes")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
OFFLINE = ("--no-index", "--no-build-isolation", "--disable-pip-version-check")


def shell(*words: str | Path, cwd: Path, code: int = 0) -> str:
    """Run a program that knows nothing of the clone."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["OMP_NUM_THREADS"] = "1"
    ended = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def clone(folder: Path, *, has_links: bool = True) -> Path:
    """Copy what is installed; without links it is what git writes on Windows: files with paths."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    for name in FILES:
        shutil.copyfile(ROOT / name, folder / name)
    for link in [path for path in folder.rglob("*") if path.is_symlink()] * (not has_links):
        target = os.readlink(link)
        link.unlink()
        link.write_text(target)
    return folder


def built(source: Path, folder: Path) -> tuple[Path, Path]:
    """Build a source distribution of a clone, and a wheel from it alone."""
    pytest.importorskip("setuptools")
    pytest.importorskip("pip")
    build = f"import setuptools.build_meta as b; print(b.build_sdist({str(folder)!r}))"
    shell(sys.executable, "-c", build, cwd=source)
    (packed,) = folder.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *OFFLINE)
    shell(*pip, "--wheel-dir", folder, packed, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return packed, wheel


def environment(folder: Path) -> Path:
    """Make an environment with the dependencies of this one, and return its Python."""
    shell(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(shell(python, "-c", ask, cwd=folder).strip())
    # A .pth file that names a folder does not read that folder's own .pth files: the editable
    # installation of the clone stays unseen.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def install(python: Path, *what: str | Path) -> str:
    """Install into an environment, without network."""
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-compile")
    return shell(*pip, *OFFLINE, *what, cwd=python.parent)
