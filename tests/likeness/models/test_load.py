"""Models from elsewhere: SpeechBrain's folders, WeSpeaker's state dicts and ONNX files give the
embeddings that their own code gives.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from likeness.backbones import CAMPPlus, ReDimNet, ResNet, SimAMResNet, WeSpeakerECAPA, XVector
from likeness.data import audio, folders
from likeness.eval.formats.provenance import sha256
from likeness.modalities.speaker.features import THREED_SPEAKER_FBANK, WESPEAKER_FBANK
from likeness.models import _speechbrain, load
from likeness.models.reading import Reading, read_as
from likeness.models.run import load_model
from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.embed import embed
from tests.tiny_yunet import save_onnx
from tests.toolkit.backbones.test_released import wespeaker_names

HYPERPARAMS = """
n_mels: 24
out_n_neurons: 5
compute_features: !new:speechbrain.lobes.features.Fbank
    n_mels: !ref <n_mels>
    left_frames: 0
    right_frames: 0
    deltas: False
mean_var_norm: !new:speechbrain.processing.features.InputNormalization
    norm_type: sentence
    std_norm: False
embedding_model: !new:speechbrain.lobes.models.{model}
classifier: !new:speechbrain.lobes.models.ECAPA_TDNN.Classifier
    input_size: 12
    out_neurons: !ref <out_n_neurons>
mean_var_norm_emb: !new:speechbrain.processing.features.InputNormalization
    norm_type: global
    std_norm: False
modules:
    compute_features: !ref <compute_features>
    mean_var_norm: !ref <mean_var_norm>
    embedding_model: !ref <embedding_model>
    mean_var_norm_emb: !ref <mean_var_norm_emb>
    classifier: !ref <classifier>
label_encoder: !new:speechbrain.dataio.encoder.CategoricalEncoder
pretrainer: !new:speechbrain.utils.parameter_transfer.Pretrainer
    loadables:
        embedding_model: !ref <embedding_model>
        mean_var_norm_emb: !ref <mean_var_norm_emb>
        label_encoder: !ref <label_encoder>
    paths:
        embedding_model: {folder}/embedding_model.ckpt
        mean_var_norm_emb: {folder}/mean_var_norm_emb.ckpt
        label_encoder: {folder}/label_encoder.txt
"""
ECAPA = """ECAPA_TDNN.ECAPA_TDNN
    input_size: !ref <n_mels>
    channels: [16, 16, 16, 16, 48]
    kernel_sizes: [5, 3, 3, 3, 1]
    dilations: [1, 2, 3, 4, 1]
    attention_channels: 8
    lin_neurons: 12"""
XVECTOR = """Xvector.Xvector
    in_channels: !ref <n_mels>
    activation: !name:torch.nn.LeakyReLU
    tdnn_blocks: 5
    tdnn_channels: [8, 8, 8, 8, 24]
    tdnn_kernel_sizes: [5, 3, 3, 1, 1]
    tdnn_dilations: [1, 2, 3, 1, 1]
    lin_neurons: 12"""
RESNET = """ResNet.ResNet
    input_size: !ref <n_mels>
    channels: [8, 8, 16, 16]
    strides: [1, 2, 2, 2]
    block_sizes: [1, 1, 1, 1]
    lin_neurons: 12"""


def trained(network: nn.Module) -> Any:
    """With statistics as after training: a padded or normalised frame is not zero behind them."""
    for module in network.modules():
        if getattr(module, "running_mean", None) is not None:
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network.eval()


def hub_folder(folder: Path, kind: str) -> Path:
    """A folder as SpeechBrain's hub has them, with small networks."""
    from likeness.toolkit.backbones.ecapa import import_torchaudio

    import_torchaudio()
    from hyperpyyaml import load_hyperpyyaml

    folder.mkdir()
    text = HYPERPARAMS.format(model=kind, folder=folder)
    (folder / "hyperparams.yaml").write_text(text)
    torch.manual_seed(0)
    parts = load_hyperpyyaml(text)  # executes the YAML, which is ours
    torch.save(trained(parts["embedding_model"]).state_dict(), folder / "embedding_model.ckpt")
    parts["mean_var_norm_emb"](torch.randn(2, 3, 12), torch.ones(2))
    parts["mean_var_norm_emb"]._save(str(folder / "mean_var_norm_emb.ckpt"))
    parts["label_encoder"].update_from_iterable(["a", "b"])
    parts["label_encoder"].save(str(folder / "label_encoder.txt"))
    return folder


