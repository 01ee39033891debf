"""A network that a Python file of the user defines: `own.py`, or `own.py:NAME`.

The file is the user's own code and is run, as a recipe is. The weights that it names are read
without running code.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from eval.errors import LikenessError
from eval.formats.provenance import digest, sha256
from likeness.models.trust import OURS
from likeness.network import Network
from modalities.face import images as faces
from modalities.image import images
from modalities.speaker import audio
from modalities.speaker.features import RawWave
from toolkit.backbones.external import External
from toolkit.backbones.weights import read_weights
from toolkit.data.pixels import PixelScale
from toolkit.data.reading import name_of
from toolkit.models import user_files
from toolkit.models.checkpoint import put
from toolkit.models.embedder import TorchEmbedder
from toolkit.models.loaded import Loaded
from toolkit.models.parts import Part, describe, version_of

DEFAULT = "MODEL"
_REMEDY = "take the weights of this network, or set prefix or leave_out of the Network"


def load(path: Path, name: str = DEFAULT) -> Loaded:
    """Run a Python file and load the network that it defines.

    The digest is of the file's text and of the weights.

    Args:
        path: The Python file.
        name: The name of a `likeness.Network` in it.

    Raises:
        LikenessError: There is no such file or name, the weights do not fit, or the network does
            not give finite embeddings (B, D).
    """
    if not path.is_file():
        raise LikenessError(
            f"model {str(path)!r}: there is no such file; give a Python file that defines {DEFAULT}"
        )
    text = sha256(path)
    try:
        defined = vars(user_files.run(path, anew=False))
    except SystemExit as ended:
        raise LikenessError(
            f"{path}: the file ended the program (sys.exit({ended.code!r})) as it was run; a model "
            "file defines a likeness.Network, and does nothing else"
        ) from None
    network = _network(defined, path, name)
    where = str(path) if name == DEFAULT else f"{path}:{name}"
    frontend, read = _frontend(network), _reading(network)
    made_frontend = cast(nn.Module, frontend())
    embedder, backbone, weights = _embedder(network, made_frontend, path.parent, where)
    parts = {}
    with suppress(ValueError):  # a part without a name: the model can be used, but not joined
        named = {"frontend": frontend, "backbone": backbone, "read": read}
        parts = {name: describe(part, name) for name, part in named.items()}
    return Loaded(
        embedder.eval(),
        read,
        network.modality,
        network.similarity,
        digest([text, _settings(network), weights, *_versions(embedder, read)]),
        0,
        parts=parts,
    )


def _settings(network: Network) -> str:
    """Return what a network states, as text: the same weights on other pixels are another model."""
    return repr([(field.name, _plainly(getattr(network, field.name))) for field in fields(network)])


def _plainly(value: Any) -> Any:
    """Return a setting without the addresses of functions."""
    if isinstance(value, partial):
        stated = {key: _plainly(setting) for key, setting in sorted(value.keywords.items())}
        return [_plainly(value.func), *map(_plainly, value.args), stated]
    if callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
    return str(value) if isinstance(value, Path) else value


def _versions(embedder: TorchEmbedder, read: Any) -> list[str]:
    """Return the packages of others that the network, front-end and reading are defined in.

    Each of them is "NAME VERSION", where the version of a file is its SHA-256: another class gives
    other embeddings, so a model's digest has to tell it apart.
    """
    function = read.func if isinstance(read, partial) else read
    makers = [*map(type, embedder.modules()), function]
    packages = {str(getattr(maker, "__module__", "")).partition(".")[0] for maker in makers}
    others = packages - {"", "torch", *OURS, *sys.stdlib_module_names}
    return [f"{name} {version_of(name)}" for name in sorted(others)]


def _network(defined: Mapping[str, Any], path: Path, name: str) -> Network:
    """Return the network of this name among what a file defines."""
    network = defined.get(name)
    if not isinstance(network, Network):
        others = [key for key, value in defined.items() if isinstance(value, Network)]
        listed = f"it defines {', '.join(others)}" if others else "it defines none"
        raise LikenessError(
            f"{path} defines no network {name!r}: {listed}; write {name} = likeness.Network(...), "
            "or name another with a colon after the file"
        )
    return network


def _frontend(network: Network) -> Part:
    if network.frontend is not None:
        return network.frontend
    if network.modality == "speaker":
        return RawWave
    mean, std = (
        (float(value),) * 3 if isinstance(value, int | float | Real) else tuple(value)
        for value in (network.mean, network.std)
    )
    return partial(PixelScale, mean=mean, std=std, scale=network.scale, bgr=network.bgr)


def _reading(network: Network) -> Any:
    if network.read is not None:
        return network.read
    if network.modality == "speaker":
        return partial(audio.read, rate_hz=network.rate_hz)
    height, width = network.size
    if network.modality == "face":
        return partial(faces.read, size=(height, width))
    return partial(images.read, size=(height, width))


def _embedder(
    network: Network, frontend: nn.Module, folder: Path, where: str
) -> tuple[TorchEmbedder, Part, str]:
    """Return the embedder with its weights, after trying it, its backbone as a part, and the digest
    of the weights.
    """
    shape = _input_shape(network, frontend, where)
    part = partial(
        External,
        network=network.network,
        input_shape=shape,
        lengths=network.lengths,
        output=network.output,
    )
    with _of_user(where):
        backbone = part(cast(int, frontend.dim))
    summed = _digest_of(backbone)
    if network.weights:
        file = folder / network.weights
        with _of_user(where):
            tensors = read_weights(file, key=network.key)
        fitting = _fitting(tensors, network, backbone.network)
        put(backbone.network, fitting, f"{where}: {file}", _REMEDY)
        summed, where = sha256(file), f"{where} with {file}"
    with _of_user(where):
        backbone.try_out(shape)
    return TorchEmbedder(frontend, backbone), part, summed


@torch.no_grad()
def _input_shape(network: Network, frontend: nn.Module, where: str) -> tuple[int, ...]:
    """Return the shape of one input of the network: what its front-end makes of a second of silence
    or of a black image.
    """
    in_dim, speech = cast(int, frontend.dim), network.modality == "speaker"
    if not speech and (network.frontend is None or network.read is not None):
        return (in_dim, *network.size)
    size = (1, network.rate_hz) if speech else (1, 3, *network.size)
    with _of_user(where):
        features, _ = frontend.eval()(torch.zeros(size), None)
    shape = tuple(features.shape)
    is_frames = speech and len(shape) == 3 and shape[2] == in_dim
    if not is_frames and not (len(shape) == 4 and shape[1] == in_dim):
        form = "(1, frames, dim)" if speech else "(1, dim, height, width)"
        raise LikenessError(
            f"{where}: frontend: {name_of(frontend)} gives features {shape} for an input {size}, "
            f"and states dim as {in_dim}; it must give {form}"
        )
    return shape[1:2] if is_frames and in_dim == 1 else shape[1:]


@contextmanager
def _of_user(where: str) -> Iterator[None]:
    """What does not fit in the user's network becomes an error that names the file."""
    try:
        yield
    except LikenessError as error:
        raise LikenessError(f"{where}: {str(error).removeprefix('External: ')}") from error


def _fitting(
    tensors: Mapping[str, Tensor], network: Network, module: nn.Module
) -> dict[str, Tensor]:
    """Return the tensors of a file by the names that the network has for them."""
    kept = dict(tensors)
    for start in ("module.", network.prefix):
        if start and (start == network.prefix or all(name.startswith(start) for name in kept)):
            kept = {
                name.removeprefix(start): value
                for name, value in kept.items()
                if name.startswith(start)
            }
    out = network.leave_out
    starts = (out,) if isinstance(out, str) else tuple(out)
    kept = {name: value for name, value in kept.items() if not name.startswith(starts)}
    # Files of old versions of torch have no counts of batches, and nothing is computed from them.
    counts = {
        name: value
        for name, value in module.state_dict().items()
        if name.endswith(".num_batches_tracked")
    }
    return counts | kept


def _digest_of(module: nn.Module) -> str:
    """Return the digest of a module's tensors, for weights that `network` loads by itself."""
    return digest(
        f"{name} {hashlib.sha256(_bytes(value)).hexdigest()}"
        for name, value in module.state_dict().items()
    )


def _bytes(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
