"""Measures faces from photographs, from the detector to the comparison, with real weights.

    python benchmarks/photographs.py --detector scrfd.onnx --data ../shared/data
        --samples SAMPLES --peers PEERS --out runs/photographs
        all parts; --only detect,landmarks,verify,cost chooses

Measures: detect: ORL's photographs, of odd number, of all subjects, in scenes of 1280 x 960; a
    photograph is found if the middle of a detection lies in it, and every other detection is false.
    landmarks: detected points against benchmarks/photographs_marks.tsv.
    verify: ORL's trials on the photographs as they are and on aligned crops.
    cost: milliseconds of each step, one thread, least of repeats: CPU time of this process and of
    the one that runs the network, as Linux counts it.
    What OUT has is not computed again.
Peers: insightface's own SCRFD with the same file; libfacedetection (yuface), the C++ library of
    YuNet's authors with weights of its own; dlib's HOG detector, its 68 points and its recognition
    network. Those that cannot be imported are left out.
Limit: the bare network in ONNX Runtime; OpenCV's decoder and warp.
Needs: an SCRFD file. The source archive of scrfd 0.3.0 on PyPI has models/scrfd.onnx (SHA-256
    9c162a817c7dd32d35d1f1c6ae6445032d6e73c6c5fe61d8b5b663ba8bc86b30), which the wheel has not:
    `pip download --no-deps --no-binary scrfd scrfd==0.3.0`. InsightFace's weights are for
    non-commercial research. PEERS is a folder on PYTHONPATH, made by `pip install --no-deps
    --target PEERS yuface==2023.5.1 dlib-bin==20.0.1.post1`; it has the folder `models` of the
    source archive of face_recognition_models 0.3.0 in it. SAMPLES has astronaut.png and camera.png
    of scikit-image, grace_hopper.jpg of matplotlib, t1.jpg of insightface, and
    solvay_conference_1927.jpg, gauss.png and newton.png of the archive of scrfd. Nothing of this is
    in the repository.
Takes: about fifteen minutes of one core.
Gives: docs/reference/photographs.md.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from performance import ROOT, in_turn, parser_of, row, table

from eval.bootstrap import effective_number, t_interval
from modalities.face import align, images, orl
from toolkit.data.images import Pixels, encode
from toolkit.data.items import Item

PARTS = ("detect", "landmarks", "verify", "cost")
MARKS = ROOT / "benchmarks" / "photographs_marks.tsv"
SCENE = (1280, 960)  # width and height in pixels
HEIGHTS = (16, 24, 32, 48, 64, 96, 128, 256, 512, 768, 960)  # of a photograph in a scene, pixels
NUM_DRAWS = 1000
Floats = NDArray[np.float64]
Find = Callable[[Pixels], Floats]  # RGB -> (F, 5, 2) points, or (F, 1, 2) middles of boxes


class Setting(NamedTuple):
    """What the command names."""

    detector: Path
    data: Path
    samples: Path
    peers: Path | None
    out: Path


def kept(file: Path, work: Callable[[], Any]) -> Any:
    """What a JSON file has; where it is not there, it is computed and written first."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        result = work()
        part = file.with_suffix(".part")
        part.write_text(json.dumps(result), encoding="utf-8")
        part.replace(file)
    return json.loads(file.read_text(encoding="utf-8"))


# ---------------------------------------------------------------- detectors


def bare_session(path: Path) -> Any:
    """The network in ONNX Runtime with one thread, in this process."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def insightface_detector(path: Path) -> Any:
    """insightface's detector with its own settings: a score of 0.5, an input of 640 x 640."""
    from insightface.model_zoo.scrfd import SCRFD

    detector = SCRFD(str(path), bare_session(path))
    detector.prepare(-1, input_size=(640, 640), det_thresh=0.5)
    return detector


def detectors(setting: Setting) -> dict[str, Find]:
    """Every detector that can be imported, by name."""
    ours = align.load_detector(setting.detector)
    theirs = insightface_detector(setting.detector)
    found: dict[str, Find] = {
        "ours": lambda pixels: align.detect(ours, pixels).landmarks,
        "insightface": lambda pixels: np.asarray(
            theirs.detect(np.ascontiguousarray(pixels[..., ::-1]))[1], np.float64
        ).reshape(-1, 5, 2),
    }
    if importlib.util.find_spec("yuface"):
        import yuface

        found["libfacedetection"] = lambda pixels: np.asarray(
            yuface.detect(np.ascontiguousarray(pixels[..., ::-1]))[2], np.float64
        ).reshape(-1, 5, 2)
    if importlib.util.find_spec("dlib"):
        import dlib

        hog = dlib.get_frontal_face_detector()
        found["dlib"] = lambda pixels: np.array(
            [
                [(box.left() + box.right()) / 2, (box.top() + box.bottom()) / 2]
                for box in hog(np.ascontiguousarray(pixels), 0)
            ]
        ).reshape(-1, 1, 2)
    return found


