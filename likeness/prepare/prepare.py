"""`likeness prepare`: data sets with an open download are fetched, verified, unpacked where the
modalities look for them, and counted.

What needs an agreement is not fetched: it is said what to get from where; archives put into
DATA/downloads are verified and unpacked, and what is there is counted. Files that are there already
are summed, where they are the published ones and not what was unpacked from them. Nothing
half-written lies under a final name at any time, and what was interrupted goes on. The data sets:
likeness/prepare/sources.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from eval.formats.writing import move, sync_names
from eval.types import name_first
from likeness.prepare.fetch import differs, download, is_archive, unpack
from toolkit.console import bar
from toolkit.data.source import Archive, Count, Dataset
from toolkit.training.lock import only_writer

Say = Callable[[str], None]
_SUMMED_AGAIN = (
    2**32
)  # bytes; larger archives were summed when they were unpacked, and take minutes


def prepare(
    dataset: Dataset, data: Path, *, keep: bool = False, say: Say = print, wait_seconds: float = 1.0
) -> list[Count]:
    """Fetch, verify and unpack what is missing, then count.

    Returns the counts; interrupted, it goes on where it was.

    keep: leave the fetched archives in DATA/downloads (they are removed once unpacked; files that
    you put there yourself always stay).
    wait_seconds: first pause after a broken connection. OSError: network, disk. ValueError: a
    checksum that differs, a damaged archive; and, after everything that could be done was done,
    what is still missing or incomplete.
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
                _one(archive, data, keep=keep, say=say, wait_seconds=wait_seconds)
            except OSError as error:
                if not dataset.by_hand or not archive.urls:
                    raise
                say(f"not fetched: {error}")  # lists may be there elsewhere: counting will tell
    counts = [
        Count(f"files in {one.folder}", _files(data / one.folder, one.suffixes), one.files)
        for one in dataset.holds
    ]
    if dataset.check:
        try:
            counts += dataset.check(data)
        except (
            FileNotFoundError,
            ValueError,
        ) as error:  # a list that is missing or damaged: nothing can be counted
            made = name_first(one.makes for one in dataset.archives)
            todo = (
                dataset.by_hand
                or f"to have it all anew, remove {made} from DATA and run the command again"
            )
            raise ValueError(
                f"{dataset.name}: {error}; {todo}".replace("DATA", str(data))
            ) from error
    for one in counts:
        state = "MISSING" if one.found == 0 else "DIFFERS"
        if one.found == one.expected:
            state = "ok     "
        say(f"{state}  {one.what}: {one.found:,} of {one.expected:,}")
    wrong = [one.what for one in counts if one.found != one.expected]
    if wrong:
        todo = (
            dataset.by_hand
            or f"remove the folders from {data} and run the command again, or see {dataset.page}"
        )
        raise ValueError(
            f"{dataset.name}: {len(wrong)} of {len(counts)} counts are not what they should be "
            f"({name_first(wrong)}); {todo}".replace("DATA", str(data))
        )
    return counts


def _one(archive: Archive, data: Path, *, keep: bool, say: Say, wait_seconds: float) -> None:
    """Bring one archive to its place.

    One that has to be fetched by hand and is not there is passed over: counting will miss it.
    """
    final, downloads = data / archive.makes, data / "downloads"
    if final.is_file() or (final.is_dir() and any(final.iterdir())):
        say(f"{archive.makes} is there already{_summed(archive, data, final)}")
        return
    ours: list[Path] = []
    if archive.urls:
        paths = [downloads / name for name in archive.names]
        for url, path in zip(archive.urls, paths, strict=True):
            if not path.is_file():
                say(f"fetching {url}")
                with _bar(path.name) as advance:
                    single = len(paths) == 1
                    size = archive.size if single else 0
                    download(
                        url,
                        path,
                        size=size,
                        verified=bool(archive.sha256 or archive.md5),
                        wait_seconds=wait_seconds,
                        advance=advance,
                    )
                ours.append(path)
    else:
        paths = _parts(archive, data)
        if not paths:
            return
    label = _label(paths)
    wrong = differs(paths, sha256=archive.sha256, md5=archive.md5)
    held = sum(path.stat().st_size for path in paths)
    if not wrong and archive.size and held != archive.size:
        wrong = f"it has {held} bytes, but {archive.size} are expected"
    if wrong:
        theirs = [path.name for path in paths if path not in ours]
        for path in ours:
            path.unlink()
        removed = "it was removed" if not theirs else "remove it"
        if ours and theirs:
            removed = (
                f"{name_first(path.name for path in ours)} of it, fetched now, was removed; remove "
                f"{name_first(theirs)} from {downloads} too"
            )
        raise ValueError(
            f"{label}: {wrong}; {removed}: run the command again, or fetch it by hand if this "
            "happens twice"
        )
    if archive.sha256 or archive.md5:
        say(f"{label}: {'SHA-256' if archive.sha256 else 'MD5'} is right")
    else:
        say(
            f"{label}: UNVERIFIED, no checksum of it is known"
            + (f"; its size, {held} bytes, is right" if archive.size else f"; {held} bytes")
        )
    _place(archive, label, paths, final, downloads)
    for path in ours if not keep else []:
        path.unlink(missing_ok=True)
    say(f"{archive.makes} is ready")


