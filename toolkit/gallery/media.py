"""Small pictures and sounds of enrolments, in the folder `media` beside a gallery.

A gallery keeps embeddings and nothing of what they were made from. Whoever wants to see who is
enrolled keeps a small picture or sound of each enrolment here, knowingly. There is one folder for
each subject, and one file for each enrolment: media/SUBJECT/ENROLMENT.DAY.jpg, where SUBJECT and
ENROLMENT are digests of the name and of the embedding. So there is no index that could contradict
the files, and no name of a file comes from outside.

A file is written whole or not at all. The galleries erase a subject's media before its embeddings,
so that a power cut between the two leaves an enrolment without a picture, and never the reverse.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from datetime import date as Date
from pathlib import Path
from typing import NamedTuple

import numpy as np

from likeness.eval.types import Floats32, nfc
from likeness.eval.writing import atomic_path, sync_names

FOLDER = "media"
MAX_BYTES = 1 << 20  # of one file
MAX_TOTAL = 1 << 30  # bytes of all files of a gallery
MAX_OF_SUBJECT = 100  # files
ENDINGS = (".jpg", ".flac")
_NAME = re.compile(r"([0-9a-f]{32})\.(\d{4}-\d\d-\d\d)(\.jpg|\.flac)")


class Medium(NamedTuple):
    """What is kept of one enrolment.

    Attributes:
        path: The file.
        date: The day of the enrolment, as 2026-11-22.
    """

    path: Path
    date: str


def keep(gallery: Path, subject: str, embedding: Floats32, content: bytes, ending: str) -> bool:
    """Keep a picture or sound of an enrolment.

    Args:
        gallery: The folder of the gallery.
        subject: Who is enrolled.
        embedding: The raw embedding (D,), as it was enrolled.
        content: The file.
        ending: ".jpg" or ".flac".

    Returns:
        Whether it was kept: False where it is larger than 1 MiB, the subject has 100 files, or all
        files together would have over 1 GiB.

    Raises:
        OSError: The disk refuses it.
    """
    assert ending in ENDINGS
    folder = _folder_of(gallery, subject)
    if (
        len(content) > MAX_BYTES
        or len(_files(folder)) >= MAX_OF_SUBJECT
        or _total(gallery) + len(content) > MAX_TOTAL
    ):
        return False
    for private in (gallery / FOLDER, folder):
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{_digest(embedding)}.{Date.today().isoformat()}{ending}"
    with atomic_path(folder / name) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_bytes(content)
    return True


def kept(gallery: Path | None, subject: str, embeddings: Floats32) -> list[Medium | None]:
    """What is kept of each enrolment of a subject.

    Args:
        gallery: The folder of the gallery; None where nothing is kept.
        subject: Who is enrolled.
        embeddings: The raw embeddings (R, D) of the enrolments.

    Returns:
        A medium for each, or None where nothing is kept of it.
    """
    kept = {}
    for path in _files(_folder_of(gallery, subject)) if gallery else ():
        match = _NAME.fullmatch(path.name)
        assert match is not None  # or it would be none of the files
        kept[match[1]] = Medium(path, match[2])
    return [kept.get(_digest(row)) for row in embeddings]


def erase(gallery: Path | None, subjects: Iterable[str]) -> bool:
    """Erase what is kept of subjects, also where nothing is.

    What was in the files is overwritten with zeros before they are removed. Disks that write
    elsewhere what is overwritten (SSDs, snapshots) may still hold it.

    Returns:
        Whether anything was there.
    """
    if gallery is None or not (gallery / FOLDER).is_dir():
        return False
    folders = [_folder_of(gallery, subject) for subject in subjects]
    found = any(map(os.path.lexists, folders))
    for folder in folders:
        if folder.is_symlink():  # what it leads to is not ours
            folder.unlink()
            continue
        for path in folder.rglob("*"):  # what a killed writer left lies in folders below
            if path.is_file() and not path.is_symlink():
                with path.open("r+b") as file:
                    file.write(bytes(path.stat().st_size))
                    file.flush()
                    os.fsync(file.fileno())
        if folder.is_dir():
            shutil.rmtree(folder)
    sync_names(gallery / FOLDER)
    return found


def _folder_of(gallery: Path, subject: str) -> Path:
    name = hashlib.sha256(nfc(subject).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return gallery / FOLDER / name


def _digest(embedding: Floats32) -> str:
    row = np.ascontiguousarray(embedding, dtype="<f4")
    return hashlib.sha256(row.tobytes()).hexdigest()[:32]


def _files(folder: Path) -> list[Path]:
    """The media in the folder of a subject."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]


def _total(gallery: Path) -> int:
    """The bytes of all media of a gallery."""
    folders = (gallery / FOLDER).iterdir() if (gallery / FOLDER).is_dir() else ()
    return sum(file.stat().st_size for folder in folders for file in _files(folder))
