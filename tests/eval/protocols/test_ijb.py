"""The IJB protocols: each preset against the tools' loops on synthetic features, the meta files,
and every switch in the record.
"""

from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
from sklearn.metrics import roc_curve

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.protocols.identification import IdentificationSettings
from likeness.eval.protocols.ijb import meta_files, protocol
from likeness.eval.protocols.ijb.meta_files import Faces, Side
from likeness.eval.types import Trials

# preset: flip, norm kept, detector score, template pooling, final L2, as field-face.md 1.8
# tabulates them
TABLE = {
    "likeness": ("sum", True, True, "sum", True),
    "insightface": ("sum", True, True, "sum", True),
    "insightface_ijb_evals": ("sum", True, True, "sum", True),
    "adaface": ("vector_add", True, False, "sum", True),
    "cvlface_n1d1": ("sum", True, True, "sum", True),
    "cvlface_n1d0": ("sum", True, False, "sum", True),
    "cvlface_n0d1": ("sum", False, True, "sum", True),
    "tface": ("none", False, True, "sum", True),
    "opensphere": ("views", True, False, "weighted", True),
    "opensphere_simple": ("views", True, False, "weighted", False),
}


@pytest.fixture(scope="module")
def world():
    """30 subjects, 4 templates each (two galleries of one each, probes), 1-7 faces in photos and
    videos; features whose norm and detector score vary.
    """
    rng = np.random.default_rng(0)
    template, medium, who, subject_of = [], [], [], {}
    for t in range(120):
        subject_of[100 + 3 * t] = 2**25 + t % 30
        for face in range(rng.integers(1, 8)):
            template.append(100 + 3 * t)
            medium.append(int(rng.integers(0, 3)) if face else 7)
            who.append(t % 30)
    order = rng.permutation(len(who))
    template, medium, who = (np.array(value)[order] for value in (template, medium, who))
    names = tuple(f"img/{i}.jpg" for i in range(len(who)))
    centres = rng.standard_normal((30, 12))
    scale = rng.uniform(0.5, 3.0, (len(who), 1))
    views = [
        Embeddings(names, scale * (centres[who] + 1.1 * rng.standard_normal((len(who), 12))))
        for _ in range(2)
    ]
    return Faces(names, template, medium), views, rng.uniform(0.1, 1.0, len(who)), subject_of


def loops(name, faces, views, detector):
    """The tools' code, face by face, template by template."""
    flip, keep_norm, use_detector, pooling, final = TABLE[name]
    feature, mirrored = (embedded.matrix.astype(np.float64) for embedded in views)
    result = {}
    for t in np.unique(faces.template):
        here = np.flatnonzero(faces.template == t)
        if pooling == "weighted":
            # OpenSphere: both views are observations of weight 1 / (count(mid) #media),
            # renormalised
            mids, counts = np.unique(faces.medium[here], return_counts=True)
            count = dict(zip(mids, counts, strict=True))
            weight = np.array([1 / count[medium] for medium in faces.medium[here]])
            weight = weight / (2 * weight.sum())
            fused = weight @ (feature[here] + mirrored[here])
        else:
            by_medium = {}
            for i in here:
                if flip == "vector_add":  # AdaFace pre_norm_vector_add
                    norms = [np.linalg.norm(x[i]) for x in (feature, mirrored)]
                    face = feature[i] / norms[0] * norms[0] + mirrored[i] / norms[1] * norms[1]
                else:
                    face = feature[i] + mirrored[i] if flip == "sum" else feature[i]
                if not keep_norm:
                    face = face / np.linalg.norm(face)
                face = face * detector[i] if use_detector else face
                by_medium.setdefault(faces.medium[i], []).append(face)
            fused = sum(np.mean(value, axis=0) for value in by_medium.values())
        result[str(t)] = fused / np.linalg.norm(fused) if final else fused
    return result


def both(views):
    matrix = np.concatenate([view.matrix for view in views], axis=1)
    return Embeddings(views[0].ids, matrix, {"flip": "concat"})


def pooled_by(name, world):
    faces, views, detector, _ = world
    switches = protocol.PRESETS[name]
    return protocol.templates(both(views), faces, switches, detector_scores=detector), switches


@pytest.mark.parametrize("name", list(protocol.PRESETS))
def test_templates_are_the_tools_loops(name, world):
    pooled, _ = pooled_by(name, world)
    expected = loops(name, *world[:3])
    assert set(pooled.ids) == set(expected)
    rows = [expected[id] for id in pooled.ids]
    np.testing.assert_allclose(pooled.matrix, rows, rtol=1e-5, atol=1e-6)


def all_pairs(subject_of, seed=1):
    rng = np.random.default_rng(seed)
    ids = np.array(list(subject_of))
    i, j = np.triu_indices(ids.size, 1)
    keep = rng.permutation(i.size)
    names = tuple(map(str, ids.tolist()))
    who = np.array(list(subject_of.values()))
    return Trials(names, names, i[keep], j[keep], (who[i] == who[j])[keep]), who


