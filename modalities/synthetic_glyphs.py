"""Seeded characters of made-up alphabets, of any number, as Omniglot has real ones.

The demo and every recipe's smoke test run on them, and nothing is downloaded.

They follow the generative model of Lake et al., "Human-level concept learning through probabilistic
program induction" (Science 2015), much reduced. An alphabet has a style: how many strokes its
characters have, how curved they are, how often they are straight or closed, whether they begin on a
grid. A character is a few strokes, which are smooth curves through control points. A drawer moves
the points a little, slants, turns and scales the whole, and holds a pen of some width. Neither a
drawer's hand nor the place of the ink tells the character, so that pixels alone do better than
chance and far worse than a trained network.
"""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from likeness.eval.progress import track

Pixels = NDArray[np.uint8]
Points = NDArray[np.float64]

_FINE = 16  # OpenCV draws at fractions of a pixel of 1 / 16
_SHIFT = 4  # the same as a power of two
_PER_SEGMENT = 8  # the line segments between two control points


def strokes(alphabet: int, character: int, *, seed: int = 0) -> list[Points]:
    """Return the control points of a character's strokes as its alphabet has it.

    Args:
        alphabet: The number of the alphabet.
        character: The number of the character in its alphabet.
        seed: The seed of all alphabets.

    Returns:
        (n, 2) points for each stroke, within -1 to 1, x to the right and y down. They are the same
            for
        the same arguments.
    """
    style = np.random.default_rng((seed, alphabet, 0))
    fewest, extra = int(style.integers(1, 3)), int(style.integers(1, 4))
    straight, closed = style.uniform(0.0, 0.7), style.uniform(0.0, 0.25)
    gridded = style.random() < 0.5
    reach, corners = style.uniform(0.5, 1.0), int(style.integers(3, 6))
    rng = np.random.default_rng((seed, alphabet, 1, character))
    drawn: list[Points] = []
    for _ in range(fewest + int(rng.integers(extra + 1))):
        start = rng.uniform(-0.8, 0.8, 2)
        if gridded:
            start = np.round(start * 1.5) / 1.5
        # Most strokes begin on another one.
        if drawn and rng.random() < 0.6:
            touched = drawn[rng.integers(len(drawn))]
            start = touched[rng.integers(len(touched))]
        if rng.random() < closed:
            angles = np.linspace(0.0, 2 * np.pi, 7) + rng.uniform(0, 2 * np.pi)
            circle = np.column_stack((np.cos(angles), np.sin(angles)))
            points = start + rng.uniform(0.15, 0.45, 2) * circle
        elif rng.random() < straight:
            points = start + np.outer([0.0, 0.5, 1.0], rng.uniform(-1.4, 1.4, 2) * reach)
        else:
            steps = rng.normal(0.0, 0.45 * reach, (int(rng.integers(2, corners + 1)), 2))
            points = np.vstack((start, start + np.cumsum(steps, axis=0)))
        drawn.append(points)
    low, high = (edge(np.vstack(drawn), axis=0) for edge in (np.min, np.max))
    return [(points - (low + high) / 2) * (2 / max(0.8, *(high - low))) for points in drawn]


def glyph(alphabet: int, character: int, drawer: int, *, seed: int = 0, size: int = 105) -> Pixels:
    """Draw one character as one drawer writes it, with ink 255 on 0.

    Args:
        alphabet: The number of the alphabet.
        character: The number of the character in its alphabet.
        drawer: The number of the drawer.
        seed: The seed of all alphabets and drawers.
        size: The height and width in pixels, 8 to 4096.

    Returns:
        (size, size) uint8, the same for the same arguments.


    Example:
        >>> glyph(0, 0, 0, size=28).shape
        (28, 28)
    """
    assert 8 <= size <= 4096, size
    hand = np.random.default_rng((seed, 2, drawer))  # what a drawer does to every character
    slant, pen = hand.uniform(-0.3, 0.3), hand.uniform(0.02, 0.04)
    rng = np.random.default_rng((seed, 3, alphabet, character, drawer))
    angle, stretch = rng.normal(0.0, 0.15), rng.uniform(0.5, 0.75, 2)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turn = rotation @ np.array([[1.0, slant], [0.0, 1.0]]) * stretch
    moved = rng.uniform(-0.18, 0.18, 2)
    pixels = np.zeros((size, size), dtype=np.uint8)
    width = max(1, round(pen * size * rng.uniform(0.85, 1.15)))
    for points in strokes(alphabet, character, seed=seed):
        written = (points + rng.normal(0.0, 0.07, points.shape)) @ turn.T + moved
        path = np.round((_smooth(written) * 0.5 + 0.5) * (size - 1) * _FINE).astype(np.int32)
        cv2.polylines(pixels, [path.reshape(-1, 1, 2)], False, 255, width, cv2.LINE_AA, _SHIFT)
    return pixels


def write_glyphs(
    folder: str | Path,
    *,
    num_alphabets: int,
    num_characters: int,
    num_drawers: int,
    seed: int = 0,
    size: int = 105,
    by_alphabet: bool = False,
) -> None:
    """Write folder/alphabet00_character00/drawer00.png and so on, in grey.

    The files are the same for the same arguments. One folder is one class, as
    likeness.modalities.folders reads them. Existing files are replaced.

    Args:
        folder: The folder to write to.
        num_alphabets: How many alphabets there are.
        num_characters: How many characters each alphabet has.
        num_drawers: How many drawers write each character.
        seed: The seed of all alphabets and drawers.
        size: The height and width in pixels.
        by_alphabet: Whether to write Omniglot's layout and levels (ink 0 on 255):
            folder/alphabet00/character00/drawer00.png, as likeness.modalities.image.small_sets
            reads images_background.

    Raises:
        LikenessError: As glyph().
    """
    folder = Path(folder)
    for number in track(range(num_alphabets * num_characters), "drawing glyphs"):
        alphabet, character = divmod(number, num_characters)
        name = f"alphabet{alphabet:02d}{'/' if by_alphabet else '_'}character{character:02d}"
        (folder / name).mkdir(parents=True, exist_ok=True)
        for drawer in range(num_drawers):
            drawn = glyph(alphabet, character, drawer, seed=seed, size=size)
            encoded = cv2.imencode(".png", 255 - drawn if by_alphabet else drawn)[1]
            (folder / name / f"drawer{drawer:02d}.png").write_bytes(encoded.tobytes())


def _smooth(points: Points) -> Points:
    """Compute the Catmull-Rom curve (m, 2) through control points (n, 2)."""
    padded = np.vstack((2 * points[0] - points[1], points, 2 * points[-1] - points[-2]))
    before, start = padded[:-3, None], padded[1:-2, None]
    end, after = padded[2:-1, None], padded[3:, None]
    t = np.linspace(0.0, 1.0, _PER_SEGMENT, endpoint=False)[None, :, None]
    curve = start + 0.5 * t * (
        end
        - before
        + t * (2 * before - 5 * start + 4 * end - after + t * (3 * (start - end) + after - before))
    )
    return np.vstack((curve.reshape(-1, 2), points[-1:]))
