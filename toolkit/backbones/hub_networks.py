"""Networks of the Hugging Face hub behind the backbone signature, as `transformers` has them.

HubImage takes images: ViT, DINOv2 (with or without registers), DINOv3, the image towers of CLIP,
SigLIP and SigLIP 2, ConvNeXt and ResNet. HubSpeech takes speech: wav2vec 2.0, HuBERT, WavLM and
UniSpeech-SAT over waves, w2v-BERT 2.0 over filterbanks, and Whisper's encoder over log mel
energies.

A network is described by JSON text. Of what its config.json states, only what sizes the network is
kept, and `model_type` chooses the class by the table here, so no configuration names code.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from likeness.eval.errors import LikenessError, check_choice, install_line
from likeness.toolkit.backbones._images import check_images, in_float32
from likeness.toolkit.backbones._layer_pooling import SpeechPooling, pool_layers, pool_places
from likeness.toolkit.backbones._speaker_heads import published_head
from likeness.toolkit.backbones.ecapa import import_torchaudio
from likeness.toolkit.backbones.weights import first_names, put

ImagePooling = Literal["", "CLS", "mean", "GeM", "head"]


Takes = Literal["images", "waves", "features"]
# What the networks of each `model_type` take; features are frames of log mel energies.
FAMILIES: Mapping[str, Takes] = MappingProxyType(
    {
        "vit": "images",
        "dinov2": "images",
        "dinov2_with_registers": "images",
        "dinov3_vit": "images",
        "clip_vision_model": "images",
        "siglip_vision_model": "images",
        "siglip2_vision_model": "images",
        "convnext": "images",
        "resnet": "images",
        "wav2vec2": "waves",
        "hubert": "waves",
        "wavlm": "waves",
        "unispeech-sat": "waves",
        "wav2vec2-bert": "features",
        "whisper": "features",
    }
)
# Those of which transformers has a class for x-vectors.
X_VECTORS = ("wav2vec2", "wavlm", "unispeech-sat")
# What the names of the tensors begin with in checkpoints that hold more than this network, where it
# is not the model_type: what does not begin so is of another part then.
_PREFIXES = {"dinov3_vit": ("dinov3_vit.", "dinov3."), "whisper": ("model.encoder.", "encoder.")}
# The beginnings of names that a checkpoint may have and the network has not: heads of other tasks,
# the other tower, and what only pre-training uses.
_LEFT_OUT = (
    *("classifier.", "decoder.", "dropout_features.", "embeddings.mask_token"),
    *("embeddings.position_ids", "feature_extractor_objective.", "layer_weights", "lm_head."),
    *("logit_bias", "logit_scale", "masked_spec_embed", "model.decoder.", "objective.", "pooler."),
    *("proj_out.", "project_hid.", "project_q.", "projector.", "quantizer.", "tdnn."),
    *("text_model.", "text_projection.", "visual_projection."),
)
# The beginnings of the names of transformers' x-vector head.
_OF_XVECTOR = (
    *("projector.", "tdnn.", "layer_weights"),
    *("feature_extractor.weight", "feature_extractor.bias"),
)
# Parameters that only pre-training uses; they are taken out of the network.
_UNUSED = ("embeddings.mask_token", "masked_spec_embed")
# Settings that are the same for every checkpoint. Masking of frames draws from numpy's generator,
# which no checkpoint of ours restores, and layers that are left out at random leave parameters
# without gradient.
_FIXED = {
    "apply_spec_augment": False,
    "encoder_layerdrop": 0.0,
    "layerdrop": 0.0,
    "use_mask_token": False,
}
# Configurations of two towers keep that of the images inside.
_TOWERS = {
    "clip": "clip_vision_model",
    "siglip": "siglip_vision_model",
    "siglip2": "siglip2_vision_model",
}
# What no network is sized by; some of it names code or files.
_NEVER = frozenset(
    {"add_adapter", "attn_implementation", "model_type", "out_features", "out_indices"}
    | {"quantization_config", "stage_names"}
)
# Smaller numbers are quantised weights, which mean nothing without their scales.
_NUMBERS = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int32, torch.int64),  # counters and positions
)
# What the image networks of a family are pooled by where nothing else is asked for.
_USUAL: dict[str, ImagePooling] = {
    "convnext": "mean",
    "resnet": "mean",
    "siglip_vision_model": "head",
    "siglip2_vision_model": "head",
}
# Of Whisper's log mel energies: silence, how far below the loudest value the others may lie, and
# how many frames follow those that are pooled.
_SILENCE, _RANGE, _MARGIN = -1.5, 2.0, 2


def import_transformers() -> Any:
    """Import `transformers`, which takes some seconds.

    Raises:
        ImportError: It is missing; the message names the extra to install.
    """
    with suppress(ImportError):  # transformers imports it where it is installed
        import_torchaudio()
    try:
        import transformers
    except ImportError:
        raise LikenessError(
            f"networks of the Hugging Face hub need transformers; run `{install_line('hub')}`"
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
        LikenessError: The model_type is none that is read.
        ImportError: transformers is missing.

    Example:
        >>> configuration({"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [4, 8],
        ...                "embedding_size": 4, "id2label": {"0": "cat"}})
        '{"depths": [1, 1], "embedding_size": 4, "hidden_sizes": [4, 8], "model_type": "resnet"}'
    """
    model_type = str(stated.get("model_type"))
    if model_type in _TOWERS and isinstance(stated.get("vision_config"), dict):
        stated, model_type = stated["vision_config"], _TOWERS[model_type]
    if model_type not in FAMILIES:
        raise LikenessError(
            f"{where}: model_type is {model_type[:40]!r}; allowed are {', '.join(FAMILIES)}, "
            f"and the image tower of {', '.join(_TOWERS)}"
        )
    known = _sizes(model_type) - set(_FIXED)
    kept = {name: value for name, value in stated.items() if name in known and value is not None}
    return json.dumps({**kept, "model_type": model_type}, sort_keys=True)