@pytest.mark.parametrize(
    ("kind", "rate_hz", "exact"),
    [(ECAPA, 16_000, 1e-6), (ECAPA, 8_000, 1e-6), (XVECTOR, 16_000, 1e-3), (RESNET, 16_000, 1e-6)],
    ids=["ecapa", "telephone", "xvector", "resnet"],
)
def test_speechbrain_folders_embed_as_speechbrain_does(kind, rate_hz, exact, voices, tmp_path):
    """x-vectors: SpeechBrain's pooling adds noise of up to 1e-4, ours the same number always."""
    folder = hub_folder(tmp_path / "spkrec", kind)
    yaml = folder / "hyperparams.yaml"
    frames = "    left_frames: 0\n"
    yaml.write_text(yaml.read_text().replace(frames, f"{frames}    sample_rate: {rate_hz}\n"))
    loaded: Any = load.load_named(f"speechbrain:{folder}")
    from speechbrain.inference.classifiers import EncoderClassifier

    # executes the YAML, which is ours
    theirs = EncoderClassifier.from_hparams(str(folder), savedir=str(tmp_path / "save"))
    items = folders.items(voices, split="all")[:6]
    waves = [audio.read(item, rate_hz=rate_hz) for item in items]
    np.testing.assert_array_equal(loaded.read(items[0]), waves[0])
    embedded, bad = embed(loaded.embedder, items, loaded.read, batch_size=4, meta=loaded.meta)
    assert not bad
    with torch.no_grad():
        rows = [theirs.encode_batch(torch.from_numpy(wave)[None]).flatten() for wave in waves]
    expected = torch.stack(rows).numpy()
    np.testing.assert_allclose(embedded.matrix, expected, atol=exact * np.abs(expected).max())
    assert (loaded.similarity, loaded.modality) == ("cosine", "speaker")
    pieces = read_as(loaded, Reading(chunk_seconds=60)).read(items[0])
    assert sum(map(len, pieces)) == pytest.approx(len(waves[0]), abs=2)


# What a text of hyperparams.yaml ("" for all of it) is replaced by, and what the error names.
REFUSED_YAML = [
    ("speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN", "os.system", "os.system"),
    ("[16, 16, 16, 16, 48]", "[60000, 60000, 60000, 60000, 60000]", "do not fit"),
    ("lin_neurons: 12", "lin_neurons: !apply:os.getpid", "os.getpid"),
    ("lin_neurons: 12", "lin_neurons: many", "cannot be built"),
    ("    norm_type: sentence\n", "", "global"),  # what SpeechBrain takes where nothing is said
    ("norm_type: sentence", "norm_type: sentence\n    mean_norm: False", "mean_norm"),
    ("deltas: False", "deltas: True", "'deltas'"),
    ("deltas: False", "filter_shape: gaussian", "'filter_shape'"),
    ("", "- 1", "no YAML"),
]


def test_no_yaml_is_executed(tmp_path):
    folder = hub_folder(tmp_path / "spkrec", ECAPA)
    yaml = folder / "hyperparams.yaml"
    whole, ran = yaml.read_text(), tmp_path / "ran"
    touching = f'!apply:pathlib.Path.touch [!new:pathlib.Path ["{ran}"]]'
    yaml.write_text(f"{whole}evil: {touching}\nworse: !!python/name:os.system\n")
    with pytest.raises(ValueError, match="no YAML of names"):
        load.load_named(f"speechbrain:{folder}")
    yaml.write_text(whole + f"evil: !apply:os.system ['touch {ran}']\n")
    load.load_named(f"speechbrain:{folder}")
    assert not ran.exists()
    for before, after, says in REFUSED_YAML:
        yaml.write_text(whole.replace(before, after) if before else after)
        with pytest.raises(ValueError, match=says):
            load.load_named(f"speechbrain:{folder}")
    assert not ran.exists()


