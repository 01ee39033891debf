"""Networks of the Hugging Face hub as models, and as parts of a recipe.

    load("FOLDER")
        a folder as `save_pretrained` of transformers writes it
    load("facebook/dinov2-small@REVISION")
        the same from the hub; it is asked only for the id that is named

Inputs are read as preprocessor_config.json says, by the readers here and not by those of
transformers. The families are in toolkit/backbones/hub/families.py.

Example of a recipe that fine-tunes a network (docs/how-to/hub.md)::

    SOURCE = "facebook/dinov2-small"
    Recipe(
        modality="image",
        frontend=hub.frontend(SOURCE),
        backbone=hub.backbone(SOURCE, pooling="GeM", dim=256),
        read=hub.read(SOURCE),
        init=f"hub:{SOURCE}",
        ...
    )
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from eval.errors import LikenessError
from eval.formats.provenance import digest, sha256
from likeness.models.hub_files import Files, find_files, read_json, read_tensors
from modalities.image import hub
from modalities.speaker import audio
from modalities.speaker.hub import StackedFbank, UnitWave, WhisperMel
from toolkit.backbones.hub.families import family_of
from toolkit.backbones.hub.image import HubImage
from toolkit.backbones.hub.network import configuration, fill
from toolkit.backbones.hub.speech import HubSpeech
from toolkit.data.pixels import PixelScale
from toolkit.models.embedder import TorchEmbedder
from toolkit.models.loaded import Loaded
from toolkit.models.parts import Part, describe

_BILINEAR, _BICUBIC = 2, 3  # Pillow's numbers
_MAX_BUFFERS = 2**26  # tables of positions and the like: 256 MB
_MAX_EDGE = 4096  # pixels
_RATES_HZ = (1000, 192_000)
_MOST_FRAMES = 200  # a second, of which networks over waves make one token each; published: 50


def load(source: str) -> Loaded:
    """Load a network of the hub as it is, to embed at once.

    The pooling is one that has no parameters of its own: what `HubImage` calls usual for images,
    and the mean over time of the last layer for speech. The model's settings state it, and the
    commit that was fetched.

    Args:
        source: A folder, or an id on the hub: ORGANISATION/NAME, perhaps with @REVISION.

    Raises:
        LikenessError: The source is neither, its network is none that is read, or its weights do
            not fit; then nothing is loaded. The package transformers is missing.
        OSError: The hub cannot be reached, or has no such repository.
    """
    files = find_files(source)
    config = configuration(read_json(files.config), str(files.config))
    takes = _takes(config)
    stated = _preprocessing(files, source)
    front, reading = _reading(stated, config, source)
    frontend = front()
    network = _without_weights(config, frontend.dim, source)
    _check_inputs(network, reading, source)
    _fill(network, config, read_tensors(files), source)
    settings = {"pooling": getattr(network, "pooling", "mean"), **_revision(files)}
    parts = {
        "frontend": front,
        "backbone": partial(cast(Part, type(network)), config=config, **settings),
        "read": reading,
    }
    paths = (files.config, *([files.preprocessor] if files.preprocessor else []), *files.weights)
    return Loaded(
        TorchEmbedder(frontend, network).eval(),
        reading,
        "image" if takes == "images" else "speaker",
        "cosine",
        digest([sha256(path) for path in paths]),
        0,
        settings,
        parts={name: describe(part, name) for name, part in parts.items()},
    )


def backbone(source: str, **arguments: Any) -> Part:
    """Return the backbone of a recipe: a network of the hub with a pooling and a projection.

    Its weights are random until `init="hub:SOURCE"` fills them. A checkpoint stores the
    configuration inside, so that it needs neither hub nor folder, and the commit that it is of.

    Args:
        source: As for `load`; weights are not fetched.
        arguments: What `HubImage` or `HubSpeech` takes beside `config`, such as pooling="MHFA" and
            dim=256.

    Returns:
        functools.partial of one of the two.

    Raises:
        ValueError, OSError, ImportError: As `load`.
    """
    files = find_files(source, weights=False)
    config = configuration(read_json(files.config), str(files.config))
    part = HubImage if _takes(config) == "images" else HubSpeech
    return partial(part, config=config, **_revision(files), **arguments)


def frontend(source: str) -> Part:
    """Return the front-end of a recipe: the scale of pixels, or the features of speech.

    Args and Raises are those of `backbone`.
    """
    return _parts(source)[0]


def read(source: str) -> Part:
    """Return the reading of a recipe: how images are resized and cropped, or the rate of audio.

    Args and Raises are those of `backbone`.
    """
    return _parts(source)[1]


def _parts(source: str) -> tuple[Part, Part]:
    """Return front-end and reading of a network of the hub."""
    files = find_files(source, weights=False)
    config = configuration(read_json(files.config), str(files.config))
    return _reading(_preprocessing(files, source), config, source)


def _revision(files: Files) -> dict[str, Any]:
    """Return the commit that was fetched as a setting; a folder has none."""
    return {"revision": files.revision} if files.revision else {}


def _takes(config: str) -> str:
    return family_of(json.loads(config)["model_type"]).takes


def _without_weights(config: str, in_dim: int, source: str) -> HubImage | HubSpeech:
    """Build the network of a configuration, whose weights take no memory yet.

    Raises:
        LikenessError: The configuration asks for more than is made.
    """
    part = partial(HubImage if _takes(config) == "images" else HubSpeech, config=config)
    with torch.device("meta"):  # what the configuration asks for may be more than the file holds
        backbone: HubImage | HubSpeech = part(in_dim)
    buffers = sum(buffer.numel() for buffer in backbone.buffers())
    if buffers > _MAX_BUFFERS:
        raise LikenessError(
            f"hub:{source}: its configuration asks for {buffers} values beside the weights; at "
            f"most {_MAX_BUFFERS} are made: give the config.json of a published network"
        )
    return backbone


def _fill(
    backbone: HubImage | HubSpeech, config: str, tensors: Mapping[str, Tensor], source: str
) -> None:
    """Fill a network with the tensors of a checkpoint.

    Raises:
        LikenessError: The tensors do not fit.
    """
    needed = sum(parameter.numel() for parameter in backbone.parameters())
    stored = sum(tensor.numel() for tensor in tensors.values())
    if needed > stored:
        raise LikenessError(
            f"hub:{source}: weights do not fit: its configuration is of a network with {needed} "
            f"weights, and its files have {stored}; copy them again"
        )
    # Its pooling has no parameters, so the network is all that a file has to give.
    backbone.network = fill(config, tensors, f"hub:{source}")


def _check_inputs(network: HubImage | HubSpeech, reading: Part, source: str) -> None:
    """Refuse inputs of which a network makes many more tokens than published ones do.

    Raises:
        LikenessError: There would be too many; it says how many.
    """
    stated = reading.keywords if isinstance(reading, partial) else {}
    if isinstance(network, HubImage):
        edge = stated.get("crop") or stated.get("short_edge", 0)
        height, width = (edge, edge) if edge else stated.get("size", (0, 0))
        if patch := stated.get("patch"):  # images of any proportions, whose patches are counted
            height, width = patch * stated["max_patches"], patch
        network.check_size(height, width)
    elif network.takes_waves and stated["rate_hz"] > _MOST_FRAMES * network.samples:
        raise LikenessError(
            f"hub:{source}: sampling_rate is {stated['rate_hz']}, and its network makes a frame of "
            f"every {network.samples} samples; at most {_MOST_FRAMES} frames a second are made: "
            "give a published network"
        )


def _preprocessing(files: Files, source: str) -> dict[str, Any]:
    """Return what a repository states about its inputs.

    Raises:
        LikenessError: It states nothing.
    """
    if files.preprocessor is None:
        raise LikenessError(
            f"hub:{source} holds no preprocessor_config.json, so the size and scale of its inputs "
            "are not known; save it beside the network by transformers' save_pretrained"
        )
    stated = read_json(files.preprocessor)
    for inner in ("image_processor", "feature_extractor"):  # of processor_config.json
        if isinstance(stated.get(inner), dict):
            return dict(stated[inner])
    return stated


def _reading(stated: Mapping[str, Any], config: str, source: str) -> tuple[Part, Part]:
    """Return front-end and reading of a network, from its preprocessing and configuration."""
    values = json.loads(config)
    if _takes(config) == "images":
        return _pixels(stated, source), _image_reading(stated, values, source)
    rate_hz = _whole(stated, "sampling_rate", 16_000, _RATES_HZ, source)
    reading = partial(audio.read, rate_hz=rate_hz)
    if _takes(config) == "waves":
        return partial(UnitWave, normalise=_flag(stated, "do_normalize", True, source)), reading
    bands = _whole(stated, "feature_size", 80, (4, 1024), source)
    if values["model_type"] == "whisper":
        positions = _whole(values, "max_source_positions", 1500, (1, 1 << 20), source)
        return _whisper(stated, bands, rate_hz, positions, source), reading
    stride = _whole(stated, "stride", 2, (1, 16), source)
    return partial(StackedFbank, num_mels=bands, rate_hz=rate_hz, stride=stride), reading


def _whisper(
    stated: Mapping[str, Any], bands: int, rate_hz: int, positions: int, source: str
) -> Part:
    """Return Whisper's front-end, whose windows are those of a network with so many positions."""
    if _flag(stated, "do_normalize", False, source) or stated.get("dither", 0.0):
        raise LikenessError(
            f"hub:{source}: its preprocessing normalises waves or dithers, which WhisperMel does "
            "not; give a published Whisper"
        )
    hop_samples = _whole(stated, "hop_length", 160, (1, 65_536), source)
    seconds = _whole(stated, "chunk_length", 30, (1, 60), source)
    if seconds * rate_hz != 2 * positions * hop_samples:
        raise LikenessError(
            f"hub:{source}: windows of {seconds} s at {rate_hz} Hz have "
            f"{seconds * rate_hz / hop_samples:g} frames of {hop_samples} samples, but the "
            f"network takes {2 * positions}; give preprocessor_config.json and config.json of one "
            "network"
        )
    return partial(
        WhisperMel,
        num_mels=bands,
        rate_hz=rate_hz,
        fft_size=_whole(stated, "n_fft", 400, (16, 65_536), source),
        hop_samples=hop_samples,
        window_seconds=seconds,
    )