def input_kind(config: str) -> Takes:
    """Return what the network of a configuration's text takes."""
    return FAMILIES[json.loads(config)["model_type"]]


def _sizes(model_type: str) -> set[str]:
    """Return the names of what sizes a network: what its configuration has, and not every one."""
    transformers = import_transformers()
    own = transformers.AutoConfig.for_model(model_type).to_dict()
    return set(own) - set(transformers.PretrainedConfig().to_dict()) - _NEVER


def build(text: str, *, images: bool) -> tuple[Any, Any]:
    """Build the network of a configuration, with random weights.

    Args:
        text: What `configuration` returns.
        images: Whether it has to be a network over images, or one over speech.

    Returns:
        The network of transformers, without what only pre-training uses, and its configuration.

    Raises:
        LikenessError: The text is no configuration, is of another kind of network, or contradicts
            itself.
        ImportError: transformers is missing.
    """
    transformers = import_transformers()
    try:
        assert (input_kind(text) == "images") == images
        settings = json.loads(text)
        model_type = settings.pop("model_type")
        sizes = _sizes(model_type)
        unknown = sorted(settings.keys() - sizes)
        # A slash would name a repository, from which transformers fetches kernels.
        unknown += [name for name, value in settings.items() if "/" in str(value)]
        if unknown:
            raise LikenessError(f"{first_names(unknown)} size no network of this version")
        settings |= {name: value for name, value in _FIXED.items() if name in sizes}
        config = transformers.AutoConfig.for_model(model_type, **settings)
        if model_type == "whisper":  # AutoModel would build its decoder too
            from transformers.models.whisper.modeling_whisper import WhisperEncoder

            network = WhisperEncoder(config)
        else:
            network = transformers.AutoModel.from_config(
                config, trust_remote_code=False, **_options(model_type)
            )
    except Exception as error:  # transformers and torch raise errors of any type here
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise LikenessError(
            f"config: no network can be built from {text[:60]!r} ({reason}); give the config.json "
            "of a published network, or take the version of transformers that the model was "
            "trained with"
        ) from None
    _take_out(network)
    return network, config


def _options(model_type: str) -> dict[str, bool]:
    """Return what the class of a network is called with."""
    return {"add_pooling_layer": False} if model_type == "vit" else {}


def _take_out(network: nn.Module) -> None:
    """Take the parameters out of a network that only pre-training uses."""
    for name in [name for name, _ in network.named_parameters() if name in _UNUSED]:
        owner, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(owner), attribute, None)  # which has no name then


