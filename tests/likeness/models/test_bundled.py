"""The voice model that comes with Likeness: its files, its card, and the commands that take it."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

import likeness
from likeness.eval.items.suffixes import AV_SOUNDS, SOUNDS
from likeness.models import bundled
from likeness.toolkit.training.start import Initial
from tests.scripts import run_command
from tests.toolkit.data.test_shards import tar

VOICE = Path(bundled.resolve_model(bundled.VOICE))


def test_the_folder_holds_one_model_with_its_numbers_and_nothing_else():
    files = {path.name for path in VOICE.iterdir()}
    numbers = {"CARD.md", "calibration.json", "thresholds.json"}
    assert files == {*numbers, "last.safetensors", "model.onnx"}
    assert sum(path.stat().st_size for path in VOICE.iterdir()) < 4_000_000
    model = likeness.load(bundled.VOICE)
    assert (model.modality, model.similarity) == ("speaker", "dot")
    assert model.calibration.systems == (f"dot, model {model.meta['model'][:16]}",)
    # `thresholds` gives only those that hold for the digest of the network.
    assert model.thresholds.at("eer").value < model.thresholds.at(0.01).value


def test_two_recordings_are_compared_without_naming_a_model(spoken, tmp_path, capsys):
    ann = sorted((spoken / "spk000").iterdir())
    bob = sorted((spoken / "spk001").iterdir())
    assert run_command("verify", ann[0], bob[0], "--json", tmp_path / "v.json") == 0
    printed = capsys.readouterr()
    assert "of the same subject, if 0.5 of all pairs are" in printed.out
    assert "likeness:voice is the small voice model" in printed.err
    assert printed.err.count("not for decisions about people") == 1
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert 0 < verdict["probability"] < 1

    assert run_command("verify", ann[0], ann[1], "--model", bundled.VOICE, "--far", "0.01") == 0
    printed = capsys.readouterr()
    assert "at FAR 1 %, measured on speechocean, AN4 and LibriSpeech" in printed.out
    assert "small voice model" not in printed.err  # whoever names it knows it

    (spoken / "list.csv").write_text(f"clip;who\n{ann[0].relative_to(spoken)};ann\n")
    columns = ("--columns", "path=clip", "--columns", "label=who", "--gallery", tmp_path / "people")
    for command, said in (("enrol", "1 file of 1 subject"), ("search", "stored at eer, 0.01")):
        assert run_command("gallery", command, spoken / "list.csv", *columns) == 0
        printed = capsys.readouterr()
        assert said in printed.out + printed.err
        assert "likeness:voice is the small" in printed.err


def test_every_format_that_is_read_is_a_recording_by_its_name():
    for suffix in (*SOUNDS, *AV_SOUNDS):
        assert bundled.model_for([f"a{suffix}", "b.png"]) == bundled.VOICE
        with pytest.raises(ValueError, match="is no recording"):
            bundled.model_for([f"a{suffix}x"])


def test_data_of_which_nobody_names_the_model_are_what_most_items_are(tmp_path):
    album, recordings = tmp_path / "album" / "ann", tmp_path / "recordings"
    album.mkdir(parents=True)
    recordings.mkdir()
    for name in ("1.jpg", "2.jpg", "live.mov", ".hidden.wav", ".other.wav"):
        (album / name).touch()
    for name in ("meeting.wav", "other.wav"):
        (recordings / name).touch()
    rttm = tmp_path / "meeting.rttm"
    rttm.write_text("SPEAKER meeting 1 0 1 <NA> <NA> ann <NA> <NA>\n")
    kaldi = tmp_path / "kaldi"
    kaldi.mkdir()
    (kaldi / "wav.scp").write_text("a recordings/meeting.wav\n")
    shard = tar(tmp_path / "faces.tar", [("ann/1.jpg", b"a picture"), ("bob/1.jpg", b"another")])
    made_for = {album.parent: bundled.FACE, shard: bundled.FACE, kaldi: bundled.VOICE}
    with pytest.warns(UserWarning, match="most files are images; 1 other passed over"):
        bundled.model_of_data(album.parent)
    for data, model in {**made_for, recordings / "other.wav": bundled.VOICE}.items():
        assert bundled.model_of_data(data) == model, data
    assert bundled.model_of_data(rttm, root=recordings) == bundled.VOICE
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no files"):
        bundled.model_of_data(tmp_path / "empty")


def test_what_the_model_was_not_made_for_is_refused(spoken, tmp_path):
    wave, rate_hz = soundfile.read(next((spoken / "spk000").iterdir()))
    soundfile.write(tmp_path / "short.wav", wave[: rate_hz // 2], rate_hz)
    soundfile.write(tmp_path / "telephone.wav", wave[::2], rate_hz // 2)
    model = likeness.load(bundled.VOICE)
    whole = next((spoken / "spk001").iterdir())
    with pytest.raises(ValueError, match=r"too short"):
        model.verify(whole, tmp_path / "short.wav")
    with pytest.raises(ValueError, match=r"telephone"):
        model.verify(whole, tmp_path / "telephone.wav")
    padded = np.concatenate([0.1 * wave, np.zeros(rate_hz)])
    scores = [model.verify(whole, each, rate_hz=rate_hz).score for each in (wave, padded)]
    assert scores[0] == pytest.approx(scores[1], abs=0.2)  # neither loudness nor silence matters


def test_training_starts_from_it():
    from likeness.models.load import read_initial

    initial = read_initial(bundled.VOICE)
    assert isinstance(initial, Initial)
    assert initial.source.startswith("likeness:voice (")


def test_both_of_its_files_are_one_model(spoken):
    in_onnx, in_torch = likeness.load(bundled.VOICE), likeness.load(VOICE)
    assert dict(in_onnx.meta) == dict(in_torch.meta)
    assert in_onnx.norm_is_quality == in_torch.norm_is_quality
    rows = [model.embed(spoken).matrix for model in (in_onnx, in_torch)]
    np.testing.assert_allclose(*rows, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # an export
def test_it_is_exported_with_its_thresholds(spoken, tmp_path):
    assert run_command("export", bundled.VOICE, "--out", tmp_path / "voice.onnx") == 0
    exported, model = likeness.load(tmp_path / "voice.onnx"), likeness.load(bundled.VOICE)
    assert exported.thresholds is not None
    np.testing.assert_array_equal(exported.embed(spoken).matrix, model.embed(spoken).matrix)