@pytest.mark.parametrize("name", list(protocol.PRESETS))
def test_verification_is_the_tools_reading_of_the_roc(name, world):
    pooled, switches = pooled_by(name, world)
    pairs, _ = all_pairs(world[3])
    x = dict(zip(pooled.ids, pooled.matrix.astype(np.float64), strict=True))
    scores = []
    for a, b in zip(pairs.enrol, pairs.probe, strict=True):
        u, v = x[pairs.enrol_ids[a]], x[pairs.probe_ids[b]]
        bias = 0.3 if name == "opensphere_simple" else 0.0
        scores.append(u @ v - bias * np.linalg.norm(u) * np.linalg.norm(v))
    far, tar, _ = roc_curve(pairs.target, np.array(scores), drop_intermediate=False)
    fars = (1e-4, 1e-3, 1e-2, 1e-1)
    results = protocol.verification_1_1("x", pooled, pairs, switches, fars=fars)
    actual = {result.metric: result for result in results}
    for reference in fars:
        if switches.tar_rule == "nearest":  # insightface: flipud, then the first nearest
            expected = np.flipud(tar)[np.argmin(abs(np.flipud(far) - reference))]
        elif switches.tar_rule == "interpolated":  # OpenSphere
            last = np.flatnonzero(far <= reference)[-1]
            expected = np.interp(reference, far[last : last + 2], tar[last : last + 2])
        else:
            expected = tar[far <= reference].max()
        first = actual[f"tar_at_far({reference:g})"]
        assert first.value == pytest.approx(expected, abs=1e-9)
        assert asdict(switches).keys() <= first.conventions.keys()
        assert first.conventions["far"] == reference
        allowed = int(reference * first.counts["nontargets"])
        expected = allowed if switches.tar_rule == "strict" else None
        assert first.conventions.get("nontargets_allowed") == expected


def test_the_record_names_preset_and_letters(world):
    pooled, switches = pooled_by("tface", world)
    pairs, _ = all_pairs(world[3])
    custom = replace(protocol.PRESETS["insightface"], keep_norm=False, detector_score=False)
    for used, preset, letters in ((switches, "tface", "N0D1F0"), (custom, "custom", "N0D0F2")):
        result = protocol.verification_1_1("x", pooled, pairs, used)[0]
        assert (result.metric, result.interval) == ("eer", None)
        stated = {"switches": letters, "flip": used.flip, "preset": preset}
        assert stated.items() <= result.conventions.items()
    result = protocol.verification_1_1("x", pooled, pairs, custom, fars=(0.01,), num_resamples=5)[0]
    assert "optimistic" in result.conventions["interval"]


@pytest.mark.parametrize(
    "name", ["likeness", "insightface", "insightface_ijb_evals", "opensphere_simple"]
)
def test_identification_is_the_tools_procedure(name, world):
    pooled, switches = pooled_by(name, world)
    ids, who = np.array(list(world[3])), np.array(list(world[3].values()))
    first, second = np.arange(0, 15), np.arange(15, 30)
    galleries = [Side(ids[value], who[value]) for value in (first, second)]
    probes = Side(ids[30:], who[30:])
    settings = IdentificationSettings(fpirs=(0.01, 0.1), ranks=(1, 5), num_resamples=20)
    sides = pooled, galleries, probes
    actual = protocol.identification_1_n("x", *sides, switches, settings=settings)
    values = {result.metric: result.value for result in actual.results}
    x = pooled.matrix[pooled.rows(map(str, ids.tolist()))].astype(np.float64)
    dots = x[30:] @ x[:30].T
    if name == "opensphere_simple":
        dots -= 0.3 * np.linalg.norm(x[30:], axis=1)[:, None] * np.linalg.norm(x[:30], axis=1)
    for fpir in (0.01, 0.1):
        if switches.tpir_protocol == "closed":
            others = np.sort(dots[probes.subject[:, None] != who[:30]])[::-1]
            own = dots[probes.subject[:, None] == who[:30]]
            expected = np.mean(own > others[int(np.ceil(fpir * len(own))) - 1])
        else:
            each = []
            for gallery in (first, second):
                part, names = dots[:, gallery], who[gallery]
                mated = np.isin(probes.subject, names)
                tops = np.sort(part[~mated].max(axis=1))[::-1]
                place = int(fpir * tops.size)
                limit = tops[place if switches.tpir_protocol == "open" else max(place - 1, 0)]
                hit = names[part[mated].argmax(axis=1)] == probes.subject[mated]
                each.append(np.mean(hit & (part[mated].max(axis=1) > limit)))
            expected = np.mean(each)
        assert values[f"tpir_at_fpir({fpir:g})"] == pytest.approx(expected, abs=1e-12)
    if switches.tpir_protocol == "closed":
        expected = np.mean(who[:30][dots.argmax(axis=1)] == probes.subject)
    else:
        hits = []
        for row, own in zip(dots, probes.subject, strict=True):
            gallery = first if own in who[first] else second
            hits.append(who[gallery][row[gallery].argmax()] == own)
        expected = np.mean(hits)
    assert values["rank_k(1)"] == pytest.approx(expected, abs=1e-12)
    used = {each.conventions["tpir_protocol"] for each in actual.results}
    assert used == {switches.tpir_protocol}