def fill(backbone: HubImage | HubSpeech, tensors: Mapping[str, Tensor], where: str) -> None:
    """Give a backbone's network the weights of a checkpoint, strictly.

    Checkpoints name tensors in several ways. These rules apply, in this order:

    1. Where names begin with a prefix of the family, the checkpoint holds more than this network:
       the prefix is dropped, and a name without it is left out if `_LEFT_OUT` has its beginning.
    2. transformers renames what its versions have called otherwise: layers, the two parts of a
       weight norm, the wrapper of an image tower.
    3. What the network has not is left out if `_LEFT_OUT` has its beginning.

    Everything else has to fit. Numbers become float32.

    Args:
        backbone: What was built from the configuration, perhaps on the device "meta".
        tensors: The checkpoint's tensors by name.
        where: What errors begin with.

    Raises:
        LikenessError: Tensors are missing, unknown, of another shape or quantised.
    """
    if backbone.pooling == "xvector":
        own = {name: value for name, value in tensors.items() if name.startswith(_OF_XVECTOR)}
        put(backbone.pool, own, where, "give the files of one network, all of them")
        tensors = {name: value for name, value in tensors.items() if name not in own}
    prefixes = _PREFIXES.get(backbone.family, (f"{backbone.family.replace('-', '_')}.",))
    prefix = next((p for p in prefixes if any(x.startswith(p) for x in tensors)), "")
    kept = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if not name.startswith(_LEFT_OUT) or (prefix and name.startswith(prefix))
    }
    needed = sum(parameter.numel() for parameter in backbone.network.parameters())
    if needed > sum(tensor.numel() for tensor in kept.values()):
        raise LikenessError(
            f"{where}: weights do not fit: the network of its configuration has {needed} weights, "
            "more than its files hold; copy them again"
        )
    quantised = [name for name, tensor in sorted(kept.items()) if tensor.dtype not in _NUMBERS]
    if quantised:
        raise LikenessError(
            f"{where}: {first_names(quantised)} cannot become float32; give weights that are not "
            "quantised"
        )
    with _quiet():
        network, report = type(backbone.network).from_pretrained(
            None,
            config=backbone.config,
            state_dict=kept,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **_options(backbone.family),
        )
    missing = set(report["missing_keys"]) - set(_UNUSED)
    unknown = {name for name in report["unexpected_keys"] if not name.startswith(_LEFT_OUT)}
    wrong = missing | unknown | {name for name, *_ in report["mismatched_keys"]}
    if wrong:
        raise LikenessError(
            f"{where}: weights do not fit: {first_names(sorted(wrong))} are missing, unknown or of "
            "another shape; give the files of one network, all of them"
        )
    _take_out(network)
    backbone.network = network.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bars and its report of what does not fit."""
    logging = import_transformers().utils.logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


class HubImage(nn.Module):
    """An image network of `transformers`, pooled to one vector: (B, C, H, W) -> (B, dim).

    Images of another size than the network's own are taken where both sides are multiples of its
    patch; positions are then interpolated, as transformers does.

    The tokens that are pooled have passed the last layer norm of the network; where a convolutional
    network has a norm after its pooling (ConvNeXt), it comes after the pooling here too.

    Attributes:
        network: The network of transformers, with its names. SigLIP's own pooling stays in it where
            another one is chosen, but is neither computed nor trained.
        pool: The pooling; it has parameters with GeM alone.
        project: The linear layer to `dim`; nothing if dim is 0.
        pooling: The pooling by name, never "".

    Args:
        in_dim: The number of channels, which the configuration states too.
        config: The configuration as JSON text; `configuration` makes it.
        pooling: "CLS" is the class token. "mean" is the mean of the patches or places, without
            class token and registers. "GeM" is their generalised mean. "head" is the network's own
            attention pooling (SigLIP). "" is what the family does: head for SigLIP, mean for
            ConvNeXt and ResNet, CLS for the others.
        dim: The size of the embeddings; 0 leaves the pooled vector as it is.
        revision: The commit on the hub that the configuration is of, for the record.

    Raises:
        LikenessError: The configuration is none, or is of another kind of network; or the network
            has no such pooling.
        ImportError: transformers is missing.

    Example:
        >>> import torch
        >>> config = '{"model_type": "resnet", "depths": [1], "hidden_sizes": [8],'
        >>> config += ' "embedding_size": 4, "layer_type": "basic"}'
        >>> backbone = HubImage(3, config=config, dim=16)
        >>> backbone(torch.randn(2, 3, 32, 32)).shape, backbone.pooling
        (torch.Size([2, 16]), 'mean')
    """

    takes = "images"
    pads_exactly = False  # images are not padded
    # The beginnings of the names of tensors that no pretrained network has.
    fresh = ("pool.", "project.")

    def __init__(
        self,
        in_dim: int = 3,
        *,
        config: str,
        pooling: ImagePooling = "",
        dim: int = 0,
        revision: str = "",
    ) -> None:
        super().__init__()
        self.network, self.config = build(config, images=True)
        self.family, self.in_dim, self.revision = self.config.model_type, in_dim, revision
        usual = _USUAL.get(self.family, "CLS")
        self.pooling = pooling or usual
        allowed = sorted({usual, "mean", "GeM"})
        check_choice(f"HubImage of model_type {self.family!r} pooling", self.pooling, allowed)
        sizes = getattr(self.config, "hidden_sizes", None)  # of a convolutional network
        width = int(sizes[-1] if sizes else self.config.hidden_size)
        self.patch = 1 if sizes else int(self.config.patch_size)
        # The size of images whose positions the network has; 0 where it has none or is of any size.
        any_size = sizes or self.family.startswith(("siglip2", "dinov3"))
        self.own_size = 0 if any_size else int(self.config.image_size)
        if _USUAL.get(self.family) == "head" and self.pooling != "head":
            _rest_head(self.network)
        self.pool: nn.Module = nn.Identity()
        if self.pooling == "mean" or self.pooling == "GeM":
            self.pool = pool_places(self.pooling)
        self.project: nn.Module = nn.Linear(width, dim) if dim else nn.Identity()
        self.dim = dim or width

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of images (B, C, H, W); `lengths` is not used.

        Raises:
            LikenessError: The images have another shape.
        """
        own = tuple(x.shape[2:]) == (self.own_size, self.own_size)
        check_images(x, "HubImage", self.in_dim, multiple=1 if own else self.patch)
        tokens, pooled = self._tokens(x, interpolate=bool(self.own_size) and not own)
        if self.pooling == "CLS":
            z = tokens[:, 0]
        elif self.pooling == "head":
            z = pooled
        else:
            z = in_float32(self.pool, tokens)
            if self.family == "convnext":
                z = in_float32(self.network.layernorm, z)
        return in_float32(self.project, z).float()

    def _tokens(self, x: Tensor, *, interpolate: bool) -> tuple[Tensor, Tensor]:
        """Return the tokens (B, N, C) that are pooled, and what the network's own pooling gives.

        With pooling "CLS" the class token is the first of them. Otherwise there is none.
        """
        if self.family == "siglip2_vision_model":
            return _naflex(self.network, x, self.patch, pooled=self.pooling == "head")
        # DINOv2 interpolates its positions without being told.
        interpolates = interpolate and not self.family.startswith("dinov2")
        out = self.network(x, **({"interpolate_pos_encoding": True} if interpolates else {}))
        tokens = out.last_hidden_state
        if self.family in ("convnext", "resnet"):
            return tokens.flatten(2).transpose(1, 2), out.pooler_output
        if self.family == "clip_vision_model":  # CLIP has this norm for the class token alone
            tokens = _inner(self.network).post_layernorm(tokens)
        if self.pooling == "CLS" or self.family in _USUAL:
            return tokens, out.pooler_output
        first = 1 + int(getattr(self.config, "num_register_tokens", 0))
        return tokens[:, first:], tokens[:, 0]


