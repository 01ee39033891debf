"""Networks of the hub: their embeddings are those of transformers, and misfits are refused.

Every network is random and tiny, and saved into a folder by the test.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from likeness.data import Item, folders
from likeness.models import _hub
from likeness.models.load import load_named
from likeness.models.reading import Reading, read_as
from likeness.toolkit.backbones._layer_pooling import pool_places
from likeness.toolkit.backbones.hub_networks import HubImage, HubSpeech, configuration
from likeness.toolkit.data.images import encode
from likeness.toolkit.models.embed import embed
from tests import tiny_hub

RATE_HZ = 16_000
SIZES = ((40, 51), (64, 33), (37, 37), (90, 40))
EXACT = [name for name in tiny_hub.SPEECH if "base" not in name]


def pictures(folder: Path) -> list[Item]:
    """Images of several sizes as files, smooth enough for resizing to matter."""
    rng = np.random.default_rng(3)
    items = []
    for number, (height, width) in enumerate(SIZES):
        coarse = rng.integers(0, 256, (6, 7, 3)).astype(np.uint8)
        rows = np.linspace(0, 5, height).astype(int)
        columns = np.linspace(0, 6, width).astype(int)
        path = folder / f"{number}.png"
        path.write_bytes(encode(np.ascontiguousarray(coarse[rows][:, columns])))
        items.append(Item(str(number), path, None))
    return items


def image_tower(network: Any) -> Any:
    """The part of a network of transformers that sees images, without a classifier."""
    inner = getattr(network, "vit", network)
    return getattr(inner, "vision_model", inner)


def expected_pixels(name: str, item: Item) -> dict[str, Tensor]:
    """What the processor of transformers makes of an image."""
    from PIL import Image

    made = tiny_hub.processor(name)(images=Image.open(item.path), return_tensors="pt")
    return {key: value for key, value in made.items() if isinstance(value, Tensor)}


def usual(name: str, out: Any) -> Tensor:
    """The vector by which a family is pooled where nothing is asked for."""
    if name.startswith(("vit", "dino")):
        return torch.as_tensor(out.last_hidden_state[:, 0])
    return torch.as_tensor(out.pooler_output).flatten(1)


@pytest.mark.parametrize("name", tiny_hub.IMAGES)
def test_image_embeddings_are_those_of_transformers(name, tmp_path):
    """From the file to the embedding: reading, scale, network and pooling."""
    network = tiny_hub.save(name, tmp_path / "net")
    items = pictures(tmp_path)
    model = load_named(f"hub:{tmp_path / 'net'}")
    result, bad = embed(model.embedder, items, model.read, batch_size=3)
    assert (model.modality, model.similarity, bad) == ("image", "cosine", [])
    with torch.no_grad():
        for row, item in enumerate(items):
            out = image_tower(network)(**expected_pixels(name, item))
            theirs = usual(name, out)[0].numpy()
            np.testing.assert_allclose(result.matrix[row], theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["vit", "dinov2 registers", "dinov3", "clip", "siglip", "convnext"]
)
def test_poolings_of_patches_leave_class_token_and_registers_out(name, tmp_path):
    network = image_tower(tiny_hub.save(name, tmp_path))
    registers = getattr(network.config, "num_register_tokens", 0)
    x = torch.randn(2, 3, 32, 32)
    gem = pool_places("GeM")
    with torch.no_grad():
        tokens = network(x).last_hidden_state
        if name == "convnext":
            tokens = tokens.flatten(2).transpose(1, 2)
        elif name == "clip":
            tokens = network.post_layernorm(tokens)[:, 1:]
        elif name != "siglip":
            tokens = tokens[:, 1 + registers :]
        weights: Any = load_named(f"hub:{tmp_path}").embedder.backbone
        for pooling, pooled in (("mean", tokens.mean(1)), ("GeM", gem(tokens))):
            if name == "convnext":
                pooled = network.layernorm(pooled)
            part = _hub.backbone(str(tmp_path), pooling=pooling, dim=5)
            backbone = part(3).eval()
            lacking = backbone.network.load_state_dict(weights.network.state_dict(), strict=False)
            assert not lacking.missing_keys
            theirs = backbone.project(pooled)
            torch.testing.assert_close(backbone(x), theirs, rtol=1e-5, atol=1e-5)
            assert backbone.dim == 5
            names = {key.partition(".")[0] for key in backbone.state_dict()}
            assert names == {"network", "project", *(["pool"] if pooling == "GeM" else [])}


@pytest.mark.parametrize("name", tiny_hub.SPEECH)
def test_speech_embeddings_are_those_of_transformers(name, voices, tmp_path):
    """From the file to the embedding, one by one by transformers and in mixed batches here."""
    network = tiny_hub.save(name, tmp_path / "net")
    items = folders.items(voices, split="all")[:5]
    model = load_named(f"hub:{tmp_path / 'net'}")
    assert model.modality == "speaker"
    assert dict(model.settings) == {"pooling": "mean"}
    assert set(read_as(model, Reading(crops=2)).settings) == {"pooling", "crops"}
    assert model.embedder.pads_exactly == (name in EXACT)
    result, _ = embed(model.embedder, items, model.read, batch_size=4)
    for row, item in enumerate(items):
        theirs = expected_speech(name, network, soundfile.read(item.path, dtype="float32")[0])
        np.testing.assert_allclose(result.matrix[row], theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def expected_speech(name: str, network: Any, wave: Any) -> Any:
    """The mean over time of the last layer of one recording, by transformers alone."""
    if name == "whisper":
        features, mask = whisper_inputs(network, wave)
        return network.encoder(features).last_hidden_state[0][mask].mean(0).numpy()
    made = tiny_hub.processor(name)(wave, sampling_rate=RATE_HZ, return_tensors="pt")
    if name == "w2v-bert":
        out = network(made["input_features"], made["attention_mask"]).last_hidden_state[0]
        return out[: int(made["attention_mask"].sum())].mean(0).numpy()
    inner = getattr(network, "wav2vec2", network)
    return inner(made["input_values"]).last_hidden_state[0].mean(0).numpy()


def whisper_inputs(network: Any, wave: Any) -> tuple[Tensor, Tensor]:
    """The extractor's features of at most 30 s, and its mask at the stride of the encoder."""
    how = {"return_tensors": "pt", "return_attention_mask": True}
    made = tiny_hub.processor("whisper")(wave, sampling_rate=RATE_HZ, **how)
    mask = made["attention_mask"][0]
    counted = network._get_feat_extract_output_lengths(mask.sum())
    assert int(mask[::2].sum()) == int(counted)
    return made["input_features"], mask[::2].bool()


