"""Faces are aligned to the position that networks expect, by a transform of five landmarks.

It is a similarity transform, the one of InsightFace's norm_crop, in a tenth of its time.

Landmarks are (5, 2) pixels, x to the right and y down: left eye, right eye (as seen in the
picture), nose, left and right corner of the mouth. The reference is InsightFace's arcface_dst
(insightface/utils/face_align.py) for 112 x 112. The references for multiples of 112, and of 128
(with a margin at the sides), follow from it. The images that networks were trained on were made in
this way; another reference, or none, costs 9 points of TAR (field-face 1.2).

For a width below the height, the crop loses as much on the left as on the right. So 112 x 96 has
the landmarks of SphereFace (preprocess/code/face_align_demo.m), of which arcface_dst is the copy
that is 8 pixels wider at each side.

The other frame is that of dlib (get_face_chip_details, with a margin of a quarter at each side),
whose chips of 150 x 150 its descriptor takes.

The detectors are those of detectors.py.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from likeness.eval.errors import LikenessError
from likeness.eval.formats.provenance import sha256
from likeness.eval.items.items import Item, Items
from likeness.eval.items.listing import files_below
from likeness.eval.items.suffixes import IMAGES
from likeness.eval.option import Option
from likeness.eval.progress import track
from likeness.eval.types import Bools, Floats, check_choice, name_first
from likeness.eval.writing import atomic_path, write_text
from likeness.modalities.face.detectors import load_detector
from likeness.modalities.face.images import decode
from likeness.modalities.face.mmod import LANDMARKS, Mmod
from likeness.toolkit.console import say
from likeness.toolkit.data.images import BadImage, Pixels, as_channels, encode
from likeness.toolkit.data.reading import Bad, remark, write_bad
from likeness.toolkit.sources import Source, is_source, source_of
from likeness.toolkit.training.lock import only_writer

Choose = Literal["largest", "central"]
Frame = Literal["arcface", "dlib"]  # where the landmarks lie in a crop
_TAKEN = {"largest": "largest", "central": "largest near the centre"}
# InsightFace's arcface_dst: the landmarks of a crop of 112 x 112.
ARCFACE_POINTS = (
    (38.2946, 51.6963),
    (73.5318, 51.5014),
    (56.0252, 71.7366),
    (41.5493, 92.3655),
    (70.7299, 92.2041),
)
_MARGIN = 0.25  # of dlib's frame
_LEAST_SEEN = 0.05  # of the scores that a message names
_MOST_NARROW = 640  # times longer than wide
_CANVAS_SIDE = 1024  # pixels of the longer side of an image that gets a margin


Size = tuple[int, int]  # height and width of a crop in pixels


class Faces(NamedTuple):
    """F faces that a detector found, by falling score, in pixels.

    Attributes:
        boxes: (F, 4) as x1 y1 x2 y2.
        scores: (F,) between 0 and 1.
        landmarks: (F, 5, 2).
    """

    boxes: Floats
    scores: Floats
    landmarks: Floats


class Aligned(NamedTuple):
    """What align_folder() did.

    Attributes:
        done: The images that were written now or in a run before.
        several: The ids of those among them that show several faces.
        failures: The images that failed, with their reasons.
        changed: The ids of those that were aligned again, as the photograph is another one.
        gone: The ids of crops that stay, although their photographs are no longer there.
    """

    done: list[Item]
    several: list[str]
    failures: list[Bad]
    changed: list[str]
    gone: list[str]


def check(size: Size = (112, 112), frame: Frame = "arcface") -> None:
    """Raise LikenessError for a size that is not defined.

    No photograph can mend it, so call it before any work: then it is no image's failure.

    Args:
        size: The height of the crop in pixels, a multiple of 112 or of 128, in dlib's frame any;
            and the width, 1 to the height and less by an even number.
        frame: Where the landmarks lie in the crop.

    Raises:
        LikenessError: One of them is not defined.
    """
    check_choice("frame", frame, get_args(Frame))
    (height, width), sizes = size, (1,) if frame == "dlib" else (112, 128)
    fits = 0 < width <= height and (height - width) % 2 == 0
    if not fits or all(height % unit for unit in sizes):
        raise LikenessError(
            f"align: the size is {height} x {width}; heights of multiples of 112 or 128 (any in "
            "dlib's frame) and widths up to the height, less by an even number, are allowed"
        )


def transform(landmarks: ArrayLike, size: int = 112, frame: Frame = "arcface") -> Floats:
    """Compute the matrix that takes five landmarks to the reference, by least squares.

    Source: Umeyama 1991.

    Args:
        landmarks: (5, 2) pixels.
        size: The height and width of the crop in pixels, as in check().
        frame: As in check().

    Returns:
        (2, 3) float64.

    Raises:
        LikenessError: The landmarks have another shape, are not finite or (nearly) coincide, or the
            size is not defined.
    """
    points = np.asarray(landmarks, dtype=np.float64)
    is_finite = points.shape == (5, 2) and np.isfinite(points).all()
    if not is_finite or float(np.ptp(points, axis=0).max()) < 1e-3:
        raise LikenessError(
            f"align: the landmarks have shape {points.shape}; give (5, 2) that do not coincide"
        )
    check((size, size), frame)
    # As complex numbers, a similarity is z -> factor * z + shift, and the factor of the least
    # squares is a quotient of two products. That is Umeyama's solution without its SVD.
    centred, centre = _reference(size, frame)
    places = [complex(x, y) for x, y in points.tolist()]
    mean = sum(places) / 5
    places = [place - mean for place in places]
    square = sum(place.real * place.real + place.imag * place.imag for place in places)
    pairs = zip(places, centred, strict=True)
    factor = sum(place.conjugate() * goal for place, goal in pairs) / square
    shift = centre - factor * mean
    matrix: Floats = np.array(
        ((factor.real, -factor.imag, shift.real), (factor.imag, factor.real, shift.imag))
    )
    if not np.isfinite(matrix).all() or factor == 0:
        raise LikenessError("align: no transform fits the landmarks; detect them again")
    return matrix


def crop(
    pixels: Pixels, landmarks: ArrayLike, size: Size = (112, 112), frame: Frame = "arcface"
) -> Pixels:
    """Cut out the aligned face of an image, as insightface.utils.face_align.norm_crop does.

    The interpolation is bilinear, and the crop is black outside the image. In dlib's frame an image
    of a large face is shrunk before, as dlib does.

    Args:
        pixels: (H, W, 3) uint8.
        landmarks: (5, 2) pixels.
        size: As in check(). A narrower width is cut alike on both sides: (112, 96) is SphereFace's.
        frame: As in check().

    Returns:
        (height, width, 3) uint8.

    Raises:
        LikenessError: As transform().
    """
    height, width = size
    matrix = transform(landmarks, height, frame)
    matrix[0, 2] -= (height - width) / 2
    if frame == "dlib":
        return _warp(pixels, matrix, (width, height))
    import cv2

    warped = cv2.warpAffine(pixels, matrix, (width, height), borderValue=0.0)
    return np.asarray(warped, dtype=np.uint8)


def _warp(pixels: Pixels, matrix: Floats, size: tuple[int, int]) -> Pixels:
    """Cut out a crop (width, height) by Pillow, for which the middle of a pixel is at 0.5."""
    square = np.vstack([matrix, (0, 0, 1)])
    shift = np.array(((1, 0, 0.5), (0, 1, 0.5), (0, 0, 1)))
    back = shift @ np.linalg.inv(square) @ np.linalg.inv(shift)
    shrinks = max(1, int(np.hypot(back[0, 0], back[1, 0])))
    image = Image.fromarray(pixels).reduce(shrinks)
    warped = image.transform(
        size,
        Image.Transform.AFFINE,
        tuple((back[:2] / shrinks).ravel()),
        Image.Resampling.BILINEAR,
    )
    return np.asarray(warped)


@lru_cache(maxsize=16)
def _reference(size: int, frame: Frame) -> tuple[list[complex], complex]:
    """Return the landmarks of a crop of this size, about their centre, and the centre."""
    if frame == "dlib":
        places = (LANDMARKS + _MARGIN * (1 + 1j)) / (1 + 2 * _MARGIN) * size
        return (places - places.mean()).tolist(), complex(places.mean())
    ratio = size / 112 if size % 112 == 0 else size / 128
    margin = 0.0 if size % 112 == 0 else 8.0 * ratio
    # InsightFace computes them in float32, which the crops show in their last bits.
    points = np.array(ARCFACE_POINTS, np.float32) * np.float32(ratio)
    points[:, 0] += np.float32(margin)
    centre = points.mean(axis=0)
    centred = (points - centre).astype(np.float64)
    return [complex(x, y) for x, y in centred.tolist()], complex(centre[0], centre[1])


def detect(detector: Any, pixels: Pixels) -> Faces:
    """Find every face of an image.

    Detectors get the image in the order of colours of InsightFace and OpenCV, which is BGR. Most
    do not know faces that fill the image. So where none is found, the image is looked at once more
    in the middle of a black canvas of twice its height and width.

    Args:
        detector: What load_detector() gives.
        pixels: (H, W, 3) uint8 RGB.

    Returns:
        The faces; there may be none. One whose numbers hold NaN or infinity is left out.

    Raises:
        LikenessError: The image is too narrow for the detector.
    """
    faces = _detect_once(detector, pixels)
    if len(faces.boxes) or isinstance(detector, Mmod):
        return faces
    return _detect_on_canvas(detector, pixels)


def _detect_once(detector: Any, pixels: Pixels) -> Faces:
    """Find the faces that the detector finds in the image as it is."""
    height, width = pixels.shape[:2]
    if max(height, width) > _MOST_NARROW * min(height, width):  # detectors shrink it to nothing
        raise LikenessError(f"an image of {width} x {height} pixels is too narrow for the detector")
    # A box that overflows is that of no face; insightface does not mind.
    with np.errstate(over="ignore", invalid="ignore"):
        detections, landmarks = detector.detect(np.ascontiguousarray(pixels[..., ::-1]))
    table = np.asarray(detections, dtype=np.float64).reshape(-1, 5)
    points = np.asarray(landmarks, dtype=np.float64).reshape(-1, 5, 2)
    finite = np.isfinite(table).all(axis=1) & np.isfinite(points).all(axis=(1, 2))
    return Faces(table[finite, :4], table[finite, 4], points[finite])


def _detect_on_canvas(detector: Any, pixels: Pixels) -> Faces:
    """Find faces in an image that lies in the middle of a canvas of twice its height and width."""
    height, width = pixels.shape[:2]
    # Detectors shrink what they get. A canvas for all pixels of a large image would only cost
    # memory.
    factor = min(1.0, _CANVAS_SIDE / max(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    if factor < 1:
        pixels = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))
    left, top = size[0] // 2, size[1] // 2
    canvas = np.zeros((2 * size[1], 2 * size[0], 3), np.uint8)
    canvas[top : top + size[1], left : left + size[0]] = pixels
    faces = _detect_once(detector, canvas)
    scale = np.array((width / size[0], height / size[1]))
    boxes = (faces.boxes.reshape(-1, 2, 2) - (left, top)) * scale
    return Faces(boxes.reshape(-1, 4), faces.scores, (faces.landmarks - (left, top)) * scale)


def choose_face(faces: Faces, height: int, width: int, choose: Choose = "largest") -> int:
    """Return the number of the face to take; the first one of equal faces wins.

    Args:
        faces: At least one face.
        height: The height of the image in pixels.
        width: The width of the image in pixels.
        choose: "largest" takes the largest box, wherever it is. "central" takes the largest near
            the centre by InsightFace's rule: of the area of the box, 2 x the squared distance of
            its centre from that of the image is subtracted.

    Returns:
        The number of the face, from 0.

    Example:
        >>> boxes = np.array([[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 50.0, 50.0]])
        >>> choose_face(Faces(boxes, np.ones(2), np.zeros((2, 5, 2))), 112, 112)
        1
    """
    x1, y1, x2, y2 = faces.boxes.T
    value = (x2 - x1) * (y2 - y1)
    if choose == "central":
        value = value - 2.0 * (
            ((x1 + x2) / 2 - width // 2) ** 2 + ((y1 + y2) / 2 - height // 2) ** 2
        )
    return int(np.argmax(value))


def align_faces(
    detector: Any,
    pixels: Pixels,
    *,
    size: Size = (112, 112),
    frame: Frame = "arcface",
    choose: Choose | Literal["all"] = "largest",
    face: int | None = None,
) -> tuple[list[Pixels], int]:
    """Detect the faces of one image and cut out the chosen one, or all of them, aligned.

    Args:
        detector: What load_detector() gives.
        pixels: (H, W, 3) uint8 RGB.
        size: As in check().
        frame: As in check().
        choose: Which face is taken, see choose_face(). "all" takes those whose landmarks all lie in
            the image, by falling score.
        face: The number of the face that somebody chose, as detect() counts from 0; None leaves
            the choice to the rule.

    Returns:
        The crops (height, width, 3), and how many faces the image has.

    Raises:
        LikenessError: There is no face, or none of this number, or the landmarks of those that are
            taken lie outside the image.
    """
    faces = _some_faces(detector, pixels)
    if choose == "all":
        crops = crops_inside(pixels, faces, size, frame)[1]
        if not crops:
            raise LikenessError(
                f"the landmarks of all {len(faces.boxes)} faces lie outside the image"
            )
        return crops, len(crops)
    if face is None:
        face = choose_face(faces, pixels.shape[0], pixels.shape[1], choose)
    if not 0 <= face < len(faces.boxes):
        raise LikenessError(f"there is no face {face}; {len(faces.boxes)} were found, from 0")
    return [cut(pixels, faces.landmarks[face], size, frame)], len(faces.boxes)


def _some_faces(detector: Any, pixels: Pixels) -> Faces:
    """Find every face of an image, or raise LikenessError with the best score that was seen."""
    faces = detect(detector, pixels)
    if len(faces.boxes):
        return faces
    curious, least = copy(detector), detector.det_thresh  # other threads use the detector itself
    curious.det_thresh = _LEAST_SEEN
    scores = detect(curious, pixels).scores
    seen = "nothing like a face was seen"
    if len(scores):
        seen = f"the best score seen is {scores.max():.2f}; --min-score sets the lowest"
    raise LikenessError(f"no face found with a score of {least:g} or more: {seen}")


def crops_inside(
    pixels: Pixels, faces: Faces, size: Size = (112, 112), frame: Frame = "arcface"
) -> tuple[Faces, list[Pixels]]:
    """Cut out the faces whose landmarks all lie in the image, and leave out the others."""
    inside = _are_inside(pixels, faces.landmarks)
    kept = Faces(*(values[inside] for values in faces))
    return kept, [crop(pixels, points, size, frame) for points in kept.landmarks]


def _are_inside(pixels: Pixels, landmarks: Floats) -> Bools:
    """Whether all five landmarks (..., 5, 2) of faces lie in the image."""
    limits = np.array(pixels.shape[1::-1]) - 1
    inside: Bools = np.all((landmarks >= 0) & (landmarks <= limits), axis=(-2, -1))
    return inside


def cut(
    pixels: Pixels, points: Floats, size: Size = (112, 112), frame: Frame = "arcface"
) -> Pixels:
    """Cut out an aligned face whose landmarks all lie in the image, as `crop` does.

    Args:
        pixels: (H, W, 3) uint8.
        points: The landmarks (5, 2) in pixels.
        size: As in check().
        frame: As in check().

    Returns:
        (height, width, 3) uint8.

    Raises:
        LikenessError: Landmarks lie outside the image; and as crop().
    """
    if not _are_inside(pixels, points):
        raise LikenessError(
            f"landmarks of the chosen face lie outside {pixels.shape[1]} x {pixels.shape[0]} pixels"
        )
    return crop(pixels, points, size, frame)


def read(
    item: Item,
    *,
    detector: str,
    size: Size = (112, 112),
    frame: Frame = "arcface",
    choose: Choose = "largest",
    face: int | None = None,
    min_score: float | None = None,
) -> NDArray[np.float32]:
    """Read a photograph as its aligned face.

    This is what images.read gives of a crop that was aligned before.

    Where there are several faces, stderr says so and one is taken (choose_face).

    Args:
        item: The photograph.
        detector: The path of an SCRFD or YuNet .onnx file, which is loaded once in each process.
        size: As in check().
        frame: As in check().
        choose: Which face is taken, see choose_face().
        face: The number of the face that somebody chose, as find() counts them from 0; None leaves
            the choice to the rule.
        min_score: The lowest score of a face, see load_detector().

    Returns:
        (3, height, width) float32 RGB, 0 to 255.

    Raises:
        BadImage: The image cannot be decoded, no face is found, or the landmarks lie outside the
            image.
        LikenessError: The detector is missing. What load_detector() and check() refuse.
    """
    check(size, frame)
    model = _detector_of(os.getpid(), detector, min_score)
    pixels = decode(item)
    try:
        (aligned,), num_faces = align_faces(
            model, pixels, size=size, frame=frame, choose=choose, face=face
        )
    except ValueError as error:
        raise BadImage(
            f"{item.name}: {error}; give a photograph that shows the whole face"
        ) from None
    if num_faces > 1 and face is None:
        remark(text := f"{item.name}: {num_faces} faces; the {_TAKEN[choose]} was taken")
        say(text, error=True)
    return as_channels(aligned)


def find(item: Item, *, detector: str, min_score: float | None = None) -> tuple[Pixels, Faces]:
    """Find the faces of a photograph, among which `read` takes one.

    Args:
        item: The photograph.
        detector: The path of an SCRFD or YuNet .onnx file, which is loaded once in each process.
        min_score: The lowest score of a face, see load_detector().

    Returns:
        The pixels (H, W, 3) of the upright photograph, and its faces; there may be none.

    Raises:
        BadImage: The image cannot be decoded, or is too narrow for the detector.
        FileNotFoundError, ValueError: As load_detector().
    """
    model = _detector_of(os.getpid(), detector, min_score)
    pixels = decode(item)
    try:
        return pixels, detect(model, pixels)
    except ValueError as error:
        raise BadImage(f"{item.name}: {error}") from None


@lru_cache(maxsize=1)
def _detector_of(process: int, path: str, min_score: float | None) -> Any:
    """Load a detector once for each process: an ONNX Runtime session does not survive a fork."""
    return load_detector(path, min_score)


def faces_as_items(
    items: Sequence[Item],
    folder: Path,
    *,
    detector: str,
    size: Size = (112, 112),
    frame: Frame = "arcface",
    min_score: float | None = None,
) -> tuple[list[Item], list[Bad]]:
    """Write all faces of photographs as aligned crops, which are items of their own.

    Args:
        items: The photographs.
        folder: Where the crops are written, as .png.
        detector: The path of an SCRFD or YuNet .onnx file.
        size: As in check().
        frame: As in check().
        min_score: The lowest score of a face, see load_detector().

    Returns:
        The crops, with ids such as "photo.jpg#2" by falling score of the face, and what could not
        be read or shows no face.
    """
    model = load_detector(detector, min_score)
    crops, bad = [], []
    for number, item in enumerate(track(items, "finding faces")):
        try:
            faces, _ = align_faces(model, decode(item), size=size, frame=frame, choose="all")
        except ValueError as error:
            bad.append(Bad(item.id, str(error)))
            continue
        for face, pixels in enumerate(faces, 1):
            path = folder / f"{number}-{face}.png"
            path.write_bytes(encode(pixels))
            crops.append(Item(f"{item.id}#{face}", path, item.label))
    return crops, bad


def align_folder(
    root: Annotated[str | Path, Option("PHOTOGRAPHS", path="folder")],
    out: Annotated[str | Path, Option(path="output folder")],
    *,
    detector: Annotated[str | Path, Option(path="file")],
    size: Size = (112, 112),
    frame: Frame = "arcface",
    choose: Annotated[Literal["largest", "central", "all"], Option("--faces")] = "largest",
    min_score: float | None = None,
) -> Aligned:
    """Align every image below `root` into the same place below `out`: root/A/1.jpg -> out/A/1.png.

    Where all faces are taken, the crops are out/A/1#1.png, out/A/1#2.png and so on, by falling
    score.

    Crops that are there already stay while their photographs are what they were (out/sources.jsonl
    says so), so that a run that was interrupted goes on. What fails is tried again by the next run,
    and listed with its reason, also in out/failures.tsv (path, reason): unreadable images, images
    without a face, landmarks outside the image. Images with several faces are listed in
    out/several.tsv (path, number of faces), also those of the runs before.

    Args:
        root: The folder of the photographs, at any depth.
        out: The folder of the crops, which get the places of their images. It is outside root.
        detector: An SCRFD (with landmarks) or YuNet .onnx file, or detector.onnx of likeness:face.
        size: The height and the width of the crops in pixels.
        frame: Where the landmarks lie in a crop: arcface is what most networks expect, dlib what
            dlib's descriptor does, with 150x150.
        choose: Which of several faces is taken: the largest, as InsightFace does the largest near
            the centre, or all of them, as NAME#1.png, NAME#2.png and so on. See choose_face().
        min_score: The lowest score by which a detector takes something for a face (default: 0.9 of
            YuNet, 0.5 of SCRFD).

    Returns:
        What was done, and what failed.

    Raises:
        LikenessError: root or the detector is missing. There are no images, out lies in root, two
            images would get one name (they are counted), out holds crops of another detector or
            other settings or images of somebody else, or load_detector() or check() refuses an
            argument.
        Busy: Another process writes into `out`.
    """
    check(size, frame)
    root, out = Path(root), Path(out)
    targets = _targets(root, out, "#1.png" if choose == "all" else ".png")
    model = load_detector(detector, min_score)
    result = Aligned([], [], [], [], [])
    settings = {"detector": sha256(Path(detector)), "size": size[0], "width": size[1]}
    settings |= {} if frame == "arcface" else {"frame": frame}
    settings |= {"faces": choose, "min_score": min_score}
    with only_writer(out), _recorded(out, settings, targets) as (crops, note):
        for item, first in track(targets, "aligning"):
            count, source = crops.get(item.id, (0, ()))
            paths = _numbered(first, count if choose == "all" else min(count, 1))
            is_same = is_source(item.path, source)
            if not (is_same and all(map(Path.is_file, paths))):
                for path in paths:  # before it is known that the photograph shows as many faces
                    path.unlink(missing_ok=True)
                if crops.pop(item.id, None) and not is_same:
                    result.changed.append(item.id)
                try:
                    source = source_of(item.path, with_digest=True)
                    made, count = align_faces(
                        model, decode(item), size=size, frame=frame, choose=choose
                    )
                except (ValueError, OSError) as error:
                    result.failures.append(Bad(item.id, str(error)))
                    continue
                first.parent.mkdir(parents=True, exist_ok=True)
                paths = _numbered(first, len(made))
                for path, pixels in zip(paths, made, strict=True):
                    with atomic_path(path) as temporary:
                        temporary.write_bytes(encode(pixels))
                note(item.id, count, source)
            if count > 1:
                result.several.append(item.id)
            result.done.extend(Item(item.id, path, item.label) for path in paths)
        ids = {item.id for item, _ in targets}
        result.gone.extend(id for id in crops if id not in ids)
    write_bad(out / "failures.tsv", result.failures)
    return result


def _numbered(first: Path, count: int) -> list[Path]:
    """Return the paths of as many crops; `first` is that of number 1."""
    others = [first.with_name(f"{first.stem[:-1]}{k}.png") for k in range(2, count + 1)]
    return [first, *others][:count]


@contextmanager
def _recorded(
    out: Path, settings: Mapping[str, Any], targets: Sequence[tuple[Item, Path]]
) -> Iterator[tuple[dict[str, tuple[int, Source]], Callable[[str, int, Source], None]]]:
    """Yield what is known of the crops that are there, and what notes a further image.

    The file out/sources.jsonl gets a line for each image as soon as its crops are there, so that
    a kill loses none. In the end, its lines are in the order of the images.

    Raises:
        LikenessError: The crops are of other settings, or images were made by nobody who noted it.
    """
    file, head = out / "sources.jsonl", json.dumps(settings)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    before, *lines = text.split("\n")[:-1] or [""]  # a kill may have cut the last one short
    if before not in ("", head):
        raise LikenessError(
            f"{out} holds crops of another detector, size or choice of faces; choose another --out"
        )
    if foreign := [str(path) for _, path in targets if not before and path.exists()]:
        raise LikenessError(f"{foreign[0]} was made by no `likeness align`; choose another --out")
    crops = {id: (count, Source(*source)) for id, count, source in map(json.loads, lines)}

    def save() -> None:
        known = dict.fromkeys([*(item.id for item, _ in targets if item.id in crops), *crops])
        rows = [json.dumps([id, *crops[id]], ensure_ascii=False) for id in known]
        write_text(file, "\n".join([head, *rows, ""]))
        counts = {id: crops[id][0] for id in known}
        several = "".join(f"{id}\t{count}\n" for id, count in counts.items() if count > 1)
        write_text(out / "several.tsv", several)

    save()
    with file.open("a", encoding="utf-8") as journal:

        def note(id: str, count: int, source: Source) -> None:
            crops[id] = count, source
            journal.write(json.dumps([id, count, source], ensure_ascii=False) + "\n")
            journal.flush()

        try:
            yield crops, note
        finally:
            journal.close()
            save()


def _targets(root: Path, out: Path, ending: str) -> list[tuple[Item, Path]]:
    """List the images below root with the paths that their (first) crops get."""
    if out.resolve().is_relative_to(root.resolve()):
        raise LikenessError(f"{out}: the folder lies in {root}; choose a folder outside it")
    items = find_images(root)
    targets = [out / f"{Path(item.id).with_suffix('')}{ending}" for item in items]
    if len(set(targets)) < len(targets):
        times = Counter(targets)
        shared = [item.id for item, target in zip(items, targets, strict=True) if times[target] > 1]
        raise LikenessError(
            f"{root}: {len(shared)} images differ in suffix only ({name_first(shared)}); rename "
            "them"
        )
    return list(zip(items, targets, strict=True))


def find_images(root: Path) -> Items:
    """List every image file below root, at any depth, sorted, without hidden ones.

    Args:
        root: The folder of the images.

    Returns:
        Items whose id is the path below root, and whose label is its first folder (None directly in
        root).

    Raises:
        LikenessError: There are no images.
    """
    items = files_below(root, IMAGES)
    if not items:
        raise LikenessError(f"{root}: there are no images below it; {', '.join(IMAGES)} are read")
    return items
