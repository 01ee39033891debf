"""Seeded drawn faces of any number, aligned as face data is: the demo and every recipe's smoke test
run on them. Nobody's photograph, no download.

A subject has a shape of head, colours of skin, hair and eyes, and sizes and places of eyes, brows,
nose, mouth and hairline. From image to image changes what changes for a camera: pose (turned,
tilted, nearer), expression, the light's direction, strength and colour, background, blur, noise,
now and then glasses. Light and background move the pixels more than the subject does, so that
pixels alone do better than chance and far worse than a trained network.

Features are placed as the five landmarks of the 112 x 112 template that the field aligns to
(insightface, utils/face_align.py arcface_dst: eyes at y = 51.6, nose 71.7, mouth 92.3), in units of
half an image; each is an ellipse or a band with soft edges, painted over the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from toolkit.console import track

Pixels = NDArray[np.uint8]
Plane = NDArray[np.float32]
Colour = NDArray[np.float32]

_EYE_Y, _NOSE_Y, _MOUTH_Y, _EYE_X = -0.078, 0.281, 0.648, 0.316  # of the template


@dataclass(frozen=True)
class Face:
    """What stays the same over a subject's images.

    Lengths in halves of the image, colours (3,) RGB from 0 to 1.
    """

    skin: Colour
    hair: Colour
    iris: Colour
    lips: Colour
    width: float
    height: float
    jaw: float  # how much narrower the face is below than above
    eye_gap: float
    eye_size: float
    eye_shape: float
    brow_lift: float
    brow_tilt: float
    brow_weight: float
    nose_length: float
    nose_width: float
    mouth_width: float
    mouth_weight: float
    hairline: float
    hair_volume: float
    hair_length: float
    beard: float
    mole: tuple[float, float]


class Shot(NamedTuple):
    """(size, size, 3) uint8 RGB and where the eyes, the nose and the corners of the mouth are: (5,
    2) x, y in pixels, the subject's right eye first.
    """

    image: Pixels
    landmarks: NDArray[np.float64]


def face_traits(subject: int, *, seed: int = 0) -> Face:
    """The face of one subject; the same for the same arguments."""
    rng = np.random.default_rng((seed, subject, 0))
    tone = rng.uniform(0.0, 1.0)
    skin = (
        np.array([0.93, 0.76, 0.65]) * (1 - tone)
        + np.array([0.42, 0.27, 0.19]) * tone
        + rng.normal(0.0, 0.025, 3)
    )
    shades = np.array(
        [
            [0.08, 0.07, 0.07],
            [0.24, 0.15, 0.09],
            [0.42, 0.27, 0.14],
            [0.74, 0.6, 0.36],
            [0.5, 0.2, 0.1],
            [0.62, 0.6, 0.58],
        ]
    )
    irises = np.array(
        [
            [0.2, 0.11, 0.06],
            [0.36, 0.24, 0.1],
            [0.25, 0.4, 0.6],
            [0.3, 0.42, 0.28],
            [0.4, 0.42, 0.44],
        ]
    )
    lips = skin * (0.8, 0.55, 0.55) + (0.12, 0.02, 0.04)
    return Face(
        skin=_colour(skin),
        hair=_colour(
            shades[rng.choice(6, p=(0.3, 0.25, 0.18, 0.12, 0.07, 0.08))] + rng.normal(0.0, 0.03, 3)
        ),
        iris=_colour(irises[rng.integers(5)] + rng.normal(0.0, 0.02, 3)),
        lips=_colour(lips + rng.normal(0.0, 0.04, 3)),
        width=rng.uniform(0.62, 0.8),
        height=rng.uniform(0.92, 1.08),
        jaw=rng.uniform(0.0, 0.35),
        eye_gap=_EYE_X * rng.uniform(0.88, 1.12),
        eye_size=rng.uniform(0.11, 0.16),
        eye_shape=rng.uniform(0.35, 0.6),
        brow_lift=rng.uniform(0.15, 0.25),
        brow_tilt=rng.uniform(-0.35, 0.35),
        brow_weight=rng.uniform(0.018, 0.055),
        nose_length=rng.uniform(-0.06, 0.06),
        nose_width=rng.uniform(0.08, 0.17),
        mouth_width=rng.uniform(0.2, 0.34),
        mouth_weight=rng.uniform(0.03, 0.08),
        hairline=rng.uniform(-0.85, -0.5),
        hair_volume=rng.uniform(1.0, 1.25),
        hair_length=rng.uniform(-0.5, 1.0),
        beard=float(rng.random() < 0.25) * rng.uniform(0.3, 0.8),
        mole=(rng.uniform(-0.45, 0.45), rng.uniform(0.1, 0.8)),
    )


def face(subject: int, shot: int, *, seed: int = 0, size: int = 112) -> Shot:
    """One image of one subject and its landmarks.

    The same for the same arguments; ValueError for a size below 16 or above 2048.

    >>> image, landmarks = face(0, 0)
    >>> image.shape, landmarks.shape
    ((112, 112, 3), (5, 2))
    """
    if not 16 <= size <= 2048:
        raise ValueError(f"face: size is {size}; 16 to 2048 pixels are allowed, 112 is the field's")
    who, rng = face_traits(subject, seed=seed), np.random.default_rng((seed, subject, 1, shot))
    yaw, roll, scale = (
        float(np.clip(rng.normal(0.0, 0.13), -0.35, 0.35)),
        rng.normal(0.0, 0.06),
        rng.uniform(0.92, 1.08),
    )
    moved = rng.normal(0.0, 0.03, 2)
    turn = np.array([[np.cos(roll), -np.sin(roll)], [np.sin(roll), np.cos(roll)]])
    grid_x, grid_y = _grid(size)
    x, y = (
        np.float32(1 / scale)
        * (
            np.float32(a) * (grid_x - np.float32(moved[0]))
            + np.float32(b) * (grid_y - np.float32(moved[1]))
        )
        for a, b in turn.T
    )
    painted = _paint(
        who,
        _Look(
            yaw,
            rng.normal(0.0, 0.035),
            max(0.0, rng.normal(0.0, 0.05)),
            rng.uniform(0.6, 1.1),
            rng.random() < 0.12,
        ),
        x,
        y,
        rng,
    )
    lit = _light(painted, x, y, rng)
    if rng.random() < 0.5:
        lit = np.asarray(
            cv2.GaussianBlur(lit, (0, 0), float(rng.uniform(0.4, 1.6)) * size / 112),
            dtype=np.float32,
        )
    lit += rng.standard_normal(lit.shape, dtype=np.float32) * np.float32(rng.uniform(0.005, 0.04))
    mouth = (who.mouth_width * 0.9, _MOUTH_Y)
    points = [
        (-who.eye_gap, _EYE_Y),
        (who.eye_gap, _EYE_Y),
        (0.0, _NOSE_Y + who.nose_length),
        (-mouth[0], mouth[1]),
        mouth,
    ]
    depth = np.array([0.5, 0.5, 0.9, 0.55, 0.55])
    place = (
        np.array(points) + np.column_stack((yaw * depth, np.zeros(5)))
    ) @ turn.T * scale + moved
    return Shot(np.clip(np.rint(lit * 255), 0, 255).astype(np.uint8), (place + 1) * size / 2 - 0.5)


def write_faces(
    folder: str | Path, *, num_subjects: int, num_shots: int, seed: int = 0, size: int = 112
) -> None:
    """Write folder/subject000/shot00.png and so on (RGB), the same for the same arguments; existing
    files are replaced. Many files show a progress bar.
    """
    if min(num_subjects, num_shots) < 1:
        raise ValueError(
            f"write_faces: {num_subjects} subjects with {num_shots} shots; at least 1 of each is "
            "needed"
        )
    folder = Path(folder)
    for subject in track(
        range(num_subjects), "Drawing faces", show=num_subjects * num_shots >= 1000
    ):
        where = folder / f"subject{subject:03d}"
        where.mkdir(parents=True, exist_ok=True)
        for shot in range(num_shots):
            image = face(subject, shot, seed=seed, size=size).image
            (where / f"shot{shot:02d}.png").write_bytes(
                cv2.imencode(".png", image[:, :, ::-1])[1].tobytes()
            )


class _Look(NamedTuple):
    """yaw: sideways shift of what lies one unit in front of the head's axis. smile, gape: up of the
    mouth's corners, its opening. lids: opening of the eyes.
    """

    yaw: float
    smile: float
    gape: float
    lids: float
    glasses: bool


def _paint(
    who: Face, look: _Look, x: Plane, y: Plane, rng: np.random.Generator
) -> NDArray[np.float32]:
    """(size, size, 3) levels 0 to 1 without light, at the face's own coordinates x, y."""
    edge = np.float32(1.5 * (x[0, 1] - x[0, 0]))  # soft over a pixel and a half
    top, bottom = rng.uniform(0.1, 0.9, 3), rng.uniform(0.1, 0.9, 3)
    share = np.clip(
        0.5 + 0.5 * (np.float32(rng.uniform(-1, 1)) * x + np.float32(rng.uniform(-1, 1)) * y), 0, 1
    )[:, :, None]
    image = (top * (1 - share) + bottom * share).astype(np.float32)

    def over(cover: Plane, colour: Colour, strength: float = 1.0) -> None:
        np.copyto(image, image + (cover * np.float32(strength))[:, :, None] * (colour - image))

    def ellipse(
        cx: float, cy: float, rx: float, ry: float, depth: float = 0.0, tilt: float = 0.0
    ) -> Plane:
        u, v = x - np.float32(cx + look.yaw * depth), y - np.float32(cy)
        if tilt:
            v = v - np.float32(tilt) * u
        radius = np.sqrt((u / np.float32(rx)) ** 2 + (v / np.float32(ry)) ** 2)
        inside: Plane = np.clip(
            (1 - radius) * np.float32(min(rx, ry)) / edge + np.float32(0.5), 0, 1
        )
        return inside

    long = ellipse(0.0, 0.1, who.width * who.hair_volume, who.height * who.hair_volume) * np.clip(
        (who.hair_length - y) * 4, 0, 1, dtype=np.float32
    )
    over(long, who.hair)
    over(ellipse(0.0, 1.1, who.width * 0.55, 0.6), who.skin, 1.0)  # the neck
    narrowed = 1 + np.float32(who.jaw) * np.clip(y - np.float32(0.1), 0, 1)
    head_radius = np.sqrt(
        ((x - np.float32(0.15 * look.yaw)) * narrowed / np.float32(who.width)) ** 2
        + ((y - np.float32(0.12)) / np.float32(who.height)) ** 2
    )
    head: Plane = np.clip((1 - head_radius) * np.float32(who.width) / edge + np.float32(0.5), 0, 1)
    over(head, who.skin)
    over(head * np.clip((y - np.float32(0.42)) * 3, 0, 1), who.hair, who.beard)
    over(head * np.clip((np.float32(who.hairline) - y + 0.25 * x * x) * 8, 0, 1), who.hair)
    white, black = (
        np.array([0.93, 0.93, 0.92], dtype=np.float32),
        np.array([0.04, 0.04, 0.05], dtype=np.float32),
    )
    for side in (-1.0, 1.0):
        eye = ellipse(
            side * who.eye_gap,
            _EYE_Y,
            who.eye_size,
            who.eye_size * who.eye_shape * look.lids,
            depth=0.5,
        )
        over(eye, white)
        over(
            eye
            * ellipse(
                side * who.eye_gap, _EYE_Y, who.eye_size * 0.45, who.eye_size * 0.45, depth=0.55
            ),
            who.iris,
        )
        over(
            eye
            * ellipse(
                side * who.eye_gap, _EYE_Y, who.eye_size * 0.2, who.eye_size * 0.2, depth=0.56
            ),
            black,
        )
        over(
            ellipse(
                side * who.eye_gap,
                _EYE_Y - who.brow_lift,
                who.eye_size * 1.35,
                who.brow_weight,
                depth=0.52,
                tilt=side * who.brow_tilt,
            ),
            who.hair * 0.8,
        )
        over(
            ellipse(
                side * who.nose_width * 0.55,
                _NOSE_Y + who.nose_length + 0.05,
                who.nose_width * 0.3,
                0.025,
                depth=0.75,
            ),
            who.skin * 0.45,
        )
        if look.glasses:
            rim = ellipse(side * who.eye_gap, _EYE_Y, 0.24, 0.2, depth=0.6) - ellipse(
                side * who.eye_gap, _EYE_Y, 0.21, 0.17, depth=0.6
            )
            over(rim, black)
    over(
        ellipse(0.0, _NOSE_Y + who.nose_length, who.nose_width, 0.1, depth=0.85),
        who.skin * 0.85,
        0.6,
    )
    over(ellipse(-0.03, 0.1, 0.035, 0.24 + who.nose_length, depth=0.8), who.skin * 1.15, 0.5)
    bent = look.smile * 6.0
    curved_y = _MOUTH_Y + bent * who.mouth_width**2 * 0.5
    u = x - np.float32(0.55 * look.yaw)
    v = y - np.float32(curved_y) + np.float32(bent) * u * u
    radius = np.sqrt(
        (u / np.float32(who.mouth_width)) ** 2 + (v / np.float32(who.mouth_weight + look.gape)) ** 2
    )
    mouth: Plane = np.clip(
        (1 - radius) * np.float32(who.mouth_weight + look.gape) / edge + np.float32(0.5), 0, 1
    )
    over(mouth, who.lips)
    if look.gape > 0.03:
        over(np.clip((0.6 - radius) * np.float32(look.gape) / edge + np.float32(0.5), 0, 1), black)
    over(ellipse(*who.mole, 0.025, 0.025, depth=0.5), who.skin * 0.4)
    return image


def _light(
    image: NDArray[np.float32], x: Plane, y: Plane, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Light from one side, its colour and strength, and the camera's gamma."""
    angle, contrast = rng.uniform(0.0, 2 * np.pi), rng.uniform(0.0, 0.5)
    shade = 1 + np.float32(contrast * np.cos(angle)) * x + np.float32(contrast * np.sin(angle)) * y
    tint = (rng.uniform(0.6, 1.2) * rng.normal(1.0, 0.06, 3)).astype(np.float32)
    lit: NDArray[np.float32] = np.clip(image * np.clip(shade, 0.15, None)[:, :, None] * tint, 0, 1)
    return cv2.pow(lit, float(rng.uniform(0.75, 1.3))).astype(np.float32, copy=False)


@lru_cache(maxsize=4)
def _grid(size: int) -> tuple[Plane, Plane]:
    """(size, size) x and y from -1 to 1 at the pixels' centres."""
    line = ((np.arange(size, dtype=np.float32) + 0.5) * 2 / size - 1).astype(np.float32)
    x, y = np.meshgrid(line, line)
    return x, y


def _colour(values: NDArray[np.float64]) -> Colour:
    return np.clip(values, 0.02, 0.98).astype(np.float32)
