"""ReDimNet and ReDimNet2: networks that trade bands for channels, and look along time in between.

Parameter names are those of the releases. Layers take a mask beside their input, (B, 1, T) or
(B, 1, 1, T) bool or None, and leave zeros in the padded frames. So the next convolution sees what
it would see past the end of an unpadded input.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from likeness.eval.errors import LikenessError, check_choice
from likeness.toolkit.backbones.pooling import flat, frame_mask, keep, pool, precise

Size = Literal["b0", "b1", "b2", "b3", "b4", "b5", "b6"]
# The 2-D blocks: residual ones, the same with weights for the bands, and those of ConvNeXt.
Block = Literal["residual", "weighted", "convnext"]
_HEADS = 4  # of the self-attention of a time context


class Row(NamedTuple):
    """One stage."""

    stride: int  # over bands: so many times fewer bands and more channels leave it
    blocks: int
    widening: float  # how many times wider than what leaves the stage the blocks are
    reduction: int  # how many times fewer channels the time context has; 0: it has none
    step: int = 1  # the stage works on every step-th frame, and repeats what it gives


class Shape(NamedTuple):
    """What a size is made of."""

    width: int  # the channels of the first stage
    rows: tuple[tuple[float, ...], ...]  # of its stages, see Row
    block: Block = "residual"
    group: int = 1  # the channels that a 3x3 convolution of a block joins
    global_context: bool = True  # of the pooling
    pooled: int = 0  # the channels of the head before the pooling, of every band; 0: it has no head


_B0 = ((1, 2, 1, 30), (2, 3, 2, 30), (1, 3, 3, 30), (2, 4, 2, 10), (1, 3, 1, 10))
_B1 = ((1, 2, 1, 0), (2, 3, 1, 0), (3, 4, 1, 12), (2, 5, 1, 12), (2, 3, 1, 8))
_B2 = ((1, 2, 1, 12), (2, 2, 1, 12), (1, 3, 1, 12), (2, 4, 1, 8), (1, 4, 1, 8), (2, 4, 1, 4))
_B3 = ((1, 6, 4, 32), (2, 6, 2, 32), (1, 8, 2, 32), (2, 10, 2, 16), (1, 10, 1, 16), (2, 8, 1, 16))
_B4 = ((1, 4, 2, 48), (2, 4, 2, 48), (1, 6, 2, 48), (2, 6, 1, 32), (1, 8, 1, 24), (2, 4, 1, 16))
_B6 = ((1, 4, 4, 32), (2, 6, 2, 32), (1, 6, 2, 24), (3, 8, 1, 24), (1, 8, 1, 16), (2, 8, 1, 16))
# wespeaker/models/redimnet.py
SHAPES: dict[str, Shape] = {
    "b0": Shape(10, _B0),
    "b1": Shape(12, _B1, "convnext", 8, global_context=False),
    "b2": Shape(16, _B2, "convnext", 4),
    "b3": Shape(16, _B3, "weighted"),
    "b4": Shape(32, _B4, "weighted"),
    "b5": Shape(32, _B4, "weighted", 16),
    "b6": Shape(32, _B6, "residual", 32),
}


def _rows(
    strides: tuple[int, ...],
    widening: tuple[float, ...],
    reduction: tuple[int, ...],
    counts: tuple[int, ...] = (2, 3, 4, 5, 4, 3),
) -> tuple[tuple[float, ...], ...]:
    """Return the six stages of a ReDimNet2, of which two each work on every 1st, 2nd, 4th frame."""
    return tuple(zip(strides, counts, widening, reduction, (1, 1, 2, 2, 4, 4), strict=True))


_STRIDES, _EVEN, _FALLING = (1, 2, 1, 2, 1, 2), (2, 1, 1, 1, 1, 1), (4, 3, 2, 1, 1, 1)
_B3_ROWS = _rows(_STRIDES, _FALLING, (24, 24, 24, 24, 24, 24))
_B6_ROWS = _rows(
    _STRIDES, (3, 2, 2, 1, 0.75, 0.5), (64, 64, 48, 48, 32, 24), counts=(3, 4, 5, 5, 4, 3)
)
# The release's recipes (applications/speaker_rec), where the kernel sizes of b2 have no effect.
SHAPES_2: dict[str, Shape] = {
    "b0": Shape(12, _rows(_STRIDES, _EVEN, (36, 36, 36, 36, 18, 18)), pooled=64),
    "b1": Shape(16, _rows(_STRIDES, _EVEN, (32, 32, 32, 32, 16, 16))),
    "b2": Shape(20, _rows((1, 2, 1, 3, 1, 2), _EVEN, (40, 30, 30, 20, 20, 10))),
    "b3": Shape(24, _B3_ROWS),
    "b4": Shape(32, _B3_ROWS),
    "b5": Shape(48, _rows(_STRIDES, _FALLING, (48, 48, 48, 48, 32, 32)), pooled=256),
    "b6": Shape(64, _B6_ROWS, pooled=224),
}


class ReDimNet(nn.Module):
    """ReDimNet, which gives raw embeddings (B, dim).

    An utterance goes through the network as (bands * channels, frames). Every stage takes a learned
    mean of what all stages before it gave, reshapes it to (channels, bands, frames), trades bands
    for channels by a strided convolution, works on it with 2-D blocks, and reshapes it back. A time
    context of four convolutions and self-attention follows. No stage drops frames.

    Sources: Yakovlev et al. 2024, arXiv 2407.18223; wespeaker/models/redimnet.py, whose sizes these
    are; IDRnD/redimnet, whose parameter names these are. `load_wespeaker` takes the names of both.
    In WeSpeaker b0 to b6 have 1.0, 1.9, 4.9, 3.2, 6.4, 7.65 and 15.0 M parameters.

    Padded frames are zeroed after every block and left out of attention and means, so padding never
    changes an embedding.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim): 72, or 60 for b0. The product of
            the strides of the stages has to divide it.
        dim: The size of the embeddings.
        size: b0 to b6.
        normalise: Whether batch norm follows the pooling, as in IDRnD's release. WeSpeaker has none
            there.
        shape: What differs from the size, by the names of `Shape`.

    Raises:
        LikenessError: The size is another one, or the stages do not divide the bands or channels.
    """

    pads_exactly = True

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 192,
        size: Size = "b2",
        normalise: bool = True,
        shape: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        check_choice("ReDimNet size", size, SHAPES)
        form = SHAPES[size]._replace(**(shape or {}))
        self.in_dim, self.dim = in_dim, dim
        self.backbone = _Stages("ReDimNet", in_dim, form)
        channels = form.width * in_dim
        self.pool, num = pool("ASTP", channels, global_context=form.global_context)
        self.bn = nn.BatchNorm1d(num) if normalise else nn.Identity()
        self.linear = nn.Linear(num, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        mask = None if lengths is None else frame_mask(lengths, features.shape[1])[:, None]
        x = self.backbone(features.transpose(1, 2)[:, None], mask)
        pooled = self.pool(x, None if mask is None else mask[:, 0])
        return torch.as_tensor(self.linear(self.bn(pooled)))


class ReDimNet2(nn.Module):
    """ReDimNet2, which gives raw embeddings (B, dim).

    It is a ReDimNet whose later stages work on every second and every fourth frame, and repeat what
    they give for the frames between. Sources: "ReDimNet2: Scaling speaker verification via
    time-pooled dimension reshaping", submitted to Interspeech 2026; PalabraAI/redimnet2, whose
    parameter names and sizes these are; wespeaker/models/redimnet2.py. The release states 1.1, 2.1,
    3.6, 4.1, 6.6, 8.9 and 12.3 M parameters for b0 to b6.

    The frames beyond the last multiple of 4 of an utterance are not seen, as in the release. Padded
    frames are zeroed after every block and left out of attention and means, so padding never
    changes an embedding.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim): 72. The product of
            the strides of the stages has to divide it, which is 8, or 12 for b2.
        dim: The size of the embeddings.
        size: b0 to b6.
        group_norm: Whether group norm over frames follows the stem and every stage, as in the
            release's newest recipes and its b6 of VoxBlink2 (agg_gnorm).
        shape: What differs from the size, by the names of `Shape`.

    Raises:
        LikenessError: The size is another one, or the stages do not divide the bands or channels.
    """

    pads_exactly = True

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 192,
        size: Size = "b2",
        group_norm: bool = False,
        shape: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        check_choice("ReDimNet2 size", size, SHAPES_2)
        form = SHAPES_2[size]._replace(**(shape or {}))
        self.in_dim, self.dim = in_dim, dim
        self.backbone = _Stages("ReDimNet2", in_dim, form, second=True, group_norm=group_norm)
        num = form.width * in_dim
        if form.pooled:
            self.backbone.head = nn.Conv2d(self.backbone.channels, form.pooled, 1)
            num = form.pooled * self.backbone.bands
        self.pool, num = pool("ASTP", num, global_context=form.global_context)
        self.bn = nn.BatchNorm1d(num)
        self.linear = nn.Linear(num, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        frames, mask = features.shape[1], None
        if lengths is not None:
            valid = (lengths * frames).round()
            quarters = torch.arange(frames // 4, device=lengths.device)[None]
            mask = _repeated((quarters < valid[:, None].div(4).floor())[:, None], 4)
        x = self.backbone(features[:, : frames // 4 * 4].transpose(1, 2)[:, None], mask)
        x = _in_bands(x, self.backbone.bands)
        x = flat(x if self.backbone.head is None else self.backbone.head(x))
        pooled = self.pool(x, None if mask is None else mask[:, 0])
        return torch.as_tensor(self.linear(self.bn(pooled)))


def _in_bands(x: Tensor, bands: int) -> Tensor:
    """Reshape (B, bands * channels, T) to (B, channels, bands, T)."""
    rows: Any = x.transpose(1, 2)
    return torch.as_tensor(rows.unflatten(2, (bands, -1)).permute(0, 3, 2, 1))


def _repeated(x: Tensor, step: int) -> Tensor:
    """Repeat every frame: (B, C, T) -> (B, C, step * T)."""
    return x if step == 1 else x[..., None].expand(-1, -1, -1, step).flatten(2)


def _joined(x: Tensor) -> Tensor:
    """Reshape (B, channels, bands, T) to (B, bands * channels, T)."""
    return x.permute(0, 3, 2, 1).flatten(2).transpose(1, 2)


class _Stages(nn.Module):
    """The stem and the stages: (B, 1, bands, T), mask -> (B, bands * channels, T).

    Args:
        name: What errors call the network.
        in_dim: The number of bands.
        shape: The size.
        second: Whether it is ReDimNet2, whose strided convolutions join as few channels as
            possible, and whose widened blocks are narrowed by a 1x1 convolution.
        group_norm: Whether group norm over frames follows the stem and every stage.
    """

    def __init__(
        self,
        name: str,
        in_dim: int,
        shape: Shape,
        *,
        second: bool = False,
        group_norm: bool = False,
    ):
        super().__init__()
        rows: Any = [Row(*row) for row in shape.rows]  # type: ignore[arg-type]
        width, wide = shape.width, shape.width * in_dim
        strides = math.prod(row.stride for row in rows)
        uneven = any(row.reduction and wide // row.reduction % _HEADS for row in rows)
        if in_dim % strides or uneven:
            raise LikenessError(
                f"{name}: in_dim is {in_dim}; its strides need a multiple of {strides}, and its "
                f"{_HEADS} attention heads equal shares of the channels; take 72 bands (60 for b0)"
            )

        def norm() -> nn.Module | None:
            return _GroupNorm(width, wide) if group_norm else None

        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), _ChannelNorm(width))
        self.stem_gnorm = norm()
        self.count, self.channels, self.bands = len(rows), width, in_dim
        for number, row in enumerate(rows):
            channels_in, bands_in = self.channels, self.bands
            self.channels, self.bands = row.stride * channels_in, bands_in // row.stride
            widened = int(self.channels * row.widening)
            layers = [_block(shape, widened, self.bands) for _ in range(row.blocks)]
            if row.widening != 1:
                layers.append(_narrow(widened, self.channels, 0 if second else shape.group))
            groups = math.gcd(channels_in, widened) if second else 1
            steps = (row.stride, row.step)
            stage = _Stage(
                _LearnedMean(number + 1, wide if number or second else 1),
                nn.Conv2d(channels_in, widened, steps, stride=steps, groups=groups),
                layers,
                _TimeContext(wide, wide // row.reduction) if row.reduction else None,
                norm(),
                bands=bands_in,
                step=row.step,
            )
            setattr(self, f"stage{number}", stage)
        self.fin_wght1d = _LearnedMean(len(rows) + 1, wide)
        self.head: nn.Module | None = None  # ReDimNet2 has a layer here

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = keep(x, None if mask is None else mask[:, None])
        x = keep(_joined(self.stem(x)), mask)
        outputs = [x if self.stem_gnorm is None else self.stem_gnorm(x, mask)]
        for number in range(self.count):
            outputs.append(getattr(self, f"stage{number}")(outputs, mask))
        return torch.as_tensor(self.fin_wght1d(outputs))


class _Stage(nn.ModuleList):
    """A stage, whose layers have the numbers of the release's.

    Where the release has a layer without weights, there is an Identity here: after the learned
    mean, after the 2-D blocks, and before group norm.
    """

    def __init__(
        self,
        mean: nn.Module,
        trade: nn.Module,
        layers: Sequence[nn.Module],
        context: nn.Module | None,
        norm: nn.Module | None,
        *,
        bands: int,
        step: int,
    ):
        after = [] if context is None else [context]
        after += [] if norm is None else [nn.Identity(), norm]
        super().__init__([mean, nn.Identity(), trade, *layers, nn.Identity(), *after])
        self.blocks, self.bands, self.step = len(layers), bands, step

    def forward(self, outputs: Sequence[Tensor], mask: Tensor | None) -> Tensor:
        mean, _, trade, *layers = self
        seen = None if mask is None else mask[..., :: self.step]
        around = None if seen is None else seen[:, None]
        x = keep(trade(_in_bands(mean(outputs), self.bands)), around)
        for layer in layers[: self.blocks]:
            x = layer(x, around)
        x = _joined(x)
        for layer in layers[self.blocks + 1 :]:
            if isinstance(layer, _GroupNorm):
                return torch.as_tensor(layer(_repeated(x, self.step), mask))
            x = layer(x, seen) if isinstance(layer, _TimeContext) else x
        return _repeated(x, self.step)


def _block(shape: Shape, channels: int, bands: int) -> nn.Module:
    """Return a 2-D block."""
    if shape.block == "convnext":
        return _Named(_ConvNeXt(nn.Conv2d, nn.BatchNorm2d, channels, 3, shape.group))
    return _Named(_Residual(channels, bands, shape.group, weighted=shape.block == "weighted"))


def _narrow(channels_in: int, channels: int, group: int) -> nn.Module:
    """Return what follows widened blocks: convolutions in groups, or a 1x1 one for group 0."""
    norm = nn.BatchNorm2d(channels, eps=1e-6)
    if not group:
        return _Masked([nn.Conv2d(channels_in, channels, 1), norm])
    groups = channels // group
    first = nn.Conv2d(channels_in, channels, 3, padding=1, groups=groups)
    return _Masked([first, norm, nn.GELU(), nn.Conv2d(channels, channels, 1)])


class _LearnedMean(nn.Module):
    """The mean of several (B, C, T) by learned weights, a softmax for every channel."""

    w: Tensor

    def __init__(self, count: int, channels: int):
        super().__init__()
        weights = torch.zeros(1, count, channels, 1)
        if count > 1:
            self.w = nn.Parameter(weights)
        else:  # The weight of a single input is 1 whatever is stored, so nothing is learned.
            self.register_buffer("w", weights)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        if len(inputs) == 1:
            return inputs[0]
        weights = self.w.softmax(dim=1).to(inputs[0].dtype)
        return torch.stack([weights[:, i] * x for i, x in enumerate(inputs)]).sum(dim=0)


class _GroupNorm(nn.Module):
    """Group norm of (B, C, T) over groups of channels and the valid frames."""

    def __init__(self, groups: int, channels: int):
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return F.group_norm(x, self.groups, self.weight, self.bias)
        rows: Any = precise(x)
        rows, valid = rows.unflatten(1, (self.groups, -1)), mask[:, None]
        num = valid.sum(dim=(2, 3), keepdim=True) * rows.shape[2]
        centred = rows - keep(rows, valid).sum(dim=(2, 3), keepdim=True) / num
        variance = keep(centred, valid).square().sum(dim=(2, 3), keepdim=True) / num
        normed = (centred / (variance + 1e-5).sqrt()).flatten(1, 2).to(x.dtype)
        return keep(normed * self.weight[:, None] + self.bias[:, None], mask)


class _ChannelNorm(nn.Module):
    """Layer norm over the channels of (B, C, ..., T)."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        last = x.transpose(1, -1)
        return F.layer_norm(last, self.weight.shape, self.weight, self.bias, 1e-6).transpose(1, -1)


