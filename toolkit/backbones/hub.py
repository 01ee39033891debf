"""The networks of `transformers` that are read, and how one is built from its configuration.

A configuration is JSON text. Of what config.json states, only what sizes the network is kept, and
every value is checked: a configuration comes with checkpoints from anywhere. A table names the
class of every `model_type`, so no configuration chooses code. Nothing else of a repository is read
here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from torch import nn

MAX_TEXT = 65_536  # characters of a configuration
_MAX_WHOLE, _MAX_NUMBER = 1 << 20, 1e9
_MAX_WORD, _MAX_VALUES, _MAX_LAYERS = 64, 256, 1000

_WRAPPER = "vision_model."
_TOWER_CLASSES = ("CLIPVisionModel", "SiglipVisionModel", "Siglip2VisionModel")
_WEIGHT_NORM = re.compile(r"\.weight_([gv])$")
_PARAMETRIZED = {
    "g": ".parametrizations.weight.original0",
    "v": ".parametrizations.weight.original1",
}
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


class Family(NamedTuple):
    """How networks of one `model_type` are built, and what their checkpoints call their tensors.

    Attributes:
        config: transformers' class of the configuration.
        network: transformers' class of the network.
        takes: "images", "waves", or "features" (frames of log mel energies).
        prefixes: What the names of the tensors begin with in checkpoints that hold more than this
            network; what does not begin so is of another part then.
        left_out: The beginnings of names that a checkpoint may have and this network has not: heads
            of other tasks, and what only pre-training uses.
        fixed: Settings of the configuration that are the same for every checkpoint.
        options: What the class of the network is called with.
        unused: Parameters that only pre-training uses; they are taken out of the network.
    """

    config: str
    network: str
    takes: Literal["images", "waves", "features"]
    prefixes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})
    unused: tuple[str, ...] = ()


# Masking of frames draws from numpy's generator, which no checkpoint of ours restores, and layers
# that are left out at random leave parameters without gradient.
_STILL = MappingProxyType({"apply_spec_augment": False, "layerdrop": 0.0})
_NO_POOLER = MappingProxyType({"add_pooling_layer": False})
_MASKED = ("masked_spec_embed",)
_SPEECH_HEADS = (
    "classifier.",
    "dropout_features.",
    "layer_weights",
    "lm_head.",
    "masked_spec_embed",
    "objective.",
    "feature_extractor_objective.",
    "project_hid.",
    "project_q.",
    "projector.",
    "quantizer.",
    "tdnn.",
)
_CLASSIFIER = ("classifier.", "embeddings.mask_token", "pooler.", "decoder.")
_TWO_TOWERS = (
    "embeddings.position_ids",
    "head.",
    "vision_model.head.",
    "logit_bias",
    "logit_scale",
    "text_model.",
    "text_projection.",
    "visual_projection.",
)
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "vit": Family(
            "ViTConfig",
            "ViTModel",
            "images",
            ("vit.",),
            _CLASSIFIER,
            options=_NO_POOLER,
        ),
        "dinov2": Family(
            "Dinov2Config",
            "Dinov2Model",
            "images",
            ("dinov2.",),
            _CLASSIFIER,
            MappingProxyType({"use_mask_token": False}),
        ),
        "dinov2_with_registers": Family(
            "Dinov2WithRegistersConfig",
            "Dinov2WithRegistersModel",
            "images",
            ("dinov2_with_registers.",),
            _CLASSIFIER,
            unused=("embeddings.mask_token",),
        ),
        "dinov3_vit": Family(
            "DINOv3ViTConfig",
            "DINOv3ViTModel",
            "images",
            ("dinov3_vit.", "dinov3."),
            _CLASSIFIER,
            unused=("embeddings.mask_token",),
        ),
        "clip_vision_model": Family(
            "CLIPVisionConfig",
            "CLIPVisionModel",
            "images",
            left_out=_TWO_TOWERS,
        ),
        "siglip_vision_model": Family(
            "SiglipVisionConfig",
            "SiglipVisionModel",
            "images",
            left_out=_TWO_TOWERS,
        ),
        "siglip2_vision_model": Family(
            "Siglip2VisionConfig",
            "Siglip2VisionModel",
            "images",
            left_out=_TWO_TOWERS,
        ),
        "convnext": Family(
            "ConvNextConfig", "ConvNextModel", "images", ("convnext.",), ("classifier.",)
        ),
        "resnet": Family("ResNetConfig", "ResNetModel", "images", ("resnet.",), ("classifier.",)),
        "wav2vec2": Family(
            "Wav2Vec2Config", "Wav2Vec2Model", "waves", ("wav2vec2.",), _SPEECH_HEADS, _STILL, unused=_MASKED
        ),
        "hubert": Family(
            "HubertConfig", "HubertModel", "waves", ("hubert.",), _SPEECH_HEADS, _STILL, unused=_MASKED
        ),
        "wavlm": Family("WavLMConfig", "WavLMModel", "waves", ("wavlm.",), _SPEECH_HEADS, _STILL, unused=_MASKED),
        "wav2vec2-bert": Family(
            "Wav2Vec2BertConfig",
            "Wav2Vec2BertModel",
            "features",
            ("wav2vec2_bert.",),
            _SPEECH_HEADS,
            _STILL,
            unused=_MASKED,
        ),
        "whisper": Family(
            "WhisperConfig",
            "WhisperEncoder",
            "features",
            ("model.encoder.", "encoder."),
            ("decoder.", "model.decoder.", "proj_out."),
            MappingProxyType({"encoder_layerdrop": 0.0, "apply_spec_augment": False}),
        ),
    }
)
# Configurations of two towers keep that of the images inside.
_TOWERS = {
    "clip": "clip_vision_model",
    "siglip": "siglip_vision_model",
    "siglip2": "siglip2_vision_model",
}


def import_transformers() -> Any:
    """Import `transformers`, which takes some seconds.

    Raises:
        ImportError: It is missing; the message names the extra to install.
    """
    try:
        import transformers
    except ImportError:
        raise ImportError(
            "networks of the Hugging Face hub need transformers; run `pip install 'likeness[hub]'`"
        ) from None
    return transformers


def family_of(model_type: Any, where: str = "config") -> Family:
    """Return the family of a `model_type`.

    Raises:
        ValueError: It is none that is read.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"{where}: model_type is {str(model_type)[:40]!r}; allowed are {', '.join(FAMILIES)}, "
            f"and the image tower of {', '.join(_TOWERS)}"
        )
    return FAMILIES[model_type]


