"""Load published weights into the backbones here: tensors by name, renamed where names differ.

Loading is strict.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from eval.errors import LikenessError

# The layers over the training classes of WeSpeaker, 3D-Speaker and IDRnD.
_CLASSIFIERS = ("projection.", "classifier.", "cls_head.")
# The front-end that IDRnD and PalabraAI keep with their networks.
_FRONT_ENDS = ("spec.",)
# WeSpeaker's ERes2Net keeps the first of a block's convolutions apart from the next ones.
_FIRST = re.compile(r"(layer[34]\.\d+\.)(conv|bn)2_1\.(.+)")
_NEXT = re.compile(r"(layer[34]\.\d+\.)(convs|bns)\.(\d+)\.(.+)")
# WeSpeaker keeps the means of ReDimNet apart from its stages, whose layers then count from 0.
_MEAN = re.compile(r"backbone\.inputs_weights\.(\d+)")
_LAYER = re.compile(r"(backbone\.stage\d+\.)(\d+)(\..+)")
# DINOv2's training keeps blocks in chunks, and numbers them on from chunk to chunk.
_CHUNK = re.compile(r"^blocks\.\d+\.(\d+)\.")
# Where the releases' checkpoints keep a state dict, from the outside in.
_INSIDE = ("state_dict_backbone", "state_dict", "teacher", "model", "backbone")
_LARGEST = 4 * 2**30  # bytes
_LONGEST = 200  # characters of a name in an error
Value = TypeVar("Value")


def load_wespeaker(backbone: nn.Module, state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Put the state dict of a WeSpeaker, 3D-Speaker or SpeechBrain network into a backbone.

    ResNet, ERes2Net, ERes2NetV2, CAMPPlus and XVector take the names of WeSpeaker and 3D-Speaker;
    WeSpeakerECAPA and SimAMResNet take WeSpeaker's; ECAPA takes SpeechBrain's and 3D-Speaker's;
    ReDimNet and ReDimNet2 take those of their releases (IDRnD, PalabraAI) and of WeSpeaker. A
    "module." in front (DistributedDataParallel) is dropped. Where num_batches_tracked is missing
    (in files of old torch versions), the backbone's stays.

    The front-end is not part of the state. WeSpeaker's is KaldiFbank with a Hamming window at int16
    scale, 3D-Speaker's with Povey's at [-1, 1].

    Args:
        backbone: A network with the sizes of the weights (dim, width, depth, pooling ...;
            ResNet(two_layers=True) is 3D-Speaker's).
        state: The tensors by name; `read_weights` reads them from a file.

    Returns:
        The names that were left out: a classifier's, and those of a stored front-end.

    Raises:
        LikenessError: Tensors are unknown, missing or of another shape. The message names all
            three, and the backbone is unchanged.
    """
    tensors = {name.removeprefix("module."): value for name, value in state.items()}
    dropped = tuple(name for name in tensors if name.startswith(_CLASSIFIERS + _FRONT_ENDS))
    kept = {name: value for name, value in tensors.items() if name not in dropped}
    _put(backbone, _rename(kept, backbone), len(state))
    return dropped