@pytest.mark.parametrize(
    "samples", [1, 160, 16_000, 16_001, 16_121, 479_600, 479_681, 480_000, 61 * RATE_HZ]
)
def test_whisper_pools_the_frames_that_the_extractor_marks(samples, tmp_path):
    """Also of two recordings in a batch, where the longer one has a window more. The frames of
    several windows count alike.
    """
    network = tiny_hub.save("whisper", tmp_path)
    model = load_named(f"hub:{tmp_path}").embedder
    wave = 0.05 * torch.randn(samples)
    windows = [window.numpy() for window in wave.split(30 * RATE_HZ)]
    frames = [int(whisper_inputs(network, window)[1].sum()) for window in windows]
    parts = [expected_speech("whisper", network, window) for window in windows]
    theirs = np.average(parts, axis=0, weights=frames)
    longer = max(481_000, samples + 1000)
    batch = torch.full((2, longer), 0.3)
    batch[0, :samples] = wave
    with torch.no_grad():
        np.testing.assert_allclose(model(wave[None])[0], theirs, rtol=1e-5, atol=1e-5)
        together = model(batch, torch.tensor([samples / longer, 1.0], dtype=torch.float64))
        np.testing.assert_allclose(together[0], theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "weighted", "MHFA", "MFA", "AdapterMFA"])
@pytest.mark.parametrize("name", EXACT)
def test_padding_changes_no_embedding(name, pooling, tmp_path):
    """A batch of lengths from a tenth to the whole, with rubbish in the padding."""
    tiny_hub.save(name, tmp_path)
    frontend = _hub.frontend(str(tmp_path))()
    torch.manual_seed(0)
    part = _hub.backbone(str(tmp_path), pooling=pooling, dim=6, heads=2, compressed=3)
    backbone = part(frontend.dim).eval()
    assert backbone.pads_exactly
    waves = [torch.randn(samples) for samples in (9000, 2345, 901, 8999)]
    batch = torch.full((4, 9000), 3.0)
    for row, wave in zip(batch, waves, strict=True):
        row[: len(wave)] = wave
    lengths = torch.tensor([len(wave) for wave in waves]).double() / 9000
    with torch.no_grad():
        together = backbone(*frontend(batch, lengths))
        for row, wave in enumerate(waves):
            features, _ = frontend(wave[None])
            torch.testing.assert_close(backbone(features)[0], together[row], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["weighted", "MHFA", "MFA"])