def _pixels(stated: Mapping[str, Any], source: str) -> Part:
    """Return the front-end of images."""
    scale = 1.0
    if _flag(stated, "do_rescale", True, source):
        factor = stated.get("rescale_factor", 1 / 255)
        if not isinstance(factor, float) or not 1e-6 <= factor <= 1.0:
            raise LikenessError(
                f"hub:{source}: rescale_factor is {str(factor)[:40]}; a number from 1e-6 to 1 is "
                "needed"
            )
        scale = round(1 / factor, 9)
    if not _flag(stated, "do_normalize", True, source):
        return partial(PixelScale, mean=(0.0,) * 3, std=(1.0,) * 3, scale=scale)
    mean, std = (_channels(stated, name, source) for name in ("image_mean", "image_std"))
    return partial(PixelScale, mean=mean, std=std, scale=scale)


def _channels(stated: Mapping[str, Any], name: str, source: str) -> tuple[float, ...]:
    """Return one number for each of the three channels."""
    values = stated.get(name)
    if (
        not isinstance(values, list)
        or len(values) != 3
        or not all(type(x) in (int, float) and math.isfinite(x) and abs(x) <= 1e3 for x in values)
        or (name == "image_std" and min(values) <= 0)
    ):
        raise LikenessError(
            f"hub:{source}: {name} is {str(values)[:60]}; three numbers are needed, one for each "
            "of R, G and B"
        )
    return tuple(float(value) for value in values)


