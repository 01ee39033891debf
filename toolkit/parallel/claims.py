"""Work in pieces for workers on many machines, which share nothing but a folder or a bucket.

The workers need no coordinator and no network between them, and may come and go at any time. A
worker claims a piece by making a file that must not exist yet, `claim-PIECE.1`. While it works it
writes that file again and again. Where nothing was written for the time of the lease, its owner is
taken for dead, and the next worker claims the piece by `claim-PIECE.2`. The times are those at
which the store says that files were written, so that the clocks of the machines do not matter.

A worker that was only slow may finish a piece that another has taken over. Both write the same
result, so that either may be the last.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import threading
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from eval.errors import LikenessError
from eval.formats.files import atomic_path, bounded, refuse_device
from eval.formats.writing import remove, staged, sync, sync_names
from toolkit.data import remote

# Stores that refuse, in one step, to make what exists. Others ask first and write then.
ATOMIC = ("s3", "s3a", "gs", "gcs")
_CLAIM = re.compile(r"claim-(\d{6})\.(\d{1,9})")
_BEATS = 4  # how often a claim is written within the time of its lease
_MAX_CLAIM = 1 << 12  # bytes


@dataclass(frozen=True)
class Folder:
    """A folder that all workers see, on one machine or on a network disk.

    Attributes:
        path: The folder.
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> set[str]:
        """Return the names of the files in it."""
        return set(os.listdir(self.path))

    def create(self, name: str, content: bytes) -> bool:
        """Make a file, unless it is there; return whether it was made."""
        path = self.path / name
        with staged(path) as temporary:
            temporary.write_bytes(content)
            sync(temporary)
            try:
                os.link(temporary, path)  # its content is there when it gets its name
            except FileExistsError:
                return False
            except OSError:  # this file system has no links
                return _create_in_place(path, content)
        sync_names(path.parent)
        return True

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        with atomic_path(self.path / name) as temporary:
            temporary.write_bytes(content)

    def read(self, name: str, limit: int) -> bytes:
        """Return the bytes of a file."""
        refuse_device(self.path / name)
        return bounded(self.path / name, limit)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; a folder, which no worker makes, gets another name."""
        path = self.path / name
        if path.is_dir() and not path.is_symlink():
            os.replace(path, path.with_name(f"{name}.{uuid4().hex}"))
        else:
            remove(path)

    def written_at(self, name: str) -> float:
        """Return when a file was last written, in seconds of the store's clock."""
        return (self.path / name).stat().st_mtime


@dataclass(frozen=True)
class Bucket:
    """A place in an object store that makes a file only where there is none, in one step.

    Attributes:
        url: The place, without a slash at its end.
        system: What opens it, of fsspec.
        path: The place, as the system writes it.
    """

    url: str
    system: Any
    path: str

    def __str__(self) -> str:
        return self.url

    def names(self) -> set[str]:
        """Return the names of the files in it; none where there are no files yet."""
        with remote.plain_errors(self.url):
            try:
                paths = self.system.ls(self.path, detail=False)
            except FileNotFoundError:
                return set()
        return {path.rstrip("/").rpartition("/")[2] for path in paths}

    def create(self, name: str, content: bytes) -> bool:
        """Make a file, unless it is there; return whether it was made."""
        with remote.plain_errors(self.url):
            try:
                self._put(name, content, mode="create")
            except FileExistsError:
                return False
            except Exception as error:
                # 409: somebody else makes it at this moment
                if _status(error) not in (409, 412):
                    raise
                return False
        return True

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        with remote.plain_errors(self.url):
            self._put(name, content)

    def _put(self, name: str, content: bytes, **options: object) -> None:
        self.system.pipe_file(f"{self.path}/{name}", content, **options)

    def read(self, name: str, limit: int) -> bytes:
        """Return the bytes of a file."""
        return remote.read(f"{self.url}/{name}", limit)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with remote.plain_errors(self.url), suppress(FileNotFoundError):
            self.system.rm_file(f"{self.path}/{name}")

    def written_at(self, name: str) -> float:
        """Return when a file was last written, in seconds of the store's clock."""
        with remote.plain_errors(self.url):
            written: float = self.system.modified(f"{self.path}/{name}").timestamp()
        return written


