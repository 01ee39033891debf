"""UniSpeech's speaker verification: a pretrained network and an ECAPA-TDNN in one file.

wavlm_large_finetune.pth is the network by which the similarity of synthetic voices (SIM) is
measured. The file has the names of s3prl and UniSpeech, which become those of transformers here; it
states no configuration, so that sizes are read off its tensors. Nothing in it is executed.
"""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from likeness.eval.errors import LikenessError
from likeness.eval.formats.provenance import sha256
from likeness.modalities.speaker import audio
from likeness.modalities.speaker.features import UnitWave
from likeness.models.bundled import FINDING_MODELS
from likeness.toolkit.backbones.hub_networks import HubSpeech, fill
from likeness.toolkit.backbones.weights import put, read_weights
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.models.parts import describe_parts

_PRETRAINED = "feature_extract.model."
# fairseq's names -> transformers', by the order in which they are replaced
_NAMES = (
    (r"^post_extract_proj\.", "feature_projection.projection."),
    (r"^layer_norm\.", "feature_projection.layer_norm."),
    (r"^mask_emb$", "masked_spec_embed"),
    (r"^(feature_extractor\.conv_layers\.\d+)\.0\.", r"\1.conv."),
    (r"^(feature_extractor\.conv_layers\.\d+)\.2\.(?:1\.)?", r"\1.layer_norm."),
    (r"^encoder\.pos_conv\.0\.", "encoder.pos_conv_embed.conv."),
    (r"self_attn_layer_norm", "layer_norm"),
    (r"self_attn\.relative_attention_bias", "attention.rel_attn_embed"),
    (r"self_attn\.grep_linear", "attention.gru_rel_pos_linear"),
    (r"self_attn\.grep_a", "attention.gru_rel_pos_const"),
    (r"self_attn", "attention"),
    (r"\.fc1\.", ".feed_forward.intermediate_dense."),
    (r"\.fc2\.", ".feed_forward.output_dense."),
)
# UniSpeech's names -> WeSpeaker's
_HEAD = (
    (r"Conv1dReluBn1", "se_res2block.0"),
    (r"Res2Conv1dReluBn", "se_res2block.1"),
    (r"Conv1dReluBn2", "se_res2block.2"),
    (r"SE_Connect", "se_res2block.3"),
    (r"^pooling\.", "pool."),
)
_STRIDES = (5, 2, 2, 2, 2, 2, 2)  # of the convolutions over the wave; no tensor states them
_EPSILON = 1e-5  # of the layer norm that s3prl puts over a wave


def load_unispeech(path: Path) -> Loaded:
    """Load WavLM with UniSpeech's ECAPA-TDNN.

    Args:
        path: The file, such as wavlm_large_finetune.pth.

    Raises:
        LikenessError: There is no such file, or it holds another network.
        ImportError: transformers is missing.
    """
    if not path.is_file():
        raise LikenessError(f"hub:{path}: there is no such file; {FINDING_MODELS}")
    state = read_weights(path)
    inner = {
        name.removeprefix(_PRETRAINED): value
        for name, value in state.items()
        if name.startswith(_PRETRAINED)
    }
    try:
        config = _configuration(inner)
    except (LookupError, ValueError) as error:
        raise LikenessError(
            f"hub:{path}: no WavLM with UniSpeech's ECAPA-TDNN ({error} is missing among its "
            f"{len(state)} tensors); give wavlm_large_finetune.pth, or a folder of transformers"
        ) from None
    part = partial(HubSpeech, config=json.dumps(config, sort_keys=True), pooling="ECAPA")
    front = partial(UnitWave, normalise=config["feat_extract_norm"] == "layer", floor=_EPSILON)
    with torch.device("meta"):  # what the tensors ask for may be more than the file holds
        network: Any = part(1)
    head = {
        _renamed(name, _HEAD): value
        for name, value in state.items()
        if not name.startswith((_PRETRAINED, "loss_calculator.", "feature_weight"))
    }
    weights = {f"network.{name}": value for name, value in head.items()}
    weights |= {"feature_weight": state.get("feature_weight", torch.zeros(0))}
    put(network.pool, weights, str(path), "give wavlm_large_finetune.pth")
    fill(network, {_renamed(name, _NAMES): value for name, value in inner.items()}, str(path))
    read, settings = partial(audio.read, rate_hz=16_000), {"pooling": "ECAPA"}
    embedder, parts = TorchEmbedder(front(), network).eval(), describe_parts(front, part, read)
    return Loaded(embedder, read, "speaker", "cosine", sha256(path), 0, settings, parts=parts)


def _configuration(state: dict[str, Tensor]) -> dict[str, Any]:
    """Return the WavLM of these tensors, as its config.json states it.

    Raises:
        KeyError: It is another network.
    """
    convolutions = [state[f"feature_extractor.conv_layers.{i}.0.weight"].shape for i in range(7)]
    layers = {name.split(".")[2] for name in state if name.startswith("encoder.layers.")}
    attention = "encoder.layers.0.self_attn."
    position = state["encoder.pos_conv.0.weight_v"].shape
    is_large = "feature_extractor.conv_layers.1.2.1.weight" in state
    return {
        "model_type": "wavlm",
        "hidden_size": position[0],
        "num_hidden_layers": len(layers),
        "num_attention_heads": state[f"{attention}grep_a"].shape[1],
        "intermediate_size": len(state["encoder.layers.0.fc1.weight"]),
        "conv_dim": [shape[0] for shape in convolutions],
        "conv_kernel": [shape[2] for shape in convolutions],
        "conv_stride": list(_STRIDES),
        "num_feat_extract_layers": len(_STRIDES),
        "feat_extract_norm": "layer" if is_large else "group",
        "do_stable_layer_norm": is_large,
        "num_buckets": len(state[f"{attention}relative_attention_bias.weight"]),
        "num_conv_pos_embeddings": position[2],
        "num_conv_pos_embedding_groups": position[0] // position[1],
    }


def _renamed(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    """Return a name after all replacements."""
    for pattern, replacement in pairs:
        name = re.sub(pattern, replacement, name)
    return name
