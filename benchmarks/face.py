"""Measures faces: aligning and augmenting, reading RecordIO, and IJB-C from a file of features.

    OMP_NUM_THREADS=1 python benchmarks/face.py [--only align,recordio,ijbc] [--images 600]
        [--repeats 5] [--folder DIR]

Measures: CPU seconds of one thread, the least of the repeats; the works of a row take turns, and
    each begins with a warm-up.
    align: drawn faces somewhere in JPEG pictures of 160 x 160, as in IJB's loose crops, to 112 x
    112; then the whole way from JPEG bytes to aligned and augmented uint8 (3, 112, 112), which a
    batch takes and the device turns into float32.
    recordio: 112 x 112 JPEG faces of quality 95 in a .rec file; images.decode of its items, in
    shuffled order.
    ijbc: see face_ijbc.py.
Peers: insightface.utils.face_align.norm_crop on the same decoded picture. For the whole way
    OpenCV's decoder, norm_crop and a plain albumentations pipeline that does about what the AdaFace
    view does with the same probabilities: flip, crop and pad in place of the crop that is pasted
    back, Downscale, ColorJitter.
Limits: cv2.warpAffine with a matrix at hand. For the whole way Pillow's decoding, which every
    reader that refuses truncated files has to do, and that warp. For RecordIO the bare file: seek,
    read and Pillow.
Needs: insightface and albumentations, which come with Likeness. No data.
Takes: align half a minute, recordio a few seconds, ijbc five minutes of one core and
    1.3 GB of disk.
Gives: the three tables of section face of docs/reference/performance.md.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from face_ijbc import ijbc_rows
from performance import in_turn, parser_of, row, table, warn_of_many_threads
from recordio_writer import write as write_recordio

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

from modalities import synthetic_faces
from modalities.face import align, images, recordio
from modalities.face.augment import ADAFACE_VIEW
from toolkit.data.images import decode_bytes, encode, to_levels
from toolkit.data.items import Item

PARTS = ("align", "recordio", "ijbc")
EDGE = 112  # pixels of an aligned face
Work = Callable[[], None]


def pictures_with_faces(count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Noise of 160 x 160 with a drawn face somewhere in it, and its five landmarks."""
    rng = np.random.default_rng(0)
    pictures, points = [], []
    for number in range(count):
        image, landmarks = synthetic_faces.face(number % 50, number // 50, size=128)
        x, y = rng.integers(0, 33, 2)
        picture = rng.integers(0, 256, (160, 160, 3), dtype=np.uint8)
        picture[y : y + 128, x : x + 128] = image
        pictures.append(picture)
        points.append(landmarks + np.array((x, y)))
    return pictures, points


def albumentations_pipeline() -> Any:
    """What a user of albumentations writes for about the steps of the AdaFace view."""
    import albumentations

    levels = {"brightness": (0.5, 1.5), "contrast": (0.5, 1.5), "saturation": (0.5, 1.5)}
    return albumentations.Compose(
        [
            albumentations.HorizontalFlip(p=0.5),
            albumentations.CropAndPad(percent=(-0.3, 0.0), keep_size=False, p=0.2),
            albumentations.PadIfNeeded(EDGE, EDGE),
            albumentations.Downscale(scale_range=(0.2, 1.0), p=0.2),
            albumentations.ColorJitter(**levels, hue=(0, 0), p=0.2),
        ]
    )


def align_rows(count: int, repeats: int) -> None:
    """Aligning alone, and the whole way from JPEG to a training view."""
    from insightface.utils import face_align

    pictures, points = pictures_with_faces(count)
    matrices = [align.transform(landmarks) for landmarks in points]

    def over_all(work: Callable[[int], object]) -> Work:
        def every() -> None:
            for k in range(count):
                work(k)

        return every

    aligning = (
        over_all(lambda k: align.crop(pictures[k], points[k])),
        over_all(lambda k: face_align.norm_crop(pictures[k], points[k])),
        over_all(lambda k: cv2.warpAffine(pictures[k], matrices[k], (EDGE, EDGE))),
    )
    table("faces, images/s on one core", "ours", "peer", "limit", "ours/limit", "ours/peer")
    for name, works in (
        ("align a decoded picture; norm_crop; warp alone", aligning),
        (
            "JPEG to an aligned, augmented face; OpenCV, norm_crop, albumentations; "
            "decode and warp",
            whole_way(count),
        ),
    ):
        seconds = in_turn(works, repeats)
        own, other, bare = seconds
        rates = (f"{count / value:,.0f}" for value in seconds)
        row(name, *rates, f"{bare / own:.2f}", f"{other / own:.2f}")


def whole_way(count: int) -> tuple[Work, Work, Work]:
    """From JPEG files to training views: ours, the peer's, and decode and warp alone."""
    from insightface.utils import face_align

    pictures, points = pictures_with_faces(count)
    files = [encode(picture, ".jpg") for picture in pictures]
    matrices = [align.transform(landmarks) for landmarks in points]
    pipeline, rng = albumentations_pipeline(), np.random.default_rng(0)

    def ours() -> None:
        for k in range(count):
            face = to_levels(align.crop(decode_bytes(files[k], ""), points[k]))
            np.ascontiguousarray(ADAFACE_VIEW(face, np.random.default_rng(k), rng))

    def peer() -> None:
        for k in range(count):
            picture = cv2.imdecode(np.frombuffer(files[k], np.uint8), cv2.IMREAD_COLOR)
            aligned = np.ascontiguousarray(face_align.norm_crop(picture, points[k])[..., ::-1])
            np.ascontiguousarray(pipeline(image=aligned)["image"].transpose(2, 0, 1))

    def limit() -> None:
        for k in range(count):
            picture = cv2.imdecode(np.frombuffer(files[k], np.uint8), cv2.IMREAD_COLOR_RGB)
            cv2.warpAffine(np.asarray(picture, np.uint8), matrices[k], (EDGE, EDGE))

    return ours, peer, limit


def recordio_rows(count: int, repeats: int) -> None:
    """Reading of faces from a .rec file and from files of their own."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number in range(count):
            path = Path(folder) / f"{number}.jpg"
            path.write_bytes(encode(synthetic_faces.face(number % 50, number // 50).image, ".jpg"))
            files.append(Item(str(number), path, str(number % 50)))
        rec = write_recordio(files, Path(folder))
        records = recordio.items(rec)
        order = np.random.default_rng(0).permutation(count).tolist()

        def ours() -> None:
            for k in order:
                images.decode(records[k])

        def ours_files() -> None:
            for k in order:
                images.decode(files[k])

        def limit() -> None:
            with rec.open("rb") as file:
                for k in order:
                    offset, size = records[k].span or (0, 0)
                    file.seek(offset)
                    decode_bytes(file.read(size), "")

        def limit_files() -> None:
            for k in order:
                with files[k].path.open("rb") as file:
                    decode_bytes(file.read(), "")

        print()
        table(
            "reading faces, images/s on one core",
            "ours",
            "limit: bare read and Pillow",
            "ours/limit, time",
        )
        for name, works in (
            ("RecordIO, shuffled", (ours, limit)),
            ("single files, shuffled", (ours_files, limit_files)),
        ):
            own, bare = in_turn(works, repeats)
            row(name, f"{count / own:,.0f}", f"{count / bare:,.0f}", f"{own / bare:.3f}")
        (listing,) = in_turn([lambda: recordio.items(rec)], repeats)
        row("listing the records", f"{count / listing:,.0f}", "", "")


def main() -> None:
    """Print the tables that --only names."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="for IJB-C's lists and features, which are kept there"
    )
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"--only has {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    warn_of_many_threads()
    cv2.setNumThreads(1)
    if "align" in parts:
        align_rows(arguments.images, arguments.repeats)
    if "recordio" in parts:
        recordio_rows(arguments.images, arguments.repeats)
    if "ijbc" in parts:
        with tempfile.TemporaryDirectory() as temporary:
            ijbc_rows(arguments.folder or Path(temporary), min(3, arguments.repeats))


if __name__ == "__main__":
    main()
