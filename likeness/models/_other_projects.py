"""Models of other projects, whose front-ends are in torch: SpeechBrain, WeSpeaker, InsightFace and
.onnx networks that `likeness export` did not write.

likeness/models/load.py says what each of them is called, and what is read of their files.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.provenance import digest, sha256
from likeness.eval.types import name_first, quoted
from likeness.modalities.face import images
from likeness.modalities.speaker import audio
from likeness.modalities.speaker.features import KaldiFbank, RawWave
from likeness.modalities.speaker.mel_spectrogram import Framing, MelSpectrogram
from likeness.modalities.speaker.speechbrain_fbank import SpeechBrainFbank
from likeness.models import _insightface, _speechbrain
from likeness.models.bundled import FINDING_MODELS
from likeness.toolkit.backbones import released, weights
from likeness.toolkit.console import say
from likeness.toolkit.data.pixels import INSIGHTFACE, PixelScale
from likeness.toolkit.models import onnx
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.models.parts import Part, describe_parts

# The front-ends of a ReDimNet's model_config.
_FRAMINGS: dict[str, Framing] = {
    "pt": "centred",
    "pt_mel": "centred",
    "tf": "tensorflow",
    "tf_mel": "tensorflow",
}
# What a state dict, and an .onnx file without metadata, do not state: WESPEAKER_FBANK and
# THREED_SPEAKER_FBANK of modalities/speaker/features.py without dither, which is for training only.
_FILTERBANKS: dict[str, dict[str, Any]] = {
    "wespeaker": {"window": "hamming", "scale": 32768.0},
    "3dspeaker": {"window": "povey", "scale": 1.0},
}
# The numbers of a filterbank in the dataset_args of WeSpeaker's config.yaml, and its defaults.
_OF_WESPEAKER = {
    "resample_rate": ("rate_hz", 16_000),
    "frame_length": ("frame_ms", 25),
    "frame_shift": ("hop_ms", 10),
}


def _speaker(
    frontend: nn.Module, backbone: nn.Module, summed: str, *, rate_hz: int = 16_000
) -> Loaded:
    """Return a model of speech that reads audio at this rate and is scored by the cosine."""
    read = partial(audio.read, rate_hz=rate_hz)
    return Loaded(TorchEmbedder(frontend, backbone).eval(), read, "speaker", "cosine", summed, 0)


def _face(
    frontend: nn.Module, backbone: nn.Module, summed: str, size: tuple[int, int], text: str
) -> Loaded:
    """Return a face model that reads crops of this size; `text` about it goes to stderr."""
    say(text, error=True)
    read = partial(images.read, size=size)
    return Loaded(TorchEmbedder(frontend, backbone).eval(), read, "face", "cosine", summed, 0)


def _summed(path: Path, frontend: str, beside: Mapping[str, Any]) -> str:
    """Return the digest of a model whose file does not state its front-end.

    Embeddings of two front-ends do not compare, so the front-end is part of the digest, with what
    a file beside the model states of it. With the default front-end it is the digest of the file.
    """
    stated = [f"{name}={value}" for name, value in beside.items()]
    is_default = frontend == "wespeaker" and not stated
    return sha256(path) if is_default else digest([sha256(path), frontend, *stated])


def load_speechbrain(source: str) -> Loaded:
    yaml, file = _speechbrain.find_files(source)
    settings, backbone = _speechbrain.read_settings(yaml)
    weights.load_wespeaker(backbone, weights.read_weights(file), str(file))
    summed = digest([sha256(yaml), sha256(file)])
    rate_hz = settings.get("rate_hz", 16_000)
    return _speaker(SpeechBrainFbank(**settings), backbone, summed, rate_hz=rate_hz)


def load_wespeaker(file: Path, frontend: str) -> Loaded:
    kinds = "ResNet, SimAM-ResNet, ECAPA-TDNN, CAM++, ReDimNet or x-vector as WeSpeaker names them"
    backbone, part = _read(file, released.wespeaker_part, weights.load_wespeaker, kinds)
    stated = _of_config(file.with_name("config.yaml"), backbone.in_dim)
    fbank = partial(KaldiFbank, num_mels=backbone.in_dim, **_FILTERBANKS[frontend], **stated)
    front, summed = fbank(), _summed(file, frontend, stated)
    loaded = _speaker(front, backbone, summed, rate_hz=front.rate_hz)
    return replace(loaded, parts=describe_parts(fbank, part, loaded.read))


def _of_config(config: Path, num_mels: int) -> dict[str, Any]:
    """Return the arguments of KaldiFbank in which a config.yaml of WeSpeaker differs from its
    defaults; none where there is no such file.

    Raises:
        LikenessError: It states features that are not computed here, or not those of the network.
    """
    if not config.is_file():
        return {}
    try:
        dataset = _speechbrain.plain_yaml(config).get("dataset_args") or {}
        fbank, cmvn = dataset.get("fbank_args") or {}, dataset.get("cmvn_args") or {}
        stated = {**dataset, **fbank, **cmvn}
    except (AttributeError, TypeError):
        raise LikenessError(f"{config}: dataset_args are no names and values") from None
    needed = {"frontend": "fbank", "num_mel_bins": num_mels}
    needed |= {"cmvn": True, "norm_mean": True, "norm_var": False}
    known = [*needed, *_OF_WESPEAKER, "dither"]  # which is for training only
    if unknown := [str(name) for name in (*fbank, *cmvn) if name not in known]:
        raise LikenessError(
            f"{config}: fbank_args or cmvn_args set {name_first(unknown)}, which is not read; "
            f"allowed are {', '.join(known)}"
        )
    for name, value in needed.items():
        if stated.get(name, value) != value:
            given = f"{name} is {quoted(stated[name])}"
            raise LikenessError(f"{config}: {given}, and this network is read with {value} only")
    differing = {}
    for theirs, (ours, default) in _OF_WESPEAKER.items():
        value = stated.get(theirs, default)
        if not isinstance(value, int) or not 0 < value < 10**6:
            raise LikenessError(f"{config}: {theirs} is {quoted(value)}; give a whole number")
        if value != default:
            differing[ours] = value
    return differing


def load_redimnet(source: str) -> Loaded:
    path = Path(source)
    if not path.is_file():
        raise LikenessError(f"redimnet:{path}: there is no such file; {FINDING_MODELS}")
    content = weights.read_content(path)
    config: Any = content.get("model_config") if isinstance(content, Mapping) else None
    try:
        part, frontend = released.redimnet_part(config), _mel_of_release(config)
        with torch.device("meta"):
            backbone = part(config["F"])
    except (LookupError, TypeError, ValueError) as error:
        raise LikenessError(
            f"{path}: its model_config is of no ReDimNet that is read ({type(error).__name__}: "
            f"{first_line(error)}); give a release such as b2-vox2-ft_lm.pt, or wespeaker:FILE.pt"
        ) from None
    weights.load_wespeaker(backbone, weights.read_weights(path), str(path))
    front = frontend()
    loaded = _speaker(front, backbone, sha256(path), rate_hz=front.rate_hz)
    return replace(loaded, parts=describe_parts(frontend, part, loaded.read))


class OnnxNetwork(nn.Module):
    """A network in ONNX Runtime behind the backbone signature.

    It takes no lengths, so the batches of `embed` hold equal lengths only.

    Args:
        path: The .onnx file.
        session: It in ONNX Runtime.
        shape: The shape of one input, by which the size of the embeddings is found.
    """

    pads_exactly = False

    def __init__(self, path: Path, session: onnx.Session, shape: tuple[int, ...]):
        super().__init__()
        self.session, self.input = session, session.get_inputs()[0]
        if self.input.type != "tensor(float)":
            raise LikenessError(f"{path}: its input is {self.input.type}; floats are needed")
        self.one_by_one = self.input.shape[0] == 1
        probe = torch.zeros(shape).normal_(generator=torch.Generator().manual_seed(0)).numpy()
        z = session.run(None, {self.input.name: probe[None]})[0]
        if z.ndim not in (2, 3) or z.shape[0] != 1:
            raise LikenessError(f"{path}: it gives {z.shape} for one input; (1, dim) is needed")
        self.dim = z.size

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim).

        Args:
            features: Frames (B, T, F), waves (B, S, 1), or images (B, C, H, W).
            lengths: Not used.
        """
        values = features.float().cpu().numpy()
        values = values[..., 0] if len(self.input.shape) == 2 else values
        groups = values[:, None] if self.one_by_one else [values]
        rows = [
            torch.from_numpy(self.session.run(None, {self.input.name: group})[0])
            for group in groups
        ]
        return torch.cat([row.reshape(-1, self.dim) for row in rows]).to(features.device)


