"""The field's published weights into the backbones here: a mapping of tensors, renamed where names
differ, strictly.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from toolkit.backbones.pickled import Stored, open_pickled

_CLASSIFIERS = (
    "projection.",
    "classifier.",
)  # WeSpeaker's and 3D-Speaker's layers over the training classes
_FIRST = re.compile(
    r"(layer[34]\.\d+\.)(conv|bn)2_1\.(.+)"
)  # WeSpeaker's ERes2Net keeps the first of a block's convolutions apart
_NEXT = re.compile(r"(layer[34]\.\d+\.)(convs|bns)\.(\d+)\.(.+)")
_CHUNK = re.compile(
    r"^blocks\.\d+\.(\d+)\."
)  # DINOv2's training keeps blocks in chunks, numbered on
_INSIDE = (
    "state_dict_backbone",
    "state_dict",
    "teacher",
    "model",
    "backbone",
)  # where the releases' checkpoints hold a state dict, from the outside in
_LARGEST = 4 * 2**30  # bytes
_BLOCK = 1 << 22  # of a file, at a time


def load_wespeaker(backbone: nn.Module, state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Put the state dict of a WeSpeaker, 3D-Speaker or SpeechBrain network into `backbone`; give
    the names that were left out, all of them a classifier's.

    Names: ResNet, ERes2Net, ERes2NetV2, CAMPPlus and XVector take WeSpeaker's and 3D-Speaker's;
    WeSpeakerECAPA takes WeSpeaker's; ECAPA takes SpeechBrain's and 3D-Speaker's. A "module." in
    front (DistributedDataParallel) is dropped, and a missing num_batches_tracked (of old torch
    versions) leaves what is there. The backbone must have the weights' sizes (dim, width, depth,
    pooling ...; ResNet(two_layers=True) is 3D-Speaker's). Its front-end is not part of the state:
    WeSpeaker's is KaldiFbank with a Hamming window at int16 scale, 3D-Speaker's with Povey's at
    [-1, 1]. Read files with read_weights. ValueError, naming all three, for tensors unknown,
    missing or of another shape; the backbone is then unchanged.
    """
    given = {name.removeprefix("module."): value for name, value in state.items()}
    dropped = tuple(name for name in given if name.startswith(_CLASSIFIERS))
    given = _rename({name: value for name, value in given.items() if name not in dropped}, backbone)
    _put(backbone, given, len(state))
    return dropped


def load_published(backbone: nn.Module, state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Put a published state dict of a face or image network into `backbone`; give the names that
    were left out: a classifier's, and what only training needs.

    IResNet, MobileFaceNet and FaceViT take arcface_torch's; SFNet and IResNet OpenSphere's;
    ImageResNet torchvision's; BNInception the public checkpoint's
    (Cadene/pretrained-models.pytorch); ViT DINO's, DINOv2's and timm's of the same shape; SmallCNN
    vmf_embeddings'. A "module." or "backbone." in front, a missing num_batches_tracked, vectors of
    shape (1, C) (torch 0.2) and DINOv2's blocks in chunks are understood. Layers of `backbone` that
    take a classifier's place keep their weights. ValueError, naming all three, for tensors unknown,
    missing or of another shape; the backbone is then unchanged.
    """
    names: tuple[str, ...] = getattr(backbone, "left_out", ())
    given = {name.removeprefix("module."): value for name, value in state.items()}
    if any(
        name.startswith("backbone.") for name in given
    ):  # DINO's teacher: a backbone beside its head
        given = {name.removeprefix("backbone."): value for name, value in given.items()}
    given = {_CHUNK.sub(r"blocks.\1.", name): value for name, value in given.items()}
    dropped = tuple(name for name in given if names and name.startswith(names))
    wanted = backbone.state_dict()
    kept = {name: value for name, value in wanted.items() if names and name.startswith(names)}
    given = {name: value for name, value in given.items() if name not in dropped} | kept
    for name, value in given.items():
        if name in wanted and value.ndim == 2 and tuple(value.shape) == (1, *wanted[name].shape):
            given[name] = value[0]
    _put(backbone, given, len(state))
    return dropped


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a local .safetensors file or of one by torch.save, nothing in it executed; at
    most 4 GiB are read.

    A state dict inside a checkpoint is found under the names that the releases give it: state_dict,
    state_dict_backbone (arcface_torch), teacher (DINO), model, backbone (OpenSphere's
    model_STEP.pth; inside model in its ckpt_STEP.pth).
    ValueError for a file that is absent, too large, broken, of another kind or in need of running
    code.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"weights {str(path)!r}: there is no such file; give a .safetensors file or one by "
            "torch.save, or leave weights empty"
        )
    try:
        size = path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:  # an archive may unpack to more than it weighs
                size = max(size, sum(member.file_size for member in archive.infolist()))
        if size > _LARGEST:
            raise ValueError(f"it holds {size} bytes, more than the {_LARGEST} that are read")
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        found, read = open_pickled(path)
        for name in _INSIDE:
            if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
                found = found[name]
        whole = (
            isinstance(found, Mapping)
            and found
            and all(
                isinstance(key, str) and isinstance(value, Stored) for key, value in found.items()
            )
        )
        if whole:
            return read(found)
    except Exception as error:  # what a broken or hostile file makes of the parsers is anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")[:200]
        raise ValueError(
            f"weights {str(path)!r} cannot be read without running code ({reason}), so it is no "
            "state dict; save one by torch.save(state_dict)"
        ) from None
    raise ValueError(
        f"weights {str(path)!r}: it holds a {type(found).__name__} that is no mapping of names to "
        "tensors; save it by torch.save(state_dict)"
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())  # not mapped: a mapped file that shrinks ends the process
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _put(backbone: nn.Module, given: dict[str, Tensor], num: int) -> None:
    """load_state_dict, strictly; says all that is wrong in one sentence. num: tensors of a file."""
    wanted = backbone.state_dict()
    given |= {
        name: value
        for name, value in wanted.items()
        if name not in given and name.endswith(".num_batches_tracked")
    }
    unknown = [name for name in given if name not in wanted]
    missing = [name for name in wanted if name not in given]
    other = [
        f"{name} {tuple(given[name].shape)} for {tuple(wanted[name].shape)}"
        for name in wanted
        if name in given and given[name].shape != wanted[name].shape
    ]
    faults = [
        f"{len(names)} {what} ({first_names(names)})"
        for what, names in (("unknown", unknown), ("missing", missing), ("of another shape", other))
        if names
    ]
    if faults:
        raise ValueError(
            f"state dict of {num} tensors for a {type(backbone).__name__} of {len(wanted)}: "
            f"{', '.join(faults)}; "
            "build the backbone with the sizes and the pooling that the weights were trained with"
        )
    backbone.load_state_dict(given)


def _rename(state: dict[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    if all(
        name.startswith("network.") for name, _ in backbone.named_parameters()
    ):  # SpeechBrain's network inside ours
        return {
            name if name.startswith("network.") else f"network.{name}": value
            for name, value in state.items()
        }
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


def first_names(names: list[str], few: int = 3) -> str:
    return ", ".join(names[:few]) + (", ..." if len(names) > few else "")
