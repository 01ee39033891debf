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

_LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2}
_VIT = {**_LAYERS, "hidden_size": 12, "intermediate_size": 16, "image_size": 32, "patch_size": 8}
# 320 samples in all, as in the published networks
_CONVOLUTIONS = {"conv_dim": [8, 8, 8], "conv_kernel": [10, 8, 8], "conv_stride": [5, 8, 8]}
SIZES = {**_LAYERS, "hidden_size": 16, "intermediate_size": 24}
POSITIONS = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
_WAVES = {**_CONVOLUTIONS, **SIZES, **POSITIONS, "num_feat_extract_layers": 3}
_TDNN = {"tdnn_dim": [12, 10, 14], "tdnn_kernel": [3, 2, 1], "tdnn_dilation": [1, 2, 1]}
_LARGE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
_TEXT = {**_VIT, "vocab_size": 99}
_STAGES = {"depths": [1, 1], "hidden_sizes": [8, 12]}
_ANY_SIZE = {key: value for key, value in _VIT.items() if key != "image_size"}
_WHISPER = {"d_model": 16, "vocab_size": 99, "max_source_positions": 1500, "pad_token_id": 0}
_WHISPER |= {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
_WHISPER |= {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24}
_STACKED = {"feature_projection_input_dim": 160, "conv_depthwise_kernel_size": 5}
_TOWERS = {"vision_config": _VIT, "text_config": _TEXT, "projection_dim": 10}
Network = tuple[str, str, dict[str, Any]]
# name -> (stem of the classes of network and configuration, ending of the first, settings)
IMAGES: dict[str, Network] = {
    "vit": ("ViT", "Model", _VIT),
    "vit classifier": ("ViT", "ForImageClassification", _VIT),
    "dinov2": ("Dinov2", "Model", _VIT),
    "dinov2 registers": ("Dinov2WithRegisters", "Model", {**_VIT, "num_register_tokens": 3}),
    "dinov3": ("DINOv3ViT", "Model", {**_VIT, "hidden_size": 16, "num_register_tokens": 2}),
    "clip": ("CLIPVision", "Model", _VIT),
    "clip, both towers": ("CLIP", "Model", _TOWERS),
    "siglip": ("SiglipVision", "Model", _VIT),
    "siglip2": ("Siglip2Vision", "Model", {**_ANY_SIZE, "num_patches": 16}),
    "convnext": ("ConvNext", "Model", {**_STAGES, "num_stages": 2}),
    "resnet": ("ResNet", "Model", {**_STAGES, "embedding_size": 6, "layer_type": "basic"}),
}
SPEECH: dict[str, Network] = {
    "wav2vec2 base": ("Wav2Vec2", "Model", _WAVES),
    "wav2vec2 large": ("Wav2Vec2", "Model", {**_WAVES, **_LARGE}),
    "wav2vec2 ctc": ("Wav2Vec2", "ForCTC", {**_WAVES, **_LARGE, "vocab_size": 9}),
    "hubert base": ("Hubert", "Model", _WAVES),
    "hubert large": ("Hubert", "Model", {**_WAVES, **_LARGE}),
    "wavlm base": ("WavLM", "Model", {**_WAVES, "num_buckets": 8}),
    "wavlm large": ("WavLM", "Model", {**_WAVES, **_LARGE, "num_buckets": 8}),
    "unispeech-sat base": ("UniSpeechSat", "Model", _WAVES),
    "w2v-bert": ("Wav2Vec2Bert", "Model", {**SIZES, **_STACKED}),
    "whisper": ("Whisper", "Model", _WHISPER),
}
# the same with the head of an x-vector
X_VECTORS: dict[str, Network] = {
    f"{cls} {size}": (cls, "ForXVector", {**_WAVES, **_TDNN, "xvector_output_dim": 9, **more})
    for cls in ("Wav2Vec2", "WavLM", "UniSpeechSat")
    for size, more in (("base", {"use_weighted_layer_sum": True}), ("large", _LARGE))
}


def network(name: str) -> Any:
    """A random network of a family, of transformers' own class, whose layers all matter."""
    stem, ending, settings = {**IMAGES, **SPEECH, **X_VECTORS}[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{stem}Config")(**settings)
    made: Any = getattr(transformers, f"{stem}{ending}")(config)
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
        how = {"size": {"shortest_edge": 37}, "crop_size": square, "resample": 3}
        return make.BitImageProcessor(**how, image_mean=[0.4, 0.5, 0.6])
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