def test_other_switches(world):
    faces, views, _, _ = world
    plain = protocol.Switches(
        flip="included", detector_score=False, media="none", template="mean", final_norm=False
    )
    pooled = protocol.templates(views[0], faces, plain)
    expected = [views[0].matrix[faces.template == int(id)].mean(axis=0) for id in pooled.ids]
    np.testing.assert_allclose(pooled.matrix, expected, rtol=1e-5, atol=1e-6)


def test_bad_switches_are_refused(world):
    faces, views, detector, _ = world
    gone = Faces((*faces.names[:-1], "gone.jpg"), faces.template, faces.medium)
    pool = partial(protocol.templates, views[0])
    for refused, word in (
        (lambda: protocol.switches_of("arcface"), "arcface"),
        (lambda: protocol.Switches(flip="both"), "both"),  # type: ignore[arg-type]
        (lambda: protocol.switches_of("opensphere_simple", ["similarity=simple:3"]), "simple:3"),
        (lambda: pool(faces, protocol.Switches(), detector_scores=detector), "flip"),
        (lambda: protocol.templates(both(views), gone, protocol.PRESETS["adaface"]), "gone"),
    ):
        with pytest.raises(ValueError, match=word):
            refused()


def test_meta_files(tmp_path):
    file = tmp_path / "f.txt"
    file.write_text("1.jpg 1 69544\n2.jpg 1 50\n3.jpg 40000000 50\n")
    faces = meta_files.read_faces(file)
    assert faces.names == ("1.jpg", "2.jpg", "3.jpg")
    assert (faces.template.tolist(), faces.medium.tolist()) == ([1, 1, 40000000], [69544, 50, 50])
    file.write_text("22\t1  0\r\n1\t333  1\r\n22\t333  0\n\n")
    pairs = meta_files.read_template_pairs(file)
    assert [pairs.enrol_ids[i] for i in pairs.enrol] == ["22", "1", "22"]
    assert [pairs.probe_ids[i] for i in pairs.probe] == ["1", "333", "333"]
    assert pairs.target.tolist() == [False, True, False]
    file.write_text("TEMPLATE_ID,SUBJECT_ID,FILENAME\n7,2, \u00e9.jpg\n5,1,b.jpg\r\n7,2,c.jpg")
    side = meta_files.read_side(file)
    assert (side.template.tolist(), side.subject.tolist()) == ([7, 5], [2, 1])


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (meta_files.read_faces, "a.jpg 1 2\nb.jpg x 2\n"),
        (meta_files.read_faces, "a.jpg 1 2\na.jpg 1 3\n"),
        (meta_files.read_faces, ""),
        (meta_files.read_template_pairs, "1 2 1\n1 x 0\n"),
        (meta_files.read_template_pairs, "1 2 1\n1 2 7\n"),
        (meta_files.read_template_pairs, "7 2 1\n5 6 0\n1 2 0\n1 2 1\n"),
        (meta_files.read_side, "TEMPLATE_ID,SUBJECT_ID\n1,2\nx,3\n"),
        (meta_files.read_side, "TEMPLATE_ID,SUBJECT_ID\n1,2\n1,3\n"),
    ],
)
def test_damaged_meta_files_are_refused(tmp_path, read, text):
    (tmp_path / "f.txt").write_text(text)
    with pytest.raises(LikenessError, match=r"f\.txt"):
        read(tmp_path / "f.txt")


def test_every_face_has_one_detector_score(tmp_path):
    file = tmp_path / "f.txt"
    faces = Faces(("a.jpg", "b.jpg"), np.array([1, 1]), np.array([1, 2]))
    text = "b.jpg" + " 1.0" * 10 + " 0.8\na.jpg" + " 1.0" * 10 + " 0.9\n"
    file.write_text(text + text)
    assert meta_files.read_detector_scores(file, faces).tolist() == [0.9, 0.8]
    for wrong, says in (
        (text.replace("0.9", "nan"), "detector score"),
        (text + text.replace("0.9", "0.7"), "a.jpg"),
        (text[: text.index("a.jpg")], "a.jpg"),
    ):
        file.write_text(wrong)
        with pytest.raises(LikenessError, match=says):
            meta_files.read_detector_scores(file, faces)
