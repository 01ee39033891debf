"""Faces to the position that recognition networks expect: a similarity transform of five landmarks,
computed and applied by InsightFace's functions.

Landmarks are (5, 2) pixels, x to the right and y down: left eye, right eye (as seen in the
picture), nose, left and right corner of the mouth. The reference is InsightFace's arcface_dst
(insightface/utils/face_align.py): 112 x 112; multiples of 112, and of 128 (with a margin at the
sides), follow from it. The images that networks were trained on were made so; another reference, or
none, costs 9 points of TAR (field-face 1.2).

Detectors are files that the user has (SCRFD with landmarks, as in InsightFace's packs, whose
licence is for non-commercial research). Nothing is downloaded.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.formats.files import atomic_path
from eval.types import name_first
from modalities.face.images import decode
from toolkit.console import console, track
from toolkit.data.batch import Bad, Item
from toolkit.data.images import SUFFIXES, BadImage, Pixels, encode, to_floats
from toolkit.models.onnx import open_session

Choose = Literal["largest", "central"]
Floats = NDArray[np.float64]


class Faces(NamedTuple):
    """F faces that a detector found: boxes (F, 4) as x1 y1 x2 y2, scores (F,) and landmarks (F, 5,
    2), in pixels, by falling score.
    """

    boxes: Floats
    scores: Floats
    landmarks: Floats


class Aligned(NamedTuple):
    """What align_folder() did: images written (or found written before), ids of those with several
    faces (of both), and the failures with their reasons.
    """

    done: list[Item]
    several: list[str]
    failures: list[Bad]


def check(size: int = 112, width: int | None = None, choose: Choose = "largest") -> None:
    """ValueError for what no photograph mends: a size, a width or a rule that is not defined.

    Call it before any work, so that it is no image's failure.
    """
    if size < 1 or (size % 112 and size % 128):
        raise ValueError(f"align: size is {size}; multiples of 112 and of 128 are defined")
    if width is not None and (not 0 < width <= size or (size - width) % 2):
        raise ValueError(
            f"align: width is {width}; 1 to {size}, less by an even number, is allowed"
        )
    if choose not in get_args(Choose):
        raise ValueError(f"align: choose is {choose!r}; 'largest' and 'central' are allowed")


def transform(landmarks: ArrayLike, size: int = 112) -> Floats:
    """(5, 2) landmarks -> the (2, 3) matrix that takes them to the reference for size x size, by
    least squares (Umeyama 1991).

    ValueError: another shape, NaN, landmarks that (nearly) coincide, a size that is no multiple of
    112 or 128.
    """
    points = np.asarray(landmarks, dtype=np.float64)
    if points.shape != (5, 2) or not np.isfinite(points).all():
        raise ValueError(
            f"align: landmarks of shape {points.shape}; (5, 2) finite pixels are needed: eyes, "
            "nose, corners of the mouth"
        )
    check(size)
    if float(np.ptp(points, axis=0).max()) < 1e-3:
        raise ValueError(
            "align: the five landmarks coincide, so that they give no scale; detect them again"
        )
    matrix: Floats = np.asarray(_face_align().estimate_norm(points, size), dtype=np.float64)
    if not np.isfinite(matrix).all():
        raise ValueError("align: no transform fits the landmarks; detect them again")
    return matrix


def crop(
    pixels: Pixels, landmarks: ArrayLike, size: int = 112, *, width: int | None = None
) -> Pixels:
    """(H, W, 3) and its (5, 2) landmarks -> (size, width, 3), bilinear, black outside the image:
    insightface.utils.face_align.norm_crop.

    width: narrower, cut alike on both sides: crop(..., 112, width=96) is SphereFace's 112 x 96.
    Errors as transform().
    """
    check(size, width)
    matrix = transform(landmarks, size)
    width = size if width is None else width
    matrix[0, 2] -= (size - width) / 2
    warped: Pixels = np.asarray(
        cv2.warpAffine(pixels, matrix, (width, size), borderValue=0.0), dtype=np.uint8
    )
    return warped


def load_detector(path: str | Path, *, min_score: float = 0.5) -> Any:
    """An SCRFD detector with landmarks from a local .onnx file.

    ValueError for a file that is none; FileNotFoundError; no download.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file; the path of an SCRFD .onnx file on this machine is needed "
            "(nothing is downloaded)"
        )
    if not 0.0 < min_score < 1.0:
        raise ValueError(
            f"detector: min_score is {min_score}; a value between 0 and 1 is needed, 0.5 is usual"
        )
    _face_align()
    from insightface.model_zoo.scrfd import SCRFD

    try:
        detector = SCRFD(session=open_session(path))
    except Exception as error:  # insightface's own kinds
        raise ValueError(
            f"{path}: no ONNX model that can be run ({str(error)[:120]}); an SCRFD detector is "
            "needed"
        ) from None
    if not detector.use_kps:
        raise ValueError(
            f"{path}: a model with {len(detector.output_names)} outputs; an SCRFD detector with "
            "landmarks has 9 or 15 (its name says kps or bnkps)"
        )
    detector.det_thresh = min_score
    return detector


