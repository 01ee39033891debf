"""The files of a network of the Hugging Face hub: in a folder, or fetched for an id that is named.

Configurations are read as plain JSON within bounds, and weights as .safetensors. Files of pickle
are refused, and no code of a repository is fetched or run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from eval.errors import LikenessError
from eval.formats.files import bounded
from eval.types import first_line, name_first
from likeness.models.hub_cache import MAX_WEIGHTS, Refused, Snapshot, from_hub, of_folder
from toolkit.backbones.weights import read_weights

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# How the inputs are read; newer versions of transformers write the second one.
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REVISION = re.compile(r"[\w][\w./-]{0,127}")
_SHARD = re.compile(r"[\w][\w.-]{0,127}\.safetensors")
_MAX_JSON, _MAX_INDEX, _MAX_SHARDS = 2**20, 2**24, 256


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
        LikenessError: The source is neither, or the files are not there, not safetensors or too
            large.
        OSError: The hub cannot be reached and the files were not fetched before, or it has no such
            repository.
    """
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        return _chosen(source, of_folder(folder), weights)
    name, _, revision = source.partition("@")
    if (
        not _ID.fullmatch(name)
        or (revision and not _REVISION.fullmatch(revision))
        or ".." in revision  # it becomes a path in the cache; git allows no such name either
    ):
        raise LikenessError(
            f"hub:{source} is neither a folder nor an id on the hub such as "
            "facebook/dinov2-small or facebook/dinov2-small@REVISION; correct it"
        )
    return from_hub(
        f"hub:{source}",
        name,
        revision or None,
        CONFIG,
        lambda snapshot: _chosen(source, snapshot, weights),
    )


def _chosen(source: str, snapshot: Snapshot, weights: bool) -> Files:
    """Return the files to read, of all in a repository or folder."""
    names, get, commit = snapshot
    if CONFIG not in names:
        raise Refused(
            f"hub:{source} holds no {CONFIG}; give a folder or a repository of a network of "
            "transformers"
        )
    (config,) = get([CONFIG])
    stated = get([name for name in PREPROCESSORS if name in names][:1])
    preprocessor = stated[0] if stated else None
    if not weights:
        return Files(config, preprocessor, (), commit)
    if WEIGHTS in names:
        return Files(config, preprocessor, get([WEIGHTS]), commit)
    if INDEX not in names:
        pickled = sorted(name for name in names if name.endswith(_PICKLED))
        what = f"only {name_first(pickled)}, which may hold code" if pickled else "no weights"
        raise Refused(
            f"hub:{source} holds {what}; weights are read as {WEIGHTS} or {INDEX}: save them by "
            "transformers' save_pretrained, or give a revision that has them"
        )
    shards = _shards(get([INDEX])[0], source)
    if missing := [shard for shard in shards if shard not in names]:
        raise Refused(
            f"hub:{source}: {len(missing)} of {len(shards)} files of weights that {INDEX} names "
            f"are not there ({name_first(missing)}); copy them again"
        )
    return Files(config, preprocessor, get(shards), commit)


def _shards(index: Path, source: str) -> list[str]:
    """Return the files of weights that an index names, sorted."""
    try:
        placed = json.loads(bounded(index, _MAX_INDEX))["weight_map"]
        shards = sorted(set(placed.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused(f"hub:{source}: {INDEX} is damaged; copy it again") from None
    wrong = [shard for shard in shards if not isinstance(shard, str) or not _SHARD.fullmatch(shard)]
    if wrong or not 1 <= len(shards) <= _MAX_SHARDS:
        raise Refused(
            f"hub:{source}: {INDEX} names {len(shards)} files of weights, {len(wrong)} of them not "
            f"as NAME.safetensors; 1 to {_MAX_SHARDS} files beside it are read"
        )
    return shards


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object of at most 1 MiB.

    Raises:
        LikenessError: The file is larger, or holds no JSON object.
    """
    try:
        content = json.loads(bounded(path, _MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise LikenessError(
            f"{path} holds no JSON that can be read ({first_line(error)}); copy it again"
        ) from None
    if not isinstance(content, dict):
        raise LikenessError(
            f"{path} holds a {type(content).__name__}; a JSON object is needed: copy it again"
        )
    return content


def read_tensors(files: Files) -> dict[str, Tensor]:
    """Return the tensors of all files of weights by their names.

    Raises:
        LikenessError: A file is damaged, two files hold one name, or they are too large together.
    """
    size = sum(path.stat().st_size for path in files.weights)
    if size > MAX_WEIGHTS:
        raise LikenessError(
            f"{files.config.parent}: its {len(files.weights)} files of weights have {size} bytes "
            f"together; at most {MAX_WEIGHTS} are read: give a smaller network"
        )
    tensors: dict[str, Tensor] = {}
    for path in files.weights:
        part = read_weights(path, largest=MAX_WEIGHTS)
        if twice := sorted(part.keys() & tensors.keys()):
            raise LikenessError(
                f"{path}: {len(twice)} tensors are in another file too ({name_first(twice)}); copy "
                "the files again"
            )
        tensors |= part
    return tensors
