"""redimnet:FILE.pt reads the releases of ReDimNet and ReDimNet2, whose files state a model_config.

The networks themselves are held to the releases by tests/toolkit/backbones/test_released.py. Here
the front-end is written down by torchaudio, as redimnet/layers/features.py has it.
"""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from likeness.eval.errors import LikenessError
from likeness.models import load
from likeness.toolkit.backbones.ecapa import import_torchaudio
from likeness.toolkit.backbones.redimnet import ReDimNet, ReDimNet2
from likeness.toolkit.models.parts import restore

# The model_config of b5-vox2-ft_lm.pt, with fewer channels and blocks.
FIRST: dict[str, Any] = {"C": 8, "F": 72, "embed_dim": 10, "num_classes": None, "emb_bn": False}
FIRST |= {"block_1d_type": "conv+att", "block_2d_type": "basic_resnet_fwse", "group_divisor": 4}
FIRST |= {"hop_length": 240, "out_channels": None, "pooling_func": "ASTP"}
_STAGES = [(1, 1, 2, [(3, 3)], 48), (2, 1, 1, [(3, 3)], 16), (3, 1, 1, [(3, 3)], None)]
FIRST |= {"global_context_att": True, "stages_setup": _STAGES}
_MASKS = {"freq_mask_width": (0, 6), "time_mask_width": (0, 8)}
FIRST["spec_params"] = {"do_spec_aug": False, **_MASKS}
# The model_args of ReDimNet2's recipe b2/lm.yaml, with fewer channels and blocks.
SECOND = {**FIRST, "C": 4, "agg_gnorm": True, "block_2d_type": "basic_resnet", "causal": "none"}
SECOND |= {"compress_tconvs": True, "feat_type": "tf", "fm_weigthing_type": "NC"}
SECOND |= {"group_divisor": 1, "hop_length": 160, "out_channels": 6, "return_2d_output": True}
SECOND["spec_params"] = {"do_preemph": True, "do_spec_aug": False, "norm_signal": True}
SECOND["stages_setup"] = [
    [[1, 1], 1, 2, [[3, 5]], 36],
    [[1, 2], 1, 1, [[3, 5]], 36],
    [[3, 2], 1, 0.5, [[3, 7]], 18],
]


def networks(config: dict[str, Any]) -> torch.nn.Module:
    """The network of a configuration, by hand."""
    torch.manual_seed(0)
    if config.get("return_2d_output"):
        rows: list[Any] = [(1, 1, 2, 36, 1), (1, 1, 1, 36, 2), (3, 1, 0.5, 18, 4)]
        shape: dict[str, Any] = {"width": 4, "rows": rows, "pooled": 6}
        return ReDimNet2(72, dim=10, group_norm=True, shape=shape).eval()
    rows = [(1, 1, 2, 48), (2, 1, 1, 16), (3, 1, 1, 0)]
    shape = {"width": 8, "rows": rows, "block": "weighted", "group": 4}
    return ReDimNet(72, dim=10, shape=shape).eval()


def released(path: Path, config: dict[str, Any], **changes: Any) -> Path:
    """A file as the projects release it."""
    spec = {"spec.torchfbank.2.mel_scale.fb": torch.zeros(257, 72)}
    state = {**networks(config).state_dict(), **spec}
    torch.save({"model_config": {**config, **changes}, "state_dict": state}, path)
    return path


def mel_banks(wave: Tensor) -> Tensor:
    """redimnet/layers/features.py MelBanks at a hop of 240."""
    transforms = import_torchaudio().transforms
    frames = {"sample_rate": 16_000, "n_fft": 512, "win_length": 400, "hop_length": 240}
    bands = {"f_min": 20, "f_max": 7600, "n_mels": 72, "window_fn": torch.hamming_window}
    to_mel = transforms.MelSpectrogram(**frames, **bands)
    padded = torch.nn.functional.pad(wave[:, None], (1, 0), "reflect")
    filtered = torch.nn.functional.conv1d(padded, torch.tensor([[[-0.97, 1.0]]]))[:, 0]
    mel = (to_mel(filtered) + 1e-6).log()
    return cast(Tensor, (mel - mel.mean(-1, keepdim=True)).transpose(1, 2))


@torch.no_grad()
def test_the_first_release_is_read_from_audio(tmp_path):
    file = released(tmp_path / "b5-vox2-ft_lm.pt", FIRST)
    loaded: Any = load.load_named(f"redimnet:{file}")
    wave = torch.randn(2, 9000, generator=torch.Generator().manual_seed(0)) * 0.1
    expected = networks(FIRST)(mel_banks(wave))
    torch.testing.assert_close(loaded.embedder(wave), expected, rtol=1e-4, atol=1e-5)
    assert (loaded.modality, loaded.similarity) == ("speaker", "cosine")


@torch.no_grad()
def test_the_second_release_is_read_from_audio_and_from_its_parts(tmp_path):
    file = released(tmp_path / "b2.pt", SECOND)
    loaded: Any = load.load_named(f"redimnet:{file}")
    front = loaded.embedder.frontend
    assert (front.framing, front.normalise, front.hop_samples) == ("tensorflow", True, 160)
    wave = torch.randn(2, 9000) * 0.1
    z = loaded.embedder(wave)
    torch.testing.assert_close(z, networks(SECOND)(front(wave)[0]))
    again = restore(loaded.parts["backbone"], "backbone", kind="module")(72)
    again.load_state_dict(loaded.embedder.backbone.state_dict())
    torch.testing.assert_close(again.eval()(front(wave)[0]), z)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"block_1d_type": "att"}, "block_1d_type is 'att'"),
        ({"spec_params": {"spec_norm": "bn"}}, "spec_norm is 'bn'"),
        ({"feat_type": "tf_spec"}, "KeyError: 'tf_spec'"),
        ({"stages_setup": None}, "TypeError"),
        ({"embed_dim": 12}, "weights do not fit"),
    ],
)
def test_other_releases_are_refused_in_a_sentence(changes, says, tmp_path):
    file = released(tmp_path / "other.pt", FIRST, **changes)
    with pytest.raises(LikenessError, match=says):
        load.load_named(f"redimnet:{file}")


def test_a_file_without_a_configuration_is_refused(tmp_path):
    torch.save(networks(FIRST).state_dict(), tmp_path / "plain.pt")
    with pytest.raises(LikenessError, match="of no ReDimNet"):
        load.load_named(f"redimnet:{tmp_path / 'plain.pt'}")
