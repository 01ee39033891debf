"""Load published weights into the backbones here: tensors by name, renamed where names differ.

Loading is strict.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load as parse_tensors
from torch import Tensor, nn

from likeness.eval.errors import LikenessError, first_line

# The layers over the training classes of WeSpeaker, 3D-Speaker and IDRnD.
_CLASSIFIERS = ("projection.", "classifier.", "cls_head.")
# The front-end that IDRnD and PalabraAI keep with their networks.
_FRONT_ENDS = ("spec.",)
# What does not fit, where a backbone was built for the weights of another project.
_SIZES = "build the backbone with the sizes and the pooling that the weights were trained with"
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
_LONGEST = 200  # characters of a name in an error
Value = TypeVar("Value")


def load_wespeaker(
    backbone: nn.Module, state: Mapping[str, Tensor], where: str = "state dict"
) -> tuple[str, ...]:
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
        where: What an error begins with, usually the file.

    Returns:
        The names that were left out: a classifier's, and those of a stored front-end.

    Raises:
        LikenessError: Tensors are unknown, missing or of another shape. The message names all
            three, and the backbone is unchanged.
    """
    tensors = {name.removeprefix("module."): value for name, value in state.items()}
    dropped = tuple(name for name in tensors if name.startswith(_CLASSIFIERS + _FRONT_ENDS))
    kept = {name: value for name, value in tensors.items() if name not in dropped}
    put(backbone, _rename(kept, backbone), where, _SIZES)
    return dropped


def load_published(
    backbone: nn.Module, state: Mapping[str, Tensor], where: str = "state dict"
) -> tuple[str, ...]:
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
        where: What an error begins with, usually the file.

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
    put(backbone, tensors, where, _SIZES)
    return dropped


def read_weights(path: str | Path, *, key: str = "") -> dict[str, Tensor]:
    """Read the tensors of a local .safetensors file or of one by torch.save, executing nothing.

    A state dict inside a checkpoint is found under the names that the
    releases give it: state_dict, state_dict_backbone (arcface_torch), teacher (DINO), model, and
    backbone (OpenSphere's model_STEP.pth; inside model in its ckpt_STEP.pth).

    Args:
        path: The file.
        key: Where in a file by torch.save the state dict lies, with dots between several keys; ""
            looks under the names above.

    Raises:
        LikenessError: The file is absent, broken, of another kind, or cannot be read without
            running code.
    """
    content = _inside(read_content(path), key)
    if not (isinstance(content, Mapping) and content) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        place = f" under the key {key!r}" if key else ""
        raise LikenessError(
            f"weights {str(path)!r}: it holds no mapping of names to tensors{place}; save it by "
            "torch.save(state_dict)"
        )
    return {name: value.detach() for name, value in content.items()}


def read_content(path: str | Path) -> Any:
    """Return what a .safetensors file or one by torch.save holds, executing nothing.

    Raises:
        LikenessError: The file is absent, broken, of another kind, or cannot be read without
            running code.
    """
    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            # not mapped: a mapped file that shrinks ends the process
            return parse_tensors(path.read_bytes())
        # This is the one place where torch unpickles a file of others.
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise LikenessError(
            f"weights {str(path)!r}: there is no such file; give a .safetensors file or one by "
            "torch.save, or leave weights empty"
        ) from None
    except Exception as error:  # a broken or hostile file makes the parsers raise any type
        match = re.search(r"global: GLOBAL (\S+)", str(error))  # what torch refuses to make
        reason = f"it holds {match[1]}" if match else first_line(error).rstrip(". ")
        raise LikenessError(
            f"weights {str(path)!r} cannot be read without running code ({reason}), so it is no "
            "state dict; if you trust it, take its tensors out: whole = torch.load(FILE, "
            "weights_only=False); torch.save(whole['state_dict'], 'weights.pt') "
            "(docs/how-to/own_networks.md)"
        ) from None


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


def put(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    where: str,
    todo: str = "take the recipe and settings that the weights were trained with",
) -> None:
    """Load a state dict strictly; report what does not fit in one sentence instead of a page.

    A missing num_batches_tracked, as in files of old versions of torch, is 0. A module on the
    device "meta" takes the tensors themselves, so that it needs no memory before they fit.

    Args:
        module: The network.
        tensors: Name -> tensor.
        where: What the error begins with, usually the file.
        todo: What the error ends with: the remedy.

    Raises:
        LikenessError: A tensor is missing, unknown or of another shape. The module is unchanged.
    """
    own = module.state_dict()
    counters = {
        name: torch.zeros(value.shape)
        for name, value in own.items()
        if name.endswith(".num_batches_tracked")
    }
    whole = {**counters, **tensors}
    expected, stored = ({name: x.shape for name, x in state.items()} for state in (own, whole))
    if faults := misfits(expected, stored):
        raise LikenessError(f"{where}: weights do not fit: {faults}; {todo}")
    whole = {name: value.to(own[name].dtype) for name, value in whole.items()}
    module.load_state_dict(whole, assign=any(value.is_meta for value in own.values()))


def misfits(expected: Mapping[str, torch.Size], stored: Mapping[str, torch.Size]) -> str:
    """Count what is missing, unknown or of another shape, and name three of each.

    Returns:
        A text such as "1 missing (bias)"; "" if everything fits.

    Example:
        >>> two = torch.Size([2])
        >>> misfits({"weight": two, "bias": two}, {"weight": torch.Size([2, 3])})
        '1 missing (bias), 1 of another shape (weight (2, 3) for (2,))'
    """
    shapes = [
        f"{name} {tuple(stored[name])} for {tuple(shape)}"
        for name, shape in expected.items()
        if name in stored and shape != stored[name]
    ]
    kinds = (
        ("missing", sorted(expected.keys() - stored.keys())),
        ("unknown", sorted(stored.keys() - expected.keys())),
        ("of another shape", shapes),
    )
    return ", ".join(
        f"{len(names)} {what} ({first_names(names)})" for what, names in kinds if names
    )


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
