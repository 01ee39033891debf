"""Saves a photograph of a face in many ways, and compares the points that are detected.

    python benchmarks/photographs_files.py --detector scrfd.onnx --samples SAMPLES

Measures: astronaut.png turned by EXIF, in grey, with alpha, with CMYK and so on, in other sizes and
    in large pictures; the mean distance of the five points from those of the original, in percent
    of the distance of the eyes. benchmarks/photographs.py says what is needed.
Takes: a minute of one core.
Gives: a paragraph of "Detection" in docs/reference/photographs.md.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from performance import parser_of, row, table
from PIL import Image

from modalities.face import align
from toolkit.data.images import decode_bytes

TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # EXIF's orientation -> Pillow's transposition


class Version(NamedTuple):
    """A photograph saved in some way, and where the original lies in it."""

    name: str
    image: Any
    save: dict[str, Any]
    scale: float = 1
    left: int = 0
    top: int = 0


def versions(image: Any) -> list[Version]:
    """All of them."""
    jpeg, png = {"format": "JPEG", "quality": 95}, {"format": "PNG"}
    made = []
    for orientation, turn in TURNS.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        turned = image.transpose(Image.Transpose(turn))
        made.append(Version(f"EXIF {orientation}", turned, jpeg | {"exif": exif}))
    made += [Version(mode, image.convert(mode), png) for mode in ("L", "LA", "RGBA")]
    deep = np.asarray(image.convert("L")).astype(np.uint16) * 257
    made += [
        Version("16 bits", Image.fromarray(deep), png),
        Version("palette of 64", image.quantize(64), png),
        Version("CMYK", image.convert("CMYK"), jpeg),
        Version("progressive", image, jpeg | {"progressive": True}),
    ]
    for factor in (0.1, 0.15, 0.25, 0.5, 2, 4, 12):
        size = (int(image.width * factor), int(image.height * factor))
        enlarged = image.resize(size, Image.Resampling.LANCZOS)
        made.append(Version(f"{factor} times the size", enlarged, jpeg, factor))
    face = image.crop((165, 45, 285, 190))
    for factor in (1, 4, 20):
        close = face.resize((120 * factor, 145 * factor))
        offset = -165 * factor, -45 * factor
        made.append(Version(f"the face alone, x {factor}", close, png, factor, *offset))
    wide, large = Image.new("RGB", (8000, 600)), Image.new("RGB", (8000, 6000))
    wide.paste(image, (4000, 0))
    large.paste(image.resize((2048, 2048)), (3000, 2000))
    made.append(Version("in 8000 x 600", wide, png, 1, 4000, 0))
    made.append(Version("in 8000 x 6000, x 4", large, jpeg, 4, 3000, 2000))
    return made


def main() -> None:
    """Print a row for each version."""
    parser = parser_of(__doc__)
    parser.add_argument("--detector", type=Path, required=True, help="SCRFD's .onnx file")
    parser.add_argument("--samples", type=Path, required=True, help="folder of the samples")
    arguments = parser.parse_args()
    detector = align.load_detector(arguments.detector)
    image = Image.open(arguments.samples / "astronaut.png").convert("RGB")
    original = align.detect(detector, np.asarray(image)).landmarks[0]
    eyes = np.linalg.norm(original[1] - original[0])
    table("saved as", "pixels", "faces", "off, % of the distance of the eyes")
    for version in versions(image):
        file = io.BytesIO()
        version.image.save(file, **version.save)
        pixels = decode_bytes(file.getvalue(), version.name)
        faces = align.detect(detector, pixels)
        off = ""
        if len(faces.boxes):
            chosen = faces.landmarks[align.choose_face(faces, *pixels.shape[:2])]
            points = (chosen - (version.left, version.top)) / version.scale
            off = f"{100 * np.linalg.norm(points - original, axis=1).mean() / eyes:.2f}"
        row(version.name, f"{pixels.shape[1]} x {pixels.shape[0]}", len(faces.boxes), off)


if __name__ == "__main__":
    main()