Place = Folder | Bucket


def open_place(text: str) -> Place:
    """Return the folder or the bucket that a text names. A folder is made if it does not exist.

    Args:
        text: A folder, s3://BUCKET/NAME or gs://BUCKET/NAME.

    Raises:
        LikenessError: It is a URL of another kind, where two workers could claim the same piece; or
            it names no place inside a bucket.
        ImportError: A package is missing.
        NotADirectoryError: It is a file.
    """
    scheme, is_other, _ = text.partition("://")
    if not is_other:
        folder = Path(text)
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is no folder; name one for the pieces")
        folder.mkdir(parents=True, exist_ok=True)
        return Folder(folder)
    if scheme not in ATOMIC:
        raise LikenessError(
            f"{scheme}:// cannot hold pieces that several workers claim, because it does not make "
            "a file only where there is none; give a folder, s3://BUCKET/NAME or gs://BUCKET/NAME"
        )
    url = remote.url_of(text).rstrip("/")
    if not all(url.split("/")[2:4]) or url.count("/") < 3:
        raise LikenessError(f"{text} names no place inside a bucket; give {scheme}://BUCKET/NAME")
    return Bucket(url, *remote.file_system(url))


@dataclass(frozen=True)
class Claim:
    """The right of one worker to make a piece.

    Attributes:
        piece: The number of the piece.
        attempt: 1 for the first worker, 2 for the one that took it over, and so on.
    """

    piece: int
    attempt: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"claim-{self.piece:06d}.{self.attempt}"


@dataclass(frozen=True)
class Survey:
    """What a place holds.

    Attributes:
        done: The numbers of the pieces that are there.
        claims: Of each piece that is not there and is claimed, the last claim.
    """

    done: frozenset[int]
    claims: dict[int, Claim]


def piece_name(piece: int) -> str:
    """Return the name of the file of a piece."""
    return f"piece-{piece:06d}.npz"


def survey(place: Place, num_pieces: int) -> Survey:
    """Return which pieces are there, and which are claimed."""
    names = place.names()
    done = frozenset(piece for piece in range(num_pieces) if piece_name(piece) in names)
    claims: dict[int, Claim] = {}
    for match in filter(None, map(_CLAIM.fullmatch, names)):
        claim = Claim(int(match[1]), int(match[2]))
        known = claims.get(claim.piece)
        if claim.piece >= num_pieces:  # of another list; nobody could make it
            continue
        if claim.piece not in done and (known is None or known.attempt < claim.attempt):
            claims[claim.piece] = claim
    return Survey(done, claims)


def holder(place: Place, claim: Claim) -> str:
    """Return the name of the worker that made a claim, "" where it cannot be read."""
    return str(_stated(place, claim).get("worker", ""))


def reopen(place: Place, piece: int) -> None:
    """Remove a piece and its claims, so that it is made again."""
    place.remove(piece_name(piece))
    for name in place.names():
        match = _CLAIM.fullmatch(name)
        if match and int(match[1]) == piece:
            place.remove(name)


