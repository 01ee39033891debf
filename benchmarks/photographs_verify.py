"""The part `verify` of benchmarks/photographs.py: ORL's trials before and after alignment.

Measures: the EER over pairs of photographs that every chain found, with dlib's recognition network
    (nothing trained here; all pairs) and with the recipe face/orl:arcface (five folds over
    subjects, seed 0), paired over the same draws of subjects. photographs.py says what is needed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray
from performance import ROOT, row, table

from eval.bootstrap import drawn_from, resample, t_interval
from eval.formats import embeddings
from eval.similarity import score_trials
from eval.types import Embeddings, Scores, Trials
from eval.verification import eer
from modalities.face import align, images, orl
from toolkit.data.images import Pixels, encode

if TYPE_CHECKING:
    from photographs import Setting

NUM_FOLDS = 5
FOREIGN = ("s1", "s2")  # of the copy that was measured: not Olivetti's subjects
# Where our five points lie in dlib's chips of 150 x 150: the means over 37 faces of the samples. No
# photograph of ORL was used.
DLIB_FRAME = np.array([(47.2, 46.0), (101.2, 45.3), (73.0, 77.8), (53.5, 101.2), (98.7, 100.5)])
NAMES = ("plain", "our crop", "our points, dlib's frame", "our box, dlib's points", "dlib's own")
Floats = NDArray[np.float64]


def prepare(setting: Setting) -> tuple[Path, Path]:
    """Write the photographs and the crops of those that every chain found, in ORL's layout.

    Returns:
        The folder of the photographs as they are, and that of the crops.
    """
    import dlib

    plain, aligned = setting.out / "plain", setting.out / "aligned"
    if plain.exists() and aligned.exists():
        return plain, aligned
    made = align.align_folder(
        setting.data / "orl", setting.out / "crops", detector=setting.detector
    )
    hog = dlib.get_frontal_face_detector()
    found = {"ours": 0, "dlib": 0, "both": 0}
    part = setting.out / "plain.part"
    shutil.rmtree(part, ignore_errors=True)
    crops = {item.id: item.path for item in made.done}
    for item in orl.items(setting.data, split="all"):
        pixels = images.decode(item)
        ours, theirs = f"{item.id}.pgm" in crops, len(hog(pixels, 1)) > 0
        found["ours"] += ours
        found["dlib"] += theirs
        found["both"] += ours and theirs
        if ours and theirs:
            for folder, content in (
                (part, encode(pixels)),
                (aligned, crops[f"{item.id}.pgm"].read_bytes()),
            ):
                file = folder / "orl" / f"{item.id}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
    (setting.out / "found.txt").write_text(str(found), encoding="utf-8")
    part.replace(plain)
    return plain, aligned


def dlib_chips(setting: Setting, plain: Path, aligned: Path) -> dict[str, dict[str, Pixels]]:
    """The images of 150 x 150 pixels that dlib's network gets, by chain and photograph."""
    import dlib

    assert setting.peers is not None
    shape = dlib.shape_predictor(
        str(setting.peers / "models" / "shape_predictor_5_face_landmarks.dat")
    )
    hog, ours = dlib.get_frontal_face_detector(), align.load_detector(setting.detector)
    chips: dict[str, dict[str, Pixels]] = {name: {} for name in NAMES}
    size = (150, 150)
    for item in orl.items(plain, split="all"):
        pixels = images.decode(item)
        square = cv2.copyMakeBorder(pixels, 0, 0, 10, 10, cv2.BORDER_CONSTANT)
        chips["plain"][item.id] = np.asarray(cv2.resize(square, size), np.uint8)
        crop = images.decode(item._replace(path=aligned / "orl" / f"{item.id}.png"))
        chips["our crop"][item.id] = np.asarray(cv2.resize(crop, size), np.uint8)
        faces = align.detect(ours, pixels)
        face = align.choose_face(faces, *pixels.shape[:2])
        matrix = similarity(faces.landmarks[face], DLIB_FRAME)
        warped = cv2.warpAffine(pixels, matrix, size)
        chips["our points, dlib's frame"][item.id] = np.asarray(warped, np.uint8)
        x1, y1, x2, y2 = faces.boxes[face]
        # dlib's boxes are square, and begin at the brows.
        side, middle = (x2 - x1 + y2 - y1) / 2, ((x1 + x2) / 2, y1 + 0.55 * (y2 - y1))
        left, top = round(middle[0] - side / 2), round(middle[1] - side / 2)
        boxes = {
            "our box, dlib's points": dlib.rectangle(
                left, top, left + round(side), top + round(side)
            ),
            "dlib's own": max(hog(pixels, 1), key=lambda box: box.area()),
        }
        for name, box in boxes.items():
            chips[name][item.id] = dlib.get_face_chip(pixels, shape(pixels, box), 150, 0.25)
    return chips


def similarity(points: Floats, goals: Floats) -> Floats:
    """The matrix (2, 3) of the similarity that takes points to goals by least squares."""
    a, b = (array[:, 0] + 1j * array[:, 1] for array in (points, goals))
    centred = a - a.mean()
    factor = (centred.conj() * (b - b.mean())).sum() / (np.abs(centred) ** 2).sum()
    shift = b.mean() - factor * a.mean()
    return np.array(
        ((factor.real, -factor.imag, shift.real), (factor.imag, factor.real, shift.imag))
    )


