"""Weights of others: names, forms and refusals; importing torchaudio without CUDA."""

import re
import zipfile
from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from likeness import backbones
from likeness.models import load
from likeness.toolkit.backbones.weights import load_published, load_wespeaker, read_weights


def make() -> backbones.ResNet:
    torch.manual_seed(0)
    return backbones.ResNet(16, dim=4, width=2, depth=18)


def test_classifiers_are_dropped_and_said():
    backbone = make()
    classifier = {"projection.weight": torch.zeros(9, 4), "projection.bias": torch.zeros(9)}
    inputs = trained(backbone) | classifier
    given = {f"module.{name}": value for name, value in inputs.items()}
    assert load_wespeaker(backbone, given) == tuple(classifier)
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, inputs[name]), name


def test_other_counters_of_batches_load():
    """None in files of old versions of torch; WeSpeaker's average_model.py divides every tensor, so
    that counters become floats.
    """
    state = trained(make())
    counters = {name for name in state if name.endswith("num_batches_tracked")}
    averaged = {name: state[name] + 0.5 for name in counters}
    for given in ({k: x for k, x in state.items() if k not in counters}, state | averaged):
        backbone = make()
        load_wespeaker(backbone, given)
        assert torch.equal(backbone.state_dict()["seg_1.bias"], state["seg_1.bias"])
        assert backbone.state_dict()["bn1.num_batches_tracked"].dtype == torch.int64


def test_faults_are_counted_and_named_and_nothing_changes():
    backbone = make()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    inputs = trained(backbone) | {f"frontend.{part}": torch.zeros(1) for part in "abcd"}
    del inputs["bn1.weight"]
    inputs["seg_1.weight"] = torch.zeros(3, 3)
    with pytest.raises(ValueError, match=r"1 missing .*4 unknown \(frontend.a, ") as caught:
        load_wespeaker(backbone, inputs)
    assert "seg_1.weight (3, 3) for (4, 64)" in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


LARGE = {"frame_1.conv_1d.weight": (4, 8, 5), "frame_5.conv_1d.weight": (60_000, 1, 1)}
LARGE["seg_1.weight"] = (60_000, 1)  # 7e9 weights in what is given