class _Named(nn.Module):
    """A block under the name `conv_block`."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.conv_block = block

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return torch.as_tensor(self.conv_block(x, mask))


class _Residual(nn.Module):
    """Two 3x3 convolutions of groups, a 1x1 convolution after each, and a shortcut."""

    def __init__(self, channels: int, bands: int, group: int, *, weighted: bool):
        super().__init__()
        how: Any = {"padding": 1, "bias": False, "groups": channels // group}
        self.conv1 = nn.Conv2d(channels, channels, 3, **how)
        self.conv1pw = nn.Conv2d(channels, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, **how)
        self.conv2pw = nn.Conv2d(channels, channels, 1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.se = _BandWeights(bands, min(64, max(channels, 32))) if weighted else None

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = self.bn1(torch.relu(self.conv1pw(self.conv1(x))))
        y = self.bn2(self.conv2pw(self.conv2(keep(y, mask))))
        y = y if self.se is None else self.se(y, mask)
        return keep(torch.relu(y + x), mask)


class _BandWeights(nn.Module):
    """Squeeze and excitation of bands: a weight for every band, from the means of all bands."""

    def __init__(self, bands: int, hidden: int):
        super().__init__()
        self.squeeze = nn.Linear(bands, hidden)
        self.exitation = nn.Linear(hidden, bands)  # the release's spelling

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        exact: Any = precise(x)  # float16 cannot count the values of a long recording
        if mask is None:
            means = exact.mean(dim=(1, 3))
        else:
            num = mask.to(exact.dtype).sum(dim=(1, 3)) * x.shape[1]
            means = keep(exact, mask).sum(dim=(1, 3)) / num
        weights = self.exitation(torch.relu(self.squeeze(means.to(x.dtype)))).sigmoid()
        return torch.as_tensor(x * weights[:, None, :, None])


class _ConvNeXt(nn.Module):
    """A convolution of groups, batch norm, GELU, a 1x1 convolution, and a shortcut.

    `convolution` and `norm` are torch's for 1-D or 2-D inputs.
    """

    def __init__(self, convolution: Any, norm: Any, channels: int, size: int, group: int):
        super().__init__()
        wide = convolution(channels, channels, size, padding=size // 2, groups=channels // group)
        self.dwconvs = nn.ModuleList([wide])
        self.norm = norm(channels)
        self.pwconv1 = convolution(channels, channels, 1)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return keep(x + self.pwconv1(F.gelu(self.norm(self.dwconvs[0](x)))), mask)


class _Masked(nn.ModuleList):
    """Layers one after the other, and then padded frames are zeroed."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        for layer in self:
            x = layer(x)
        return keep(x, mask)


