"""A folder of a SpeechBrain speaker model as front-end and network: its YAML read as plain data,
its weights as tensors.
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

from eval.formats.files import bounded
from eval.types import name_first

_MAX_YAML = 2**16  # the published ones have 2 kB; a number of a megabyte takes minutes to parse
_MAX_ALIASES = 8  # lists of lists of aliases are of any size when they are gone through
_MAX_SIZE = 65_536  # of any layer that a file asks for
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SPEECHBRAIN = {
    "speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN": "input_size",
    "speechbrain.lobes.models.Xvector.Xvector": "in_channels",
    "speechbrain.lobes.models.ResNet.ResNet": "input_size",
}
_FBANK, _NORM = (
    "speechbrain.lobes.features.Fbank",
    "speechbrain.processing.features.InputNormalization",
)
_ACTIVATIONS = {"torch.nn.ReLU": nn.ReLU, "torch.nn.LeakyReLU": nn.LeakyReLU}


def find_files(source: str) -> tuple[Path, Path]:
    """hyperparams.yaml and embedding_model.ckpt of a local folder, or of a name on the Hugging Face
    hub, from where they are then downloaded.
    """
    folder = Path(source)
    if folder.is_dir():
        yaml, weights = folder / "hyperparams.yaml", folder / "embedding_model.ckpt"
    elif _HUB_NAME.fullmatch(source):
        from huggingface_hub import hf_hub_download

        try:
            yaml, weights = (
                Path(hf_hub_download(source, name))
                for name in ("hyperparams.yaml", "embedding_model.ckpt")
            )
        except (
            Exception
        ) as error:  # of the hub's library and of the HTTP library under it, which share no base
            reason = (
                str(error).strip().splitlines()[0].rstrip(". ")
                if str(error).strip()
                else type(error).__name__
            )
            raise OSError(
                f"{source} could not be fetched from the Hugging Face hub ({reason[:200]}); fetch "
                "its files and give speechbrain:FOLDER"
            ) from None
    else:
        raise ValueError(
            f"speechbrain:{source} is neither a folder nor a name on the hub such as "
            "speechbrain/spkrec-ecapa-voxceleb"
        )
    return yaml, weights


def read_settings(yaml: Path) -> tuple[dict[str, Any], SpeechBrainNetwork]:
    """The arguments of SpeechBrainFbank, and the network without its weights.

    ValueError for any setting that is not known: nothing is left out silently.
    """
    settings = _plain_yaml(yaml)
    wanted = settings.get("embedding_model")
    name = wanted.get("!", "").removeprefix("!new:") if isinstance(wanted, dict) else ""
    if not isinstance(wanted, dict) or name not in _SPEECHBRAIN:
        raise ValueError(
            f"{yaml}: its embedding_model is {name or 'absent'!r}; allowed are "
            f"{', '.join(_SPEECHBRAIN)}"
        )
    from toolkit.backbones.torchaudio_cpu import import_torchaudio

    import_torchaudio()  # speechbrain imports torchaudio
    module, _, attribute = name.rpartition(".")
    build = getattr(importlib.import_module(module), attribute)
    arguments = _arguments(wanted, settings, build, f"{yaml}: embedding_model")
    fbank, norm = (
        _arguments_of("compute_features", settings, yaml),
        _arguments_of("mean_var_norm", settings, yaml),
    )
    for part, given, right in (("compute_features", fbank, _FBANK), ("mean_var_norm", norm, _NORM)):
        if given.get("!") != f"!new:{right}":
            raise ValueError(
                f"{yaml}: {part} is {given.get('!', 'of no class')!r}; only !new:{right} is read"
            )
    if norm.get("norm_type", "global") != "sentence":  # SpeechBrain's own default is global
        raise ValueError(
            f"{yaml}: mean_var_norm is {norm.get('norm_type', 'global')!r}; only 'sentence' is "
            "read, as in SpeechBrain's speaker models"
        )
    if others := sorted(set(norm) - {"!", "norm_type", "std_norm"}):
        raise ValueError(
            f"{yaml}: mean_var_norm sets {name_first(others)}, which are not read; allowed are "
            "norm_type and std_norm"
        )
    known = {
        "n_mels": "num_mels",
        "sample_rate": "rate_hz",
        "win_length": "frame_ms",
        "hop_length": "hop_ms",
        "n_fft": "fft_size",
        "f_min": "low_hz",
        "f_max": "high_hz",
    }
    off = [key for key in ("deltas", "context") if fbank.pop(key, False)]
    if off:
        raise ValueError(
            f"{yaml}: compute_features sets {name_first(off)}, which SpeechBrainFbank does not "
            "make; the published speaker models leave them off"
        )
    unknown = sorted(
        set(fbank) - {*known, "!", "left_frames", "right_frames"}
    )  # frames are for the context only
    if unknown:
        raise ValueError(
            f"{yaml}: compute_features sets {name_first(unknown)}, which are not read; allowed are "
            f"{', '.join(known)}"
        )
    taken: dict[str, Any] = {known[key]: value for key, value in fbank.items() if key in known}
    taken.setdefault("num_mels", 40)  # the default of SpeechBrain's Fbank
    taken["cmn_variance"] = bool(norm.get("std_norm", True))
    in_dim = arguments.get(
        _SPEECHBRAIN[name], inspect.signature(build).parameters[_SPEECHBRAIN[name]].default
    )
    if in_dim != taken["num_mels"]:
        raise ValueError(
            f"{yaml}: the network takes {in_dim} bands, but its Fbank gives {taken['num_mels']}; "
            f"n_mels and {_SPEECHBRAIN[name]} must agree"
        )
    try:
        with torch.device(
            "meta"
        ):  # sizes that a file only claims allocate nothing: `fill` compares them with the weights
            network = build(**arguments)
        backbone = SpeechBrainNetwork(
            network,
            in_dim,
            arguments.get(
                "lin_neurons", inspect.signature(build).parameters["lin_neurons"].default
            ),
        )
    except (TypeError, IndexError, RuntimeError, AssertionError) as error:
        raise ValueError(
            f"{yaml}: {attribute} cannot be built from its settings ({error})"
        ) from None
    return taken, backbone


class SpeechBrainNetwork(nn.Module):
    """A network of SpeechBrain behind the backbone signature; it reflects or pads the edges of an
    utterance, so embedding batches hold equal lengths only.
    """

    pads_exactly = False

    def __init__(self, network: nn.Module, in_dim: int, dim: int):
        super().__init__()
        self.network, self.in_dim, self.dim = network, in_dim, dim
        for module in network.modules():
            # StatisticsPooling adds noise of 1e-5 to 9e-5 to the mean, in evaluation too: here the
            # same 5e-5 always
            if hasattr(module, "_get_gauss_noise"):
                setattr(module, "_get_gauss_noise", _no_noise)  # noqa: B010

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """features (B, T, in_dim), lengths (B,) relative -> (B, dim) raw embeddings."""
        return torch.as_tensor(
            self.network(features, None if lengths is None else lengths.to(features.dtype))
        ).flatten(1)


def _no_noise(shape: torch.Size, device: Any = "cpu") -> Tensor:
    return torch.full(shape, 5e-5, device=device)


def fill(network: nn.Module, state: dict[str, Tensor], where: str) -> None:
    """Put the weights into a network on the meta device, strictly; counters of batches may be
    absent. ValueError counts what does not fit.
    """
    wanted = network.state_dict()
    missing = [
        one for one in wanted if one not in state and not one.endswith("num_batches_tracked")
    ]
    wrong = [one for one in state if one not in wanted or wanted[one].shape != state[one].shape]
    if missing or wrong:
        raise ValueError(
            f"{where}: weights do not fit the network: {len(missing)} missing, {len(wrong)} "
            f"unknown or of another shape ({name_first(missing or wrong)})"
        )
    counters = {
        one: torch.zeros_like(value, device="cpu")
        for one, value in wanted.items()
        if one not in state
    }
    network.load_state_dict({**counters, **state}, assign=True)


def _arguments_of(part: str, settings: Mapping[str, Any], yaml: Path) -> dict[str, Any]:
    found = settings.get(part)
    if not isinstance(found, dict):
        raise ValueError(
            f"{yaml}: {part} is missing; a folder of a SpeechBrain speaker model states "
            "compute_features, mean_var_norm and embedding_model"
        )
    return {key: _value(value, settings, f"{yaml}: {part}.{key}") for key, value in found.items()}


def _arguments(
    wanted: Mapping[str, Any], settings: Mapping[str, Any], build: Any, where: str
) -> dict[str, Any]:
    """What the YAML gives to a class, which has to accept it."""
    accepted = set(inspect.signature(build).parameters) - {"device", "self"}
    unknown = sorted(set(wanted) - accepted - {"!", "device"})
    if unknown:
        raise ValueError(
            f"{where}: {name_first(unknown)} are no arguments of {build.__name__} in this version "
            "of SpeechBrain"
        )
    return {
        key: _value(value, settings, f"{where}.{key}")
        for key, value in wanted.items()
        if key in accepted
    }


def _value(value: Any, settings: Mapping[str, Any], where: str) -> Any:
    """A number, text, truth or list of numbers; `!ref <name>` of such a value on the top level; a
    known activation. ValueError for anything else.
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
        all(type(one) is int and 0 <= one <= _MAX_SIZE for one in sizes)
        or isinstance(value, (bool, str))
        or (type(value) is float and abs(value) <= _MAX_SIZE)
    ):
        return value
    raise ValueError(
        f"{where}: {str(value)[:80]!r} is not read; allowed are numbers up to {_MAX_SIZE}, lists "
        "of them, names of activations and !ref <name>"
    )


