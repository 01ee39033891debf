"""Heads that were published with a speech network: x-vectors of transformers, UniSpeech's ECAPA.

UniSpeech's network is written down here by torch's functions, and the weights get the names of
s3prl and fairseq; WavLM itself is that of transformers.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from likeness.eval.errors import LikenessError
from likeness.models.load import load_named
from likeness.toolkit.backbones._speaker_heads import published_head
from tests import tiny_hub


@pytest.fixture
def wave() -> Tensor:
    return torch.randn(2, 6000, generator=torch.Generator().manual_seed(0)) * 0.1 + 0.01


@pytest.mark.parametrize("kind", tiny_hub.X_VECTORS)
@torch.no_grad()
def test_x_vectors_are_those_of_transformers(kind, tmp_path, wave):
    theirs = tiny_hub.save(kind, tmp_path)
    loaded: Any = load_named(f"hub:{tmp_path}")
    assert loaded.settings["pooling"] == "xvector"
    rows = [row.numpy() for row in wave]
    inputs = tiny_hub.processor(kind)(rows, sampling_rate=16_000, return_tensors="pt")
    expected = theirs(inputs["input_values"]).embeddings
    torch.testing.assert_close(loaded.embedder(wave), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_padding_changes_no_x_vector_and_short_recordings_are_refused(tmp_path, wave):
    tiny_hub.save("WavLM large", tmp_path)
    loaded: Any = load_named(f"hub:{tmp_path}")
    padded = torch.stack([wave[0], torch.cat([wave[1, :4000], torch.zeros(2000)])])
    z = loaded.embedder(padded, torch.tensor([1.0, 4000 / 6000]))
    torch.testing.assert_close(z[1:], loaded.embedder(wave[1:, :4000]), rtol=1e-4, atol=1e-5)
    with pytest.raises(LikenessError, match="at least 6 frames"):
        loaded.embedder(wave[:, :1500])


def fairseq_name(name: str) -> str:
    """The name that fairseq has for a tensor of transformers' WavLM."""
    pairs = [
        ("masked_spec_embed", "mask_emb"),
        ("feature_projection.projection.", "post_extract_proj."),
        ("feature_projection.layer_norm.", "layer_norm."),
        ("encoder.pos_conv_embed.conv.", "encoder.pos_conv.0."),
        ("parametrizations.weight.original0", "weight_g"),
        ("parametrizations.weight.original1", "weight_v"),
        ("attention.rel_attn_embed", "self_attn.relative_attention_bias"),
        ("attention.gru_rel_pos_linear", "self_attn.grep_linear"),
        ("attention.gru_rel_pos_const", "self_attn.grep_a"),
        ("feed_forward.intermediate_dense", "fc1"),
        ("feed_forward.output_dense", "fc2"),
    ]
    for theirs, fairseqs in pairs:
        name = name.replace(theirs, fairseqs)
    parts = name.split(".")
    if parts[0] == "feature_extractor":
        parts[3] = {"conv": "0", "layer_norm": "2.1"}[parts[3]]
    elif parts[:2] == ["encoder", "layers"]:
        names = {"attention": "self_attn", "layer_norm": "self_attn_layer_norm"}
        parts[3] = names.get(parts[3], parts[3])
    return ".".join(parts)


def head_of(layers: int, width: int) -> dict[str, Tensor]:
    """Random tensors of UniSpeech's ECAPA-TDNN, by its names."""
    state = {"feature_weight": torch.randn(layers)}

    def affine(name: str, *shape: int) -> None:
        state[f"{name}.weight"] = torch.randn(shape) / (shape[1] * (*shape, 1)[2]) ** 0.5
        state[f"{name}.bias"] = 0.1 * torch.randn(shape[0])

    def norm(name: str, size: int) -> None:
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.rand(size) + 0.5, torch.randn(size)
        state[f"{name}.running_mean"] = 0.1 * torch.randn(size)
        state[f"{name}.running_var"] = torch.rand(size) + 0.5
        state[f"{name}.num_batches_tracked"] = torch.tensor(3)

    affine("layer1.conv", 512, width, 5)
    norm("layer1.bn", 512)
    for block in ("layer2", "layer3", "layer4"):
        for number in (1, 2):
            affine(f"{block}.Conv1dReluBn{number}.conv", 512, 512, 1)
            norm(f"{block}.Conv1dReluBn{number}.bn", 512)
        for number in range(7):
            affine(f"{block}.Res2Conv1dReluBn.convs.{number}", 64, 64, 3)
            norm(f"{block}.Res2Conv1dReluBn.bns.{number}", 64)
        affine(f"{block}.SE_Connect.linear1", 128, 512)
        affine(f"{block}.SE_Connect.linear2", 512, 128)
    affine("conv", 1536, 1536, 1)
    affine("pooling.linear1", 128, 1536, 1)
    affine("pooling.linear2", 1536, 128, 1)
    norm("bn", 3072)
    affine("linear", 256, 3072)
    return state