def _summed(archive: Archive, data: Path, final: Path) -> str:
    """What is said of the sum of an archive that is there already.

    ValueError if it is a file, or lies beside what was unpacked from it, and is another one.
    """
    known = "SHA-256" if archive.sha256 else "MD5" if archive.md5 else ""
    unpacked = "; unpacked files are counted, not summed" if final.is_dir() else ""
    paths = _parts(archive, data) if unpacked else [final]
    content = (
        final.is_file() and final.suffix == ".gz"
    )  # compressed in several ways: what reads it sums what it holds
    if (
        not known
        or not paths
        or content
        or sum(path.stat().st_size for path in paths) > _SUMMED_AGAIN
    ):
        return unpacked
    if wrong := differs(paths, sha256=archive.sha256, md5=archive.md5):
        both = f"it and {archive.makes}" if unpacked else "it"
        raise ValueError(
            f"{_label(paths)}: {wrong}; remove {both} from {data} and run the command again"
        )
    return f"; {known} of {_label(paths)} is right{unpacked}" if unpacked else f"; {known} is right"


def _parts(archive: Archive, data: Path) -> list[Path]:
    """Its parts, or the one file that they make up, where all of them lie in DATA/downloads or
    DATA; else none.
    """
    sets = [names for names in (archive.names, (archive.joined,)) if names != ("",)]
    for names in sets:
        for folder in (data / "downloads", data):
            if all((folder / name).is_file() for name in names):
                return [folder / name for name in names]
    return []


def _label(paths: list[Path]) -> str:
    return paths[0].name if len(paths) == 1 else f"{paths[0].name} ... {paths[-1].name[-2:]}"


def _place(archive: Archive, label: str, paths: list[Path], final: Path, downloads: Path) -> None:
    """Unpack beside, then move what is wanted to its final name in one step."""
    work = downloads / f".unpacking-{paths[0].name}"
    shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
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
            found = [
                one for pattern in archive.takes for one in sorted((work / "all").glob(pattern))
            ]
            if not found:
                inside = name_first(one.name for one in sorted((work / "all").iterdir()))
                raise ValueError(
                    f"{label}: holds nothing like {archive.takes[0]!r}, only {inside}; it is not "
                    "the archive that was published"
                )
            for one in found:
                if (made / one.name).exists():
                    raise ValueError(
                        f"{label}: {one.name!r} occurs twice in {', '.join(archive.takes)}; unpack "
                        "it by hand"
                    )
                os.replace(one, made / one.name)
        if hasattr(os, "sync"):
            os.sync()  # of the many files at once, before the archive may go
        os.replace(made, final)
        sync_names(final.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _files(folder: Path, suffixes: tuple[str, ...]) -> int:
    return sum(
        name.lower().endswith(suffixes) and not name.startswith(".")
        for _, _, names in os.walk(folder)
        for name in names
    )


@contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with bar(*columns) as progress:
        task = progress.add_task(name, total=None)
        yield lambda have, total: progress.update(task, completed=have, total=total or None)