# ---------------------------------------------------------------- detection in scenes


def backgrounds() -> list[Pixels]:
    """Pictures without a face: noise, a gradient, and photographs of packages."""
    import skimage.data
    from sklearn.datasets import load_sample_image

    draws = np.random.default_rng(0)
    steps = np.linspace(0, 255, 960)[:, None, None]
    made = [
        draws.integers(0, 256, (960, 1280, 3)).astype(np.uint8),
        np.broadcast_to(steps, (960, 1280, 3)).astype(np.uint8),
    ]
    names = ("brick", "chelsea", "coffee", "coins", "grass", "gravel", "rocket", "page", "moon")
    photographs = [getattr(skimage.data, name)() for name in names]
    photographs += [load_sample_image("china.jpg"), load_sample_image("flower.jpg")]
    for photograph in photographs:
        colour = np.dstack([photograph] * 3) if photograph.ndim == 2 else photograph[..., :3]
        made.append(np.asarray(cv2.resize(colour, SCENE), np.uint8))
    return made


class Scene(NamedTuple):
    """A picture and the photographs in it."""

    pixels: Pixels
    boxes: Floats  # (N, 4) as x1 y1 x2 y2
    subjects: list[str]


def scenes(height: int, data: Path) -> Iterator[Scene]:
    """Scenes that show every photograph of odd number once, at this height in pixels."""
    draws = np.random.default_rng(height)
    items = [item for item in orl.items(data, split="all") if int(item.path.stem) % 2]
    order = draws.permutation(len(items))
    width = round(height * 92 / 112)
    columns, lines = (3, 2) if height <= 400 else (2, 1) if height <= 600 else (1, 1)
    cell = SCENE[0] // columns, SCENE[1] // lines
    grounds = backgrounds()
    for number, first in enumerate(range(0, len(order), columns * lines)):
        pixels = grounds[number % len(grounds)].copy()
        boxes, subjects = [], []
        for place, index in enumerate(order[first : first + columns * lines]):
            left = place % columns * cell[0] + int(draws.integers(0, cell[0] - width + 1))
            top = place // columns * cell[1] + int(draws.integers(0, cell[1] - height + 1))
            how = cv2.INTER_AREA if height < 112 else cv2.INTER_CUBIC
            face = cv2.resize(images.decode(items[index]), (width, height), interpolation=how)
            pixels[top : top + height, left : left + width] = face
            boxes.append((left, top, left + width, top + height))
            subjects.append(str(items[index].label))
        yield Scene(pixels, np.array(boxes, np.float64), subjects)


def plain(factor: int, data: Path) -> Iterator[Scene]:
    """The photographs as they are, or enlarged: the face fills them."""
    for item in orl.items(data, split="all"):
        pixels = images.decode(item)
        pixels = cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
        box = np.array([[0.0, 0.0, pixels.shape[1], pixels.shape[0]]])
        yield Scene(np.asarray(pixels, np.uint8), box, [str(item.label)])


def count(find: Find, every: Iterator[Scene]) -> dict[str, Any]:
    """Which photographs were found, and how many detections were none."""
    found: list[tuple[str, int]] = []
    num_false = num_scenes = 0
    for scene in every:
        middles = find(scene.pixels).mean(axis=1)
        inside = np.array(
            [
                (middles >= box[:2]).all(axis=1) & (middles <= box[2:]).all(axis=1)
                for box in scene.boxes
            ]
        ).reshape(len(scene.boxes), len(middles))
        hits = inside.any(axis=1)
        found += zip(scene.subjects, map(int, hits), strict=True)
        num_false += len(middles) - int(hits.sum())
        num_scenes += 1
    return {"found": found, "false": num_false, "scenes": num_scenes}


