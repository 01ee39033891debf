"""Seeded drawn faces of any number, aligned as face data is.

The demo and every recipe's smoke test run on them. They are nobody's photograph, and nothing is
downloaded.

A subject has a shape of head, colours of skin, hair and eyes, and sizes and places of eyes, brows,
nose, mouth and hairline. From image to image the things change that change for a camera: pose
(turned, tilted, nearer), expression, the light's direction, strength and colour, background, blur,
noise, now and then glasses. Light and background move the pixels more than the subject does, so
that pixels alone do better than chance and far worse than a trained network.

Features are placed by the five landmarks of the 112 x 112 template to which faces are usually
aligned (insightface, utils/face_align.py arcface_dst: eyes at y = 51.6, nose 71.7, mouth 92.3), in
units of half an image. Each feature is an ellipse or a band with soft edges, painted over the last.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from likeness.eval.progress import track

Pixels = NDArray[np.uint8]
Plane = NDArray[np.float32]
Colour = NDArray[np.float32]

# Places of the template, in halves of the image.
_EYE_Y, _NOSE_Y, _MOUTH_Y, _EYE_X = -0.078, 0.281, 0.648, 0.316
_WHITE = np.array([0.93, 0.93, 0.92], dtype=np.float32)
_BLACK = np.array([0.04, 0.04, 0.05], dtype=np.float32)


@dataclass(frozen=True)
class Face:
    """What stays the same over a subject's images.

    Lengths are in halves of the image, and colours are (3,) RGB from 0 to 1.
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
    """One image of a face, and where its landmarks are.

    Attributes:
        image: (size, size, 3) uint8 RGB.
        landmarks: (5, 2) x, y in pixels of the eyes, the nose and the corners of the mouth, the
            subject's right eye first.
    """

    image: Pixels
    landmarks: NDArray[np.float64]


# What the colours of hair and irises are drawn around, as red, green and blue from 0 to 1.
_HAIR_SHADES = np.array(
    [
        [0.08, 0.07, 0.07],
        [0.24, 0.15, 0.09],
        [0.42, 0.27, 0.14],
        [0.74, 0.6, 0.36],
        [0.5, 0.2, 0.1],
        [0.62, 0.6, 0.58],
    ]
)
_IRISES = np.array(
    [[0.2, 0.11, 0.06], [0.36, 0.24, 0.1], [0.25, 0.4, 0.6], [0.3, 0.42, 0.28], [0.4, 0.42, 0.44]]
)


