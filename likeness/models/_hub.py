"""Networks of the Hugging Face hub as models, and as parts of a recipe.

    load_hub("FOLDER")
        a folder as `save_pretrained` of transformers writes it
    load_hub("facebook/dinov2-small@REVISION")
        the same from the hub; it is asked only for the id that is named

Files come by huggingface_hub into its cache: JSON and .safetensors, or pytorch_model.bin where
there are none, which is read without running code. So no code of a repository is fetched or run.
Inputs are read as preprocessor_config.json says, by the readers here and not by those of
transformers. The families are in toolkit/backbones/hub_networks.py.

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

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.files import json_object
from likeness.eval.formats.provenance import digest, sha256
from likeness.modalities.image import hub_images
from likeness.modalities.speaker import audio
from likeness.modalities.speaker.features import UnitWave
from likeness.modalities.speaker.hub_speech import StackedFbank, WhisperMel
from likeness.models.bundled import FINDING_MODELS
from likeness.toolkit.backbones import hub_networks
from likeness.toolkit.backbones.weights import read_weights
from likeness.toolkit.data.pixels import PixelScale
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.models.parts import Part, describe_parts

# How the inputs are read; newer versions of transformers write the second one.
_PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
_SETTINGS = ("config.json", *_PREPROCESSORS)
_WEIGHTS, _SHARDS = "model.safetensors", "model-*.safetensors"
_PICKLED = "pytorch_model.bin"  # where there is no other; it is read without running code
_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@\w[\w./-]*)?")
_SECONDS = 4.0  # how long the hub may take to say what it has
_BILINEAR, _BICUBIC = 2, 3  # Pillow's numbers


class Files(NamedTuple):
    """The files of one network.

    Attributes:
        config: config.json.
        preprocessor: How the inputs are read.
        weights: The .safetensors files, or pytorch_model.bin where there is none.
        revision: The commit that was fetched; "" for a folder.
    """

    config: Path
    preprocessor: Path
    weights: tuple[Path, ...]
    revision: str


def find_files(source: str, *, weights: bool = True) -> Files:
    """Return the files of a network.

    Args:
        source: A folder, of which the network is never asked; or ORGANISATION/NAME on the Hugging
            Face hub, perhaps with @REVISION (a branch, a tag or a commit).
        weights: Whether the weights are needed. Without, only JSON is fetched.

    Raises:
        LikenessError: The source is neither, or files are missing.
    """
    folder, revision = Path(source).expanduser(), ""
    if not source or not folder.is_dir():
        patterns = (*_SETTINGS, _WEIGHTS, _SHARDS) if weights else _SETTINGS
        folder = fetch(f"hub:{source}", source, patterns)
        revision = folder.name
    config = folder / "config.json"
    preprocessor = next((folder / x for x in _PREPROCESSORS if (folder / x).is_file()), None)
    if not config.is_file() or preprocessor is None:
        raise LikenessError(
            f"hub:{source} holds no config.json, or no preprocessor_config.json that says how its "
            "inputs are read; save both beside the weights by transformers' save_pretrained"
        )
    paths = _weights_in(folder)
    if weights and not paths and revision:
        name = source.partition("@")[0]
        paths = _weights_in(fetch(f"hub:{source}", f"{name}@{revision}", (*_SETTINGS, _PICKLED)))
    if weights and not paths:
        raise LikenessError(
            f"hub:{source} holds no {_WEIGHTS}, {_SHARDS} or {_PICKLED}; weights in other files "
            "are not read: save them by transformers' save_pretrained (docs/how-to/hub.md)"
        )
    return Files(config, preprocessor, tuple(paths) if weights else (), revision)


def _weights_in(folder: Path) -> list[Path]:
    """Return the files of weights in a folder: those without code before a pickle."""
    whole, pickled = folder / _WEIGHTS, folder / _PICKLED
    paths = [whole] if whole.is_file() else sorted(folder.glob(_SHARDS))
    return paths or ([pickled] if pickled.is_file() else [])


def fetch(model: str, source: str, patterns: Sequence[str]) -> Path:
    """Return the folder of the cache with files of a repository, which are fetched if need be.

    Where the hub cannot be asked, the folder is what was fetched before.

    Args:
        model: The MODEL that the user wrote, for errors: KIND:SOURCE.
        source: ORGANISATION/NAME, perhaps with @REVISION.
        patterns: Names of files, perhaps with `*`. No other file is fetched.

    Returns:
        The folder, whose name is the commit.

    Raises:
        LikenessError: The source is no id, the hub has no such repository, or it cannot be reached
            and the files were not fetched before.
    """
    if not _ID.fullmatch(source):
        raise LikenessError(
            f"{model} is neither a folder nor an id on the Hugging Face hub, ORGANISATION/NAME or "
            f"ORGANISATION/NAME@REVISION; correct it; {FINDING_MODELS}"
        )
    from huggingface_hub import snapshot_download

    name, at, tag = source.partition("@")
    wanted, revision = [*patterns], tag or None
    try:
        return Path(
            snapshot_download(name, revision=revision, allow_patterns=wanted, etag_timeout=_SECONDS)
        )
    except Exception as error:
        # The hub's library and the HTTP library under it have exceptions that share no base.
        reason = first_line(error).rstrip(". ")
        copy, revision = name.partition("/")[2], f" --revision {tag}" if at else ""
        raise LikenessError(
            f"{model} could not be fetched from the Hugging Face hub ({reason}), and is not in the "
            f"cache; run `hf download {name}{revision} --local-dir {copy}` elsewhere, and give "
            f"{model.partition(':')[0]}:{copy} (docs/how-to/hub.md); {FINDING_MODELS}"
        ) from None


def load_hub(source: str) -> Loaded:
    """Load a network of the hub as it is, to embed at once.

    The pooling is one that has no parameters of its own: what `HubImage` calls usual for images,
    and the mean over time of the last layer for speech; x-vectors (WavLMForXVector and its kin)
    have theirs. The model's settings state it, and the commit that was fetched.

    A file instead is a checkpoint of UniSpeech's speaker verification (_unispeech.py).

    Args:
        source: A folder, or an id on the hub: ORGANISATION/NAME, perhaps with @REVISION.

    Raises:
        LikenessError: The source is neither, its network is none that is read, or its weights do
            not fit; then nothing is loaded. The package transformers is missing.
    """
    if Path(source).suffix in (".pth", ".pt"):
        from likeness.models._unispeech import load_unispeech

        return load_unispeech(Path(source))
    files = find_files(source)
    part, front, reading = _parts(files)
    if "ForXVector" in str(json_object(files.config).get("architectures")):
        part = partial(part, pooling="xvector")
    frontend = front()
    with torch.device("meta"):  # what the configuration asks for may be more than the file holds
        network: hub_networks.HubImage | hub_networks.HubSpeech = part(frontend.dim)
    tensors: dict[str, Tensor] = {}
    for path in files.weights:
        tensors |= read_weights(path)
    hub_networks.fill(network, tensors, f"hub:{source}")
    settings = {"pooling": network.pooling, **_revision(files)}
    modality = "image" if isinstance(network, hub_networks.HubImage) else "speaker"
    summed = digest([sha256(path) for path in (files.config, files.preprocessor, *files.weights)])
    parts = describe_parts(front, partial(part, **settings), reading)
    embedder = TorchEmbedder(frontend, network).eval()
    return Loaded(embedder, reading, modality, "cosine", summed, 0, settings, parts=parts)


def backbone(source: str, **arguments: Any) -> Part:
    """Return the backbone of a recipe: a network of the hub with a pooling and a projection.

    Its weights are random until `init="hub:SOURCE"` fills them. A checkpoint stores the
    configuration inside, so that it needs neither hub nor folder, and the commit that it is of.

    Args:
        source: As for `load_hub`; weights are not fetched.
        arguments: What `HubImage` or `HubSpeech` takes beside `config`, such as pooling="MHFA" and
            dim=256.

    Returns:
        functools.partial of one of the two.

    Raises:
        LikenessError: As `load_hub`.
    """
    files = find_files(source, weights=False)
    return partial(_parts(files)[0], **_revision(files), **arguments)


def frontend(source: str) -> Part:
    """Return the front-end of a recipe: the scale of pixels, or the features of speech.

    Args and Raises are those of `backbone`.
    """
    return _parts(find_files(source, weights=False))[1]


def read(source: str) -> Part:
    """Return the reading of a recipe: how images are resized and cropped, or the rate of audio.

    Args and Raises are those of `backbone`.
    """
    return _parts(find_files(source, weights=False))[2]


def _revision(files: Files) -> dict[str, Any]:
    """Return the commit that was fetched as a setting; a folder has none."""
    return {"revision": files.revision} if files.revision else {}


def _parts(files: Files) -> tuple[Part, Part, Part]:
    """Return backbone, front-end and reading of a network, by its JSON files.

    Raises:
        LikenessError: They state nothing that can be read.
    """
    config = hub_networks.configuration(json_object(files.config), str(files.config))
    stated = json_object(files.preprocessor)
    for inner in ("image_processor", "feature_extractor"):  # of processor_config.json
        stated = stated.get(inner, stated)
    # null is the default, but that crop_pct is there says which processor it is.
    stated = {name: x for name, x in stated.items() if x is not None or name == "crop_pct"}
    is_image = hub_networks.input_kind(config) == "images"
    try:
        if is_image:
            front, reading = _pixels(stated), _image_reading(stated, json.loads(config))
        else:
            front = _features(stated, json.loads(config))
            reading = partial(audio.read, rate_hz=int(stated.get("sampling_rate", 16_000)))
    except (TypeError, KeyError, AttributeError, ArithmeticError, ValueError) as error:
        raise LikenessError(
            f"{files.preprocessor}: it states no inputs that are read ({first_line(error)}); give "
            "the file of a published network"
        ) from None
    network: Any = hub_networks.HubImage if is_image else hub_networks.HubSpeech
    return partial(network, config=config), front, reading


def _features(stated: Mapping[str, Any], config: Mapping[str, Any]) -> Part:
    """Return the front-end of a speech network."""
    kind, rate_hz = config["model_type"], int(stated.get("sampling_rate", 16_000))
    if hub_networks.input_kind(json.dumps(config)) == "waves":
        return partial(UnitWave, normalise=bool(stated.get("do_normalize", True)))
    bands = int(stated.get("feature_size", 80))
    if kind != "whisper":
        stride = int(stated.get("stride", 2))
        return partial(StackedFbank, num_mels=bands, rate_hz=rate_hz, stride=stride)
    return partial(
        WhisperMel,
        num_mels=bands,
        rate_hz=rate_hz,
        fft_size=int(stated.get("n_fft", 400)),
        hop_samples=int(stated.get("hop_length", 160)),
        window_seconds=int(stated.get("chunk_length", 30)),
    )


def _pixels(stated: Mapping[str, Any]) -> Part:
    """Return the front-end of images."""
    rescaled = stated.get("do_rescale", True)
    scale = round(1 / stated.get("rescale_factor", 1 / 255), 9) if rescaled else 1.0
    if not stated.get("do_normalize", True):
        return partial(PixelScale, mean=(0.0,) * 3, std=(1.0,) * 3, scale=scale)
    mean, std = (tuple(map(float, stated[name])) for name in ("image_mean", "image_std"))
    return partial(PixelScale, mean=mean, std=std, scale=scale)


def _image_reading(stated: Mapping[str, Any], config: Mapping[str, Any]) -> Part:
    """Return how images are resized and cropped, as the processor of the network does it."""
    kind, method = config["model_type"], stated.get("resample", _BILINEAR)
    if method not in (_BILINEAR, _BICUBIC):
        raise LikenessError(f"resample is {method}; only 2 (bilinear) and 3 (bicubic) are read")
    reading = cast(Part, hub_images.read)
    if method == _BICUBIC:
        reading = partial(reading, bicubic=True)
    if kind == "siglip2_vision_model":
        patch, most = int(stated.get("patch_size", 16)), int(stated.get("max_num_patches", 256))
        return partial(reading, patch=patch, max_patches=most)
    short_edge, size, crop = 0, None, 0
    if stated.get("do_resize", True):
        short_edge, size = _size(stated["size"], square=kind.startswith(("vit", "siglip")))
    if stated.get("do_center_crop"):
        cut = _size(stated["crop_size"], square=True)[1]
        if cut is None or cut[0] != cut[1]:
            raise LikenessError(f"crop_size is {stated['crop_size']}; square crops are read")
        crop = cut[0]
    if kind in ("convnext", "resnet") and short_edge and "crop_pct" in stated:
        # ConvNextImageProcessor: large images are squeezed, small ones are resized and cropped.
        if short_edge >= 384:
            short_edge, size = 0, (short_edge, short_edge)
        else:
            crop, short_edge = short_edge, int(short_edge / (stated["crop_pct"] or 224 / 256))
    resized: dict[str, Any] = {"size": size} if size else {"short_edge": short_edge}
    return partial(reading, crop=crop, **resized) if crop else partial(reading, **resized)


def _size(value: Any, *, square: bool) -> tuple[int, tuple[int, int] | None]:
    """Return a stated size as (short edge, None) or (0, (height, width)).

    Old files state one number: the short edge, or with `square` both edges.
    """
    if isinstance(value, dict) and value.get("height"):
        return 0, (int(value["height"]), int(value["width"]))
    edge = int(value["shortest_edge"] if isinstance(value, dict) else value)
    return (0, (edge, edge)) if square else (edge, None)