def rate(found: list[tuple[str, int]]) -> str:
    """The share that was found in percent, with an interval over subjects."""
    names = np.array([name for name, _ in found])
    hits = np.array([hit for _, hit in found], np.float64)
    means = np.array(
        [[hits[names == name].sum(), (names == name).sum()] for name in sorted(set(names))]
    )
    draws = np.random.default_rng(0).integers(len(means), size=(NUM_DRAWS, len(means)))
    sums = means[draws].sum(axis=1)
    if hits.min() == hits.max():  # resampling says nothing
        return f"{100 * hits.mean():.0f}"
    number = effective_number(means[:, 1])
    low, high = t_interval(sums[:, 0] / sums[:, 1], hits.mean(), 0.95, number)
    return f"{100 * hits.mean():.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def detect_part(setting: Setting) -> None:
    """Print how many photographs are found, by their height."""
    finds = detectors(setting)
    table("photographs", *(f"{name}: found %; false" for name in finds))
    rows: list[tuple[str, Callable[[], Iterator[Scene]]]] = [
        (f"{height} pixels high", partial(scenes, height, setting.data)) for height in HEIGHTS
    ]
    rows += [
        (f"alone, {92 * factor} x {112 * factor}", partial(plain, factor, setting.data))
        for factor in (1, 4, 10)
    ]
    for title, make in rows:
        cells = []
        for name, find in finds.items():
            file = setting.out / "detect" / f"{name}, {title}.json"
            result = kept(file, lambda find=find, make=make: count(find, make()))
            cells.append(f"{rate(result['found'])}; {result['false']} in {result['scenes']}")
        row(title, *cells)
    print()
    table("picture", *finds)
    for file in sorted(setting.samples.iterdir()):
        pixels = images.decode(Item(file.name, file, None))
        results = (
            kept(
                setting.out / "samples" / f"{name}, {file.name}.json",
                lambda find=find, pixels=pixels: len(find(pixels)),
            )
            for name, find in finds.items()
        )
        row(f"{file.name}, {pixels.shape[1]} x {pixels.shape[0]}", *results)


# ---------------------------------------------------------------- landmarks


class Mark(NamedTuple):
    """A face whose landmarks were marked by hand."""

    face: str
    file: str
    points: Floats  # (5, 2)