def _image_reading(stated: Mapping[str, Any], config: Mapping[str, Any], source: str) -> Part:
    """Return how images are resized and cropped, as the processor of the network does it."""
    method = stated.get("resample", _BILINEAR)
    if method not in (_BILINEAR, _BICUBIC):
        raise LikenessError(
            f"hub:{source}: resample is {str(method)[:40]}; {_BILINEAR} (bilinear) and {_BICUBIC} "
            "(bicubic) are read"
        )
    reading = partial(hub.read, bicubic=True) if method == _BICUBIC else hub.read
    if config["model_type"] == "siglip2_vision_model":
        patches = _whole(stated, "max_num_patches", 256, (1, 65_536), source)
        patch = _whole(stated, "patch_size", 16, (1, 256), source)
        return partial(reading, patch=patch, max_patches=patches)
    square = config["model_type"].startswith(("vit", "siglip"))
    short_edge, size = _size(stated.get("size"), source, square=square)
    crop: tuple[int, int] | None = None
    if _flag(stated, "do_center_crop", False, source):
        _, crop = _size(stated.get("crop_size"), source, square=True)
    if not _flag(stated, "do_resize", True, source):
        short_edge, size = 0, None
    if config["model_type"] in ("convnext", "resnet") and short_edge and "crop_pct" in stated:
        # ConvNextImageProcessor: large images are squeezed, small ones are resized and cropped.
        share = 224 / 256 if stated["crop_pct"] is None else stated["crop_pct"]
        if not isinstance(share, int | float) or not 0.1 <= share <= 1:
            raise LikenessError(f"hub:{source}: crop_pct is {str(share)[:40]}; 0.1 to 1 is needed")
        if short_edge >= 384:
            short_edge, size = 0, (short_edge, short_edge)
        else:
            crop, short_edge = (short_edge, short_edge), int(short_edge / share)
    if crop is None:
        return partial(reading, size=size) if size else partial(reading, short_edge=short_edge)
    if crop[0] != crop[1] or (short_edge and short_edge < crop[0]):
        raise LikenessError(
            f"hub:{source}: crops of {crop[0]} x {crop[1]} pixels from images whose short edge is "
            f"{short_edge}; square crops within the image are read"
        )
    resized = {"size": size} if size else {"short_edge": short_edge}
    return partial(reading, crop=crop[0], **resized)


