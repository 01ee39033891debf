"""Draws photographs of faces, enlarged and under a grid of pixels, to mark landmarks by hand.

    python benchmarks/photographs_sheets.py --data ../shared/data --samples SAMPLES
        --out runs/sheets
        writes sheet00.png, ...; SAMPLES is the folder that benchmarks/photographs.py describes

Measures: nothing. benchmarks/photographs_marks.tsv was read from these sheets: a thin line every 5
    pixels, a thick one with its number every 10, in pixels of the photograph. No detector's points
    are drawn, so that the marks owe nothing to them. Crops of the samples were placed by eye.
Needs: orl/ in the folder of --data, and the samples.
Takes: seconds.
Gives: the sheets. Repeats have another order, for marks that are set twice.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from performance import parser_of

from modalities.face import images
from toolkit.data.images import Pixels, encode
from toolkit.data.items import Item

PANEL = (644, 784)  # pixels of a panel, width and height: seven times an ORL photograph
# One photograph of every subject, numbers spread over the ten, and four subjects twice.
ORL = [f"s{subject}/{subject * 3 % 10 + 1}" for subject in range(1, 21)] + [
    "s2/1",
    "s7/5",
    "s12/10",
    "s17/8",
]
REPEATED = [*ORL[18:8:-2], *ORL[1:11:2]]
# A crop of a sample: its face's name, the file, and x, y, width of the crop in pixels.
CROPS = {
    "astronaut": ("astronaut.png", 165, 45, 115),
    "hopper": ("grace_hopper.jpg", 165, 85, 195),
    "t1/1": ("t1.jpg", 50, 250, 140),
    "t1/2": ("t1.jpg", 255, 135, 140),
    "t1/3": ("t1.jpg", 450, 260, 145),
    "t1/4": ("t1.jpg", 735, 335, 140),
    "t1/5": ("t1.jpg", 890, 50, 150),
    "t1/6": ("t1.jpg", 1115, 260, 135),
    "solvay/3": ("solvay_conference_1927.jpg", 834, 1099, 121),
    "solvay/9": ("solvay_conference_1927.jpg", 1570, 801, 121),
    "solvay/10": ("solvay_conference_1927.jpg", 2585, 805, 121),
}


def drawn(pixels: Pixels, left: int, top: int, width: int) -> Pixels:
    """A panel with a part of an image, its pixels' centres at the numbers of the grid."""
    scale = PANEL[0] / width
    matrix = np.array(((scale, 0, (0.5 - left) * scale), (0, scale, (0.5 - top) * scale)))
    panel = cv2.warpAffine(pixels, matrix, PANEL, flags=cv2.INTER_CUBIC)
    step = 5 if width < 150 else 10
    if width > 300:
        step = 20
    for axis, start, side in ((0, left, PANEL[0]), (1, top, PANEL[1])):
        for value in range(-(-start // step) * step, int(start + side / scale) + 1, step):
            place = round((value - start + 0.5) * scale)
            thick = value % (2 * step) == 0
            colour = (255, 255, 0) if thick else (0, 200, 255)
            line = panel.copy()
            ends = ((place, 0), (place, PANEL[1])) if axis == 0 else ((0, place), (PANEL[0], place))
            cv2.line(line, *ends, colour, 1)
            panel = cv2.addWeighted(
                line, 0.45 if thick else 0.25, panel, 0.55 if thick else 0.75, 0
            )
            if thick:
                at = (place + 2, 12) if axis == 0 else (2, place - 2)
                cv2.putText(panel, str(value), at, cv2.FONT_HERSHEY_SIMPLEX, 0.45, (255, 60, 60), 1)
    return np.asarray(panel, np.uint8)


def main() -> None:
    """Write the sheets, four panels each."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds orl/")
    parser.add_argument("--samples", type=Path, required=True, help="folder of the samples")
    parser.add_argument("--out", type=Path, required=True, help="folder of the sheets")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    panels = []
    for name in [*ORL, *REPEATED]:
        path = arguments.data / "orl" / f"{name}.pgm"
        panels.append((name, drawn(images.decode(Item(name, path, None)), 0, 0, 92)))
    for name, (file, left, top, width) in CROPS.items():
        pixels = images.decode(Item(name, arguments.samples / file, None))
        panels.append((name, drawn(pixels, left, top, width)))
    for number, first in enumerate(range(0, len(panels), 4)):
        four = panels[first : first + 4]
        for name, panel in four:
            at = (PANEL[0] - 150, PANEL[1] - 10)
            cv2.putText(panel, name, at, cv2.FONT_HERSHEY_SIMPLEX, 0.7, (60, 255, 60), 2)
        four += [("", np.zeros_like(four[0][1]))] * (4 - len(four))
        rows = [np.hstack([four[i][1], four[i + 1][1]]) for i in (0, 2)]
        (arguments.out / f"sheet{number:02}.png").write_bytes(encode(np.vstack(rows)))
        print(f"sheet{number:02}.png", *(name for name, _ in four))


if __name__ == "__main__":
    main()
