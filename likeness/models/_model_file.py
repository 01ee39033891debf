"""A network that a Python file of the user defines: `own.py`, or `own.py:NAME`.

The file is the user's own code and is run, as a recipe is. The weights that it names are read
without running code.
"""

import ast
import hashlib
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.eval.formats.provenance import digest, sha256
from likeness.modalities.face import images as faces
from likeness.modalities.image import images
from likeness.modalities.speaker import audio
from likeness.modalities.speaker.features import RawWave
from likeness.models.network import Network
from likeness.toolkit.backbones.external import External
from likeness.toolkit.backbones.weights import put, read_weights
from likeness.toolkit.data.pixels import PixelScale
from likeness.toolkit.models import user_files
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.models.parts import HOMES, Part, check_rates, describe_parts, version_of

DEFAULT = "MODEL"
_REMEDY = "take the weights of this network, or set prefix or leave_out of the Network"
_NAME = re.compile(r"[^\0\n]{1,200}")  # a text that may be the name of a file
_NO_OTHERS = {"", "torch", "likeness", *HOMES, *sys.stdlib_module_names}


def load_file(path: Path, name: str = DEFAULT) -> Loaded:
    """Run a Python file and load the network that it defines.

    The digest is of the file's text, the name, what is stated of the network and the weights, of
    the files that the text names, which it may load itself, and of the files and packages that the
    network is defined in.

    Args:
        path: The Python file.
        name: The name of a `likeness.Network` in it.

    Raises:
        LikenessError: There is no such name, the weights do not fit, sampling rates differ, or the
            network does not give finite embeddings (B, D).
    """
    text = sha256(path)
    defined = vars(user_files.run(path))
    network = defined.get(name)
    if not isinstance(network, Network):
        others = [key for key, value in defined.items() if isinstance(value, Network)]
        raise LikenessError(
            f"{path} defines no network {name!r}: it defines {', '.join(others) or 'none'}; write "
            f"{name} = likeness.Network(...), or name another with a colon after the file"
        )
    frontend, read = network.frontend or _frontend(network), network.read or _reading(network)
    where = str(path) if name == DEFAULT else f"{path}:{name}"
    try:
        made = cast(nn.Module, frontend())
        states = network.read is None or network.rate_hz != Network.rate_hz
        check_rates(made, network=_reading(network) if states else None, read=network.read)
        shape = _input_shape(network, made)
        part = partial(
            External,
            network=network.network,
            input_shape=shape,
            lengths=network.lengths,
            output=network.output,
        )
        backbone = part(cast(int, made.dim))
        weights = _fill(backbone, network, path.parent)
        backbone.try_out(shape)
    except LikenessError as error:  # it becomes one that names the file
        reason = str(error).removeprefix("External: ")
        where += f" with {network.weights}" if network.weights else ""
        raise LikenessError(f"{where}: {reason}") from error
    embedder = TorchEmbedder(made, backbone)
    parts = {}
    with suppress(ValueError):  # a part without a name: the model can be used, but not joined
        parts = describe_parts(frontend, part, read)
    stated = [repr(value) for value in vars(network).values() if not callable(value)]
    summed = [text, name, *stated, weights, *_named_files(path), *_versions(embedder, read)]
    about = network.modality, network.similarity, digest(summed)
    return Loaded(embedder.eval(), read, *about, 0, parts=parts)


def _named_files(path: Path) -> list[str]:
    """Return the digests of the files that the strings in a Python file name.

    They are looked for from the current folder and from that of the file: a network that loads an
    .onnx file or an array by itself is another model after that file has changed.
    """
    nodes = ast.walk(ast.parse(path.read_bytes()))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    names = {text for text in texts if isinstance(text, str) and _NAME.fullmatch(text)}
    files = {folder / name for name in names for folder in (Path(), path.parent)}
    return sorted({sha256(file) for file in files if file.is_file()})


def _versions(embedder: TorchEmbedder, read: Any) -> list[str]:
    """Return the packages of others that the network, front-end and reading are defined in.

    Each of them is "NAME VERSION", where the version of a file is its SHA-256: another class gives
    other embeddings, so a model's digest has to tell it apart.
    """
    function = read.func if isinstance(read, partial) else read
    makers = [*map(type, embedder.modules()), function]
    packages = {str(getattr(maker, "__module__", "")).partition(".")[0] for maker in makers}
    return [f"{name} {version_of(name)}" for name in sorted(packages - _NO_OTHERS)]


def _frontend(network: Network) -> Part:
    if network.modality == "speaker":
        return RawWave
    mean, std = (
        (float(value),) * 3 if isinstance(value, int | float | Real) else tuple(value)
        for value in (network.mean, network.std)
    )
    return partial(PixelScale, mean=mean, std=std, scale=network.scale, bgr=network.bgr)


def _reading(network: Network) -> Part:
    if network.modality == "speaker":
        return partial(audio.read, rate_hz=network.rate_hz)
    return partial((faces if network.modality == "face" else images).read, size=network.size)


@torch.no_grad()
def _input_shape(network: Network, frontend: nn.Module) -> tuple[int, ...]:
    """Return the shape of one input of the network: what its front-end makes of a second of silence
    or of a black image.
    """
    speech = network.modality == "speaker"
    if not speech and (network.frontend is None or network.read is not None):
        return (cast(int, frontend.dim), *network.size)
    size = (1, network.rate_hz) if speech else (1, 3, *network.size)
    features, _ = frontend.eval()(torch.zeros(size), None)
    shape = tuple(features.shape[1:])
    return shape[:1] if shape[1:] == (1,) else shape  # frames of one value are waves


def _fill(backbone: External, network: Network, folder: Path) -> str:
    """Give a network the weights of its file; return the digest of the weights.

    Without a file, they are those that `network` loads by itself.
    """
    module = backbone.network
    if not network.weights:
        flat = {name: x.cpu().contiguous().reshape(-1) for name, x in module.state_dict().items()}
        sums = {name: hashlib.sha256(x.view(torch.uint8).numpy()) for name, x in flat.items()}
        return digest(f"{name} {of.hexdigest()}" for name, of in sums.items())
    file = folder / network.weights
    put(module, _fitting(read_weights(file, key=network.key), network), str(file), _REMEDY)
    return sha256(file)


def _fitting(tensors: Mapping[str, Tensor], network: Network) -> dict[str, Tensor]:
    """Return the tensors of a file by the names that the network has for them."""
    kept = dict(tensors)
    if all(name.startswith("module.") for name in kept):
        kept = {name.removeprefix("module."): value for name, value in kept.items()}
    out = (network.leave_out,) if isinstance(network.leave_out, str) else tuple(network.leave_out)
    kept = {
        name.removeprefix(network.prefix): value
        for name, value in kept.items()
        if name.startswith(network.prefix)
    }
    return {name: value for name, value in kept.items() if not name.startswith(out)}