@dataclass(frozen=True)
class Worker:
    """One of the processes that make pieces.

    Attributes:
        place: Where the pieces lie.
        name: Its name, which no other worker has.
        lease_seconds: For how long nothing may be written to one of its claims, before others take
            the piece over.
    """

    place: Place
    name: str
    lease_seconds: float

    def take(self, num_pieces: int) -> Claim | None:
        """Claim a piece that nobody works on.

        Returns:
            The claim. None where every piece is there or belongs to a worker that lives.
        """
        lost: set[Claim] = set()  # another was quicker; a list of files may be behind
        while True:
            found = survey(self.place, num_pieces)
            free = [
                Claim(piece, 1)
                for piece in range(num_pieces)
                if piece not in found.done and piece not in found.claims
            ]
            free = [claim for claim in free if claim not in lost]
            # Workers that start together begin at different pieces.
            claim = free[zlib.crc32(self.name.encode()) % len(free)] if free else None
            claim = claim or self._lapsed(found, lost)
            if claim is None or self.place.create(claim.name, self._content()):
                return claim
            lost.add(claim)

    @contextmanager
    def holding(self, claim: Claim) -> Iterator[None]:
        """Keep a claim alive within the block; give it back where the block raises."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(self.lease_seconds / _BEATS):
                with suppress(Exception):  # a store that does not answer now may do so later
                    self.place.write(claim.name, self._content())

        thread = threading.Thread(target=beat, name=f"lease of {claim.name}", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            ended.set()
            thread.join()
            with suppress(Exception):
                self.place.remove(claim.name)
            raise
        finally:
            ended.set()
            thread.join()

    def _content(self) -> bytes:
        stated = {"worker": self.name, "lease_seconds": self.lease_seconds}
        return json.dumps(stated).encode()

    def _lapsed(self, found: Survey, lost: Collection[Claim]) -> Claim | None:
        """The claim by which the first piece is taken over whose owner is taken for dead."""
        if not found.claims:
            return None
        own = _own_file(self.name)
        self.place.write(own, self._content())
        now = self.place.written_at(own)  # by the store's clock
        for claim in sorted(found.claims.values(), key=lambda claim: claim.piece):
            following = Claim(claim.piece, claim.attempt + 1)
            if following not in lost and self._is_lapsed(claim, now):
                return following
        return None

    def _is_lapsed(self, claim: Claim, now: float) -> bool:
        """Whether the owner of a claim has not written it for the time of its lease."""
        try:
            written = self.place.written_at(claim.name)
        except FileNotFoundError:  # given back, or done, a moment ago
            return False
        stated = _stated(self.place, claim).get("lease_seconds")
        lease = self.lease_seconds
        if isinstance(stated, int | float) and stated < math.inf:  # NaN is no lease
            lease = stated
        # A time in the future is of a clock that was put back: who lives writes again soon.
        return abs(now - written) > lease


@contextmanager
def working(place: Place, lease_seconds: float) -> Iterator[Worker]:
    """Yield a new worker, after a look at whether the place can tell two workers apart.

    Raises:
        LikenessError: It makes a file that is there already, so that two workers would both have
            it.
        OSError: It cannot be written to.
    """
    worker = Worker(place, f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}", lease_seconds)
    own = _own_file(worker.name)
    try:
        place.create(own, b"{}")
        if place.create(own, b"{}"):
            raise LikenessError(
                f"{place}: this store makes a file anew that is there already, so that two workers "
                "could claim the same piece; give a folder, or a store that knows If-None-Match"
            )
        yield worker
    finally:
        with suppress(Exception):
            place.remove(own)


def _own_file(name: str) -> str:
    return f"worker-{name}"


def _stated(place: Place, claim: Claim) -> dict[str, Any]:
    """What the file of a claim says; nothing where it is gone or being written."""
    try:
        stated = json.loads(place.read(claim.name, _MAX_CLAIM))
    except (ValueError, OSError):
        return {}
    return stated if isinstance(stated, dict) else {}


def _status(error: Exception) -> int | None:
    """The status of HTTP that an exception of a store reports."""
    for cause in (error, error.__cause__):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status if isinstance(status, int) else None
        code = getattr(cause, "code", None)
        if isinstance(code, int):
            return code
    return None


def _create_in_place(path: Path, content: bytes) -> bool:
    """Make a file, unless it is there, on a file system without links."""
    try:
        file = path.open("xb")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(content)
    except BaseException:
        path.unlink()  # others would wait for the rest of it
        raise
    return True