def _inner(network: Any) -> Any:
    """Return the module that has a tower's layers: transformers has wrapped it in some versions."""
    return getattr(network, "vision_model", network)


def _rest_head(network: Any) -> None:
    """Leave SigLIP's attention pooling unused and untrained, since another pooling stands in."""
    inner = _inner(network)
    inner.use_head = False
    if hasattr(inner, "head"):
        inner.head.requires_grad_(False)


def _naflex(network: Any, x: Tensor, patch: int, *, pooled: bool) -> tuple[Tensor, Tensor]:
    """Return the tokens (B, N, C) of SigLIP 2, and what its own pooling gives.

    Images of a batch have one size here. So positions are interpolated once, nothing is masked, and
    the batch stays free in an export.

    Args:
        network: Siglip2VisionModel.
        x: (B, C, H, W), H and W multiples of the patch.
        patch: The side of a patch.
        pooled: Whether its own pooling is computed; without, the tokens stand in for it.
    """
    channels, height, width = x.shape[1:]
    rows, columns = height // patch, width // patch
    cut = x.reshape(-1, channels, rows, patch, columns, patch).permute(0, 2, 4, 3, 5, 1)
    inner = _inner(network)
    embedded = inner.embeddings.patch_embedding(
        cut.reshape(-1, rows * columns, patch**2 * channels)
    )
    side = int(inner.embeddings.position_embedding_size)
    positions = inner.embeddings.position_embedding.weight.reshape(1, side, side, -1)
    if (rows, columns) != (side, side):
        positions = functional.interpolate(
            positions.permute(0, 3, 1, 2).float(),
            size=(rows, columns),
            mode="bilinear",
            align_corners=False,
            antialias=True,
        ).permute(0, 2, 3, 1)
    embedded = embedded + positions.reshape(1, rows * columns, -1).to(embedded.dtype)
    tokens = inner.post_layernorm(inner.encoder(inputs_embeds=embedded).last_hidden_state)
    return tokens, inner.head(tokens) if pooled else tokens