def configuration(stated: Mapping[str, Any], where: str = "config") -> str:
    """Return what sizes a network, of all that its config.json states, as JSON text.

    Args:
        stated: What config.json holds.
        where: What errors begin with.

    Returns:
        The text that HubImage and HubSpeech take as `config`.

    Raises:
        ValueError: The model_type is none that is read, or a value is out of bounds.
        ImportError: transformers is missing.

    Example:
        >>> configuration({"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [4, 8],
        ...                "embedding_size": 4, "id2label": {"0": "cat"}})
        '{"depths": [1, 1], "embedding_size": 4, "hidden_sizes": [4, 8], "model_type": "resnet"}'
    """
    model_type = stated.get("model_type")
    if isinstance(model_type, str) and model_type in _TOWERS:
        inner = stated.get("vision_config")
        if not isinstance(inner, dict):
            raise ValueError(f"{where}: model_type is {model_type!r}, but it has no vision_config")
        stated, model_type = inner, _TOWERS[model_type]
    family = family_of(model_type, where)
    default = getattr(import_transformers(), family.config)()
    known = set(default.to_dict()) - _base_names() - _NEVER - set(family.fixed)
    kept = {name: value for name, value in stated.items() if name in known and value is not None}
    text = json.dumps({**kept, "model_type": model_type}, sort_keys=True)
    _checked(text, where)
    return text


def _base_names() -> set[str]:
    """Return the names that every configuration of transformers has."""
    return set(import_transformers().PretrainedConfig().to_dict())