WESPEAKER: dict[str, Callable[[], Any]] = {
    "resnet34": lambda: ResNet(24, dim=10, width=4),
    "3D-Speaker resnet34": lambda: ResNet(24, dim=10, width=4, two_layers=True),
    "resnet50-like": lambda: ResNet(40, dim=10, width=2, depth=50, blocks=(1, 2, 1, 1)),
    "ecapa": lambda: ECAPA_24(res2net_scale=4, se_channels=8),
    "ecapa-emb-bn": lambda: ECAPA_24(global_context=False, normalise=True),
    "xvector": lambda: XVector(24, dim=10, channels=8, pooled=12),
    "campplus": lambda: CAMPPlus(80, dim=10),
    "simam": lambda: SimAMResNet(24, dim=10, width=4),
    "simam100": lambda: SimAMResNet(16, dim=10, width=2, depth=100),
    "redimnet": lambda: ReDimNet(60, dim=10, size="b0", normalise=False),
}
ECAPA_24 = partial(WeSpeakerECAPA, 24, dim=10, channels=16, pooled=24)
BANKS = {"wespeaker": WESPEAKER_FBANK, "3dspeaker": THREED_SPEAKER_FBANK}


@pytest.mark.parametrize("kind", WESPEAKER)
def test_wespeakers_state_dicts_need_no_sizes(kind, tmp_path):
    torch.manual_seed(0)
    network = trained(WESPEAKER[kind]())
    state = network.state_dict()
    # wespeaker/models/redimnet.py has names of its own
    state = wespeaker_names(state) if kind == "redimnet" else state
    state = {f"module.{name}": value for name, value in state.items()}
    state["module.projection.weight"] = torch.zeros(7, 10)
    torch.save({"model": state} if kind == "ecapa" else state, tmp_path / "avg_model.pt")
    wave = torch.randn(2, 4000) * 0.1
    for frontend in BANKS if kind == "resnet34" else ("wespeaker",):
        loaded: Any = load.load_named(f"wespeaker:{tmp_path}", frontend=frontend)  # type: ignore[arg-type]
        with torch.no_grad():
            expected = network(BANKS[frontend](num_mels=network.in_dim).eval()(wave)[0])
            bound = 1e-6 * float(expected.abs().max())
            torch.testing.assert_close(loaded.embedder(wave), expected, rtol=1e-7, atol=bound)
    file = f"wespeaker:{tmp_path / 'avg_model.pt'}"
    assert load.load_named(file).digest == load.load_named(f"wespeaker:{tmp_path}").digest


def test_the_config_beside_wespeakers_weights_is_obeyed_or_refused(tmp_path):
    """examples/sre/v2 and v3 of WeSpeaker state 8 kHz; their tensors say nothing of it."""
    torch.manual_seed(0)
    network = trained(ResNet(24, dim=4, width=2))
    torch.save(network.state_dict(), tmp_path / "avg_model.pt")

    def configured(text: str) -> Any:
        (tmp_path / "config.yaml").write_text(text)
        return load.load_named(f"wespeaker:{tmp_path}")

    plain: Any = load.load_named(f"wespeaker:{tmp_path}")
    usual = "{num_mel_bins: 24, frame_shift: 10, frame_length: 25, dither: 1.0}"
    usual = f"dataset_args:\n  resample_rate: 16000\n  fbank_args: {usual}"
    assert configured(usual).digest == configured("model: ResNet34").digest == plain.digest
    slow = configured(
        "dataset_args:\n  resample_rate: 8000\n  frontend: fbank\n"
        "  fbank_args: {num_mel_bins: 24, frame_shift: 8, frame_length: 32}\n"
        "  cmvn_args: {norm_mean: True, norm_var: False}\n"
    )
    assert load.reading_of(slow)[1]["rate_hz"] == 8000
    assert slow.digest != plain.digest
    assert slow.parts["frontend"]["args"]["rate_hz"] == 8000
    wave = torch.randn(2, 4000) * 0.1
    fbank = WESPEAKER_FBANK(num_mels=24, rate_hz=8000, frame_ms=32, hop_ms=8)
    with torch.no_grad():
        torch.testing.assert_close(slow.embedder(wave), network(fbank.eval()(wave)[0]))
    for text, says in [
        ("fbank_args: {num_mel_bins: 80}", "num_mel_bins is 80, and .* with 24"),
        ("frontend: s3prl", "frontend is 's3prl'"),
        ("cmvn: False", "cmvn is False"),
        ("cmvn_args: {norm_var: True}", "norm_var is True"),
        ("fbank_args: {window_type: povey}", "set 'window_type', which is not read"),
        ("resample_rate: 8 kHz", "give a whole number"),
        ("fbank_args: {frame_length: 0}", "frame_length is 0"),
        ("fbank_args: 7", "no names and values"),
        ("fbank_args: !!python/name:os.system", "no YAML of names and values"),
    ]:
        with pytest.raises(ValueError, match=says):
            configured(f"dataset_args:\n  {text}\n")


