"""Networks of `transformers`: built from a configuration, and filled with a checkpoint's weights.

A configuration is JSON text. Of what config.json states, only what sizes the network is kept, and
every value is checked: a configuration comes with checkpoints from anywhere. The table of the
networks is in families.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from eval.errors import LikenessError
from toolkit.backbones.hub.families import TOWERS, Family, family_of
from toolkit.backbones.torchaudio_cpu import import_torchaudio
from toolkit.backbones.weights import first_names

MAX_TEXT = 65_536  # characters of a configuration
_MAX_WHOLE, _MAX_NUMBER = 1 << 20, 1e9
_MAX_WORD, _MAX_VALUES, _MAX_LAYERS = 64, 256, 1000
_EDGES = ("image_size", "patch_size", "num_channels")  # transformers would take a pair for some
# Smaller numbers are quantised weights, which mean nothing without their scales.
_NUMBERS = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int32, torch.int64),  # counters and positions
)
_SIZED = ("num_", "heads", "stride", "kernel", "size", "dim")  # in the names of sizes

# What every configuration states and no network is sized by; some of it names code or files.
_NEVER = frozenset(
    {
        "add_adapter",
        "attn_implementation",
        "auto_map",
        "dtype",
        "id2label",
        "label2id",
        "model_type",
        "out_features",
        "out_indices",
        "quantization_config",
        "stage_names",
        "torch_dtype",
        "transformers_version",
    }
)


def import_transformers() -> Any:
    """Import `transformers`, which takes some seconds.

    Raises:
        LikenessError: It is missing; the message names the extra to install.
    """
    with suppress(ImportError):  # transformers imports it where it is installed
        import_torchaudio()
    try:
        import transformers
    except ImportError:
        raise LikenessError(
            "networks of the Hugging Face hub need transformers; run `pip install 'likeness[hub]'`"
        ) from None
    return transformers


def configuration(stated: Mapping[str, Any], where: str = "config") -> str:
    """Return what sizes a network, of all that its config.json states, as JSON text.

    Args:
        stated: What config.json holds.
        where: What errors begin with.

    Returns:
        The text that HubImage and HubSpeech take as `config`.

    Raises:
        LikenessError: The model_type is none that is read, or a value is out of bounds. The package
            transformers is missing.

    Example:
        >>> configuration({"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [4, 8],
        ...                "embedding_size": 4, "id2label": {"0": "cat"}})
        '{"depths": [1, 1], "embedding_size": 4, "hidden_sizes": [4, 8], "model_type": "resnet"}'
    """
    model_type = stated.get("model_type")
    if isinstance(model_type, str) and model_type in TOWERS:
        inner = stated.get("vision_config")
        if not isinstance(inner, dict):
            raise LikenessError(
                f"{where}: model_type is {model_type!r}, but it has no vision_config"
            )
        stated, model_type = inner, TOWERS[model_type]
    family = family_of(model_type, where)
    known = _sizes(family) - set(family.fixed)
    kept = {name: value for name, value in stated.items() if name in known and value is not None}
    text = json.dumps({**kept, "model_type": model_type}, sort_keys=True)
    _checked(text, where)
    return text


def _sizes(family: Family) -> set[str]:
    """Return the names of what sizes a network: what its configuration has, and not every one."""
    transformers = import_transformers()
    every = set(transformers.PretrainedConfig().to_dict())
    return set(getattr(transformers, family.config)().to_dict()) - every - _NEVER


def _checked(text: str, where: str) -> tuple[Family, dict[str, Any]]:
    """Return the family of a configuration's text, and its settings.

    Raises:
        LikenessError: The text is no JSON object, too long, or states what no network is sized by.
    """
    if len(text) > MAX_TEXT:
        raise LikenessError(
            f"{where}: the configuration has {len(text)} characters; at most {MAX_TEXT} are read"
        )
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise LikenessError(f"{where}: {text[:60]!r} is no configuration; a JSON object is needed")
    family = family_of(settings.pop("model_type", None), where)
    for name, value in settings.items():
        if name in _NEVER or name.startswith("_") or not _fits(value):
            raise LikenessError(
                f"{where}: {name} is {str(value)[:60]!r}; whole numbers up to {_MAX_WHOLE}, other "
                "numbers, short words, and lists of at most 256 of them are read: give the "
                "config.json of a published network"
            )
        counts = value if isinstance(value, list) and name == "depths" else [value]
        is_count = "layers" in name or name == "depths"
        if is_count and any(isinstance(x, int) and not 0 <= x <= _MAX_LAYERS for x in counts):
            raise LikenessError(
                f"{where}: {name} is {value}; 0 to {_MAX_LAYERS} layers are read: give the "
                "config.json of a published network"
            )
        _check_sizes(name, value, where)
    return family, settings


def _check_sizes(name: str, value: Any, where: str) -> None:
    """Refuse sizes that transformers builds a network with, which then takes no input.

    Raises:
        LikenessError: A size is negative, a stride is 0, or an edge is no whole number.
    """
    if name in _EDGES and type(value) is not int:
        raise LikenessError(
            f"{where}: {name} is {str(value)[:60]}; one whole number is read: give the "
            "config.json of a network for square images"
        )
    least = 1 if "stride" in name else 0
    sizes = value if isinstance(value, list) else [value]
    if any(word in name for word in _SIZED) and any(
        isinstance(size, int) and size < least for size in sizes
    ):
        raise LikenessError(
            f"{where}: {name} is {str(value)[:60]}; numbers of at least {least} are read: give "
            "the config.json of a published network"
        )


def _fits(value: Any, depth: int = 2) -> bool:
    """Say whether a value is plain and within bounds."""
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return abs(value) <= _MAX_WHOLE
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) <= _MAX_NUMBER
    if isinstance(value, str):
        return len(value) <= _MAX_WORD and "/" not in value  # a slash would name a repository
    if isinstance(value, list | dict) and depth and len(value) <= _MAX_VALUES:
        inner = value.values() if isinstance(value, dict) else value
        return all(_fits(element, depth - 1) for element in inner)
    return False


def _config(family: Family, settings: Mapping[str, Any], name: str) -> Any:
    """Return transformers' object of a configuration."""
    if unknown := sorted(settings.keys() - _sizes(family)):
        raise LikenessError(
            f"{name}: {first_names(unknown)} size no {family.network} in this version of "
            "transformers; take the version that the model was trained with"
        )
    try:
        return getattr(import_transformers(), family.config)(**{**settings, **family.fixed})
    except Exception as error:  # transformers raises errors of any type here
        raise _unbuildable(family, error, name) from None


