"""Maps the packages below `likeness` to the folders at the top of a clone.

In a clone, likeness/eval and its like are links for editors and mypy. A clone on Windows and a ZIP
have none, so that nothing here follows them.
"""

from setuptools import find_packages, setup

FOLDERS = ("eval", "toolkit", "modalities", "recipes")  # likeness/NAME is NAME/
OF_LINKS = [pattern for name in FOLDERS for pattern in (name, f"{name}.*")]

packages = [f"likeness.{name}" for name in find_packages("likeness", exclude=OF_LINKS)]
for folder in FOLDERS:
    packages += [f"likeness.{folder}", *(f"likeness.{folder}.{x}" for x in find_packages(folder))]

setup(
    packages=["likeness", *packages],
    package_dir={"likeness": "likeness"} | {f"likeness.{name}": name for name in FOLDERS},
)
