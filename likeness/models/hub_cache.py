"""Files of a repository of the Hugging Face hub: fetched within bounds, or taken from the cache.

The cache is that of huggingface_hub, in its form for systems without links. The download is not:
`hf_hub_download` takes as many bytes as a server sends, and names a file by what the server calls
its ETag, so `ETag: ../../x` leaves the cache. Here no header becomes a path.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from eval.errors import LikenessError
from eval.formats.writing import atomic_path
from eval.types import first_line

MAX_WEIGHTS = 32 * 2**30  # bytes of all files together
_MAX_SETTINGS = 2**24  # bytes of a file of settings, such as config.json
_MOST = {".safetensors": MAX_WEIGHTS, ".ckpt": 4 * 2**30}  # bytes of one file of weights
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECONDS = 4.0  # how long the hub may take to say which files there are
_Answer = TypeVar("_Answer")


class Refused(LikenessError):
    """The files of a repository are not such as are read."""


class Snapshot(NamedTuple):
    """The files of one commit, or of a folder.

    Attributes:
        names: The names of the files that there are.
        get: Gives the paths of files by their names. Those of a repository are fetched then.
        commit: The commit; "" for a folder.
    """

    names: Collection[str]
    get: Callable[[Sequence[str]], tuple[Path, ...]]
    commit: str = ""


def of_folder(folder: Path, commit: str = "") -> Snapshot:
    """Return the files of a folder."""
    # A pipe would be waited for without end, and a link may lead nowhere.
    names = {path.name for path in folder.iterdir() if path.is_file()}

    def get(files: Sequence[str]) -> tuple[Path, ...]:
        if missing := [file for file in files if file not in names]:
            raise Refused(f"{folder} holds no {missing[0]}; copy it there")
        return tuple(folder / file for file in files)

    return Snapshot(names, get, commit)


def from_hub(
    model: str,
    name: str,
    revision: str | None,
    first: str,
    choose: Callable[[Snapshot], _Answer],
) -> _Answer:
    """Choose files of a repository on the hub, or of the cache where the hub cannot be asked.

    Args:
        model: The MODEL that the user wrote, for errors: KIND:SOURCE.
        name: ORGANISATION/NAME.
        revision: A branch, a tag or a commit; None is the branch "main".
        first: A file that every such repository has.
        choose: Takes the files, and returns what is needed of them.

    Returns:
        What `choose` returns.

    Raises:
        Refused: By `choose`; or the hub states files that are too large, or sends more than it
            states.
        OSError: The hub cannot be reached and the files were not fetched before, or it has no such
            repository.
    """
    try:
        snapshot = _ask(model, name, revision)
        chosen = choose(snapshot)
        _remember(name, revision or "main", snapshot.commit)
        return chosen
    except Refused:
        raise
    except Exception as error:
        # The hub's library and the HTTP library under it have exceptions that share no base.
        failure = error
    try:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, first, revision=revision)
        if isinstance(cached, str):
            folder = Path(cached).parent
            return choose(of_folder(folder, folder.name))
    except Exception:  # not enough was fetched before: the first error says why
        pass
    kind = model.partition(":")[0]
    reason = first_line(failure).rstrip(". ")
    raise LikenessError(
        f"{model} could not be fetched from the Hugging Face hub ({reason}), and it is not "
        f"in the cache; connect, or fetch its files elsewhere and give {kind}:FOLDER"
    )


def _ask(model: str, name: str, revision: str | None) -> Snapshot:
    """Ask the hub which files a revision has, and how large they are."""
    from huggingface_hub import HfApi

    info = _within(
        _SECONDS,
        lambda: HfApi().model_info(name, revision=revision, timeout=_SECONDS, files_metadata=True),
    )
    commit = str(info.sha)
    if not _COMMIT.fullmatch(commit):  # it becomes the name of a folder
        raise Refused(
            f"{model}: the hub names a commit {commit[:60]!r}, which is none; ask again, or set "
            "HF_ENDPOINT to a hub that you trust"
        )
    sizes = {file.rfilename: _size(file) for file in info.siblings or ()}
    fetched: dict[str, Path] = {}

    def get(files: Sequence[str]) -> tuple[Path, ...]:
        left = MAX_WEIGHTS - sum(path.stat().st_size for path in fetched.values())
        _check_sizes(model, {file: sizes.get(file) for file in files}, left)
        for file in files:
            fetched[file] = _download(model, name, commit, file, sizes.get(file), left)
            left -= fetched[file].stat().st_size
        return tuple(fetched[file] for file in files)

    return Snapshot(sizes, get, commit)


def _within(seconds: float, ask: Callable[[], _Answer]) -> _Answer:
    """Return what a function gives, or raise TimeoutError where it takes longer.

    No timeout of an HTTP library bounds how long a name server is waited for.
    """
    answers: list[_Answer] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answers[0]


def _size(file: Any) -> int | None:
    """Return how many bytes the hub states of a file; None where it states nothing."""
    size = file.lfs.size if file.lfs else file.size
    return size if type(size) is int and size >= 0 else None


def _most(file: str) -> int:
    """Return how many bytes a file of this name may have."""
    return _MOST.get(Path(file).suffix, _MAX_SETTINGS)


def _check_sizes(model: str, sizes: Mapping[str, int | None], left: int) -> None:
    """Refuse files that are too large by what the hub states, one by one and all together."""
    for file, size in sizes.items():
        if size is not None and size > _most(file):
            raise Refused(
                f"{model}: {file} has {size} bytes; at most {_most(file)} are fetched: fetch it "
                f"elsewhere and give {model.partition(':')[0]}:FOLDER"
            )
    total = sum(size or 0 for size in sizes.values())
    if total > left:
        raise Refused(
            f"{model}: its files have {total + MAX_WEIGHTS - left} bytes together; at most "
            f"{MAX_WEIGHTS} are fetched: fetch them elsewhere and give "
            f"{model.partition(':')[0]}:FOLDER"
        )


def _folder(name: str) -> Path:
    """Return the folder of a repository in the cache of huggingface_hub."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cache = Path(constants.HF_HUB_CACHE).expanduser()
    return cache / repo_folder_name(repo_id=name, repo_type="model")


