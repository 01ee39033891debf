"""Read the folder of a SpeechBrain speaker model as a front-end and a network.

Its YAML is read as plain data, its weights as tensors.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eval.errors import LikenessError
from eval.formats.files import bounded
from eval.types import first_line, name_first
from likeness.models.hub_cache import from_hub

_MAX_YAML = 2**16  # bytes: the published ones have 2 kB; one number of 1 MB takes minutes to parse
_MAX_ALIASES = 8  # a few aliases that refer to each other unfold to lists of any size
_MAX_SIZE = 65_536  # of any layer that a file asks for
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SPEECHBRAIN = {
    "speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN": "input_size",
    "speechbrain.lobes.models.Xvector.Xvector": "in_channels",
    "speechbrain.lobes.models.ResNet.ResNet": "input_size",
}
_FBANK = "speechbrain.lobes.features.Fbank"
_NORM = "speechbrain.processing.features.InputNormalization"
# The names that SpeechBrain and SpeechBrainFbank have for the same setting.
_FBANK_NAMES = {
    "n_mels": "num_mels",
    "sample_rate": "rate_hz",
    "win_length": "frame_ms",
    "hop_length": "hop_ms",
    "n_fft": "fft_size",
    "f_min": "low_hz",
    "f_max": "high_hz",
}
_ACTIVATIONS = {"torch.nn.ReLU": nn.ReLU, "torch.nn.LeakyReLU": nn.LeakyReLU}


def find_files(source: str) -> tuple[Path, Path]:
    """Return hyperparams.yaml and embedding_model.ckpt of a SpeechBrain speaker model.

    Args:
        source: A local folder, or a name on the Hugging Face hub, from where the two files are then
            downloaded.

    Raises:
        LikenessError: The source is neither, or its files are too large.
        OSError: The hub cannot be reached or has no such files.
    """
    folder = Path(source)
    if folder.is_dir():
        yaml, weights = folder / "hyperparams.yaml", folder / "embedding_model.ckpt"
    elif _HUB_NAME.fullmatch(source):
        files = ("hyperparams.yaml", "embedding_model.ckpt")
        yaml, weights = from_hub(
            f"speechbrain:{source}", source, None, files[0], lambda snapshot: snapshot.get(files)
        )
    else:
        raise LikenessError(
            f"speechbrain:{source} is neither a folder nor a name on the hub such as "
            "speechbrain/spkrec-ecapa-voxceleb"
        )
    return yaml, weights


def read_settings(yaml: Path) -> tuple[dict[str, Any], SpeechBrainNetwork]:
    """Return the arguments of SpeechBrainFbank, and the network without its weights.

    Raises:
        LikenessError: A setting is not known. Nothing is left out silently.
    """
    settings = _plain_yaml(yaml)
    model = settings.get("embedding_model")
    name = model.get("!", "").removeprefix("!new:") if isinstance(model, dict) else ""
    if not isinstance(model, dict) or name not in _SPEECHBRAIN:
        raise LikenessError(
            f"{yaml}: its embedding_model is {name or 'absent'!r}; allowed are "
            f"{', '.join(_SPEECHBRAIN)}"
        )
    from toolkit.backbones.torchaudio_cpu import import_torchaudio

    import_torchaudio()  # speechbrain imports torchaudio
    module, _, attribute = name.rpartition(".")
    build = getattr(importlib.import_module(module), attribute)
    arguments = _arguments(model, settings, build, f"{yaml}: embedding_model")
    defaults = {key: value.default for key, value in inspect.signature(build).parameters.items()}
    features = _read_frontend(settings, yaml)
    bands = _SPEECHBRAIN[name]
    in_dim = arguments.get(bands, defaults[bands])
    if in_dim != features["num_mels"]:
        raise LikenessError(
            f"{yaml}: the network takes {in_dim} bands, but its Fbank gives "
            f"{features['num_mels']}; n_mels and {bands} must agree"
        )
    try:
        # Sizes that a file only claims allocate nothing here. `fill` compares them with weights.
        with torch.device("meta"):
            network = build(**arguments)
        dim = arguments.get("lin_neurons", defaults["lin_neurons"])
        backbone = SpeechBrainNetwork(network, in_dim, dim)
    except (TypeError, IndexError, RuntimeError, AssertionError) as error:
        raise LikenessError(
            f"{yaml}: {attribute} cannot be built from its settings ({error})"
        ) from None
    return features, backbone


def _read_frontend(settings: Mapping[str, Any], yaml: Path) -> dict[str, Any]:
    """Return the arguments of SpeechBrainFbank; raise ValueError for settings that it lacks."""
    fbank = _arguments_of("compute_features", settings, yaml)
    norm = _arguments_of("mean_var_norm", settings, yaml)
    for part, stated, right in (
        ("compute_features", fbank, _FBANK),
        ("mean_var_norm", norm, _NORM),
    ):
        if stated.get("!") != f"!new:{right}":
            raise LikenessError(
                f"{yaml}: {part} is {stated.get('!', 'of no class')!r}; only !new:{right} is read"
            )
    if norm.get("norm_type", "global") != "sentence":  # SpeechBrain's own default is global
        raise LikenessError(
            f"{yaml}: mean_var_norm is {norm.get('norm_type', 'global')!r}; only 'sentence' is "
            "read, as in SpeechBrain's speaker models"
        )
    if others := sorted(set(norm) - {"!", "norm_type", "std_norm"}):
        raise LikenessError(
            f"{yaml}: mean_var_norm sets {name_first(others)}, which are not read; allowed are "
            "norm_type and std_norm"
        )
    off = [key for key in ("deltas", "context") if fbank.pop(key, False)]
    if off:
        raise LikenessError(
            f"{yaml}: compute_features sets {name_first(off)}, which SpeechBrainFbank does not "
            "make; the published speaker models leave them off"
        )
    # The numbers of frames matter for the context only, which is off.
    unknown = sorted(set(fbank) - {*_FBANK_NAMES, "!", "left_frames", "right_frames"})
    if unknown:
        raise LikenessError(
            f"{yaml}: compute_features sets {name_first(unknown)}, which are not read; allowed are "
            f"{', '.join(_FBANK_NAMES)}"
        )
    features = {_FBANK_NAMES[key]: fbank[key] for key in fbank if key in _FBANK_NAMES}
    features.setdefault("num_mels", 40)  # the default of SpeechBrain's Fbank
    features["cmn_variance"] = bool(norm.get("std_norm", True))
    return features


class SpeechBrainNetwork(nn.Module):
    """A network of SpeechBrain behind the backbone signature.

    It reflects or pads the edges of an utterance, so the batches of `embed` hold equal lengths
    only.
    """

    pads_exactly = False

    def __init__(self, network: nn.Module, in_dim: int, dim: int):
        super().__init__()
        self.network, self.in_dim, self.dim = network, in_dim, dim
        for module in network.modules():
            # StatisticsPooling adds noise of 1e-5 to 9e-5 to the mean, in evaluation too. Here it
            # always adds 5e-5, so that an input has one embedding.
            if hasattr(module, "_get_gauss_noise"):
                setattr(module, "_get_gauss_noise", _no_noise)  # noqa: B010

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim).

        Args:
            features: (B, T, in_dim).
            lengths: (B,) relative to T.
        """
        return torch.as_tensor(
            self.network(features, None if lengths is None else lengths.to(features.dtype))
        ).flatten(1)