def load_insightface(source: str) -> Loaded:
    if Path(source).suffix.lower() in _insightface.OF_TORCH:
        path = Path(source)
        kinds = "the IResNets of arcface_torch; "
        kinds += "give backbone.weights=FILE in a recipe of their network"
        network, _ = _read(path, released.arcface_torch_part, weights.load_published, kinds)
        side = network.image_size
        licence = _insightface.licence(path)
        text = f"{path}: {side} x {side} RGB, (x - 127.5) / 127.5{licence}"
        return _face(INSIGHTFACE(), network, sha256(path), (side, side), text)
    pack = _insightface.find(source)
    path, (size, mean, std, bgr) = pack.recognition, pack.pixels
    session = onnx.Session(path)
    if session.text is not None:
        raise LikenessError(f"this is a file of likeness export; give {path} without insightface:")
    # Unless somebody states the pixels, they follow from the file.
    summed = digest([sha256(path), str(tuple(pack.pixels))]) if pack.stated else sha256(path)
    frontend = PixelScale((mean,) * 3, (std,) * 3, scale=1.0, bgr=bgr)
    loaded = _face(frontend, OnnxNetwork(path, session, (3, *size)), summed, size, pack.text())
    return replace(loaded, settings={} if pack.frame == "arcface" else {"frame": pack.frame})