def _class(family: Family) -> Any:
    """Return transformers' class of a family's networks."""
    transformers = import_transformers()
    if family.network != "WhisperEncoder":
        return getattr(transformers, family.network)
    from transformers.models.whisper import modeling_whisper

    return modeling_whisper.WhisperEncoder


def _unbuildable(family: Family, error: Exception, name: str) -> LikenessError:
    """Return the error for a configuration that contradicts itself."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")
    return LikenessError(
        f"{name}: {family.network} cannot be built from its configuration "
        f"({type(error).__name__}: {reason[:200]}); give the config.json of a published network"
    )


class Built(NamedTuple):
    """A network of transformers with random weights.

    Attributes:
        network: The network.
        config: Its configuration, an object of transformers.
        model_type: Its family's name.
        family: Its family.
    """

    network: nn.Module
    config: Any
    model_type: str
    family: Family


def build(text: str, takes: tuple[str, ...], name: str) -> Built:
    """Build the network of a configuration, with random weights.

    Args:
        text: What `configuration` returns.
        takes: Which kinds of networks are allowed, as in `Family.takes`.
        name: What errors begin with.

    Raises:
        LikenessError: The text is no configuration, is of another kind of network, or contradicts
            itself. The package transformers is missing.
    """
    family, settings = _checked(text, name)
    model_type = str(json.loads(text)["model_type"])
    if family.takes not in takes:
        raise LikenessError(
            f"{name}: a network of model_type {model_type!r} takes {family.takes}; this class is "
            f"for {' and '.join(takes)}"
        )
    config = _config(family, settings, name)
    try:
        network = _class(family)(config, **family.options)
    except Exception as error:  # transformers and torch raise errors of any type here
        raise _unbuildable(family, error, name) from None
    take_out(network, family)
    return Built(network, config, model_type, family)


def take_out(network: nn.Module, family: Family) -> None:
    """Take the parameters out of a network that only pre-training uses."""
    for path in family.unused:
        owner, _, attribute = path.rpartition(".")
        module = network.get_submodule(owner)
        if hasattr(module, attribute):
            setattr(module, attribute, None)  # a parameter that is None has no name


def fill(text: str, tensors: Mapping[str, Tensor], where: str) -> nn.Module:
    """Build the network of a configuration with the weights of a checkpoint, strictly.

    Checkpoints name tensors in several ways. These rules apply, in this order:

    1. Where names begin with a prefix of the family, the checkpoint holds more than this network:
       the prefix is dropped, and a name without it is left out if `Family.left_out` has its
       beginning.
    2. transformers renames what its versions have called otherwise: layers, the two parts of a
       weight norm, the wrapper of an image tower.
    3. What the network has not is left out if `Family.left_out` has its beginning.

    Everything else has to fit. Numbers become float32.

    Args:
        text: What `configuration` returns.
        tensors: The checkpoint's tensors by name.
        where: What errors begin with.

    Returns:
        The network of transformers, in evaluation mode.

    Raises:
        LikenessError: Tensors are missing, unknown or of another shape. All are counted, and the
            first of each kind are named. The package transformers is missing.
    """
    family, settings = _checked(text, where)
    transformers = import_transformers()
    prefix = next((p for p in family.prefixes if any(x.startswith(p) for x in tensors)), "")
    left = family.left_out
    kept = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if not name.startswith(left) or (prefix and name.startswith(prefix))
    }
    unread = [
        f"{name} {str(tensor.dtype).removeprefix('torch.')}"
        for name, tensor in sorted(kept.items())
        if tensor.dtype not in _NUMBERS
    ]
    if unread:
        raise LikenessError(
            f"{where}: {len(unread)} tensors hold no numbers that can become float32 "
            f"({first_names(unread)}); give weights that are not quantised"
        )
    config = _config(family, settings, where)
    try:
        with _quiet(transformers):
            network, report = _class(family).from_pretrained(
                None,
                config=config,
                state_dict=kept,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **family.options,
            )
    except Exception as error:  # transformers and torch raise errors of any type here
        raise _unbuildable(family, error, where) from None
    missing = sorted(set(report["missing_keys"]) - set(family.unused))
    unknown = sorted(name for name in report["unexpected_keys"] if not name.startswith(left))
    shapes = [
        f"{name} {tuple(stored)} for {tuple(shape)}"
        for name, stored, shape in sorted(report["mismatched_keys"])
    ]
    kinds = ((missing, "missing"), (unknown, "unknown"), (shapes, "of another shape"))
    faults = [f"{len(names)} {what} ({first_names(names)})" for names, what in kinds if names]
    if faults:
        raise LikenessError(
            f"{where}: weights do not fit: {', '.join(faults)}; give the files of one network, all "
            "of them"
        )
    take_out(network, family)
    filled: nn.Module = network.eval()
    return filled


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence transformers' progress bars and its report of what does not fit."""
    logging = transformers.utils.logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