def _no_noise(shape: torch.Size, device: Any = "cpu") -> Tensor:
    """Return what stands in for SpeechBrain's noise: the same number everywhere."""
    return torch.full(shape, 5e-5, device=device)


def fill(network: nn.Module, state: dict[str, Tensor], where: str) -> None:
    """Put the weights into a network on the meta device, strictly.

    Counters of batches may be absent.

    Raises:
        LikenessError: Weights do not fit. They are counted.
    """
    own = network.state_dict()
    absent = [name for name in own if name not in state]
    missing = [name for name in absent if not name.endswith("num_batches_tracked")]
    wrong = [name for name in state if name not in own or own[name].shape != state[name].shape]
    if missing or wrong:
        raise LikenessError(
            f"{where}: weights do not fit the network: {len(missing)} missing, {len(wrong)} "
            f"unknown or of another shape ({name_first(missing or wrong)})"
        )
    counters = {name: torch.zeros_like(own[name], device="cpu") for name in absent}
    network.load_state_dict({**counters, **state}, assign=True)


def _arguments_of(part: str, settings: Mapping[str, Any], yaml: Path) -> dict[str, Any]:
    """Return the arguments that the YAML states for one of its parts."""
    arguments = settings.get(part)
    if not isinstance(arguments, dict):
        raise LikenessError(
            f"{yaml}: {part} is missing; a folder of a SpeechBrain speaker model states "
            "compute_features, mean_var_norm and embedding_model"
        )
    where = f"{yaml}: {part}"
    return {key: _value(value, settings, f"{where}.{key}") for key, value in arguments.items()}