class _TimeContext(nn.Module):
    """Four convolutions along time and self-attention, on fewer channels, and a shortcut."""

    def __init__(self, channels: int, reduced: int):
        super().__init__()
        self.red_dim_conv = nn.Sequential(nn.Conv1d(channels, reduced, 1), _ChannelNorm(reduced))
        convolutions = [
            _ConvNeXt(nn.Conv1d, nn.BatchNorm1d, reduced, size, 1) for size in (7, 19, 31, 59)
        ]
        self.tcm = nn.ModuleList([*convolutions, _Transformer(reduced)])
        self.exp_dim_conv = nn.Conv1d(reduced, channels, 1)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = keep(self.red_dim_conv(x), mask)
        for layer in self.tcm:
            y = layer(y, mask)
        return x + keep(self.exp_dim_conv(y), mask)


class _Transformer(nn.Module):
    """Self-attention of four heads and two linear layers, with layer norm after each of both."""

    def __init__(self, channels: int):
        super().__init__()
        self.attention = _Attention(channels)
        self.layer_norm = nn.LayerNorm(channels, eps=1e-6)
        self.feed_forward = nn.Sequential(
            OrderedDict(
                intermediate_dense=nn.Linear(channels, channels),
                gelu=nn.GELU(approximate="tanh"),
                output_dense=nn.Linear(channels, channels),
            )
        )
        self.final_layer_norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows = x.transpose(1, 2)
        rows = self.layer_norm(rows + self.attention(rows, mask))
        rows = self.final_layer_norm(rows + self.feed_forward(rows))
        return keep(rows.transpose(1, 2), mask)


class _Attention(nn.Module):
    """Self-attention of several heads over valid frames: (B, T, C), (B, 1, T) -> (B, T, C)."""

    def __init__(self, channels: int):
        super().__init__()
        self.k_proj = nn.Linear(channels, channels)
        self.v_proj = nn.Linear(channels, channels)
        self.q_proj = nn.Linear(channels, channels)
        self.out_proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = (
            project(x).unflatten(2, (_HEADS, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        valid = None if mask is None else mask[:, None]
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=valid)
        return torch.as_tensor(self.out_proj(attended.transpose(1, 2).flatten(2)))
