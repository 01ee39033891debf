"""Image networks of the Hugging Face hub behind the backbone signature.

They are ViT, DINOv2 (with or without registers), DINOv3, the image towers of CLIP, SigLIP and
SigLIP 2, ConvNeXt and ResNet, as `transformers` has them.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn import functional

from eval.errors import LikenessError
from toolkit.backbones.hub.network import build
from toolkit.backbones.images import check_images, in_float32
from toolkit.backbones.layer_pooling import pool_places

ImagePooling = Literal["", "CLS", "mean", "GeM", "head"]
# What the networks of a family are pooled by where nothing else is asked for.
_USUAL: dict[str, ImagePooling] = {
    "convnext": "mean",
    "resnet": "mean",
    "siglip_vision_model": "head",
    "siglip2_vision_model": "head",
}
_WITHOUT_CLS = frozenset(_USUAL)
_WITH_HEAD = frozenset({"siglip_vision_model", "siglip2_vision_model"})
# Four times the 1,374 tokens of the largest published network, DINOv2 with registers at 518 pixels.
# The cost of attention grows with the square of their number.
_MAX_TOKENS = 5_496


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
        stride: The number of pixels between the tokens, or between the places of the last layer.

    Args:
        in_dim: The number of channels, which the configuration states too.
        config: The configuration as JSON text; `toolkit.backbones.hub.configuration` makes it.
        pooling: "CLS" is the class token. "mean" is the mean of the patches or places, without
            class token and registers. "GeM" is their generalised mean. "head" is the network's own
            attention pooling (SigLIP). "" is what the family does: head for SigLIP, mean for
            ConvNeXt and ResNet, CLS for the others.
        dim: The size of the embeddings; 0 leaves the pooled vector as it is.
        power: The exponent of GeM, or where its training begins.
        learn_power: Whether the exponent is learned.
        revision: The commit on the hub that the configuration is of, for the record.

    Raises:
        LikenessError: The configuration is none, is of another kind of network, or states another
            number of channels; or the network has no such pooling. The package transformers is
            missing.

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
        power: float = 3.0,
        learn_power: bool = True,
        revision: str = "",
    ) -> None:
        super().__init__()
        built = build(config, ("images",), "HubImage")
        self.network, self.family, self._config = built.network, built.model_type, built.config
        self.revision = revision
        self.pooling = pooling or _USUAL.get(self.family, "CLS")
        _check_pooling(self.family, self.pooling)
        channels = int(self._config.num_channels)
        if channels != in_dim:
            raise LikenessError(
                f"HubImage: the network takes {channels} channels, but the front-end gives "
                f"{in_dim}; read the images with {channels} channels"
            )
        self.in_dim = in_dim
        sizes = getattr(self._config, "hidden_sizes", None)
        width = int(sizes[-1] if sizes else self._config.hidden_size)
        self.patch = int(getattr(self._config, "patch_size", 1)) if not sizes else 1
        self.stride = _stride(self._config) if sizes else self.patch
        # The size of images whose positions the network has; 0 where it has none or is of any size.
        own = getattr(self._config, "image_size", 0) if not sizes else 0
        self.own_size = 0 if self.family.startswith(("siglip2", "dinov3")) else int(own)
        if self.stride < 1:
            raise LikenessError(
                f"HubImage: patch_size is {self.stride}; 1 or more pixels are needed: give the "
                "config.json of a published network"
            )
        self.check_size(self.own_size, self.own_size)
        if self.family in _WITH_HEAD and self.pooling != "head":
            _rest_head(self.network)
        self.pool: nn.Module = nn.Identity()
        if self.pooling in ("mean", "GeM"):
            name: Literal["mean", "GeM"] = "GeM" if self.pooling == "GeM" else "mean"
            self.pool = pool_places(name, power, learned=learn_power)
        self.project: nn.Module = nn.Linear(width, dim) if dim else nn.Identity()
        self.dim = dim or width

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of images (B, C, H, W); `lengths` is not used.

        Raises:
            LikenessError: The images have another shape, or are too large for the network.
        """
        size = tuple(x.shape[2:])
        multiple = 1 if size == (self.own_size, self.own_size) else self.patch
        check_images(x, "HubImage", self.in_dim, multiple=multiple)
        self.check_size(*size)
        tokens, pooled = self._tokens(x)
        if self.pooling == "CLS":
            z = tokens[:, 0]
        elif self.pooling == "head":
            z = pooled
        else:
            z = in_float32(self.pool, tokens)
            if self.family == "convnext":
                norm: Any = self.network.layernorm
                z = in_float32(norm, z)
        return in_float32(self.project, z).float()

    def check_size(self, height: int, width: int) -> None:
        """Refuse images of which the network would make too many tokens or places.

        Args:
            height: Of the images, in pixels.
            width: Of the images, in pixels.

        Raises:
            LikenessError: There would be too many; it says how many.
        """
        tokens = (height // self.stride) * (width // self.stride)
        if tokens > _MAX_TOKENS:
            raise LikenessError(
                f"HubImage: the network makes {tokens} tokens of an image of {height} x {width}, "
                f"one of each {self.stride} x {self.stride} pixels; at most {_MAX_TOKENS} are "
                "made: give smaller images, or the configuration of a published network"
            )

    def _tokens(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens (B, N, C) that are pooled, and what the network's own pooling gives.

        With pooling "CLS" the class token is the first of them. Otherwise there is none.
        """
        network: Any = self.network
        if self.family in ("convnext", "resnet"):
            out = network(x)
            return out.last_hidden_state.flatten(2).transpose(1, 2), out.pooler_output
        if self.family == "siglip2_vision_model":
            return _naflex(network, x, self.patch, pooled=self.pooling == "head")
        if self.own_size and tuple(x.shape[2:]) != (self.own_size, self.own_size):
            # DINOv2 interpolates its positions without being told.
            options = {} if self.family.startswith("dinov2") else {"interpolate_pos_encoding": True}
            out = network(x, **options)
        else:
            out = network(x)
        tokens = out.last_hidden_state
        if self.family == "clip_vision_model":
            tokens = _last_norm(network)(tokens)
        if self.pooling == "CLS" or self.family in _WITHOUT_CLS:
            return tokens, out.pooler_output
        first = 1 + int(getattr(self._config, "num_register_tokens", 0))
        return tokens[:, first:], tokens[:, 0]


def _check_pooling(family: str, pooling: str) -> None:
    """Raise ValueError if networks of a family cannot be pooled in this way."""
    allowed = [name for name in get_args(ImagePooling) if name]
    if family in _WITHOUT_CLS:
        allowed.remove("CLS")
    if family not in _WITH_HEAD:
        allowed.remove("head")
    if pooling not in allowed:
        raise LikenessError(
            f"HubImage: pooling is {pooling!r}; a network of model_type {family!r} can be pooled "
            f"by {', '.join(allowed)}"
        )


def _stride(config: Any) -> int:
    """Return how many pixels lie between the places of the last layer of ConvNeXt or ResNet."""
    first = config.patch_size if config.model_type == "convnext" else 4
    stages = len(config.hidden_sizes)
    if getattr(config, "downsample_in_first_stage", False):
        stages += 1
    return int(first) << (stages - 1)


def _inner(network: Any) -> Any:
    """Return the module that has a tower's layers: transformers has wrapped it in some versions."""
    return getattr(network, "vision_model", network)


def _last_norm(network: Any) -> Any:
    """Return the layer norm that CLIP puts behind its image tower, for the class token there."""
    return _inner(network).post_layernorm


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
