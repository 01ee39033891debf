"""IJB from images to the table, by the commands of docs/reference/protocols.md on a small pack:
aligned, embedded with both views, killed and gone on, 1:1 and 1:N.
"""

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
import torch
from insightface.utils import face_align

from likeness.eval.formats import embeddings as files
from likeness.eval.protocols.identification import IdentificationSettings
from likeness.eval.protocols.ijb import meta_files, protocol
from likeness.eval.protocols.ijb.evaluate import evaluate_files
from likeness.modalities import folders, synthetic_faces
from likeness.modalities.face import images
from likeness.models.run import load_model
from likeness.toolkit.backbones.sfnet import SFNet
from likeness.toolkit.data.images import encode
from likeness.toolkit.data.pixels import INSIGHTFACE
from likeness.toolkit.losses.margin import ArcFace
from likeness.toolkit.training.recipe import Recipe
from tests import tiny
from tests.scripts import printed, refused

ROOT = Path(__file__).parents[3]
SUBJECTS = 6
RECIPE = Recipe(
    modality="face",
    frontend=INSIGHTFACE,
    backbone=partial(SFNet, dim=12, depth=4, width=8, batch_norm=True),
    loss=ArcFace,
    items=partial(folders.items, modality="face"),
    read=images.read,
)


class Pack(NamedTuple):
    """A folder as IJB-C, and what a test has to know of its faces."""

    root: Path
    names: list[str]
    points: list[np.ndarray[Any, Any]]
    scores: list[float]


def write_pack(root: Path) -> Pack:
    """A pack of SUBJECTS subjects with 3 templates of 1 to 5 faces each: one enrolled in G1 or G2,
    two probes.
    """
    rng, name_of_set = np.random.default_rng(0), root.name.lower()
    pack = Pack(root, [], [], [])
    (root / "loose_crop").mkdir(parents=True)
    (root / "meta").mkdir()

    def write(name: str, lines: list[str]) -> None:
        (root / "meta" / f"{name_of_set}_{name}").write_text("\n".join(lines) + "\n")

    subject_of = {100 + 7 * t: 900 + t % SUBJECTS for t in range(3 * SUBJECTS)}
    landmarks, faces = [], []
    for template, subject in subject_of.items():
        for shot in range(int(rng.integers(1, 6))):
            image, points = synthetic_faces.face(subject, 10 * template + shot, size=96)
            # a loose crop: the face anywhere in a larger picture
            left, top = before = rng.integers(0, 40, 2)
            loose = np.full((150, 140, 3), 90, dtype=np.uint8)
            loose[top : top + 96, left : left + 96] = image
            pack.names.append(f"{len(pack.names) + 1}.png")
            (root / "loose_crop" / pack.names[-1]).write_bytes(encode(loose))
            pack.points.append(np.round(points + before, 3))
            pack.scores.append(round(float(rng.uniform(0.3, 1.0)), 4))
            words = (pack.names[-1], *pack.points[-1].ravel(), pack.scores[-1])
            landmarks.append(" ".join(map(str, words)))
            faces.append(f"{pack.names[-1]} {template} {rng.integers(1, 3)}")
    write("name_5pts_score.txt", landmarks)
    write("face_tid_mid.txt", faces)
    enrolled, probes = list(subject_of)[:SUBJECTS], list(subject_of)[SUBJECTS:]
    half = SUBJECTS // 2
    sides = {"gallery_G1": enrolled[:half], "gallery_G2": enrolled[half:], "probe_mixed": probes}
    for name, side in sides.items():
        rows = [f"{template},{subject_of[template]},x.jpg" for template in side]
        write(f"1N_{name}.csv", ["TEMPLATE_ID,SUBJECT_ID,FILENAME", *rows])
    pairs = [(a, b, int(subject_of[a] == subject_of[b])) for a in enrolled for b in probes]
    write("template_pair_label.txt", [f"{a} {b} {same}" for a, b, same in pairs])
    return pack


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_pack(tmp_path_factory.mktemp("pack") / "IJBC")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.untrained(tmp_path_factory.mktemp("model"), RECIPE)


@pytest.fixture(scope="module")
def features(small, model, tmp_path_factory):
    out = tmp_path_factory.mktemp("features") / "ijbc.npz"
    printed("embed", "--model", model, "--ijb", small.root, "--flip", "concat", "--out", out)
    return out


def test_faces_are_aligned_and_both_views_embedded(small, model, features, tmp_path):
    contents = files.read_embeddings(features)
    network = load_model(model).embedder
    rows = []
    for name, points in zip(small.names, small.points, strict=True):
        picture = cv2.imread(str(small.root / "loose_crop" / name))
        aligned = face_align.norm_crop(picture, points)[..., ::-1]
        both = (np.stack([aligned, aligned[:, ::-1]]) - 127.5) / 127.5
        views = torch.from_numpy(both).float().permute(0, 3, 1, 2)
        with torch.no_grad():
            rows.append(network.backbone(views).flatten().numpy())
    assert contents.ids == tuple(small.names)
    bound = 1e-4 * np.abs(rows).max()
    np.testing.assert_allclose(contents.matrix, np.stack(rows), rtol=1e-3, atol=bound)
    assert contents.meta["flip"] == "concat"
    assert contents.meta["faces"] == "aligned to 112 x 112 by the pack's 5 landmarks"
    total = contents.matrix[:, :12] + contents.matrix[:, 12:]
    summed = tmp_path / "sum.npz"
    printed("embed", "--model", model, "--ijb", small.root, "--flip", "sum", "--out", summed)
    np.testing.assert_allclose(files.read_embeddings(summed).matrix, total, rtol=1e-4, atol=1e-4)


