"""Building the wheel: recipes/ travels in it as data of `likeness`.

Recipes are run and never imported, so they are no package. Everything else is in pyproject.toml.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    """Copies recipes/ to likeness/recipes/, unless the installation is editable."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # the clone's own folder is used
        target = Path(self.build_lib, "likeness", "recipes")
        # what an earlier build left may have been renamed
        shutil.rmtree(target, ignore_errors=True)
        for source in sorted(Path("recipes").rglob("*.py")):
            copy = target / source.relative_to("recipes")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


setup(cmdclass={"build_py": BuildWithRecipes})