def detect(detector: Any, pixels: Pixels) -> Faces:
    """Every face of an (H, W, 3) RGB image. The detector sees it in InsightFace's order, BGR."""
    found, landmarks = detector.detect(np.ascontiguousarray(pixels[..., ::-1]))
    table = np.asarray(found, dtype=np.float64).reshape(-1, 5)
    return Faces(
        table[:, :4], table[:, 4], np.asarray(landmarks, dtype=np.float64).reshape(-1, 5, 2)
    )


def choose_face(faces: Faces, height: int, width: int, choose: Choose = "largest") -> int:
    """Number of the face to take. largest: the largest box; central: InsightFace's rule, area - 2 x
    squared distance from the centre.

    Pixels; ties: the first. ValueError: no face, another rule.
    """
    check(choose=choose)
    if not len(faces.boxes):
        raise ValueError("align: there is no face to choose")
    x1, y1, x2, y2 = faces.boxes.T
    value = (x2 - x1) * (y2 - y1)
    if choose == "central":
        value = value - 2.0 * (
            ((x1 + x2) / 2 - width // 2) ** 2 + ((y1 + y2) / 2 - height // 2) ** 2
        )
    return int(np.argmax(value))


def align_one(
    detector: Any,
    pixels: Pixels,
    *,
    size: int = 112,
    width: int | None = None,
    choose: Choose = "largest",
) -> tuple[Pixels, int]:
    """The aligned crop of one image and how many faces it has.

    ValueError: none, or the chosen one's landmarks lie outside the image.
    """
    height, breadth = pixels.shape[:2]
    faces = detect(detector, pixels)
    if not len(faces.boxes):
        raise ValueError("no face found")
    points = faces.landmarks[choose_face(faces, height, breadth, choose)]
    outside = int(
        np.count_nonzero(~((points >= 0) & (points <= (breadth - 1, height - 1))).all(axis=1))
    )
    if outside:
        raise ValueError(
            f"{outside} of the 5 landmarks of the chosen face lie outside the image of {breadth} x "
            f"{height} pixels"
        )
    return crop(pixels, points, size, width=width), len(faces.boxes)


def read(
    item: Item,
    *,
    detector: str,
    size: int = 112,
    width: int | None = None,
    choose: Choose = "largest",
    min_score: float = 0.5,
) -> NDArray[np.float32]:
    """A photograph -> (3, size, width) float32 RGB, 0 to 255, of its aligned face: what images.read
    gives of a crop that was aligned before.

    detector: an SCRFD .onnx file, loaded once in each process. Where there are several faces,
    stderr says so and one is taken (choose_face). Raises BadImage as images.decode() does, where no
    face is found, and for landmarks outside the image; else as load_detector() and check() do.
    """
    check(size, width, choose)
    model = _detector_of(os.getpid(), detector, min_score)
    pixels = decode(item)
    try:
        aligned, num_faces = align_one(model, pixels, size=size, width=width, choose=choose)
    except ValueError as error:
        raise BadImage(
            f"{item.name}: {error}; give a photograph that shows the whole face, or align it by "
            "hand"
        ) from None
    if num_faces > 1:
        console.print(f"{item.name}: {num_faces} faces; the {choose} one was taken")
    return to_floats(aligned)


@lru_cache(maxsize=1)
def _detector_of(process: int, path: str, min_score: float) -> Any:
    """One for each process: an ONNX Runtime session does not survive a fork."""
    return load_detector(path, min_score=min_score)


def align_folder(
    root: str | Path,
    out: str | Path,
    *,
    detector: str | Path,
    size: int = 112,
    width: int | None = None,
    choose: Choose = "largest",
    min_score: float = 0.5,
    suffix: Literal[".png", ".jpg"] = ".png",
    progress: bool = False,
) -> Aligned:
    """Align every image below `root` into the same place below `out`: root/A/1.jpg -> out/A/1.png.

    detector: an SCRFD .onnx file. choose: which face where there are several (choose_face). Images
    already there are kept, so that a run that was interrupted goes on. What fails is listed with
    its reason, also in out/failures.tsv (path, reason): unreadable, no face, landmarks outside the
    image. Images with several faces are listed in out/several.tsv (path, number of faces), also
    those of the runs before.
    ValueError: no images, out inside root, two images that would get one name (counted); what
    load_detector() and check() refuse.
    """
    check(size, width, choose)
    root, out = Path(root), Path(out)
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; one with images is needed")
    if out.resolve().is_relative_to(root.resolve()):
        raise ValueError(
            f"{out}: lies in {root}, which would be aligned again the next time; choose a folder "
            "outside it"
        )
    if suffix not in (".png", ".jpg"):
        raise ValueError(f"align: suffix is {suffix!r}; '.png' (lossless) and '.jpg' are allowed")
    items = find_images(root)
    targets = [out / Path(one.id).with_suffix(suffix) for one in items]
    _refuse_shared_names(root, items, targets)
    model = load_detector(detector, min_score=min_score)
    result = Aligned([], [], [])
    out.mkdir(parents=True, exist_ok=True)
    counted = _read_several(out / "several.tsv")
    _write_several(
        out / "several.tsv", counted
    )  # without half a line, which the next one would lengthen
    with (out / "several.tsv").open("a", encoding="utf-8", errors="surrogateescape") as several:
        for item, target in track(
            list(zip(items, targets, strict=True)), "aligning", show=progress
        ):
            if not target.is_file():
                try:
                    aligned, num_faces = align_one(
                        model, decode(item), size=size, width=width, choose=choose
                    )
                except ValueError as error:
                    result.failures.append(Bad(item.id, str(error)))
                    continue
                if num_faces > 1 or item.id in counted:
                    counted[item.id] = num_faces
                    several.write(f"{item.id}\t{num_faces}\n")
                    # before the crop is there: a run that goes on does not look at it again
                    several.flush()
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_name(f".{target.name}.part")
                part.write_bytes(encode(aligned, suffix))
                part.replace(target)
            if counted.get(item.id, 1) > 1:
                result.several.append(item.id)
            result.done.append(Item(item.id, target, item.label))
    _write_several(out / "several.tsv", counted)
    with atomic_path(out / "failures.tsv") as temporary:
        temporary.write_text(
            "".join(f"{one.id}\t{' '.join(one.reason.split())}\n" for one in result.failures),
            encoding="utf-8",
        )
    return result


def _read_several(path: Path) -> dict[str, int]:
    """Image -> number of faces, by the last whole line of each; nothing where there is no such
    file.
    """
    held = path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""
    lines = [one.rpartition("\t") for one in held.split("\n")[:-1]]
    return {
        image: int(number) for image, _, number in lines if number.isascii() and number.isdecimal()
    }


def _write_several(path: Path, counted: Mapping[str, int]) -> None:
    with atomic_path(path) as temporary:
        lines = [f"{image}\t{number}\n" for image, number in counted.items() if number > 1]
        temporary.write_text("".join(lines), encoding="utf-8", errors="surrogateescape")


def find_images(root: Path) -> list[Item]:
    """Every image file below root, at any depth, sorted; id = its path below root, label = its
    first folder (None directly in root). None hidden.
    """
    files = sorted(
        one for one in root.rglob("*") if one.suffix.lower() in SUFFIXES and one.is_file()
    )
    paths = [one.relative_to(root) for one in files]
    shown = [one for one in paths if not any(part.startswith(".") for part in one.parts)]
    if not shown:
        raise ValueError(f"{root}: no images below it; {', '.join(SUFFIXES)} are read")
    return [
        Item(one.as_posix(), root / one, one.parts[0] if len(one.parts) > 1 else None)
        for one in shown
    ]


def _refuse_shared_names(root: Path, items: Sequence[Item], targets: Sequence[Path]) -> None:
    seen: set[Path] = set()
    shared = [
        item.id
        for item, target in zip(items, targets, strict=True)
        if target in seen or seen.add(target)  # type: ignore[func-returns-value]
    ]
    if shared:
        raise ValueError(
            f"{root}: {len(shared)} images differ from another in their suffix only "
            f"({name_first(shared)}); rename them"
        )


@lru_cache(maxsize=1)
def _face_align() -> ModuleType:
    """insightface.utils.face_align.

    Its import takes seconds, and imports albumentations, which would ask the network for a newer
    version.
    """
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    from insightface.utils import face_align

    # insightface 2.1 calls a function that scikit-image 0.26 has renamed; a filter set around each
    # call would take a third of its time
    warnings.filterwarnings(
        "ignore", category=FutureWarning, module=r"insightface\.utils\.face_align"
    )
    module: ModuleType = face_align
    return module