def marks(marking: int) -> list[Mark]:
    """The marks of one reading."""
    lines = [
        line.split("\t")
        for line in MARKS.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    return [
        Mark(face, file, np.array(numbers, np.float64).reshape(5, 2))
        for face, file, number, *numbers in lines
        if int(number) == marking
    ]


def photograph(mark: Mark, setting: Setting) -> Pixels:
    """The picture of a mark."""
    folder = setting.data if mark.file.startswith("orl/") else setting.samples
    return images.decode(Item(mark.face, folder / mark.file, None))


def nearest(points: Floats, mark: Mark) -> list[Any] | None:
    """Of several faces the one at the mark; None where none is."""
    if not len(points) or points.shape[1] != 5:
        return None
    away = np.linalg.norm(points.mean(axis=1) - mark.points.mean(axis=0), axis=1)
    eyes = np.linalg.norm(mark.points[1] - mark.points[0])
    best = int(np.argmin(away))
    return points[best].tolist() if away[best] < eyes else None


def points_of_68(setting: Setting) -> Callable[[Pixels, Floats], Floats]:
    """dlib's 68 points in the box of our detector, as five."""
    import dlib

    assert setting.peers is not None
    predictor = dlib.shape_predictor(
        str(setting.peers / "models" / "shape_predictor_68_face_landmarks.dat")
    )

    def points(pixels: Pixels, box: Floats) -> Floats:
        # dlib's boxes are square, and begin at the brows.
        x1, y1, x2, y2 = box
        side, middle = (x2 - x1 + y2 - y1) / 2, ((x1 + x2) / 2, y1 + 0.55 * (y2 - y1))
        edges = (middle[0] - side / 2, middle[1] - side / 2)
        found = predictor(
            pixels,
            dlib.rectangle(*(round(v) for v in (*edges, edges[0] + side, edges[1] + side))),
        )
        every = np.array([(found.part(i).x, found.part(i).y) for i in range(68)], np.float64)
        eyes = every[36:42].mean(axis=0), every[42:48].mean(axis=0)
        return np.array([*eyes, every[30], every[48], every[54]])

    return points


def landmarks_of(setting: Setting) -> dict[str, dict[str, Any]]:
    """The five points of every marked face, by system and face; None where it is not found."""
    finds = {name: find for name, find in detectors(setting).items() if name != "dlib"}
    result: dict[str, dict[str, Any]] = {name: {} for name in finds}
    ours = align.load_detector(setting.detector)
    of_68 = points_of_68(setting) if setting.peers is not None else None
    if of_68:
        result["dlib, 68 points in our box"] = {}
    for mark in marks(1):
        pixels = photograph(mark, setting)
        for name, find in finds.items():
            result[name][mark.face] = nearest(find(pixels), mark)
        if of_68:
            faces = align.detect(ours, pixels)
            points = np.array([of_68(pixels, box) for box in faces.boxes]).reshape(-1, 5, 2)
            result["dlib, 68 points in our box"][mark.face] = nearest(points, mark)
    again = {mark.face: mark.points.tolist() for mark in marks(2)}
    result["the marks, read again"] = {mark.face: again.get(mark.face) for mark in marks(1)}
    return result


def mean_and_interval(values: Floats) -> str:
    """The mean with an interval over photographs."""
    draws = np.random.default_rng(0).integers(len(values), size=(NUM_DRAWS, len(values)))
    low, high = t_interval(values[draws].mean(axis=1), values.mean(), 0.95, len(values))
    return f"{values.mean():.1f} [{low:.1f}, {high:.1f}]"


def landmarks_part(setting: Setting) -> None:
    """Print the errors of the points in percent of the distance of the eyes."""
    result = kept(setting.out / "landmarks.json", lambda: landmarks_of(setting))
    groups = {
        "ORL": lambda mark: mark.file.startswith("orl/"),
        "samples": lambda mark: not mark.file.startswith("orl/"),
    }
    table(
        "photographs",
        "points of",
        "found",
        "all five, mean %",
        "eyes",
        "nose",
        "mouth",
        "to the right; down",
        "turn, degrees",
        "scale %",
        "shift in the crop, pixels",
    )
    for group, belongs in groups.items():
        chosen = [mark for mark in marks(1) if belongs(mark)]
        for name, faces in result.items():
            if name == "the marks, read again":
                chosen = [mark for mark in chosen if faces[mark.face] is not None]
            pairs = [
                (mark.points, np.array(faces[mark.face]))
                for mark in chosen
                if faces[mark.face] is not None
            ]
            if len(pairs) < 5:
                continue
            eyes = np.array([np.linalg.norm(a[1] - a[0]) for a, _ in pairs])
            offsets = 100 * np.array([b - a for a, b in pairs]) / eyes[:, None, None]
            errors = np.linalg.norm(offsets, axis=2)
            turns, scales, shifts = zip(*(differences(a, b) for a, b in pairs), strict=True)
            aside, down = offsets.mean(axis=(0, 1))
            row(
                group,
                name,
                f"{len(pairs)} of {len(chosen)}",
                mean_and_interval(errors.mean(axis=1)),
                *(
                    f"{errors[:, part].mean():.1f}"
                    for part in (slice(0, 2), slice(2, 3), slice(3, 5))
                ),
                f"{aside:+.1f}; {down:+.1f}",
                mean_and_interval(np.array(turns)),
                mean_and_interval(np.array(scales)),
                mean_and_interval(np.array(shifts)),
            )


def differences(marked: Floats, points: Floats) -> tuple[float, float, float]:
    """How far an alignment by points is from the one by marks.

    Returns:
        The angle between them in degrees, the ratio of their scales in percent, without signs, and
        how far the middle of the crop of 112 x 112 pixels moves.
    """
    a, b = align.transform(marked), align.transform(points)
    factors = [complex(matrix[0, 0], matrix[1, 0]) for matrix in (a, b)]
    ratio = factors[1] / factors[0]
    middle = np.linalg.solve(a[:, :2], (56, 56) - a[:, 2])
    moved = b[:, :2] @ middle + b[:, 2]
    return (
        abs(float(np.degrees(np.angle(ratio)))),
        100 * abs(abs(ratio) - 1),
        float(np.linalg.norm(moved - 56)),
    )


# ---------------------------------------------------------------- cost


def descendants(process: str) -> Iterator[str]:
    """The processes that a process has started, and theirs."""
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield child
            yield from descendants(child)


def cpu_seconds() -> float:
    """CPU seconds of this process and of all that it has started, on Linux.

    The network of a detector runs in a process of its own, which is a child of a child.
    """
    nanoseconds = 0
    for process in descendants("self"):
        for task in Path(f"/proc/{process}/task").iterdir():
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return time.process_time() + nanoseconds / 1e9


def cost_part(setting: Setting) -> None:
    """Print what the steps cost, in milliseconds."""
    import torch
    from insightface.utils import face_align

    from toolkit.backbones.iresnet import IResNet
    from toolkit.backbones.mobileface import MobileFaceNet

    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    ours, theirs = align.load_detector(setting.detector), insightface_detector(setting.detector)
    session = bare_session(setting.detector)
    name = session.get_inputs()[0].name
    blob = np.zeros((1, 3, 640, 640), np.float32)
    clock = cpu_seconds
    table("photograph", "step", "ours, ms", "peer, ms", "limit, ms")
    source = images.decode(Item("t1", setting.samples / "t1.jpg", None))
    for size in ((640, 480), (1920, 1080)):
        pixels = np.asarray(cv2.resize(source, size), np.uint8)
        file = setting.out / f"cost{size[0]}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode(pixels, ".jpg", quality=90))
        item, content = Item("cost", file, None), np.fromfile(file, np.uint8)
        bgr = np.ascontiguousarray(pixels[..., ::-1])
        points = align.detect(ours, pixels).landmarks[0]
        matrix = align.transform(points)
        read = partial(align.read, item, detector=str(setting.detector), face=0)
        steps: dict[str, list[Callable[[], Any]]] = {
            "decode; OpenCV": [
                lambda item=item: images.decode(item),
                lambda content=content: cv2.imdecode(content, cv2.IMREAD_COLOR),
            ],
            "detect; insightface; bare network": [
                lambda pixels=pixels: align.detect(ours, pixels),
                lambda bgr=bgr: theirs.detect(bgr),
                lambda: session.run(None, {name: blob}),
            ],
            "align; norm_crop; bare warp": [
                lambda pixels=pixels, points=points: align.crop(pixels, points),
                lambda bgr=bgr, points=points: face_align.norm_crop(bgr, points),
                lambda pixels=pixels, matrix=matrix: cv2.warpAffine(pixels, matrix, (112, 112)),
            ],
            "file to crop; OpenCV, insightface, norm_crop": [
                read,
                lambda content=content: face_align.norm_crop(
                    image := cv2.imdecode(content, cv2.IMREAD_COLOR), theirs.detect(image)[1][0]
                ),
            ],
        }
        if importlib.util.find_spec("yuface"):
            import yuface

            steps["detect; libfacedetection at full size"] = [
                steps["detect; insightface; bare network"][0],
                lambda bgr=bgr: yuface.detect(bgr),
            ]
        if importlib.util.find_spec("dlib"):
            import dlib

            hog = dlib.get_frontal_face_detector()
            steps["detect; dlib's HOG at full size"] = [
                steps["detect; insightface; bare network"][0],
                lambda pixels=pixels, hog=hog: hog(pixels, 0),
            ]
        for step, works in steps.items():
            file = setting.out / "cost" / f"{size[0]}, {step}.json"
            seconds = kept(file, lambda works=works: in_turn(works, 15, clock=clock))
            if step.endswith("bare network") and seconds[0] < seconds[2]:
                raise RuntimeError(
                    f"{step}: {seconds} s; the process of the network is not counted"
                )
            cells = [f"{1000 * value:.2f}" for value in seconds]
            row(f"{size[0]} x {size[1]}", step, *cells, *[""] * (3 - len(cells)))
    face = torch.zeros(1, 3, 112, 112)
    networks = {
        "embed: MobileFaceNet": MobileFaceNet(3).eval(),
        "embed: iresnet50": IResNet(3).eval(),
    }
    for step, network in networks.items():
        with torch.inference_mode():
            seconds = kept(
                setting.out / "cost" / f"{step}.json",
                lambda network=network: in_turn([lambda: network(face)], 15, clock=clock),
            )
        row("crop of 112 x 112", step, "", "", f"{1000 * seconds[0]:.2f}")


def main() -> None:
    """Measure the parts that --only names."""
    parser = parser_of(__doc__)
    parser.add_argument("--detector", type=Path, required=True, help="SCRFD's .onnx file")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds orl/")
    parser.add_argument("--samples", type=Path, required=True, help="folder of the samples")
    parser.add_argument("--peers", type=Path, help="folder that holds models/ of dlib")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"--only has {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    setting = Setting(
        arguments.detector, arguments.data, arguments.samples, arguments.peers, arguments.out
    )
    if "detect" in chosen:
        detect_part(setting)
    if "landmarks" in chosen:
        landmarks_part(setting)
    if "verify" in chosen:
        from photographs_verify import verify_part

        verify_part(setting)
    if "cost" in chosen:
        cost_part(setting)


if __name__ == "__main__":
    main()
