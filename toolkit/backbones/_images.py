"""What the image networks share.

That is the check of their input, the last layer in float32, batch norm that is held still, and a
start from a local file.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError, check_choice
from likeness.toolkit.backbones.weights import load_published, read_weights

BatchNorm = Literal["trained", "fixed", "frozen"]


def check_images(x: Tensor, name: str, channels: int, size: int = 0, *, multiple: int = 1) -> None:
    """Check the shape of a batch of images.

    Args:
        x: (B, channels, H, W).
        name: What the error calls the network.
        channels: The number of channels.
        size: H and W, where the network has a layer over the whole image; 0 for any.
        multiple: What H and W have to be multiples of.

    Raises:
        LikenessError: The shape is another one.
    """
    if x.ndim != 4 or x.shape[1] != channels:
        raise LikenessError(
            f"{name}: the input has shape {tuple(x.shape)}; it takes images (B, {channels}, H, W): "
            f"read them with {channels} channels"
        )
    height, width = x.shape[2:]
    if size and (height, width) != (size, size):
        raise LikenessError(
            f"{name}: images of {height} x {width} for a network of {size} x {size}; align and "
            f"crop to {size} x {size}, or set image_size"
        )
    if height % multiple or width % multiple:
        raise LikenessError(
            f"{name}: images of {height} x {width}; both sides must be multiples of {multiple}: "
            "resize or crop them"
        )


def four_stages(network: nn.Module, x: Tensor) -> Tensor:
    """Apply layer1 to layer4 of a residual network."""
    for stage in (1, 2, 3, 4):
        x = getattr(network, f"layer{stage}")(x)
    return x


def in_float32(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer in float32 at least, also under autocast.

    What it gives is the embedding or near it, whose norm has to stay exact.
    """
    if not torch.amp.is_autocast_available(x.device.type):  # the meta device
        return torch.as_tensor(layer(x))
    with torch.autocast(x.device.type, enabled=False):
        return torch.as_tensor(
            layer(x.float() if x.dtype in (torch.bfloat16, torch.float16) else x)
        )


def hold_still(network: nn.Module, batch_norm: BatchNorm) -> None:
    """Put the batch norms into the mode that `batch_norm` names.

    Call it at the end of __init__, and of train(), which would put them back.

    Args:
        network: The network.
        batch_norm: "trained": as in any network. "fixed": running statistics are used and stay what
            they are, while weights and biases are trained (Revisiting-DML's "frozen" networks and
            vmf_embeddings' set_bn_eval). "frozen": weights and biases stay too (vMF paper, D.1).

    Raises:
        LikenessError: The word is another one.
    """
    check_choice(f"{type(network).__name__} batch_norm", batch_norm, get_args(BatchNorm))
    if batch_norm == "trained":
        return
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
            if batch_norm == "frozen":
                module.requires_grad_(False)


def start_from(network: nn.Module, path: str) -> None:
    """Load a published file into a fresh network; an empty path loads nothing."""
    if path:
        load_published(network, read_weights(path), path)