def dlib_embeddings(setting: Setting, plain: Path, aligned: Path) -> dict[str, Embeddings]:
    """dlib's embeddings of every chain; what OUT has is read."""
    import dlib

    files = {name: setting.out / "dlib" / f"{name}.npz" for name in NAMES}
    missing = [name for name in NAMES if not files[name].exists()]
    if missing:
        assert setting.peers is not None
        network = dlib.face_recognition_model_v1(
            str(setting.peers / "models" / "dlib_face_recognition_resnet_model_v1.dat")
        )
        chips = dlib_chips(setting, plain, aligned)
        for name in missing:
            rows = [network.compute_face_descriptor(chip) for chip in chips[name].values()]
            files[name].parent.mkdir(parents=True, exist_ok=True)
            matrix = np.array(rows, np.float32)
            embeddings.write(files[name], Embeddings(tuple(chips[name]), matrix))
    return {name: embeddings.read(file) for name, file in files.items()}


def recipe_embeddings(data: Path, out: Path) -> list[Embeddings]:
    """The embeddings of the five folds by face/orl:arcface, seed 0; what OUT has is read."""
    from likeness.models.run import load_model
    from toolkit.models.embed import embed
    from toolkit.training import recipe as recipes
    from toolkit.training.train import fit

    result = []
    for fold in range(NUM_FOLDS):
        file = out / f"fold{fold}.npz"
        if not file.exists():
            recipe, _ = recipes.load(f"{ROOT / 'recipes' / 'face' / 'orl.py'}:arcface")
            settings = [f"items.fold={fold}", f"measure.trials.fold={fold}"]
            recipe = recipes.override(recipe, settings)
            model = load_model(fit(recipe, data=data, out=out / f"run{fold}", resume=True))
            items = orl.items(data, split="test", fold=fold)
            embedded, _ = embed(model.embedder, items, model.read, meta=model.meta)
            file.parent.mkdir(parents=True, exist_ok=True)
            embeddings.write(file, embedded)
        result.append(embeddings.read(file))
    return result


def scored(
    lists: list[tuple[Trials, Embeddings]], left_out: tuple[str, ...]
) -> tuple[Scores, NDArray[Any]]:
    """The scores of all lists by cosine, without some subjects, and the subjects of each trial."""
    values, target, sides = [], [], []
    for trials, embedded in lists:
        names = [
            np.array([name.split("/")[0] for name in ids])[index]
            for ids, index in ((trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe))
        ]
        both = np.stack(names, axis=1)
        chosen = ~np.isin(both, left_out).any(axis=1)
        assert trials.target is not None
        values.append(score_trials(trials, embedded)[chosen])
        target.append(trials.target[chosen])
        sides.append(both[chosen])
    subjects = np.unique(np.concatenate(sides), return_inverse=True)[1].reshape(-1, 2)
    return Scores(np.concatenate(values), np.concatenate(target)), subjects


def verify_part(setting: Setting) -> None:
    """Print the EER of every chain, and its paired difference to the photographs as they are."""
    plain, aligned = prepare(setting)
    print((setting.out / "found.txt").read_text(encoding="utf-8"))
    print()
    table(
        "network",
        "photographs",
        "subjects",
        "trials",
        "EER % (over subjects)",
        "to plain, paired",
    )
    _, trials = orl.trials(plain, split="all", num_folds=NUM_FOLDS)
    chains: dict[str, dict[str, list[tuple[Trials, Embeddings]]]] = {
        "dlib": {
            name: [(trials, embedded)]
            for name, embedded in dlib_embeddings(setting, plain, aligned).items()
        }
        if setting.peers is not None
        else {},
        "face/orl:arcface": {
            name: [
                (orl.trials(data, split="test", fold=fold)[1], embedded)
                for fold, embedded in enumerate(
                    recipe_embeddings(data, setting.out / "recipe" / name)
                )
            ]
            for name, data in (("plain", plain), ("our crop", aligned))
        },
    }
    for left_out in ((), FOREIGN):
        for network, every in chains.items():
            against: tuple[float, Floats] | None = None
            for name, lists in every.items():
                scores, subjects = scored(lists, left_out)
                error = eer(scores.targets, scores.nontargets)
                draws = resample({"eer": eer}, scores, subjects, num_resamples=1000, seed=0)
                number = drawn_from(scores.target, subjects).effective
                assert number is not None
                low, high = t_interval(draws.values["eer"], error, 0.95, number)
                compared = ""
                if against is None:
                    against = error, draws.values["eer"]
                else:
                    less, more = t_interval(
                        draws.values["eer"] - against[1],
                        error - against[0],
                        0.95,
                        number,
                        difference=True,
                    )
                    compared = (
                        f"{100 * (error - against[0]):+.2f} [{100 * less:+.1f}, {100 * more:+.1f}]"
                    )
                row(
                    network,
                    name,
                    len(np.unique(subjects)),
                    len(scores.values),
                    f"{100 * error:.2f} [{100 * low:.1f}, {100 * high:.1f}]",
                    compared,
                )
