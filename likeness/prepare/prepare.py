"""`likeness prepare` fetches, verifies, unpacks and counts data sets.

Data sets with an open download are fetched, verified, unpacked where the modalities look for them,
and counted. What needs an agreement is not fetched: the command prints what to get from where.
Archives that somebody puts into DATA/downloads are verified and unpacked, and what is there is
counted. Files that are there already are summed where they are the published files and not what was
unpacked from them.

Nothing half-written lies under a final name at any time, and what was interrupted goes on. The data
sets are listed in likeness/prepare/sources.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from eval.errors import LikenessError
from eval.formats.writing import move, sync_names
from eval.progress import report, step
from eval.types import name_first
from likeness.prepare.archives import is_archive, unpack
from likeness.prepare.fetch import differs, download
from toolkit.data.source import Archive, Count, Dataset
from toolkit.training.lock import only_writer

Say = Callable[[str], None]
# Archives of more bytes are not summed again: they were summed when they were unpacked, and summing
# them takes minutes.
_SUMMED_AGAIN = 2**32


def prepare(
    dataset: Dataset, data: Path, *, keep: bool = False, say: Say = print, wait_seconds: float = 1.0
) -> list[Count]:
    """Fetch, verify and unpack what is missing of a data set, then count what is there.

    If it is interrupted, the next call goes on where this one was.

    Args:
        dataset: The data set.
        data: The folder DATA where data sets lie.
        keep: Whether the fetched archives stay in DATA/downloads. Otherwise they are removed once
            they are unpacked. Files that you put there yourself always stay.
        say: Called with each line of the report.
        wait_seconds: The first pause after a broken connection.

    Returns:
        What was counted, all of it as expected.

    Raises:
        OSError: The network or the disk failed.
        LikenessError: A checksum differs or an archive is damaged; or, after everything that could
            be done was done, something is still missing or incomplete.
    """
    say(
        f"{dataset.name}: {dataset.about}\nLicence: {dataset.licence}. {dataset.page}"
        + (f"\nNote: {dataset.note}" if dataset.note else "")
    )
    downloads = data / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    with only_writer(downloads):
        for archive in dataset.archives:
            try:
                _bring(archive, data, keep=keep, say=say, wait_seconds=wait_seconds)
            except OSError as error:
                if not dataset.by_hand or not archive.urls:
                    raise
                # The lists may be there in another place; counting will show it.
                say(f"not fetched: {error}")
    counts = _count(dataset, data)
    for count in counts:
        state = "MISSING" if count.found == 0 else "DIFFERS"
        if count.found == count.expected:
            state = "ok     "
        say(f"{state}  {count.what}: {count.found:,} of {count.expected:,}")
    wrong = [count.what for count in counts if count.found != count.expected]
    if wrong:
        todo = (
            dataset.by_hand
            or f"remove the folders from {data} and run the command again, or see {dataset.page}"
        )
        raise LikenessError(
            f"{dataset.name}: {len(wrong)} of {len(counts)} counts are not what they should be "
            f"({name_first(wrong)}); {todo}".replace("DATA", str(data))
        )
    return counts


@step("counting the files")
def _count(dataset: Dataset, data: Path) -> list[Count]:
    """Count the files of a data set, and what its own check counts."""
    counts = [
        Count(
            f"files in {folder.folder}", _files(data / folder.folder, folder.suffixes), folder.files
        )
        for folder in dataset.holds
    ]
    if dataset.check:
        try:
            counts += dataset.check(data)
        except (FileNotFoundError, ValueError) as error:
            # A list is missing or damaged, so that nothing can be counted.
            made = name_first(archive.makes for archive in dataset.archives)
            todo = (
                dataset.by_hand
                or f"to have it all anew, remove {made} from DATA and run the command again"
            )
            raise LikenessError(
                f"{dataset.name}: {error}; {todo}".replace("DATA", str(data))
            ) from error
    return counts


def _bring(archive: Archive, data: Path, *, keep: bool, say: Say, wait_seconds: float) -> None:
    """Bring one archive to its place.

    An archive that has to be fetched by hand and is not there is passed over: counting will miss
    it.
    """
    final, downloads = data / archive.makes, data / "downloads"
    if final.is_file() or (final.is_dir() and any(final.iterdir())):
        say(f"{archive.makes} is there already{_summed(archive, data, final)}")
        return
    fetched: list[Path] = []
    if archive.urls:
        paths = [downloads / name for name in archive.names]
        for url, path in zip(archive.urls, paths, strict=True):
            if not path.is_file():
                say(f"fetching {url}")
                download(
                    url,
                    path,
                    size=archive.size if len(paths) == 1 else 0,
                    verified=bool(archive.sha256 or archive.md5),
                    wait_seconds=wait_seconds,
                    advance=partial(_report, path.name),
                )
                fetched.append(path)
    else:
        paths = _parts(archive, data)
        if not paths:
            return
    label = _label(paths)
    with step(f"checking the sum of {label}"):
        _verify(archive, paths, fetched, downloads, say)
    with step(f"unpacking {label}"):
        _place(archive, label, paths, final, downloads)
    for path in fetched if not keep else []:
        path.unlink(missing_ok=True)
    say(f"{archive.makes} is ready")


def _verify(
    archive: Archive, paths: list[Path], fetched: list[Path], downloads: Path, say: Say
) -> None:
    """Compare checksum and size with the published ones; remove what was fetched if they differ."""
    label = _label(paths)
    wrong = differs(paths, sha256=archive.sha256, md5=archive.md5)
    size = sum(path.stat().st_size for path in paths)
    if not wrong and archive.size and size != archive.size:
        wrong = f"it has {size} bytes, but {archive.size} are expected"
    if wrong:
        others = [path.name for path in paths if path not in fetched]
        for path in fetched:
            path.unlink()
        removed = "it was removed" if not others else "remove it"
        if fetched and others:
            removed = (
                f"{name_first(path.name for path in fetched)} of it, fetched now, was removed; "
                f"remove {name_first(others)} from {downloads} too"
            )
        raise LikenessError(
            f"{label}: {wrong}; {removed}: run the command again, or fetch it by hand if this "
            "happens twice"
        )
    if archive.sha256 or archive.md5:
        say(f"{label}: {'SHA-256' if archive.sha256 else 'MD5'} is right")
    else:
        say(
            f"{label}: UNVERIFIED, no checksum of it is known"
            + (f"; its size, {size} bytes, is right" if archive.size else f"; {size} bytes")
        )


@step("checking the files that are there")
def _summed(archive: Archive, data: Path, final: Path) -> str:
    """Return what the report says of the sum of an archive that is there already.

    Raises:
        LikenessError: It is a file, or lies beside what was unpacked from it, and is another one.
    """
    known = "SHA-256" if archive.sha256 else "MD5" if archive.md5 else ""
    unpacked = "; unpacked files are counted, not summed" if final.is_dir() else ""
    paths = _parts(archive, data) if unpacked else [final]
    # A .gz file may be compressed in several ways, so what reads it sums what it contains.
    compressed = final.is_file() and final.suffix == ".gz"
    if not known or not paths or compressed:
        return unpacked
    if sum(path.stat().st_size for path in paths) > _SUMMED_AGAIN:
        return unpacked
    if wrong := differs(paths, sha256=archive.sha256, md5=archive.md5):
        both = f"it and {archive.makes}" if unpacked else "it"
        raise LikenessError(
            f"{_label(paths)}: {wrong}; remove {both} from {data} and run the command again"
        )
    return f"; {known} of {_label(paths)} is right{unpacked}" if unpacked else f"; {known} is right"


def _parts(archive: Archive, data: Path) -> list[Path]:
    """Return the archive's parts, or the one file that they make up.

    All of them have to lie in DATA/downloads or all in DATA; otherwise the list is empty.
    """
    sets = [names for names in (archive.names, (archive.joined,)) if names != ("",)]
    for names in sets:
        for folder in (data / "downloads", data):
            if all((folder / name).is_file() for name in names):
                return [folder / name for name in names]
    return []


def _label(paths: list[Path]) -> str:
    """Return what the report calls these files."""
    return paths[0].name if len(paths) == 1 else f"{paths[0].name} ... {paths[-1].name[-2:]}"


def _place(archive: Archive, label: str, paths: list[Path], final: Path, downloads: Path) -> None:
    """Unpack beside the final name, then move the wanted part there in one step."""
    work = downloads / f".unpacking-{paths[0].name}"
    shutil.rmtree(work, ignore_errors=True)  # it is there if an earlier run was killed
    final.parent.mkdir(parents=True, exist_ok=True)
    work.mkdir()
    try:
        kind = paths[0].name if len(paths) == 1 else ".zip" if _is_zip(paths[0]) else ".tar"
        if not is_archive(kind):
            shutil.copyfile(paths[0], work / "file")
            move(work / "file", final)
            return
        unpack(label if is_archive(label) else label + kind, paths, work / "all")
        if not archive.takes:
            made = work / "all"
        else:
            made = work / "made"
            made.mkdir()
            matches = [
                path for pattern in archive.takes for path in sorted((work / "all").glob(pattern))
            ]
            if not matches:
                inside = name_first(path.name for path in sorted((work / "all").iterdir()))
                raise LikenessError(
                    f"{label}: holds nothing like {archive.takes[0]!r}, only {inside}; it is not "
                    "the archive that was published"
                )
            for path in matches:
                if (made / path.name).exists():
                    raise LikenessError(
                        f"{label}: {path.name!r} occurs twice in {', '.join(archive.takes)}; "
                        "unpack it by hand"
                    )
                os.replace(path, made / path.name)
        if hasattr(os, "sync"):
            os.sync()  # all files must be on the disk before the archive may be removed
        os.replace(made, final)
        sync_names(final.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _files(folder: Path, suffixes: tuple[str, ...]) -> int:
    """Count the files with these endings at any depth of a folder, without hidden ones."""
    return sum(
        name.lower().endswith(suffixes) and not name.startswith(".")
        for _, _, names in os.walk(folder)
        for name in names
    )


def _report(name: str, have: int, total: int) -> None:
    """Report how much of a file is there; a server may not say how long it is."""
    report(f"fetching {name}", have, total or None, unit="bytes")
