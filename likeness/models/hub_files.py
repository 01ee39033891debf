"""The files of a network of the Hugging Face hub: in a folder, or fetched for an id that is named.

Configurations are read as plain JSON within bounds, and weights as .safetensors. Files of pickle
are refused, and no code of a repository is fetched or run.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from eval.formats.files import bounded
from eval.types import name_first
from toolkit.backbones.weights import read_weights

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# How the inputs are read; newer versions of transformers write the second one.
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REVISION = re.compile(r"[\w][\w./-]{0,127}")
_SHARD = re.compile(r"[\w][\w.-]{0,127}\.safetensors")
_MAX_JSON, _MAX_INDEX, _MAX_SHARDS = 2**20, 2**24, 256
_MAX_WEIGHTS = 32 * 2**30  # bytes of all files together
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECONDS = 4.0  # how long the hub may take to say which files there are
_Answer = TypeVar("_Answer")


class Files(NamedTuple):
    """The files of one network.

    Attributes:
        config: config.json.
        preprocessor: How the inputs are read; None if there is no such file.
        weights: The .safetensors files.
        revision: The commit that was fetched; "" for a folder.
    """

    config: Path
    preprocessor: Path | None
    weights: tuple[Path, ...]
    revision: str = ""


def find_files(source: str, *, weights: bool = True) -> Files:
    """Return the files of a network.

    Args:
        source: A folder, of which the network is never asked; or ORGANISATION/NAME on the Hugging
            Face hub, perhaps with @REVISION (a branch, a tag or a commit).
        weights: Whether the weights are needed. Without, only JSON is fetched.

    Raises:
        ValueError: The source is neither, or the files are not there or not safetensors.
        OSError: The hub cannot be reached and the files were not fetched before, or it has no such
            repository.
    """
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        # A pipe would be waited for without end, and a link may lead nowhere.
        names = [path.name for path in folder.iterdir() if path.is_file()]
        return _chosen(source, names, weights, lambda name: folder / name, "")
    name, _, revision = source.partition("@")
    if not _ID.fullmatch(name) or (revision and not _REVISION.fullmatch(revision)):
        raise ValueError(
            f"hub:{source} is neither a folder nor an id on the hub such as "
            "facebook/dinov2-small or facebook/dinov2-small@REVISION; correct it"
        )
    return _fetch(name, revision or None, source, weights)


def _fetch(name: str, revision: str | None, source: str, weights: bool) -> Files:
    """Fetch the files of an id on the hub, or take them from the cache where it cannot be asked."""
    import huggingface_hub

    try:
        info = _within(
            _SECONDS,
            lambda: huggingface_hub.HfApi().model_info(name, revision=revision, timeout=_SECONDS),
        )
        commit = str(info.sha)
        if not _COMMIT.fullmatch(commit):  # it becomes the name of a folder
            raise _Refused(
                f"hub:{source}: the hub names a commit {commit[:60]!r}, which is none; ask again, "
                "or set HF_ENDPOINT to a hub that you trust"
            )
        names = [file.rfilename for file in info.siblings or ()]

        def fetch(file: str) -> Path:
            return Path(huggingface_hub.hf_hub_download(name, file, revision=commit))

        return _chosen(source, names, weights, fetch, commit)
    except ValueError as error:
        if isinstance(error, _Refused):
            raise
        failure: Exception = error
    except Exception as error:
        # The hub's library and the HTTP library under it have exceptions that share no base.
        failure = error
    try:
        patterns = [CONFIG, *PREPROCESSORS, *([INDEX, "*.safetensors"] if weights else [])]
        cached = Path(
            huggingface_hub.snapshot_download(
                name, revision=revision, local_files_only=True, allow_patterns=patterns
            )
        )
        names = [path.name for path in cached.iterdir()]
        return _chosen(source, names, weights, lambda file: cached / file, cached.name)
    except Exception:  # nothing, or not enough, was fetched before: the first error says why
        reason = (str(failure).strip() or type(failure).__name__).splitlines()[0].rstrip(". ")
    raise OSError(
        f"{source} could not be fetched from the Hugging Face hub ({reason[:200]}), and it is not "
        "in the cache; connect, or fetch its files elsewhere and give hub:FOLDER"
    )


class _Refused(ValueError):
    """The files of a repository are not such as are read."""


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


def _chosen(
    source: str,
    names: Collection[str],
    weights: bool,
    fetch: Callable[[str], Path],
    revision: str,
) -> Files:
    """Return the files to read, of all names in a repository or folder."""
    if CONFIG not in names:
        raise _Refused(
            f"hub:{source} holds no {CONFIG}; give a folder or a repository of a network of "
            "transformers"
        )
    config = fetch(CONFIG)
    preprocessor = next((fetch(name) for name in PREPROCESSORS if name in names), None)
    if not weights:
        return Files(config, preprocessor, (), revision)
    if WEIGHTS in names:
        return Files(config, preprocessor, (fetch(WEIGHTS),), revision)
    if INDEX not in names:
        pickled = sorted(name for name in names if name.endswith(_PICKLED))
        what = f"only {name_first(pickled)}, which may hold code" if pickled else "no weights"
        raise _Refused(
            f"hub:{source} holds {what}; weights are read as {WEIGHTS} or {INDEX}: save them by "
            "transformers' save_pretrained, or give a revision that has them"
        )
    shards = _shards(fetch(INDEX), source)
    if missing := [shard for shard in shards if shard not in names]:
        raise _Refused(
            f"hub:{source}: {len(missing)} of {len(shards)} files of weights that {INDEX} names "
            f"are not there ({name_first(missing)}); copy them again"
        )
    return Files(config, preprocessor, tuple(fetch(shard) for shard in shards), revision)


def _shards(index: Path, source: str) -> list[str]:
    """Return the files of weights that an index names, sorted."""
    try:
        placed = json.loads(bounded(index, _MAX_INDEX))["weight_map"]
        shards = sorted(set(placed.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _Refused(f"hub:{source}: {INDEX} is damaged; copy it again") from None
    wrong = [shard for shard in shards if not isinstance(shard, str) or not _SHARD.fullmatch(shard)]
    if wrong or not 1 <= len(shards) <= _MAX_SHARDS:
        raise _Refused(
            f"hub:{source}: {INDEX} names {len(shards)} files of weights, {len(wrong)} of them not "
            f"as NAME.safetensors; 1 to {_MAX_SHARDS} files beside it are read"
        )
    return shards


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object of at most 1 MiB.

    Raises:
        ValueError: The file is larger, or holds no JSON object.
    """
    try:
        content = json.loads(bounded(path, _MAX_JSON))
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ValueError(
            f"{path} holds no JSON that can be read ({reason}); copy it again"
        ) from None
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} holds a {type(content).__name__}; a JSON object is needed: copy it again"
        )
    return content


def read_tensors(files: Files) -> dict[str, Tensor]:
    """Return the tensors of all files of weights by their names.

    Raises:
        ValueError: A file is damaged, two files hold one name, or they are too large together.
    """
    size = sum(path.stat().st_size for path in files.weights)
    if size > _MAX_WEIGHTS:
        raise ValueError(
            f"{files.config.parent}: its {len(files.weights)} files of weights have {size} bytes "
            f"together; at most {_MAX_WEIGHTS} are read: give a smaller network"
        )
    tensors: dict[str, Tensor] = {}
    for path in files.weights:
        part = read_weights(path)
        if twice := sorted(part.keys() & tensors.keys()):
            raise ValueError(
                f"{path}: {len(twice)} tensors are in another file too ({name_first(twice)}); copy "
                "the files again"
            )
        tensors |= part
    return tensors
