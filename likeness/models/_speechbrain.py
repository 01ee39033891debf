"""Read the folder of a SpeechBrain speaker model as a front-end and a network.

Its YAML is read as plain data, its weights as tensors. SpeechBrain itself runs the YAML as code
(HyperPyYAML's !new: and !apply:).
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

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.files import bounded
from likeness.eval.types import name_first, quoted
from likeness.models._hub import fetch

_MAX_YAML = 2**16  # bytes: the published ones have 2 kB; one number of 1 MB takes minutes to parse
_FILES = ("hyperparams.yaml", "embedding_model.ckpt")
_SPEECHBRAIN = (
    "speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN",
    "speechbrain.lobes.models.Xvector.Xvector",
    "speechbrain.lobes.models.ResNet.ResNet",
)
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
_ACTIVATIONS = {"name:torch.nn.ReLU": nn.ReLU, "name:torch.nn.LeakyReLU": nn.LeakyReLU}


def find_files(source: str) -> tuple[Path, Path]:
    """Return hyperparams.yaml and embedding_model.ckpt of a SpeechBrain speaker model.

    Args:
        source: A local folder, or a name on the Hugging Face hub, from where the two files are then
            downloaded.

    Raises:
        LikenessError: The source is neither, or the hub cannot be reached.
    """
    folder = Path(source)
    if not folder.is_dir():
        folder = fetch(f"speechbrain:{source}", source, _FILES)
    return folder / _FILES[0], folder / _FILES[1]


def read_settings(yaml: Path) -> tuple[dict[str, Any], SpeechBrainNetwork]:
    """Return the arguments of SpeechBrainFbank, and the network without its weights.

    Raises:
        LikenessError: A setting is not known. Nothing is left out silently.
    """
    settings = plain_yaml(yaml)
    features = _frontend(settings, yaml)
    model = _part(settings, "embedding_model", _SPEECHBRAIN, yaml)
    name = model.pop("!").removeprefix("!new:")
    from likeness.toolkit.backbones.ecapa import import_torchaudio

    import_torchaudio()  # speechbrain imports torchaudio
    module, _, attribute = name.rpartition(".")
    build = getattr(importlib.import_module(module), attribute)
    model.pop("device", None)
    dim = model.get("lin_neurons", inspect.signature(build).parameters["lin_neurons"].default)
    try:
        # Sizes that a file only claims allocate nothing here; they are compared with the weights.
        with torch.device("meta"):
            return features, SpeechBrainNetwork(build(**model), dim)
    except Exception as error:  # SpeechBrain and torch raise errors of any type here
        raise LikenessError(
            f"{yaml}: {attribute} cannot be built from its settings ({first_line(error)})"
        ) from None


def _frontend(settings: Mapping[str, Any], yaml: Path) -> dict[str, Any]:
    """Return the arguments of SpeechBrainFbank; refuse settings that it lacks."""
    fbank = _part(settings, "compute_features", (_FBANK,), yaml)
    norm = _part(settings, "mean_var_norm", (_NORM,), yaml)
    unknown = sorted(
        # Deltas and context are off in the published models; the numbers of frames are theirs.
        {key for key in ("deltas", "context") if fbank.pop(key, False)}
        | (fbank.keys() - {*_FBANK_NAMES, "!", "left_frames", "right_frames"})
        | (norm.keys() - {"!", "norm_type", "std_norm"})
    )
    if norm.get("norm_type", "global") != "sentence":  # SpeechBrain's own default is global
        unknown.append(f"norm_type {norm.get('norm_type', 'global')}")
    if unknown:
        raise LikenessError(
            f"{yaml}: compute_features or mean_var_norm sets {name_first(unknown)}, which is not "
            f"read; allowed are {', '.join(_FBANK_NAMES)}, norm_type sentence and std_norm"
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

    def __init__(self, network: nn.Module, dim: int):
        super().__init__()
        self.network, self.dim = network, dim
        for module in network.modules():
            # StatisticsPooling adds noise of 1e-5 to 9e-5 to the mean, in evaluation too. Here it
            # always adds 5e-5, so that an input has one embedding.
            if hasattr(module, "_get_gauss_noise"):
                setattr(module, "_get_gauss_noise", _no_noise)  # noqa: B010

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim).

        Args:
            features: (B, T, F).
            lengths: (B,) relative to T.
        """
        return torch.as_tensor(
            self.network(features, None if lengths is None else lengths.to(features.dtype))
        ).flatten(1)


def _no_noise(shape: torch.Size, device: Any = "cpu") -> Tensor:
    """Return what stands in for SpeechBrain's noise: the same number everywhere."""
    return torch.full(shape, 5e-5, device=device)


def _part(
    settings: Mapping[str, Any], name: str, classes: tuple[str, ...], yaml: Path
) -> dict[str, Any]:
    """Return what the YAML states of one of its parts, whose class must be one of these.

    Raises:
        LikenessError: It is of another class, or a value has a tag: nothing is built or executed.
    """
    part = settings.get(name)
    if not isinstance(part, dict) or part.get("!", "").removeprefix("!new:") not in classes:
        raise LikenessError(f"{yaml}: {name} is {quoted(part)}; allowed are {', '.join(classes)}")
    for key, value in part.items():
        if isinstance(value, dict):
            raise LikenessError(
                f"{yaml}: {name}.{key}: {quoted(value)} is not read; give a plain value"
            )
    return dict(part)


def plain_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML file of names and values as dicts, lists and texts, without running it.

    A tagged value becomes a dict with its tag under "!", except for `!ref <name>` with the name of
    a plain value at the top, and for the activations that are known.
    """
    import yaml

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """A loader of plain values, which merges no mappings: they could unfold to any size."""

        def flatten_mapping(self, node: Any) -> None:
            pass

    def tagged(loader: Any, suffix: str, node: Any) -> Any:
        """Return a tagged value."""
        values = {}
        if isinstance(node, yaml.MappingNode):
            values = loader.construct_mapping(node, deep=True)
        return _ACTIVATIONS.get(suffix, {**values, "!": f"!{suffix}"})

    Plain.add_multi_constructor("!", tagged)
    try:
        text = bounded(path, _MAX_YAML).decode()
        plain = dict(re.findall(r"^(\w+): *([^!&*\s].*)$", text, re.MULTILINE))
        text = re.sub(r"!ref <(\w+)>$", lambda m: plain.get(m[1], m[0]), text, flags=re.MULTILINE)
        return {**yaml.load(text, Loader=Plain)}
    except Exception as error:  # dates and numbers that are none raise errors of other types
        raise LikenessError(f"{path}: no YAML of names and values ({first_line(error)})") from None