@pytest.mark.parametrize("name", ["wav2vec2 large", "wavlm large", "w2v-bert", "whisper"])
def test_poolings_see_the_layers_of_transformers(name, pooling, tmp_path):
    network = tiny_hub.save(name, tmp_path)
    weights: Any = load_named(f"hub:{tmp_path}").embedder
    part = _hub.backbone(str(tmp_path), pooling=pooling, heads=2, compressed=3)
    backbone = part(weights.frontend.dim).eval()
    backbone.network.load_state_dict(weights.backbone.network.state_dict())
    wave = torch.randn(RATE_HZ // 2)
    features, _ = weights.frontend(wave[None])
    frames = features.shape[1]
    with torch.no_grad():
        if name == "whisper":
            inputs, mask = whisper_inputs(network, wave.numpy())
            out = network.encoder(inputs, output_hidden_states=True)
            frames = int(mask.sum())
        else:
            processor = tiny_hub.processor(name)
            made = processor(wave.numpy(), sampling_rate=RATE_HZ, return_tensors="pt")
            inputs = made["input_features" if name == "w2v-bert" else "input_values"]
            out = network(inputs, output_hidden_states=True)
        assert len(out.hidden_states) == 3
        # In networks with layer norm at the end, hidden_states has the last layer before it.
        layers = [layer[:, :frames] for layer in (*out.hidden_states[:-1], out.last_hidden_state)]
        assert torch.equal(out.hidden_states[-1], out.last_hidden_state) != name.endswith("large")
        theirs = backbone.pool(layers, None)
        torch.testing.assert_close(backbone(features), theirs, rtol=1e-5, atol=1e-5)


IN_DIM = {"w2v-bert": 160, "whisper": 80}
GRADIENTS = [
    *((name, pooling) for name in tiny_hub.SPEECH for pooling in ("mean", "weighted", "MHFA")),
    ("w2v-bert", "AdapterMFA"),
    ("wavlm large", "ECAPA_GLOB"),
    *(
        (name, pooling)
        for name in tiny_hub.IMAGES
        for pooling in ("CLS", "mean", "GeM", "head")
        if not name.endswith(("towers", "classifier"))
        and (pooling != "head" or name.startswith("siglip"))
        and (pooling != "CLS" or name.startswith(("vit", "dino", "clip")))
    ),
]


@pytest.mark.parametrize(("name", "pooling"), GRADIENTS)
def test_every_parameter_gets_a_gradient(name, pooling):
    """Training in many processes stops where one gets none. Masks are for pre-training, and
    SigLIP's own pooling is not trained where another one stands in.
    """
    config = configuration(tiny_hub.network(name).config.to_dict())
    how: dict[str, Any] = {"config": config, "pooling": pooling, "dim": 6}
    if name in tiny_hub.IMAGES:
        backbone: Any = HubImage(3, **how)
        inputs: tuple[Tensor, ...] = (torch.randn(2, 3, 32, 32),)
    else:
        in_dim = IN_DIM.get(name, 1)
        backbone = HubSpeech(in_dim, **how, heads=2, compressed=3)
        inputs = torch.randn(2, 4000 // in_dim, in_dim), torch.tensor([1.0, 0.5])
    z = backbone.train()(*inputs)
    (z * torch.randn_like(z)).sum().backward()
    parameters = dict(backbone.named_parameters())
    fixed = {key for key, parameter in parameters.items() if not parameter.requires_grad}
    assert not [key for key in parameters.keys() - fixed if parameters[key].grad is None]
    head = {key for key in parameters if key.startswith("network.head.") and pooling != "head"}
    assert fixed == ({"network.embed_positions.weight"} if name == "whisper" else head)
    assert not [key for key in backbone.state_dict() if "mask" in key]


def test_the_digest_is_of_all_files(tmp_path):
    tiny_hub.save("vit", tmp_path)
    before = load_named(f"hub:{tmp_path}").digest
    assert load_named(f"hub:{tmp_path}").digest == before
    tiny_hub.change(tmp_path / "preprocessor_config.json", image_mean=[0.1, 0.2, 0.3])
    second = load_named(f"hub:{tmp_path}").digest
    tiny_hub.change(tmp_path / "config.json", layer_norm_eps=1e-3)
    assert len({before, second, load_named(f"hub:{tmp_path}").digest}) == 3


def test_shards_are_joined_and_half_precision_is_read(tmp_path):
    tiny_hub.save("resnet", tmp_path)
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        before = load_named(f"hub:{tmp_path}").embedder(x)
        tensors = load_file(tmp_path / "model.safetensors")
        names = sorted(tensors)
        parts = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
        for file, kept in parts.items():
            save_file({name: tensors[name] for name in kept}, tmp_path / file)
        (tmp_path / "model.safetensors").unlink()
        assert torch.equal(load_named(f"hub:{tmp_path}").embedder(x), before)
        halves = {name: x.half() if x.is_floating_point() else x for name, x in tensors.items()}
        save_file(halves, tmp_path / "model.safetensors")
        near = load_named(f"hub:{tmp_path}").embedder(x)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, before, rtol=1e-2, atol=1e-2)


def test_names_of_older_checkpoints_and_of_larger_models_are_read(tmp_path):
    """A weight norm's two parts, an encoder within a model with a head, and a tower's wrapper."""

    def older(folder: Path, change: Callable[[str], str], **more: Tensor) -> None:
        file = folder / "model.safetensors"
        tensors = {change(name): value for name, value in load_file(file).items()}
        save_file({**tensors, **more}, file)

    def weight_norm(name: str) -> str:
        name = name.replace("parametrizations.weight.original0", "weight_g")
        return f"hubert.{name.replace('parametrizations.weight.original1', 'weight_v')}"

    cases: dict[str, tuple[Callable[[str], str], dict[str, Tensor]]] = {
        "hubert large": (weight_norm, {"lm_head.weight": torch.zeros(3, 16)}),
        "whisper": (lambda name: f"model.{name}", {"proj_out.weight": torch.zeros(3, 16)}),
        "clip": (
            lambda name: f"vision_model.{name.removeprefix('vision_model.')}",
            {"vision_model.embeddings.position_ids": torch.arange(17)[None]},
        ),
    }
    for name, (change, more) in cases.items():
        folder = tmp_path / name
        tiny_hub.save(name, folder)
        before = load_named(f"hub:{folder}").embedder.state_dict()
        older(folder, change, **more)
        after = load_named(f"hub:{folder}").embedder.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)