def _plain_yaml(path: Path) -> dict[str, Any]:
    """The file as dicts, lists and texts.

    A tagged value becomes a dict with its tag under "!" (and, if it is a text, the text under "").
    """
    import yaml

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        aliases = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.aliases += self.check_event(yaml.AliasEvent)
            if self.aliases > _MAX_ALIASES:
                raise yaml.YAMLError(f"over {_MAX_ALIASES} aliases")
            return super().compose_node(parent, index)

    def tagged(loader: Any, suffix: str, node: Any) -> dict[str, Any]:
        held = (
            loader.construct_mapping(node, deep=True)
            if isinstance(node, yaml.MappingNode)
            else {"": str(node.value)[:1024]}
        )
        return {**held, "!": f"!{suffix}"}

    Plain.add_multi_constructor("!", tagged)
    try:
        text = bounded(path, _MAX_YAML)
    except FileNotFoundError:
        raise ValueError(
            f"{path} does not exist; a folder of a SpeechBrain speaker model holds "
            "hyperparams.yaml and embedding_model.ckpt"
        ) from None
    try:
        found = yaml.load(text.decode(), Loader=Plain)
    except (
        yaml.YAMLError,
        RecursionError,
        ValueError,
        OverflowError,
    ) as error:  # the latter two: dates and numbers that are none
        raise ValueError(
            f"{path}: no YAML that can be read ({str(error).splitlines()[0][:200]})"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(
            f"{path}: expected names and values, but it holds a {type(found).__name__}"
        )
    return found