def ecapa(state: dict[str, Tensor], layers: list[Tensor]) -> Tensor:
    """UniSpeech's ECAPA-TDNN over the layers (B, T, C) of a network."""

    def conv(name: str, x: Tensor, **how: int) -> Tensor:
        return functional.conv1d(x, state[f"{name}.weight"], state[f"{name}.bias"], **how)

    def norm(name: str, x: Tensor) -> Tensor:
        names = ("running_mean", "running_var", "weight", "bias")
        return functional.batch_norm(x, *(state[f"{name}.{part}"] for part in names))

    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    weights = state["feature_weight"].softmax(0)
    mixed = sum(weight * layer for weight, layer in zip(weights, layers, strict=True))
    x = functional.instance_norm(torch.as_tensor(mixed).transpose(1, 2) + 1e-6)
    x, outputs = norm("layer1.bn", conv("layer1.conv", x, padding=2).relu()), []
    for dilation, block in ((2, "layer2"), (3, "layer3"), (4, "layer4")):
        name = f"{block}.Conv1dReluBn1"
        groups = norm(f"{name}.bn", conv(f"{name}.conv", x).relu()).split(64, 1)
        done: list[Tensor] = []
        for number in range(7):
            name = f"{block}.Res2Conv1dReluBn"
            inner = groups[number] + done[-1] if done else groups[number]
            inner = conv(f"{name}.convs.{number}", inner, padding=dilation, dilation=dilation)
            done.append(norm(f"{name}.bns.{number}", inner.relu()))
        name, y = f"{block}.Conv1dReluBn2", torch.cat([*done, groups[7]], 1)
        y = norm(f"{name}.bn", conv(f"{name}.conv", y).relu())
        gate = linear(f"{block}.SE_Connect.linear1", y.mean(2)).relu()
        x = x + y * linear(f"{block}.SE_Connect.linear2", gate).sigmoid()[..., None]
        outputs.append(x)
    x = conv("conv", torch.cat(outputs, 1)).relu()
    alpha = conv("pooling.linear2", conv("pooling.linear1", x).tanh()).softmax(2)
    mean = (alpha * x).sum(2)
    deviation = ((alpha * x**2).sum(2) - mean**2).clamp(min=1e-9).sqrt()
    return linear("linear", norm("bn", torch.cat([mean, deviation], 1)))


@torch.no_grad()
def test_wavlm_with_unispeechs_ecapa_is_read_from_its_checkpoint(tmp_path, wave):
    """wavlm_large_finetune.pth with a small network; s3prl puts a layer norm over the wave."""
    torch.manual_seed(1)
    sizes = {**tiny_hub.SIZES, **tiny_hub.POSITIONS, "conv_dim": [8] * 7, "num_buckets": 8}
    large = {"feat_extract_norm": "layer", "do_stable_layer_norm": True}
    config = tiny_hub.transformers.WavLMConfig(**sizes, **large)
    wavlm = tiny_hub.transformers.WavLMModel(config).eval()
    state = head_of(3, 16)
    tensors = wavlm.state_dict().items()
    inner = {f"feature_extract.model.{fairseq_name(name)}": value for name, value in tensors}
    assert "feature_extract.model.encoder.layers.1.self_attn_layer_norm.bias" in inner
    more = {"loss_calculator.projection.weight": torch.zeros(3, 256)}
    file = tmp_path / "wavlm_large_finetune.pth"
    torch.save({"model": {**state, **inner, **more}}, file)
    loaded: Any = load_named(f"hub:{file}")
    hidden = wavlm(functional.layer_norm(wave, wave.shape[1:]), output_hidden_states=True)
    layers = [*hidden.hidden_states[:-1], hidden.last_hidden_state]
    torch.testing.assert_close(loaded.embedder(wave), ecapa(state, layers), rtol=1e-3, atol=1e-4)
    padded = torch.stack([wave[0], torch.cat([wave[1, :4000], torch.zeros(2000)])])
    z = loaded.embedder(padded, torch.tensor([1.0, 4000 / 6000]))
    torch.testing.assert_close(z[1:], loaded.embedder(wave[1:, :4000]), rtol=1e-3, atol=1e-4)


def test_wespeakers_ecapa_sees_the_weighted_sum_without_its_mean():
    """frontend/s3prl.py and apply_cmvn, and ECAPA_TDNN_GLOB_c512 on what they give."""
    torch.manual_seed(2)
    module, size = published_head("ECAPA_GLOB", 3, 10, None)
    head: Any = module.double().eval()
    head.feature_weight.data.normal_()
    layers = [torch.randn(2, 9, 10, dtype=torch.float64) for _ in range(3)]
    shares = head.feature_weight.exp() / head.feature_weight.exp().sum()
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    together = head(layers, mask)
    for row, frames in enumerate((9, 6)):
        mixed = sum(shares[i] * layers[i][row, :frames] for i in range(3))
        alone = head.network((mixed - mixed.mean(dim=0))[None])[0]
        torch.testing.assert_close(together[row], alone)
    assert size == 192
    assert sum(parameter.numel() for parameter in head.network.parameters()) > 5_000_000


def test_other_checkpoints_of_this_name_are_refused(tmp_path):
    torch.save({"model": head_of(3, 16)}, tmp_path / "head.pth")
    with pytest.raises(LikenessError, match="no WavLM with UniSpeech's"):
        load_named(f"hub:{tmp_path / 'head.pth'}")