def test_three_presets_from_features_to_the_tables(small, features, tmp_path):
    """What the protocols give, which tests/eval/protocols/test_ijb.py derives as the tools do."""
    tools = ("insightface", "adaface", "opensphere")
    chosen = [text for tool in tools for text in ("--preset", tool)]
    one_to_one, one_to_many = tmp_path / "11.json", tmp_path / "1n.json"
    pack = ("--ijb", small.root, *chosen)
    fars = ("--far", 0.1, "--far", 0.02)
    shown = printed("evaluate", features, *pack, *fars, "--json", one_to_one)
    assert "detector_score False" in shown
    points = ("--fpir", 0.1, "--rank", 1, "--resamples", 20)
    printed("identify", "--probes", features, *pack, *points, "--json", one_to_many)
    loaded = {
        (result["system"], result["metric"]): result
        for path in (one_to_one, one_to_many)
        for result in json.loads(path.read_text())["results"]
    }
    meta, rows = meta_files.find_meta_files(small.root), files.read_embeddings(features)
    pairs, faces = meta_files.read_template_pairs(meta.pairs), meta_files.read_faces(meta.faces)
    galleries = [meta_files.read_side(path) for path in meta.galleries]
    sides = galleries, meta_files.read_side(meta.probes)
    settings = IdentificationSettings(fpirs=(0.1,), ranks=(1,), num_resamples=20)
    for tool in tools:
        switches = protocol.PRESETS[tool]
        pooled = protocol.templates(rows, faces, switches, detector_scores=small.scores)
        expected = protocol.verification_1_1(tool, pooled, pairs, switches, fars=(0.1, 0.02))
        expected += protocol.identification_1_n(tool, pooled, *sides, switches, settings).results
        assert len(expected) == 6
        for result in expected:
            written = loaded[tool, result.metric]
            assert written["value"] == pytest.approx(result.value, abs=1e-12)
            assert written["conventions"]["preset"] == tool
        assert loaded[tool, "tar_at_far(0.1)"]["counts"]["targets"] == 2 * SUBJECTS
        assert loaded[tool, "rank_k(1)"]["interval"] is not None


def test_documented_commands_run_and_presets_are_the_code_s(small, model, tmp_path, monkeypatch):
    section = (ROOT / "docs" / "how-to" / "ijb.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    joined = re.sub(r"\\\n\s*", "", section)  # of commands that go on in the next line
    commands = [line.split()[1:] for line in joined.splitlines() if line.startswith("likeness ")]
    assert [command[0] for command in commands] == ["embed", "evaluate", "identify"]
    given = {"MODEL": model, "IJBC": small.root, "8": 0}
    shown = [printed(*(given.get(word, word) for word in command)) for command in commands]
    assert "TAR (%) at FAR 0.0001" in shown[1]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    documented: dict[str, protocol.Switches] = {}
    for names, *values in rows[1:]:
        changes = [f"{switch}={value}" for switch, value in zip(rows[0][1:], values, strict=True)]
        switches = protocol.switches_of("likeness", changes)
        documented |= dict.fromkeys(names.split("`")[1::2], switches)
    assert documented == protocol.PRESETS


def test_intervals_switches_and_wrong_options(small, features, tmp_path):
    rest = ("--ijb", small.root)
    asked = ("--switch", "tar_rule=interpolated", "--far", 0.1, "--resamples", 20)
    printed("evaluate", features, *rest, *asked, "--json", tmp_path / "x.json")
    loaded = json.loads((tmp_path / "x.json").read_text())["results"][1]
    stated = loaded["conventions"]
    assert (stated["tar_rule"], stated["preset"]) == ("interpolated", "custom")
    assert loaded["counts"]["subjects"] == SUBJECTS
    assert loaded["interval"][0] <= loaded["value"] <= loaded["interval"][1]
    evaluate, identify = ("evaluate", features), ("identify", "--probes", features)
    for command, word in (
        ((*evaluate, *rest, "--tar-rule", "strict", "--llr"), "--tar-rule and --llr"),
        ((*evaluate, "--preset", "adaface"), "--ijb"),
        ((*evaluate, *rest, "--switch", "keep_norm=yes"), "True, False"),
        (identify, "--gallery FILE or --ijb FOLDER"),
        ((*identify, *rest, "--protocol", "closed"), "--protocol"),
    ):
        assert word in refused(*command)


def test_a_pack_without_landmarks_serves_presets_that_need_none(small, features, tmp_path):
    shutil.copytree(small.root / "meta", tmp_path / "meta")
    (tmp_path / "meta" / "ijbc_name_5pts_score.txt").unlink()
    measure = partial(evaluate_files, [features], tmp_path, json_file=tmp_path / "j")
    measure(["adaface"])
    assert "5pts" not in (tmp_path / "j").read_text()
    with pytest.raises(FileNotFoundError):
        measure(["insightface"])
