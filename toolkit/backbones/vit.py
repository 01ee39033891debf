"""Vision transformers: InsightFace's for aligned faces, and ViT-S/B for images.

The latter have the parameter names of DINO and DINOv2.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from likeness.toolkit.backbones._images import check_images, in_float32, start_from


class FaceViT(nn.Module):
    """ViT without a class token, as arcface_torch has it, which gives raw embeddings (B, dim).

    All tokens side by side go through linear, batch norm, linear, batch norm. Parameter names are
    those of arcface_torch/backbones/vit.py. Width and depth of its networks are 256 and 12 (ViT-t,
    19.14 M parameters), 512 and 12 (ViT-s, 76.02 M), 512 and 24 (ViT-b, 113.83 M), 768 and 24
    (ViT-l, 255.68 M).

    Args:
        in_dim: The number of channels of the aligned faces (B, in_dim, image_size, image_size).
        dim: The size of the embeddings.
        width: The size of a token.
        depth: The number of blocks.
        heads: The number of attention heads.
        patch: The edge of a patch in pixels.
        image_size: The edge of the images in pixels.
        masked: The share of the tokens that are left out in training and replaced by one learned
            token after the last block; with 0 there is no such token.
        drop_path: The chance of leaving out a residual branch in training; it grows from 0 to this
            over the depth.
        mlp_ratio: How much wider than a token the hidden layer of a block is.

    Raises:
        LikenessError: The images have another shape.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"

    # So many, because releases and recipes differ in each of them.
    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 512,
        width: int = 256,
        depth: int = 12,
        heads: int = 8,
        patch: int = 9,
        image_size: int = 112,
        masked: float = 0.1,
        drop_path: float = 0.1,
        mlp_ratio: float = 4.0,
    ):
        super().__init__()
        self.in_dim, self.dim, self.image_size, self.masked = in_dim, dim, image_size, masked
        self.left_out = () if masked else ("mask_token",)
        # With 112 pixels and patches of 9, the last 4 pixels are not seen, as in the release.
        num = (image_size // patch) ** 2
        self.patch_embed = _Patches(in_dim, width, patch)
        self.pos_embed = nn.Parameter(torch.zeros(1, num, width))
        if masked:
            self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
            nn.init.normal_(self.mask_token, std=0.02)
        block = partial(_Block, width, heads, active=nn.ReLU6, qkv_bias=False, eps=1e-5)
        self.blocks = _blocks(partial(block, mlp_ratio=mlp_ratio), depth, drop_path)
        self.norm = nn.LayerNorm(width)
        self.feature = nn.Sequential(
            nn.Linear(width * num, width, bias=False),
            nn.BatchNorm1d(width, eps=2e-5),
            nn.Linear(width, dim, bias=False),
            nn.BatchNorm1d(dim, eps=2e-5),
        )
        _draw(self)

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of aligned faces; `lengths` is ignored."""
        check_images(images, "FaceViT", self.in_dim, self.image_size)
        return self.embed(images)

    def embed(self, images: Tensor, biases: Sequence[Tensor] = ()) -> Tensor:
        """Return the embeddings of images whose shape was checked.

        Args:
            images: (B, in_dim, image_size, image_size).
            biases: For each block, what is added to the scores of its attention before the softmax,
                (B, heads, N, N); () for nothing.
        """
        x = self.patch_embed(images) + self.pos_embed
        hidden = self.training and self.masked > 0
        if hidden:
            batch, num, width = x.shape
            order = torch.rand(batch, num, device=x.device).argsort(dim=1)
            kept = order[:, : int(num * (1 - self.masked))]
            places = kept[..., None].expand(-1, -1, width)
            x = x.gather(1, places)
        for block, bias in zip_longest(self.blocks, biases):
            x = block(x, bias)
        x = in_float32(self.norm, x)
        if hidden:
            x = self.mask_token.to(x.dtype).expand(batch, num, -1).scatter(1, places, x)
        return in_float32(self.feature, x.flatten(1))


class ViT(nn.Module):
    """Vision transformer as DINO and DINOv2 have it, which gives raw embeddings (B, dim).

    They are made from the class token. Source: Dosovitskiy et al. 2021. Patch 16, image_size 224
    and no layer_scale are DINO's. Patch 14, image_size 518 and layer_scale are DINOv2's, and 4
    registers those of its "reg" weights. Parameter names are those of facebookresearch/dino,
    vision_transformer.py; of dinov2, models/vision_transformer.py; and of timm's vit_*_patch16.
    `head` is the linear layer to dim.

    Args:
        in_dim: The number of channels of the images (B, in_dim, H, W).
        dim: The size of a linear layer on the class token; 0 leaves it out, so that dim is the
            width.
        width: The size of a token: 384 (ViT-S) or 768 (ViT-B).
        depth: The number of blocks.
        heads: The number of attention heads: 6 (ViT-S) or 12 (ViT-B).
        patch: The edge of a patch in pixels.
        image_size: What the position embeddings were made for. Images of other sizes get them by
            bicubic interpolation, as the releases do it.
        layer_scale: Whether the branches of a block are scaled by learned weights.
        registers: The number of register tokens.
        weights: A local file to start from. The DINO head or classifier in it and DINOv2's
            mask_token (which only its training uses) are left out.

    Raises:
        LikenessError: A side of an image is no multiple of patch, or the file does not fit.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"
    left_out: tuple[str, ...] = ("head.", "mask_token")

    # So many, because releases and recipes differ in each of them.
    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 0,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
        patch: int = 16,
        image_size: int = 224,
        layer_scale: bool = False,
        registers: int = 0,
        weights: str = "",
    ):
        super().__init__()
        self.in_dim, self.dim = in_dim, dim or width
        self.patch, self.grid, self.registers = patch, image_size // patch, registers
        self.patch_embed = _Patches(in_dim, width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, self.grid**2 + 1, width))
        if registers:
            self.register_tokens = nn.Parameter(torch.zeros(1, registers, width))
            nn.init.normal_(self.register_tokens, std=1e-6)
        block = partial(_Block, width, heads, active=nn.GELU, qkv_bias=True, eps=1e-6)
        self.blocks = _blocks(partial(block, layer_scale=layer_scale), depth)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, dim) if dim else nn.Identity()
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        _draw(self)
        start_from(self, weights)

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of images (B, in_dim, H, W); `lengths` is ignored."""
        check_images(images, "ViT", self.in_dim, multiple=self.patch)
        batch, _, height, width = images.shape
        x = torch.cat([self.cls_token.expand(batch, -1, -1), self.patch_embed(images)], dim=1)
        x = x + self._positions(height // self.patch, width // self.patch).to(x.dtype)
        if self.registers:
            registers = self.register_tokens.expand(batch, -1, -1)
            x = torch.cat([x[:, :1], registers, x[:, 1:]], dim=1)
        for block in self.blocks:
            x = block(x)
        return in_float32(self.head, in_float32(self.norm, x[:, 0]))

    def _positions(self, rows: int, columns: int) -> Tensor:
        """Return the position embeddings (1, 1 + rows * columns, width).

        The releases scale by (rows + 0.1) / grid, which samples a little beside the grid; those
        with registers do not.
        """
        if rows == columns == self.grid:
            return self.pos_embed
        offset = 0.0 if self.registers else 0.1
        whole = self.pos_embed[:, 1:].reshape(1, self.grid, self.grid, -1).permute(0, 3, 1, 2)
        scale = ((rows + offset) / self.grid, (columns + offset) / self.grid)
        if self.registers:
            sampled = F.interpolate(whole, size=(rows, columns), mode="bicubic", antialias=True)
        else:
            sampled = F.interpolate(whole, scale_factor=scale, mode="bicubic")
        return torch.cat([self.pos_embed[:, :1], sampled.flatten(2).transpose(1, 2)], dim=1)


def _blocks(block: Callable[..., nn.Module], depth: int, drop_path: float = 0) -> nn.ModuleList:
    """Blocks whose chance of being left out grows from 0 to drop_path."""
    shares = (drop_path * i / max(depth - 1, 1) for i in range(depth))
    return nn.ModuleList(block(drop_path=share) for share in shares)


def _draw(network: nn.Module) -> None:
    """Draw the first weights."""
    nn.init.trunc_normal_(cast(Tensor, network.pos_embed), std=0.02)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class _Patches(nn.Module):
    """(B, C, H, W) -> (B, patches, width), row by row."""

    def __init__(self, in_dim: int, width: int, patch: int):
        super().__init__()
        self.proj = nn.Conv2d(in_dim, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.proj(x)).flatten(2).transpose(1, 2)


class _Attention(nn.Module):
    """Multi-head self-attention of the tokens (B, N, width)."""

    def __init__(self, width: int, heads: int, qkv_bias: bool):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        joint = self.qkv(x).reshape(*x.shape[:2], 3, self.heads, -1)
        query, key, value = joint.permute(2, 0, 3, 1, 4)
        if bias is None:
            attended = F.scaled_dot_product_attention(query, key, value)
        else:  # written out, because torch.export takes other strides for a fused one with a bias
            scores = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
            attended = (scores + bias).softmax(dim=-1).to(value.dtype) @ value
        return torch.as_tensor(self.proj(attended.transpose(1, 2).flatten(2)))


class _LayerScale(nn.Module):
    """A learned factor for each channel of a branch."""

    def __init__(self, width: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))  # dinov2/hub/backbones.py builds with 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class _Block(nn.Module):
    """Attention and two linear layers, each after a layer norm and with a shortcut around it.

    Training may take the shortcut alone.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        active: Callable[[], nn.Module],
        qkv_bias: bool,
        eps: float,
        layer_scale: bool = False,
        drop_path: float = 0.0,
        mlp_ratio: float = 4.0,
    ):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.attn = _Attention(width, heads, qkv_bias)
        hidden = nn.Linear(width, int(mlp_ratio * width))
        out = nn.Linear(int(mlp_ratio * width), width)
        self.mlp = nn.Sequential(OrderedDict(fc1=hidden, act=active(), fc2=out))
        self.ls1: nn.Module = _LayerScale(width) if layer_scale else nn.Identity()
        self.ls2: nn.Module = _LayerScale(width) if layer_scale else nn.Identity()
        self.drop_path = drop_path

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x + self._branch(self.ls1(self.attn(self.norm1(x), bias)))
        return x + self._branch(self.ls2(self.mlp(self.norm2(x))))

    def _branch(self, y: Tensor) -> Tensor:
        """Leave out the branch of some images in training (stochastic depth, Huang et al. 2016).

        What is kept is scaled up.
        """
        if not self.training or not self.drop_path:
            return y
        kept = torch.rand(y.shape[0], 1, 1, device=y.device) >= self.drop_path
        return y * (kept / (1 - self.drop_path)).to(y.dtype)