def test_other_state_dicts_are_refused_in_a_sentence(tmp_path):
    resnet = ResNet(24, dim=4, width=2).state_dict()
    wide = ReDimNet(60, size="b0", shape={"width": 20}, normalise=False)
    for state, says in [
        ({"fc.weight": torch.zeros(2, 2)}, r"its 1 tensors \('fc.weight'\) are none of ResNet"),
        ({**resnet, "seg_3.weight": torch.zeros(2)}, r"model.pt: .* 1 unknown \(seg_3.weight\)"),
        (ResNet(24, dim=4, width=2, pooling="ASTP").state_dict(), "unknown .pool"),
        (wespeaker_names(wide.state_dict()), "are none of ResNet"),  # no size of it is so wide
        (wide.state_dict(), "are none of ResNet"),  # of another front-end, as IDRnD has it
    ]:
        torch.save(state, tmp_path / "model.pt")
        with pytest.raises(ValueError, match=says):
            load.load_named(f"wespeaker:{tmp_path / 'model.pt'}")


def power(path: Path, *shape: Any) -> Path:
    """A network in ONNX form: the mean over T or S of the squares of (B, T, F) or (B, S)."""
    keep, sizes = int(len(shape) == 2), (*shape, 1)
    lines = ["squares = Mul (x, x)", f"z = ReduceMean <keepdims = {keep}> (squares, axes)"]
    inputs = f"float[{','.join(map(str, shape))}] x"
    outputs = [f"float[{shape[0]},{sizes[2]}] z"]
    return save_onnx(path, inputs, outputs, lines, {"axes": np.array([1])})


def test_onnx_networks_over_filterbanks(voices, tmp_path):
    """Embeddings of two front-ends are of two models."""
    path = power(tmp_path / "speaker model.v1.onnx", "B", "T", 80)
    items = folders.items(voices, split="all")[:5]
    waves = [torch.from_numpy(audio.read(item))[None] for item in items]
    for frontend, fbank in BANKS.items():
        loaded = load.load_named(str(path), frontend=frontend)  # type: ignore[arg-type]
        embedded, _ = embed(loaded.embedder, items, loaded.read, batch_size=3)
        expected = torch.cat([fbank().eval()(wave)[0].square().mean(1) for wave in waves])
        np.testing.assert_allclose(embedded.matrix, expected, rtol=1e-5)
        # the digest of the usual front-end is that of the file
        assert (loaded.digest == sha256(path)) == (frontend == "wespeaker")


def test_metadata_of_sherpa_onnx_are_obeyed_or_refused(tmp_path):
    proto, file = onnx.load(power(tmp_path / "plain.onnx", "B", "T", 80)), tmp_path / "s.onnx"
    usual = {"framework": "wespeaker", "sample_rate": "16000", "normalize_samples": "0"}

    def stating(frontend: load.Frontend = "wespeaker", **metadata: str) -> Any:
        onnx.helper.set_model_props(proto, usual | metadata)
        onnx.save(proto, file)
        return load.load_named(str(file), frontend=frontend)

    wave = torch.randn(1, 4000) * 0.1
    scaled = {"framework": "3d-speaker", "normalize_samples": "1"}
    for metadata, frontend in (({}, "wespeaker"), (scaled, "3dspeaker")):
        for rate_hz in (8000, 16_000):
            model = stating(**metadata, sample_rate=str(rate_hz))
            assert load.reading_of(model)[1]["rate_hz"] == rate_hz
            bands = BANKS[frontend](rate_hz=rate_hz).eval()(wave)[0]
            torch.testing.assert_close(model.embedder(wave), bands.square().mean(1))
    assert stating("3dspeaker", **scaled).digest == stating(**scaled).digest
    refused = [{"framework": "nemo"}, {"sample_rate": "16k"}, {"comment": "likeness ab12, scored"}]
    for metadata, says in zip(refused, ("'nemo'", "'16k'", "give the run"), strict=True):
        with pytest.raises(ValueError, match=says):
            stating(**metadata)
    with pytest.raises(ValueError, match="state wespeaker filterbanks; omit '3dspeaker'"):
        stating("3dspeaker")