def _download(model: str, name: str, commit: str, file: str, size: int | None, left: int) -> Path:
    """Fetch a file of a commit, if it was not fetched before; return its path.

    Args:
        model: For errors.
        name: Of the repository.
        commit: The commit.
        file: The name of the file.
        size: Its bytes, as the hub states them; None where it states nothing.
        left: How many bytes are fetched of it at most, whatever it is.
    """
    path = _folder(name) / "snapshots" / commit / file
    if path.is_file():
        return path
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    path.parent.mkdir(parents=True, exist_ok=True)
    most = min(_most(file), left) if size is None else size
    with atomic_path(path) as part, _Bounded(part, most, f"{model}: {file}") as stream:
        http_get(
            hf_hub_url(name, file, revision=commit),
            stream,
            headers=build_hf_headers(),
            expected_size=size,
            displayed_filename=file,
        )
    return path


class _Bounded(io.BufferedWriter):
    """A file that takes so many bytes at most, since a server may send more than it states."""

    def __init__(self, path: Path, most: int, what: str) -> None:
        super().__init__(io.FileIO(path, "w"))
        self.most, self.what = most, what

    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > self.most:
            raise Refused(
                f"{self.what} is longer than the {self.most} bytes that are fetched of it; ask "
                "again, or set HF_ENDPOINT to a hub that you trust"
            )
        return super().write(data)


def _remember(name: str, revision: str, commit: str) -> None:
    """Note which commit a branch or tag is, so that it is found without a connection."""
    if revision == commit:
        return
    path = _folder(name) / "refs" / revision
    with suppress(OSError):  # the cache may be one that cannot be written to
        if path.is_file() and path.read_text(encoding="utf-8") == commit:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as part:
            part.write_text(commit, encoding="utf-8")