def load_onnx(path: Path, frontend: str) -> Loaded:
    session = onnx.Session(path)
    inputs = session.get_inputs()
    shape = inputs[0].shape if len(inputs) == 1 else []
    if len(shape) not in (2, 3) or isinstance(shape[1], int):
        stated = "; ".join(f"{value.name} {value.type} {value.shape}" for value in inputs)
        raise LikenessError(
            f"{path}: its inputs are {stated}; one of floats, (B, T, F) or (B, S) of any length, "
            "is needed; a network over images is given as insightface:FILE.onnx"
        )
    stated, rate_hz = _of_metadata(path, session.metadata)
    if stated and frontend not in ("wespeaker", stated):
        raise LikenessError(f"{path}: its metadata state {stated} filterbanks; omit {frontend!r}")
    frontend = stated or frontend
    if len(shape) == 2:
        network = OnnxNetwork(path, session, (rate_hz,))
        return _speaker(RawWave(), network, sha256(path), rate_hz=rate_hz)
    num_mels = shape[2] if isinstance(shape[2], int) else 80
    fbank = KaldiFbank(num_mels=num_mels, rate_hz=rate_hz, **_FILTERBANKS[frontend])
    network = OnnxNetwork(path, session, (200, num_mels))
    return _speaker(fbank, network, _summed(path, frontend, {}), rate_hz=rate_hz)


def _of_metadata(path: Path, metadata: Mapping[str, str]) -> tuple[str, int]:
    """Return the front-end and the sampling rate that the metadata of an .onnx file state.

    sherpa-onnx's files have them. Without them, "" and 16 kHz are returned.

    Raises:
        LikenessError: The file is one of `likeness export --for sherpa-onnx`, whose front-end is
            another one, or of a framework that is not read.
    """
    framework, rate_hz = metadata.get("framework"), metadata.get("sample_rate")
    if framework is None or rate_hz is None:
        return "", 16_000
    if metadata.get("comment", "").startswith("likeness "):
        raise LikenessError(f"{path}: it is for sherpa-onnx; give the run that it was made of")
    if framework not in ("wespeaker", "3d-speaker") or not re.fullmatch("[0-9]{4,6}", rate_hz):
        raise LikenessError(
            f"{path}: its metadata state framework {quoted(framework)} and sample_rate "
            f"{quoted(rate_hz)}; models of wespeaker and 3d-speaker, at a rate in Hz, are read"
        )
    is_scaled = metadata.get("normalize_samples") == "1"
    return "3dspeaker" if is_scaled else "wespeaker", int(rate_hz)


def _mel_of_release(config: Any) -> Part:
    """Return the part of the front-end of a ReDimNet's model_config.

    Raises:
        ValueError, LookupError or TypeError: A setting is not read.
    """
    stated = config.get("spec_params", {})
    if stated.get("spec_norm", "mn") != "mn":
        raise ValueError(f"spec_norm is {stated['spec_norm']!r:.40}")
    rate_hz = stated.get("sample_rate", 16_000)
    return partial(
        MelSpectrogram,
        num_mels=config["F"],
        rate_hz=rate_hz,
        frame_ms=1000 * stated.get("win_length", 400) / rate_hz,
        hop_ms=1000 * config.get("hop_length", 160) / rate_hz,
        fft_size=stated.get("n_fft", 512),
        low_hz=float(stated.get("f_min", 20)),
        high_hz=float(stated.get("f_max", 7600)),
        preemphasis=0.97 if stated.get("do_preemph", True) else 0.0,
        normalise=bool(stated.get("norm_signal", False)),
        framing=_FRAMINGS[config.get("feat_type", "pt")],
    )


def _read(
    path: Path,
    part_of: Callable[[released.Shapes], tuple[Part, int]],
    load: Callable[..., Any],
    kinds: str,
) -> tuple[Any, Part]:
    """Build the network of a file's tensors, and fill it in by `load`.

    Args:
        path: The file.
        part_of: Gives the part that makes the network of these shapes, and its bands or channels.
        load: Puts the tensors into the network.
        kinds: The networks that are read, for the message about another one.

    Returns:
        The network, and the part that makes such a network.

    Raises:
        LikenessError: There is no such file, it holds another network, or its tensors contradict
            each other.
    """
    state = weights.read_weights(path)
    shapes = {name.removeprefix("module."): tuple(value.shape) for name, value in state.items()}
    try:
        part, in_dim = part_of(shapes)
        # What a few sizes ask for may be much more than the file holds: a network on this device
        # takes no memory before all of its tensors fit.
        with torch.device("meta"):
            network = part(in_dim)
    except (LookupError, ArithmeticError, ValueError):
        raise LikenessError(
            f"{path}: its {len(state)} tensors ({name_first(state)}) are none of {kinds}"
        ) from None
    load(network, state, str(path))
    return network, part
