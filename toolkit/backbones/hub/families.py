"""The families of networks of `transformers` that are read: a table by `model_type`.

A configuration names its `model_type` alone, and the table names the classes, so no configuration
chooses code.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from eval.errors import LikenessError


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
            "Wav2Vec2Config",
            "Wav2Vec2Model",
            "waves",
            ("wav2vec2.",),
            _SPEECH_HEADS,
            _STILL,
            unused=_MASKED,
        ),
        "hubert": Family(
            "HubertConfig",
            "HubertModel",
            "waves",
            ("hubert.",),
            _SPEECH_HEADS,
            _STILL,
            unused=_MASKED,
        ),
        "wavlm": Family(
            "WavLMConfig", "WavLMModel", "waves", ("wavlm.",), _SPEECH_HEADS, _STILL, unused=_MASKED
        ),
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
TOWERS = {
    "clip": "clip_vision_model",
    "siglip": "siglip_vision_model",
    "siglip2": "siglip2_vision_model",
}


def family_of(model_type: Any, where: str = "config") -> Family:
    """Return the family of a `model_type`.

    Raises:
        LikenessError: It is none that is read.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise LikenessError(
            f"{where}: model_type is {str(model_type)[:40]!r}; allowed are {', '.join(FAMILIES)}, "
            f"and the image tower of {', '.join(TOWERS)}"
        )
    return FAMILIES[model_type]