def face_traits(subject: int, *, seed: int = 0) -> Face:
    """Draw the face of one subject.

    Args:
        subject: The number of the subject.
        seed: The seed of all subjects.

    Returns:
        The face, the same for the same arguments.
    """
    rng = np.random.default_rng((seed, subject, 0))
    tone = rng.uniform(0.0, 1.0)
    skin = (
        np.array([0.93, 0.76, 0.65]) * (1 - tone)
        + np.array([0.42, 0.27, 0.19]) * tone
        + rng.normal(0.0, 0.025, 3)
    )
    lips = skin * (0.8, 0.55, 0.55) + (0.12, 0.02, 0.04)
    return Face(
        skin=_colour(skin),
        hair=_colour(
            _HAIR_SHADES[rng.choice(6, p=(0.3, 0.25, 0.18, 0.12, 0.07, 0.08))]
            + rng.normal(0.0, 0.03, 3)
        ),
        iris=_colour(_IRISES[rng.integers(5)] + rng.normal(0.0, 0.02, 3)),
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
    """Draw one image of one subject.

    Args:
        subject: The number of the subject.
        shot: The number of the image.
        seed: The seed of all subjects.
        size: The height and width in pixels, 16 to 2048.

    Returns:
        The image and its landmarks, the same for the same arguments.


    Example:
        >>> image, landmarks = face(0, 0)
        >>> image.shape, landmarks.shape
        ((112, 112, 3), (5, 2))
    """
    assert 16 <= size <= 2048, size
    who, rng = face_traits(subject, seed=seed), np.random.default_rng((seed, subject, 1, shot))
    yaw = float(np.clip(rng.normal(0.0, 0.13), -0.35, 0.35))
    roll, scale = rng.normal(0.0, 0.06), rng.uniform(0.92, 1.08)
    moved = rng.normal(0.0, 0.03, 2)
    turn = np.array([[np.cos(roll), -np.sin(roll)], [np.sin(roll), np.cos(roll)]])
    grid_x, grid_y = _grid(size)
    from_x, from_y = grid_x - np.float32(moved[0]), grid_y - np.float32(moved[1])
    x, y = (
        np.float32(1 / scale) * (np.float32(a) * from_x + np.float32(b) * from_y) for a, b in turn.T
    )
    look = _Look(
        yaw,
        smile=rng.normal(0.0, 0.035),
        gape=max(0.0, rng.normal(0.0, 0.05)),
        lids=rng.uniform(0.6, 1.1),
        glasses=rng.random() < 0.12,
    )
    lit = _light(_paint(who, look, x, y, rng), x, y, rng)
    if rng.random() < 0.5:
        sigma = float(rng.uniform(0.4, 1.6)) * size / 112
        lit = np.asarray(cv2.GaussianBlur(lit, (0, 0), sigma), dtype=np.float32)
    lit += rng.standard_normal(lit.shape, dtype=np.float32) * np.float32(rng.uniform(0.005, 0.04))
    pixels = np.clip(np.rint(lit * 255), 0, 255).astype(np.uint8)
    place = (_landmarks(who, yaw) @ turn.T) * scale + moved
    return Shot(pixels, (place + 1) * size / 2 - 0.5)


def write_faces(
    folder: str | Path, *, num_subjects: int, num_shots: int, seed: int = 0, size: int = 112
) -> None:
    """Write folder/subject000/shot00.png and so on (RGB), the same for the same arguments.

    Existing files are replaced.

    Args:
        folder: The folder to write to.
        num_subjects: How many subjects there are.
        num_shots: How many images each of them has.
        seed: The seed of all subjects.
        size: The height and width in pixels.

    Raises:
        LikenessError: As face().
    """
    folder = Path(folder)
    for subject in track(range(num_subjects), "drawing faces"):
        subject_folder = folder / f"subject{subject:03d}"
        subject_folder.mkdir(parents=True, exist_ok=True)
        for shot in range(num_shots):
            image = face(subject, shot, seed=seed, size=size).image
            encoded = cv2.imencode(".png", image[:, :, ::-1])[1]
            (subject_folder / f"shot{shot:02d}.png").write_bytes(encoded.tobytes())


def _landmarks(who: Face, yaw: float) -> NDArray[np.float64]:
    """Return the five landmarks (5, 2) of a turned head, in halves of the image."""
    mouth_x = who.mouth_width * 0.9
    points = [
        (-who.eye_gap, _EYE_Y),
        (who.eye_gap, _EYE_Y),
        (0.0, _NOSE_Y + who.nose_length),
        (-mouth_x, _MOUTH_Y),
        (mouth_x, _MOUTH_Y),
    ]
    depth = np.array([0.5, 0.5, 0.9, 0.55, 0.55])
    turned: NDArray[np.float64] = np.array(points) + np.column_stack((yaw * depth, np.zeros(5)))
    return turned


class _Look(NamedTuple):
    """How a subject looks in one image.

    Attributes:
        yaw: The sideways shift of what lies one unit in front of the head's axis.
        smile: How far up the mouth's corners are.
        gape: The opening of the mouth.
        lids: The opening of the eyes.
        glasses: Whether the subject wears glasses.
    """

    yaw: float
    smile: float
    gape: float
    lids: float
    glasses: bool


@dataclass(frozen=True)
class _Canvas:
    """An image that is painted on, at the face's own coordinates.

    Attributes:
        image: (size, size, 3) levels 0 to 1, which painting changes.
        x: (size, size) to the right.
        y: (size, size) downwards.
        yaw: The sideways shift of what lies one unit in front of the head's axis.
    """

    image: NDArray[np.float32]
    x: Plane
    y: Plane
    yaw: float

    @property
    def edge(self) -> np.float32:
        """The width of a soft edge, which is a pixel and a half."""
        return np.float32(1.5 * (self.x[0, 1] - self.x[0, 0]))

    def soften(self, depth: Plane, thickness: float) -> Plane:
        """Turn the depth inside a shape, a share of its thickness, into a cover with soft edges."""
        cover: Plane = np.clip(depth * np.float32(thickness) / self.edge + np.float32(0.5), 0, 1)
        return cover

    def over(self, cover: Plane, colour: Colour, strength: float = 1.0) -> None:
        """Paint a colour over the image where the cover is above 0."""
        share = (cover * np.float32(strength))[:, :, None]
        np.copyto(self.image, self.image + share * (colour - self.image))

    def ellipse(
        self, cx: float, cy: float, rx: float, ry: float, depth: float = 0.0, tilt: float = 0.0
    ) -> Plane:
        """Return the cover of an ellipse that lies `depth` in front of the head's axis."""
        u, v = self.x - np.float32(cx + self.yaw * depth), self.y - np.float32(cy)
        if tilt:
            v = v - np.float32(tilt) * u
        radius = np.sqrt((u / np.float32(rx)) ** 2 + (v / np.float32(ry)) ** 2)
        return self.soften(1 - radius, min(rx, ry))


def _paint(
    who: Face, look: _Look, x: Plane, y: Plane, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Paint a face without light: (size, size, 3) levels 0 to 1 at the face's coordinates x, y."""
    canvas = _Canvas(_background(x, y, rng), x, y, look.yaw)
    _paint_head(canvas, who)
    for side in (-1.0, 1.0):
        _paint_eye(canvas, who, look, side)
    _paint_nose(canvas, who)
    _paint_mouth(canvas, who, look)
    canvas.over(canvas.ellipse(*who.mole, 0.025, 0.025, depth=0.5), who.skin * 0.4)
    return canvas.image


def _background(x: Plane, y: Plane, rng: np.random.Generator) -> NDArray[np.float32]:
    """Paint a gradient between two colours, in a drawn direction."""
    top, bottom = rng.uniform(0.1, 0.9, 3), rng.uniform(0.1, 0.9, 3)
    across, down = np.float32(rng.uniform(-1, 1)), np.float32(rng.uniform(-1, 1))
    share = np.clip(0.5 + 0.5 * (across * x + down * y), 0, 1)[:, :, None]
    return (top * (1 - share) + bottom * share).astype(np.float32)


def _paint_head(canvas: _Canvas, who: Face) -> None:
    """Paint long hair, the neck, the head, the beard and the hair above."""
    x, y = canvas.x, canvas.y
    hair = canvas.ellipse(0.0, 0.1, who.width * who.hair_volume, who.height * who.hair_volume)
    canvas.over(hair * np.clip((who.hair_length - y) * 4, 0, 1, dtype=np.float32), who.hair)
    canvas.over(canvas.ellipse(0.0, 1.1, who.width * 0.55, 0.6), who.skin)  # the neck
    narrowed = 1 + np.float32(who.jaw) * np.clip(y - np.float32(0.1), 0, 1)
    radius = np.sqrt(
        ((x - np.float32(0.15 * canvas.yaw)) * narrowed / np.float32(who.width)) ** 2
        + ((y - np.float32(0.12)) / np.float32(who.height)) ** 2
    )
    head = canvas.soften(1 - radius, who.width)
    canvas.over(head, who.skin)
    canvas.over(head * np.clip((y - np.float32(0.42)) * 3, 0, 1), who.hair, who.beard)
    hairline = np.clip((np.float32(who.hairline) - y + 0.25 * x * x) * 8, 0, 1)
    canvas.over(head * hairline, who.hair)


def _paint_eye(canvas: _Canvas, who: Face, look: _Look, side: float) -> None:
    """Paint what there is on each side: eye, brow, nostril and the rim of glasses."""
    cx, size = side * who.eye_gap, who.eye_size
    eye = canvas.ellipse(cx, _EYE_Y, size, size * who.eye_shape * look.lids, depth=0.5)
    iris = canvas.ellipse(cx, _EYE_Y, size * 0.45, size * 0.45, depth=0.55)
    pupil = canvas.ellipse(cx, _EYE_Y, size * 0.2, size * 0.2, depth=0.56)
    canvas.over(eye, _WHITE)
    canvas.over(eye * iris, who.iris)
    canvas.over(eye * pupil, _BLACK)
    brow_y, brow_tilt = _EYE_Y - who.brow_lift, side * who.brow_tilt
    brow = canvas.ellipse(cx, brow_y, size * 1.35, who.brow_weight, depth=0.52, tilt=brow_tilt)
    canvas.over(brow, who.hair * 0.8)
    nostril_x, nostril_y = side * who.nose_width * 0.55, _NOSE_Y + who.nose_length + 0.05
    nostril = canvas.ellipse(nostril_x, nostril_y, who.nose_width * 0.3, 0.025, depth=0.75)
    canvas.over(nostril, who.skin * 0.45)
    if look.glasses:
        outside = canvas.ellipse(cx, _EYE_Y, 0.24, 0.2, depth=0.6)
        inside = canvas.ellipse(cx, _EYE_Y, 0.21, 0.17, depth=0.6)
        canvas.over(outside - inside, _BLACK)


def _paint_nose(canvas: _Canvas, who: Face) -> None:
    """Paint the tip of the nose and the light on its back."""
    tip = canvas.ellipse(0.0, _NOSE_Y + who.nose_length, who.nose_width, 0.1, depth=0.85)
    canvas.over(tip, who.skin * 0.85, 0.6)
    back = canvas.ellipse(-0.03, 0.1, 0.035, 0.24 + who.nose_length, depth=0.8)
    canvas.over(back, who.skin * 1.15, 0.5)


def _paint_mouth(canvas: _Canvas, who: Face, look: _Look) -> None:
    """Paint the lips, which a smile bends, and the dark of an open mouth."""
    bent = look.smile * 6.0
    curved_y = _MOUTH_Y + bent * who.mouth_width**2 * 0.5
    u = canvas.x - np.float32(0.55 * look.yaw)
    v = canvas.y - np.float32(curved_y) + np.float32(bent) * u * u
    height = who.mouth_weight + look.gape
    squares = (u / np.float32(who.mouth_width)) ** 2 + (v / np.float32(height)) ** 2
    radius: Plane = np.sqrt(squares, dtype=np.float32)
    canvas.over(canvas.soften(1 - radius, height), who.lips)
    if look.gape > 0.03:
        canvas.over(canvas.soften(np.float32(0.6) - radius, look.gape), _BLACK)


def _light(
    image: NDArray[np.float32], x: Plane, y: Plane, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Light an image from one side, with a colour and strength, and apply the camera's gamma."""
    angle, contrast = rng.uniform(0.0, 2 * np.pi), rng.uniform(0.0, 0.5)
    shade = 1 + np.float32(contrast * np.cos(angle)) * x + np.float32(contrast * np.sin(angle)) * y
    tint = (rng.uniform(0.6, 1.2) * rng.normal(1.0, 0.06, 3)).astype(np.float32)
    lit: NDArray[np.float32] = np.clip(image * np.clip(shade, 0.15, None)[:, :, None] * tint, 0, 1)
    return cv2.pow(lit, float(rng.uniform(0.75, 1.3))).astype(np.float32, copy=False)


@lru_cache(maxsize=4)
def _grid(size: int) -> tuple[Plane, Plane]:
    """Return (size, size) x and y from -1 to 1 at the pixels' centres."""
    line = ((np.arange(size, dtype=np.float32) + 0.5) * 2 / size - 1).astype(np.float32)
    x, y = np.meshgrid(line, line)
    return x, y


def _colour(values: NDArray[np.float64]) -> Colour:
    """Limit a drawn colour to what a camera sees."""
    return np.clip(values, 0.02, 0.98).astype(np.float32)
