"""Folders as `save_pretrained` writes them, with random networks of every family, for tests."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from likeness.toolkit.backbones.hub_networks import import_transformers

transformers: Any = import_transformers()
transformers.utils.logging.set_verbosity_error()  # about torchvision, which is not needed
transformers.utils.logging.disable_progress_bar()

_VIT: dict[str, Any] = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 32,
    "patch_size": 8,
}
_CONVOLUTIONS: dict[str, Any] = {
    "conv_dim": [8, 8, 8],
    "conv_kernel": [10, 8, 8],
    "conv_stride": [5, 8, 8],  # 320 samples in all, as in the published networks
    "num_feat_extract_layers": 3,
}
_WAVES: dict[str, Any] = {
    **_CONVOLUTIONS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
_TDNN = {
    "tdnn_dim": [12, 10, 14],
    "tdnn_kernel": [3, 2, 1],
    "tdnn_dilation": [1, 2, 1],
    "xvector_output_dim": 9,
}
_LARGE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
_TEXT = {**_VIT, "vocab_size": 99}
# name -> (class of the network, class of the configuration, settings)
IMAGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vit": ("ViTModel", "ViTConfig", _VIT),
    "vit classifier": ("ViTForImageClassification", "ViTConfig", _VIT),
    "dinov2": ("Dinov2Model", "Dinov2Config", _VIT),
    "dinov2 registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersConfig",
        {**_VIT, "num_register_tokens": 3},
    ),
    "dinov3": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {**_VIT, "hidden_size": 16, "num_register_tokens": 2},
    ),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", _VIT),
    "clip, both towers": (
        "CLIPModel",
        "CLIPConfig",
        {"vision_config": _VIT, "text_config": _TEXT, "projection_dim": 10},
    ),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", _VIT),
    "siglip2": (
        "Siglip2VisionModel",
        "Siglip2VisionConfig",
        {**{k: v for k, v in _VIT.items() if k != "image_size"}, "num_patches": 16},
    ),
    "convnext": (
        "ConvNextModel",
        "ConvNextConfig",
        {"depths": [1, 1], "hidden_sizes": [8, 12], "num_stages": 2},
    ),
    "resnet": (
        "ResNetModel",
        "ResNetConfig",
        {"depths": [1, 1], "hidden_sizes": [8, 12], "embedding_size": 6, "layer_type": "basic"},
    ),
}
SPEECH: dict[str, tuple[str, str, dict[str, Any]]] = {
    "wav2vec2 base": ("Wav2Vec2Model", "Wav2Vec2Config", _WAVES),
    "wav2vec2 large": ("Wav2Vec2Model", "Wav2Vec2Config", {**_WAVES, **_LARGE}),
    "wav2vec2 ctc": ("Wav2Vec2ForCTC", "Wav2Vec2Config", {**_WAVES, **_LARGE, "vocab_size": 9}),
    "hubert base": ("HubertModel", "HubertConfig", _WAVES),
    "hubert large": ("HubertModel", "HubertConfig", {**_WAVES, **_LARGE}),
    "wavlm base": ("WavLMModel", "WavLMConfig", {**_WAVES, "num_buckets": 8}),
    "wavlm large": ("WavLMModel", "WavLMConfig", {**_WAVES, **_LARGE, "num_buckets": 8}),
    "unispeech-sat base": ("UniSpeechSatModel", "UniSpeechSatConfig", _WAVES),
    "w2v-bert": (
        "Wav2Vec2BertModel",
        "Wav2Vec2BertConfig",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "feature_projection_input_dim": 160,
            "conv_depthwise_kernel_size": 5,
        },
    ),
    "whisper": (
        "WhisperModel",
        "WhisperConfig",
        {
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
            "vocab_size": 99,
            "max_source_positions": 1500,
            "pad_token_id": 0,
        },
    ),
}
# the same with the head of an x-vector
X_VECTORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    f"{cls} {size}": (f"{cls}ForXVector", f"{cls}Config", {**_WAVES, **_TDNN, **more})
    for cls in ("Wav2Vec2", "WavLM", "UniSpeechSat")
    for size, more in (("base", {"use_weighted_layer_sum": True}), ("large", _LARGE))
}


def network(name: str) -> Any:
    """A random network of a family, of transformers' own class, whose layers all matter."""
    cls, config_class, settings = {**IMAGES, **SPEECH, **X_VECTORS}[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, config_class)(**settings)
    made: Any = getattr(transformers, cls)(config)
    with torch.no_grad():
        for parameter in made.parameters():  # a fresh one has biases of 0 and nearly equal norms
            parameter += 0.1 * torch.randn_like(parameter)
        for module in made.modules():
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
                module.running_mean.normal_(std=0.3)
                module.running_var.uniform_(0.5, 2.0)
    return made.eval()


def processor(name: str) -> Any:
    """The image processor or feature extractor that the published networks of a family have."""
    make = transformers
    if name in SPEECH or name in X_VECTORS:
        if name == "whisper":
            return make.WhisperFeatureExtractor()
        if name == "w2v-bert":
            return make.SeamlessM4TFeatureExtractor(padding_value=1)
        return make.Wav2Vec2FeatureExtractor(return_attention_mask="large" in name)
    square = {"height": 32, "width": 32}
    if name.startswith("dinov2"):
        return make.BitImageProcessor(
            size={"shortest_edge": 37}, crop_size=square, resample=3, image_mean=[0.4, 0.5, 0.6]
        )
    if name.startswith("clip"):
        return make.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=square)
    if name == "siglip2":
        return make.Siglip2ImageProcessor(patch_size=8, max_num_patches=20)
    if name.startswith("siglip"):
        return make.SiglipImageProcessor(size=square)
    if name in ("convnext", "resnet"):
        return make.ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=0.875)

    return make.ViTImageProcessor(size=square, image_std=[0.2, 0.3, 0.4])


def save(name: str, folder: Path) -> Any:
    """Write a network and its preprocessing into a folder; return the network."""
    made = network(name)
    made.save_pretrained(folder)
    processor(name).save_pretrained(folder)
    return made


def change(path: Path, **values: Any) -> None:
    """Change values of a JSON file; None takes one out."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content.update(values)
    kept = {name: value for name, value in content.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")