def _checked(text: str, where: str) -> tuple[Family, dict[str, Any]]:
    """Return the family of a configuration's text, and its settings.

    Raises:
        ValueError: The text is no JSON object, too long, or states what no network is sized by.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(
            f"{where}: the configuration has {len(text)} characters; at most {MAX_TEXT} are read"
        )
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise ValueError(f"{where}: {text[:60]!r} is no configuration; a JSON object is needed")
    family = family_of(settings.pop("model_type", None), where)
    for name, value in settings.items():
        if name in _NEVER or name.startswith("_") or not _fits(value):
            raise ValueError(
                f"{where}: {name} is {str(value)[:60]!r}; whole numbers up to {_MAX_WHOLE}, other "
                "numbers, short words, and lists of at most 256 of them are read: give the "
                "config.json of a published network"
            )
        if "layers" in name and isinstance(value, int) and not 0 <= value <= _MAX_LAYERS:
            raise ValueError(
                f"{where}: {name} is {value}; 0 to {_MAX_LAYERS} layers are read: give the "
                "config.json of a published network"
            )
    return family, settings


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
        ValueError: The text is no configuration, is of another kind of network, or contradicts
            itself.
        ImportError: transformers is missing.
    """
    family, settings = _checked(text, name)
    model_type = str(json.loads(text)["model_type"])
    if family.takes not in takes:
        raise ValueError(
            f"{name}: a network of model_type {model_type!r} takes {family.takes}; this class is "
            f"for {' and '.join(takes)}"
        )
    transformers = import_transformers()
    make: Any = getattr(transformers, family.network, None)
    if family.network == "WhisperEncoder":
        from transformers.models.whisper import modeling_whisper

        make = modeling_whisper.WhisperEncoder
    try:
        config = getattr(transformers, family.config)(**{**settings, **family.fixed})
        network = make(config, **family.options)
    except Exception as error:  # transformers and torch raise errors of any type here
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{name}: {family.network} cannot be built from its configuration "
            f"({type(error).__name__}: {reason[:200]}); give the config.json of a published network"
        ) from None
    for path in family.unused:
        owner, _, attribute = path.rpartition(".")
        module = network.get_submodule(owner)
        if hasattr(module, attribute):
            setattr(module, attribute, None)  # a parameter that is None has no name
    return Built(network, config, model_type, family)


def renamed(
    names: Iterable[str], family: Family, expected: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """Give the tensors of a checkpoint the names that they have in the network.

    These rules are applied in this order. A name that no rule fits stays as it is, so that it is
    refused when the weights are put into the network.

    1. Where names begin with a prefix of the family, the checkpoint holds more than this network:
       the prefix is dropped.
    2. A weight norm's `weight_g` and `weight_v` get the names of torch's parametrizations.
    3. `vision_model.`, which wraps an image tower, is dropped or added, as the network has it.
    4. A name that the network has not is left out if its beginning is in `Family.left_out`, with or
       without the prefix.

    Args:
        names: The names in the checkpoint.
        family: The network's family.
        expected: The names that the network has.

    Returns:
        Name in the network -> name in the checkpoint, and the names that were left out.

    Example:
        >>> names = ["hubert.encoder.x.weight_g", "lm_head.bias"]
        >>> renamed(names, FAMILIES["hubert"], ["encoder.x.parametrizations.weight.original0"])
        ({'encoder.x.parametrizations.weight.original0': 'hubert.encoder.x.weight_g'}, ['lm_head.bias'])
    """
    stored = list(names)
    prefix = next((p for p in family.prefixes if any(x.startswith(p) for x in stored)), "")
    wrapped = any(name.startswith(_WRAPPER) for name in expected)
    kept: dict[str, str] = {}
    left_out: list[str] = []
    for name in stored:
        new = _WEIGHT_NORM.sub(lambda match: _PARAMETRIZED[match[1]], name.removeprefix(prefix))
        if family.network in _TOWER_CLASSES:
            inside = new.startswith(_WRAPPER)
            if wrapped and not inside and f"{_WRAPPER}{new}" in expected:
                new = f"{_WRAPPER}{new}"
            elif not wrapped and inside:
                new = new.removeprefix(_WRAPPER)
        if new not in expected and (name.startswith(family.left_out) or new.startswith(family.left_out)):
            left_out.append(name)
        else:
            kept[new] = name
    return kept, left_out