@pytest.mark.parametrize("shapes", [LARGE, {"conv1.weight": (1, 1), "seg_1.weight": (1, 60_000)}])
def test_a_network_larger_than_its_weights_is_not_made(shapes, tmp_path):
    torch.save({name: torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt"):
        load.load_named(f"wespeaker:{tmp_path / 'a.pt'}")


RESNET: Any = partial(backbones.ImageResNet, depth=18, width=4, blocks=(1, 1, 1, 1), dim=8)
VIT: Any = partial(backbones.ViT, width=8, depth=2, heads=2, patch=4, image_size=8)
IRESNET: Any = partial(backbones.IResNet, dim=8, width=4, blocks=(1, 1, 1, 1), image_size=32)


def trained(network: Any) -> dict[str, Tensor]:
    """The network's state with other numbers in it."""
    torch.manual_seed(1)
    state = network.state_dict()
    return {name: torch.randn_like(x) if x.is_floating_point() else x for name, x in state.items()}


def equal(network: nn.Module, state: dict[str, Tensor], *, but: str = " ") -> bool:
    own = without(network.state_dict(), but)
    return all(torch.equal(value, state[name]) for name, value in own.items())


def without(state: dict[str, Tensor], *starts: str) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if not name.startswith(starts)}


def test_what_the_releases_have_beside_the_network_is_left_out_and_said():
    """The mask token of arcface_torch, classifiers of torchvision, and BN-Inception of torch 0.2,
    whose batch norms have shape (1, C) and no counters of batches.
    """
    face: Any = partial(backbones.FaceViT, 3, dim=8, width=8, depth=1, image_size=18)
    inception: Any = partial(backbones.BNInception, 3, dim=8)
    whole = without(trained(inception()), "last_linear")
    old = {name: value[None] if "_bn." in name else value for name, value in whole.items()}
    old = {name: value for name, value in old.items() if "num_batches" not in name}
    resnet = without(trained(RESNET(3)), "fc.")
    head = {"fc.weight": torch.zeros(1000, 32), "fc.bias": torch.zeros(1000)}
    last = {"last_linear.weight": torch.zeros(1000, 1024)}
    for fresh, stored, more, but in (
        (face(masked=0.0), trained(face()), {}, " "),
        (RESNET(3), resnet, head, "fc."),
        (RESNET(3, dim=0), resnet, {}, " "),
        (inception(), old, last, "last_linear"),
    ):
        before = {name: value.clone() for name, value in fresh.state_dict().items()}
        left_out = load_published(fresh, stored | more)
        assert left_out == (tuple(more) or (("mask_token",) if "mask_token" in stored else ()))
        for name, value in fresh.state_dict().items():
            known = before if name.startswith(but) else stored
            if name in known:
                assert torch.equal(value, known[name].reshape(value.shape)), name


def test_dino_s_forms_are_understood():
    """A teacher beside its head, DINOv2's blocks in chunks with their mask token, a classifier of
    timm.
    """
    state = trained(VIT(3))
    of_dino = {"head.mlp.0.weight": torch.zeros(2, 2)}
    of_dino |= {"head.last_layer.weight_g": torch.zeros(2, 1)}
    teacher = {f"backbone.{name}": value for name, value in state.items()} | of_dino
    in_module = {f"module.{name}": value for name, value in teacher.items()}
    chunks = {re.sub("^blocks", "blocks.1", name): value for name, value in state.items()}
    mask = {"mask_token": torch.zeros(1, 8)}
    classifier = {"head.weight": torch.zeros(10, 8), "head.bias": torch.zeros(10)}
    for inputs, left_out in (
        (teacher, of_dino),
        (in_module, of_dino),
        (chunks | mask, mask),
        (state | classifier, classifier),
    ):
        for dim in (0, 5):
            fresh = VIT(3, dim=dim)
            assert load_published(fresh, inputs) == tuple(left_out)
            assert equal(fresh, state, but="head.")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_constructor_starts_from_a_local_file(tmp_path, suffix):
    state = trained(RESNET(3)) | {"fc.weight": torch.zeros(1000, 32), "fc.bias": torch.zeros(1000)}
    path = tmp_path / f"resnet{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(OrderedDict(state), path)
    network = RESNET(3, weights=str(path), batch_norm="frozen")
    assert equal(network, state, but="fc.")
    with pytest.raises(ValueError, match=r"1 of another shape \(conv1.weight"):
        RESNET(1, weights=str(path))


def test_checkpoints_of_the_releases_are_unwrapped(tmp_path):
    state = trained(IRESNET(3))
    for name in ("state_dict", "state_dict_backbone", "backbone", "teacher", "model"):
        torch.save({"epoch": 3, name: state, "head": {"w": torch.zeros(2)}}, tmp_path / "a.pt")
        result = read_weights(tmp_path / "a.pt")
        assert result.keys() == state.keys()
    parts = {"backbone": state, "head": {"w": torch.zeros(2)}}
    # OpenSphere's model_STEP.pth and ckpt_STEP.pth
    for value in (parts, {"step": 7, "model": parts, "optimizer": {"state": {}}}):
        torch.save(value, tmp_path / "a.pt")
        fresh = IRESNET(3)
        assert load_published(fresh, read_weights(tmp_path / "a.pt")) == ()
        assert equal(fresh, state)
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert read_weights(tmp_path / "old.pth").keys() == state.keys()


def test_files_of_other_kinds_are_refused(tmp_path):
    """What would run code: tests/test_fuzz.py."""
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    torch.save({"a": 1.0}, tmp_path / "number.pth")
    torch.save({}, tmp_path / "empty.pth")
    whole = (tmp_path / "list.pth").read_bytes()
    (tmp_path / "cut.pth").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "noise.pth").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "nothing.pth").write_bytes(b"")
    (tmp_path / "long.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    (tmp_path / "cut.safetensors").write_bytes((100).to_bytes(8, "little") + b'{"a":')
    with zipfile.ZipFile(tmp_path / "other.pth", "w") as archive:
        archive.writestr("a.txt", "x")
    damaged = {"cut.pth", "noise.pth", "nothing.pth", "other.pth"}
    damaged |= {"long.safetensors", "cut.safetensors"}
    for path in tmp_path.iterdir():
        says = "cannot be read without" if path.name in damaged else "it holds no mapping of names"
        with pytest.raises(ValueError, match=f"{path.name}':? {says}"):
            read_weights(path)
    with pytest.raises(ValueError, match=r"absent.pth': there is no such file"):
        backbones.BNInception(3, weights=str(tmp_path / "absent.pth"))