def _size(value: Any, source: str, *, square: bool = False) -> tuple[int, tuple[int, int] | None]:
    """Return a stated size as (short edge, None) or (0, (height, width)).

    Old files state one number: the short edge, or with `square` both edges.
    """
    if isinstance(value, dict):
        value = {name: edge for name, edge in value.items() if edge is not None}
    edges = list(value.values()) if isinstance(value, dict) else [value]
    if edges and all(type(edge) is int and 1 <= edge <= _MAX_EDGE for edge in edges):
        if not isinstance(value, dict):
            return (0, (value, value)) if square else (value, None)
        if set(value) == {"height", "width"}:
            return 0, (value["height"], value["width"])
        if set(value) == {"shortest_edge"}:
            edge = value["shortest_edge"]
            return (0, (edge, edge)) if square else (edge, None)
    raise LikenessError(
        f"hub:{source}: a size is {str(value)[:60]}; height and width, or shortest_edge, from 1 to "
        f"{_MAX_EDGE} pixels, are read"
    )


def _flag(stated: Mapping[str, Any], name: str, default: bool, source: str) -> bool:
    """Return true or false as it is stated; null is the default."""
    value = stated.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise LikenessError(f"hub:{source}: {name} is {str(value)[:40]}; true or false is needed")
    return value


def _whole(
    stated: Mapping[str, Any], name: str, default: int, bounds: tuple[int, int], source: str
) -> int:
    """Return a whole number within its bounds as it is stated; null is the default."""
    value = stated.get(name)
    value = default if value is None else value
    low, high = bounds
    if type(value) is not int or not low <= value <= high:
        raise LikenessError(
            f"hub:{source}: {name} is {str(value)[:40]}; a whole number from {low} to {high} is "
            "needed"
        )
    return value