def _arguments(
    stated: Mapping[str, Any], settings: Mapping[str, Any], build: Any, where: str
) -> dict[str, Any]:
    """Return the arguments that the YAML states for a class, all of which the class must accept."""
    accepted = set(inspect.signature(build).parameters) - {"device", "self"}
    unknown = sorted(set(stated) - accepted - {"!", "device"})
    if unknown:
        raise LikenessError(
            f"{where}: {name_first(unknown)} are no arguments of {build.__name__} in this version "
            "of SpeechBrain"
        )
    return {
        key: _value(value, settings, f"{where}.{key}")
        for key, value in stated.items()
        if key in accepted
    }


def _value(value: Any, settings: Mapping[str, Any], where: str) -> Any:
    """Return a value of the YAML that is plain enough to be read.

    That is a number, a text, true or false, a list of numbers; `!ref <name>` of such a value on the
    top level; or the name of a known activation.

    Raises:
        LikenessError: It is anything else.
    """
    if isinstance(value, dict):
        tag = value.get("!", "")
        reference = re.fullmatch(r"<(\w+)>", str(value.get("", ""))) if tag == "!ref" else None
        if reference and not isinstance(settings.get(reference[1]), dict):
            return _value(settings.get(reference[1]), settings, where)
        if tag.removeprefix("!name:") in _ACTIVATIONS:
            return _ACTIVATIONS[tag.removeprefix("!name:")]
    sizes = value if isinstance(value, list) and len(value) <= 64 else [value]
    if (
        all(type(size) is int and 0 <= size <= _MAX_SIZE for size in sizes)
        or isinstance(value, (bool, str))
        or (type(value) is float and abs(value) <= _MAX_SIZE)
    ):
        return value
    raise LikenessError(
        f"{where}: {str(value)[:80]!r} is not read; allowed are numbers up to {_MAX_SIZE}, lists "
        "of them, names of activations and !ref <name>"
    )


def _plain_yaml(path: Path) -> dict[str, Any]:
    """Return the file as dicts, lists and texts.

    A tagged value becomes a dict with its tag under "!"; if the value is a text, that is under "".
    """
    import yaml

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """A loader of plain values that bounds the number of aliases."""

        aliases = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.aliases += self.check_event(yaml.AliasEvent)
            if self.aliases > _MAX_ALIASES:
                raise yaml.YAMLError(f"over {_MAX_ALIASES} aliases")
            return super().compose_node(parent, index)

    def tagged(loader: Any, suffix: str, node: Any) -> dict[str, Any]:
        """Return a tagged value as a dict."""
        if isinstance(node, yaml.MappingNode):
            values = loader.construct_mapping(node, deep=True)
        else:
            values = {"": str(node.value)[:1024]}
        return {**values, "!": f"!{suffix}"}

    Plain.add_multi_constructor("!", tagged)
    try:
        text = bounded(path, _MAX_YAML)
    except FileNotFoundError:
        raise LikenessError(
            f"{path} does not exist; a folder of a SpeechBrain speaker model holds "
            "hyperparams.yaml and embedding_model.ckpt"
        ) from None
    try:
        settings = yaml.load(text.decode(), Loader=Plain)
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        # ValueError and OverflowError come from dates and numbers that are none.
        raise LikenessError(f"{path}: no YAML that can be read ({first_line(error)})") from None
    if not isinstance(settings, dict):
        raise LikenessError(
            f"{path}: expected names and values, but it holds a {type(settings).__name__}"
        )
    return settings