def quantise(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = min(tensors)
    save_file({**tensors, name: tensors[name].to(torch.int8)}, folder / "model.safetensors")


def renamed(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors").rename(folder / name)


def stated(file: str, **settings: Any) -> Callable[[Path], object]:
    """A change of a JSON file of a folder."""
    return lambda folder: tiny_hub.change(folder / file, **settings)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "other weights": (renamed("model.h5"), "model.safetensors"),
    "no pickle": (renamed("pytorch_model.bin"), "cannot be read without running code"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "object"),
    "another network": (stated("config.json", model_type="bert"), "model_type"),
    "too large": (stated("config.json", hidden_size=120_000), "weights do not fit"),
    "contradicting": (stated("config.json", hidden_size="many"), "no network can be built"),
    "resample": (stated("preprocessor_config.json", resample=1), "resample"),
    "mean": (stated("preprocessor_config.json", image_mean="grey"), "preprocessor_config.json"),
    "quantised": (quantise, "quantised"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_folder_that_does_not_fit_is_refused(name, tmp_path):
    tiny_hub.save("vit", tmp_path)
    change, keyword = CHANGES[name]
    change(tmp_path)
    with pytest.raises(ValueError, match=keyword):
        load_named(f"hub:{tmp_path}")


def test_what_names_code_is_left_out_of_the_configuration(tmp_path):
    tiny_hub.save("vit", tmp_path)
    code = dict.fromkeys(("attn_implementation", "_attn_implementation"), "someone/kernel")
    code |= {"auto_map": {"AutoModel": "evil--net.Net"}, "_name_or_path": "someone/else"}
    quantised = {"quantization_config": {"quant_method": "x"}}
    tiny_hub.change(tmp_path / "config.json", **code, **quantised)
    config = json.loads(_hub.backbone(str(tmp_path)).keywords["config"])
    assert not {"auto_map", "attn_implementation", "quantization_config"} & set(config)
    assert not [name for name in config if name.startswith("_")]
    assert load_named(f"hub:{tmp_path}").embedder.dim == 12