def test_onnx_networks_over_waves_and_what_is_refused(tmp_path):
    loaded = load.load_named(str(power(tmp_path / "w.onnx", 1, "S")))
    wave = torch.randn(3, 8000)  # the model takes one at a time
    expected = wave.square().mean(1, keepdim=True)
    torch.testing.assert_close(loaded.embedder(wave), expected)
    fixed = power(tmp_path / "f.onnx", 1, 4000)
    (tmp_path / "bad.onnx").write_bytes(fixed.read_bytes()[:50])
    wrong = {"f": "of any length", "no": "does not exist", "bad": "no ONNX model that can be run"}
    for name, says in wrong.items():
        with pytest.raises(ValueError, match=says):
            load.load_named(str(tmp_path / f"{name}.onnx"))


def test_a_front_end_is_taken_by_what_states_none(tmp_path):
    (tmp_path / "folder").mkdir()
    foreign = power(tmp_path / "folder" / "model.onnx", 1, 4000)
    for model in (foreign, tmp_path / "folder", "wespeaker:english"):
        assert load.takes_frontend(str(model))
    for model in ("likeness:voice", f"insightface:{foreign}", "own.py", "hub:net.onnx"):
        assert not load.takes_frontend(model)


def test_a_file_that_is_no_model_is_refused(tmp_path):
    for model, says in [
        ("speechbrain:nowhere", "neither a folder nor an id"),
        ("speechbrain:../../nowhere", "neither a folder nor an id"),
        ("pyannote:x", "does not exist"),
        ("timm:resnet18", "create_model"),
        ("nowhere", "does not exist"),
        (str(tmp_path), "holds no checkpoint"),
        ("wespeaker:nowhere.pt", "hf download .* avg_model.pt"),
    ]:
        with pytest.raises(ValueError, match=says):
            load.load_named(model)


HOSTILE_YAML = {
    "aliases": "a0: &a0 [x]\n"
    + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
    "merges": "b0: &b0 {x: 1}\n"
    + "".join(f"b{i}: &b{i}\n  <<: [{','.join([f'*b{i - 1}'] * 10)}]\n" for i in range(1, 10)),
    "depth": "[" * 5000,
    "number": "a: 1" + ":1" * 20_000 + ".5",
    "date": "a: 9999-99-99",
    "size": "a: 1" + ":1" * 100_000,
    "bytes": "a: \xff",
}


@pytest.mark.parametrize("kind", HOSTILE_YAML)
def test_settings_of_any_depth_and_size_are_refused(kind, tmp_path):
    """Ten aliases in a list, ten of that in another, ...: going through them, or merging them,
    takes for ever.
    """
    (tmp_path / "hyperparams.yaml").write_text(HOSTILE_YAML[kind], encoding="latin-1")
    with pytest.raises(ValueError, match=r"hyperparams\.yaml"):
        _speechbrain.read_settings(tmp_path / "hyperparams.yaml")


@pytest.mark.parametrize("depth", [40, 300])
def test_parts_inside_parts_of_any_depth_are_refused(depth, tmp_path):
    """Each level would be a call of a call, until Python's stack ends."""
    part: dict[str, Any] = {"call": "toolkit.backbones.image_resnet.SmallCNN", "args": {"dim": 4}}
    head = {"call": "toolkit.backbones.head.Head", "args": {}}
    for _ in range(depth):
        part = {"call": "toolkit.models.embedder.Joined", "args": {"network": part, "head": head}}
    calls = {"frontend": "toolkit.data.pixels.PixelScale", "read": "modalities.image.images.read"}
    parts = {name: {"call": call, "args": {}} for name, call in calls.items()} | {"backbone": part}
    stated = {"modality": "image", "features": "raw", "similarity": "cosine", "step": 1}
    file = tmp_path / "deep.safetensors"
    checkpoint.save(file, {"x": torch.zeros(3)}, stated | parts, checkpoint.FORMAT)
    with pytest.raises(ValueError, match="cannot be built"):
        load_model(file)