class HubSpeech(nn.Module):
    """A speech network of `transformers`, pooled to one vector: (B, T, in_dim) -> (B, dim).

    What it takes depends on the network. wav2vec 2.0, HuBERT and WavLM take waves, in_dim 1;
    w2v-BERT 2.0 takes stacked filterbanks; Whisper takes log mel energies of recordings of any
    length, which are cut into windows of 30 s, encoded one by one, and pooled together. The
    front-ends are those of modalities/speaker/hub_speech.py.

    Padding changes no embedding, with one exception: networks whose first convolution is followed
    by group norm over time (feat_extract_norm "group", such as wav2vec2-base, hubert-base-ls960 and
    wavlm-base-plus). `pads_exactly` is False for these, and the batches of `embed` hold equal
    lengths.

    Frames are never masked at random and no layer is left out at random, whatever the configuration
    says; augment recordings instead (modalities/speaker/augment.py).

    Attributes:
        network: The network of transformers, with its names, without what only pre-training uses.
        pool: The pooling over layers and frames.
        project: The linear layer to `dim`; nothing if dim is 0.

    Args:
        in_dim: The size of a frame, which the configuration states too.
        config: The configuration as JSON text; `configuration` makes it.
        pooling: "mean", "weighted", "MHFA", "MFA" or "AdapterMFA", see
            toolkit/backbones/_layer_pooling.py; "xvector", "ECAPA" or "ECAPA_GLOB", see
            toolkit/backbones/_speaker_heads.py.
        dim: The size of the embeddings; 0 leaves the pooled vector as it is.
        heads: The number of heads of MHFA.
        compressed: The size of keys and values of MHFA, and of the adapters of AdapterMFA.
        revision: The commit on the hub that the configuration is of, for the record.

    Raises:
        LikenessError: The configuration is none, is of another kind of network, or states another
            size of frames; or there is no such pooling.
        ImportError: transformers is missing.

    Example:
        >>> config = '{"model_type": "whisper", "d_model": 8, "encoder_layers": 1,'
        >>> config += ' "encoder_attention_heads": 2, "encoder_ffn_dim": 8, "num_mel_bins": 4}'
        >>> backbone = HubSpeech(4, config=config, pooling="weighted", dim=16)
        >>> backbone(torch.randn(2, 100, 4)).shape, backbone.pads_exactly
        (torch.Size([2, 16]), True)
    """

    # The beginnings of the names of tensors that no pretrained network has.
    fresh = ("pool.", "project.")

    def __init__(
        self,
        in_dim: int,
        *,
        config: str,
        pooling: SpeechPooling = "mean",
        dim: int = 0,
        heads: int = 32,
        compressed: int = 128,
        revision: str = "",
    ) -> None:
        super().__init__()
        self.network, self.config = build(config, images=False)
        self.family, self.in_dim, self.revision = self.config.model_type, in_dim, revision
        self.takes_waves = FAMILIES[self.family] == "waves"
        if self.family == "wavlm":  # torch warns of how transformers calls its attention
            warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask")
        expected, frontend = 1, "UnitWave"
        if self.family == "whisper":
            expected, frontend = int(self.config.num_mel_bins), "WhisperMel"
        elif not self.takes_waves:
            expected, frontend = int(self.config.feature_projection_input_dim), "StackedFbank"
        if in_dim != expected:
            raise LikenessError(
                f"HubSpeech: a network of model_type {self.family!r} takes frames of {expected}, "
                f"but the front-end gives {in_dim}; take {frontend}, with as many bands as the "
                "network was trained with"
            )
        self.pads_exactly = getattr(self.config, "feat_extract_norm", "layer") != "group"
        whisper = self.family == "whisper"
        width = int(self.config.d_model if whisper else self.config.hidden_size)
        blocks = self.config.encoder_layers if whisper else self.config.num_hidden_layers
        layers, self.pooling = 1 + int(blocks), pooling
        self.pool: nn.Module
        if pooling == "xvector":
            check_choice("HubSpeech model_type for xvector", self.family, X_VECTORS)
        if pooling == "xvector" or pooling == "ECAPA" or pooling == "ECAPA_GLOB":
            self.pool, size = published_head(pooling, layers, width, self.config)
        else:
            self.pool, size = pool_layers(
                pooling, layers, width, heads=heads, compressed=compressed
            )
        self.project: nn.Module = nn.Linear(size, dim) if dim else nn.Identity()
        self.dim = dim or size

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,).

        Raises:
            LikenessError: The features are shorter than one frame.
        """
        counts = None
        if lengths is not None:
            counts = (lengths.double() * features.shape[1]).round().clamp(min=1).long()
        if self.takes_waves:
            layers, mask = self._of_waves(features[..., 0], counts)
        elif self.family == "whisper":
            layers, mask = self._of_windows(features, counts)
        else:
            valid = None if counts is None else _first(counts, features.shape[1])
            layers, mask = self._encode(features, valid), valid
        z = torch.as_tensor(self.pool(layers, mask))
        return in_float32(self.project, z).float()

    def _encode(self, inputs: Tensor, valid: Tensor | None) -> Sequence[Tensor]:
        """Return all layers (B, T, C) of the network, or the last one where that is enough.

        The last one is the network's own output. In networks that normalise at the end, such as
        wav2vec2-large, it is normalised, which the last of transformers' hidden_states is not.
        """
        options = {} if valid is None else {"attention_mask": valid.long()}
        if getattr(self.pool, "only_last", False):
            return [self.network(inputs, **options).last_hidden_state]
        out = self.network(inputs, output_hidden_states=True, **options)
        return [*out.hidden_states[:-1], out.last_hidden_state]

    def _of_waves(
        self, wave: Tensor, counts: Tensor | None
    ) -> tuple[Sequence[Tensor], Tensor | None]:
        """Return the layers of waves (B, S), and which of their frames are valid."""
        if not torch.compiler.is_compiling():
            shortest = wave.shape[1] if counts is None else int(counts.min())
            if self._num_frames(torch.tensor(shortest)) < 1:
                raise LikenessError(
                    f"HubSpeech: a wave of {shortest} samples is shorter than a frame of the "
                    "network; give longer audio"
                )
        if counts is None:
            return self._encode(wave, None), None
        layers = self._encode(wave, _first(counts, wave.shape[1]))
        return layers, _first(self._num_frames(counts), layers[-1].shape[1])

    def _num_frames(self, samples: Tensor) -> Tensor:
        """Count the frames that the convolutions make of so many samples."""
        pairs = zip(self.config.conv_kernel, self.config.conv_stride, strict=True)
        for kernel, stride in pairs:
            samples = (samples - kernel).div(stride, rounding_mode="floor") + 1
        return samples

    def _of_windows(
        self, features: Tensor, counts: Tensor | None
    ) -> tuple[Sequence[Tensor], Tensor | None]:
        """Return Whisper's layers over windows of 30 s, and which of their frames are valid.

        After the end of a recording every frame has one value, that of silence in a window as loud
        as this one. The last two frames of a recording are for the encoder to see: no frame of its
        own stands for them (WhisperMel of modalities/speaker/hub_speech.py).
        """
        batch, total, bands = features.shape
        size = 2 * int(self.config.max_source_positions)
        windows = max(1, -(-(total - _MARGIN) // size))
        if counts is None:
            counts = torch.full((batch,), total, device=features.device)
        # A margin that lies past the last window is cut off.
        padded = functional.pad(features, (0, 0, 0, windows * size - total))
        padded = padded.reshape(batch * windows, size, bands)
        empty = ~_first(counts, windows * size).reshape(batch * windows, size, 1)
        loudest = padded.masked_fill(empty, -torch.inf).amax((1, 2), keepdim=True)
        silence = (loudest - _RANGE).clamp(min=_SILENCE).expand_as(padded)
        inputs = torch.where(empty, silence, padded).transpose(1, 2)
        layers = [
            layer.reshape(batch, windows * size // 2, -1) for layer in self._encode(inputs, None)
        ]
        pooled = (counts - _MARGIN + 1).div(2, rounding_mode="floor").clamp(min=1)
        return layers, _first(pooled, windows * size // 2)


def _first(counts: Tensor, total: int) -> Tensor:
    """Return (B, total) bool, which is True for the first `counts` (B,) places."""
    return torch.arange(total, device=counts.device)[None, :] < counts[:, None]