def load_published(backbone: nn.Module, state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Put a published state dict of a face or image network into a backbone.

    IResNet, MobileFaceNet and FaceViT take arcface_torch's; SFNet and IResNet OpenSphere's;
    EdgeFace takes that of otroshi/edgeface; KPRPEViT takes CVLface's, with or without the "net." or
    "model.net." in front;
    ImageResNet torchvision's; BNInception the public checkpoint's
    (Cadene/pretrained-models.pytorch); ViT those of DINO, DINOv2 and timm of the same shape;
    SmallCNN vmf_embeddings'. A "module." or "backbone." in front, a missing num_batches_tracked,
    vectors of shape (1, C) (torch 0.2) and DINOv2's blocks in chunks are understood. Layers of the
    backbone that take a classifier's place keep their weights.

    Args:
        backbone: A network with the sizes of the weights.
        state: The tensors by name; `read_weights` reads them from a file.

    Returns:
        The names that were left out: a classifier's, and what only training needs.

    Raises:
        LikenessError: Tensors are unknown, missing or of another shape. The message names all
            three, and the backbone is unchanged.
    """
    names: tuple[str, ...] = getattr(backbone, "left_out", ())
    tensors = {name.removeprefix("module."): value for name, value in state.items()}
    if any(name.startswith("backbone.") for name in tensors):
        # This is DINO's teacher, which has a backbone beside its head.
        tensors = {name.removeprefix("backbone."): value for name, value in tensors.items()}
    for front in ("model.net.", "net."):  # CVLface
        if tensors and all(name.startswith(front) for name in tensors):
            tensors = {name.removeprefix(front): value for name, value in tensors.items()}
    tensors = {_CHUNK.sub(r"blocks.\1.", name): value for name, value in tensors.items()}
    dropped = tuple(name for name in tensors if names and name.startswith(names))
    own = backbone.state_dict()
    kept = {name: value for name, value in own.items() if names and name.startswith(names)}
    tensors = {name: value for name, value in tensors.items() if name not in dropped} | kept
    for name, value in tensors.items():
        if name in own and value.ndim == 2 and tuple(value.shape) == (1, *own[name].shape):
            tensors[name] = value[0]
    _put(backbone, tensors, len(state))
    return dropped


def read_weights(path: str | Path, *, key: str = "", largest: int = 0) -> dict[str, Tensor]:
    """Read the tensors of a local .safetensors file or of one by torch.save, executing nothing.

    A state dict inside a checkpoint is found under the names that the
    releases give it: state_dict, state_dict_backbone (arcface_torch), teacher (DINO), model, and
    backbone (OpenSphere's model_STEP.pth; inside model in its ckpt_STEP.pth).

    Args:
        path: The file.
        key: Where in a file by torch.save the state dict lies, with dots between several keys; ""
            looks under the names above.
        largest: How many bytes are read at most; 0 is 4 GiB.

    Raises:
        LikenessError: The file is absent, too large, broken, of another kind, or cannot be read
            without running code.
    """
    path = Path(path)
    if not path.is_file():
        raise LikenessError(
            f"weights {str(path)!r}: there is no such file; give a .safetensors file or one by "
            "torch.save, or leave weights empty"
        )
    try:
        size = path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:  # an archive may unpack to more than its size
                size = max(size, sum(member.file_size for member in archive.infolist()))
        if size > (largest or _LARGEST):
            raise LikenessError(
                f"it holds {size} bytes, more than the {largest or _LARGEST} that are read"
            )
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        # This is the one place where torch unpickles a file of others.
        content = _inside(torch.load(path, map_location="cpu", weights_only=True), key)
        if _is_state_dict(content):
            tensors = {name: value.detach() for name, value in content.items()}
            # A number that a stride of 0 repeats makes a tensor of any size.
            size = sum(value.numel() * value.element_size() for value in tensors.values())
            if size > (largest or _LARGEST):
                raise LikenessError(f"its tensors would take {size} bytes")
            return tensors
    except Exception as error:  # a broken or hostile file makes the parsers raise any type
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")[:200]
        raise LikenessError(
            f"weights {str(path)!r} cannot be read without running code ({reason}), so it is no "
            "state dict; save one by torch.save(state_dict)"
        ) from None
    place = f" under the key {key!r}" if key else ""
    raise LikenessError(
        f"weights {str(path)!r}: it holds no mapping of names to tensors{place}; save it by "
        "torch.save(state_dict)"
    )


def _inside(content: Any, key: str) -> Any:
    """Return what lies under a key, or under the names that the releases give a state dict.

    None where nothing lies under the key.
    """
    for name in key.split(".") if key else _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
        elif key:
            return None
    return content


def _is_state_dict(content: Any) -> bool:
    """Say whether it is a mapping of names to tensors, and not empty."""
    if not isinstance(content, Mapping) or not content:
        return False
    return all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items())


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())  # not mapped: a mapped file that shrinks ends the process
    except SafetensorError as error:
        raise LikenessError(str(error)) from None


def _put(backbone: nn.Module, tensors: dict[str, Tensor], num: int) -> None:
    """Load a state dict strictly; report all that is wrong in one sentence.

    `num` is the number of tensors in the file.
    """
    own = backbone.state_dict()
    tensors |= {
        name: value
        for name, value in own.items()
        if name not in tensors and name.endswith(".num_batches_tracked")
    }
    unknown = [name for name in tensors if name not in own]
    missing = [name for name in own if name not in tensors]
    other = [
        f"{name} {tuple(tensors[name].shape)} for {tuple(own[name].shape)}"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    faults = [
        f"{len(names)} {what} ({first_names(names)})"
        for what, names in (("unknown", unknown), ("missing", missing), ("of another shape", other))
        if names
    ]
    if faults:
        raise LikenessError(
            f"state dict of {num} tensors for a {type(backbone).__name__} of {len(own)}: "
            f"{', '.join(faults)}; "
            "build the backbone with the sizes and the pooling that the weights were trained with"
        )
    backbone.load_state_dict(tensors)


def _rename(state: dict[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    """Give the tensors the names that the backbone has for them."""
    if all(name.startswith("network.") for name, _ in backbone.named_parameters()):
        # The backbone is ours around a network of SpeechBrain.
        return {
            name if name.startswith("network.") else f"network.{name}": value
            for name, value in state.items()
        }
    if any(_MEAN.fullmatch(name) for name in state):
        return redimnet_names(state)
    if not any(_FIRST.fullmatch(name) for name in state):
        return state
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        if first := _FIRST.fullmatch(name):
            name = f"{first[1]}{first[2]}s.0.{first[3]}"
        elif other := _NEXT.fullmatch(name):
            name = f"{other[1]}{other[2]}.{int(other[3]) + 1}.{other[4]}"
        renamed[name] = value
    return renamed


def redimnet_names(state: Mapping[str, Value]) -> dict[str, Value]:
    """Rename what WeSpeaker (and the first release) has of a ReDimNet to IDRnD's names.

    There, every stage begins with its mean and a layer without weights. WeSpeaker calls the last
    layer seg_1.

    Example:
        >>> names = ("backbone.inputs_weights.0", "backbone.stage0.0.bias", "seg_1.bias")
        >>> list(redimnet_names({name: 0 for name in (*names, "backbone.inputs_weights.1")}))
        ['backbone.stage0.0.w', 'backbone.stage0.2.bias', 'linear.bias', 'backbone.fin_wght1d.w']
    """
    last = sum(1 for name in state if _MEAN.fullmatch(name)) - 1
    renamed: dict[str, Value] = {}
    for name, value in state.items():
        if mean := _MEAN.fullmatch(name):
            number = int(mean[1])
            place = "fin_wght1d" if number == last else f"stage{number}.0"
            name = f"backbone.{place}.w"
        elif layer := _LAYER.fullmatch(name):
            name = f"{layer[1]}{int(layer[2]) + 2}{layer[3]}"
        elif name.startswith("seg_1."):
            name = f"linear.{name.removeprefix('seg_1.')}"
        renamed[name] = value
    return renamed


def first_names(names: list[str], few: int = 3) -> str:
    """Return the first few names as a text.

    Example:
        >>> first_names(["a", "b", "c", "d"])
        'a, b, c, ...'
    """
    shown = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..." for name in names[:few]]
    return ", ".join(shown) + (", ..." if len(names) > few else "")
