"""Writes synthetic voices, faces and images to practise on: `python examples/practice_data.py`.

The tutorials in docs/tutorials begin with them. It takes half a minute, and downloads nothing.
Nobody in them exists, so what a model reaches on them says nothing about people.

    voices/NAME/1.flac ...      90 speakers with six recordings each
    faces/NAME/1.png ...        80 faces with six pictures each, of 112 x 112 pixels
    images/NAME/1.png ...       100 signs, each written by six hands
    groups.txt                  a line `NAME GROUP` for every speaker
"""

from __future__ import annotations

import argparse
from pathlib import Path

from modalities import synthetic, synthetic_faces, synthetic_glyphs

# So many that the held-out fifth has the nontarget trials that a FAR of 1 % needs.
PEOPLE = ("ann", "bob", *(f"who{number:02d}" for number in range(88)))
SIGNS = ("circle", "cross", *(f"sign{number:02d}" for number in range(98)))
NUM_FACES = 80


def write(out: Path, *, files: int = 6, seconds: tuple[float, float] = (1.5, 3.0)) -> None:
    """Write the three folders and the list of groups.

    Args:
        out: The folder to write to.
        files: How many files each subject has.
        seconds: The durations of the shortest and the longest recording.

    Raises:
        ValueError: One of the folders is there already.
    """
    folders = [out / name for name in ("voices", "faces", "images")]
    for folder in folders:
        if folder.exists():
            raise ValueError(
                f"{folder} is there already; remove it, or name another folder by --out"
            )
    voices, faces, images = folders
    synthetic.write_voices(voices, num_speakers=len(PEOPLE), num_utterances=files, seconds=seconds)
    synthetic_faces.write_faces(faces, num_subjects=NUM_FACES, num_shots=files)
    synthetic_glyphs.write_glyphs(
        images, num_alphabets=10, num_characters=10, num_drawers=files, size=64
    )
    for folder, names in ((voices, PEOPLE), (faces, PEOPLE[:NUM_FACES]), (images, SIGNS)):
        for subject, name in zip(sorted(folder.iterdir()), names, strict=True):
            for number, file in enumerate(sorted(subject.iterdir()), start=1):
                file.rename(file.with_name(f"{number}{file.suffix}"))
            subject.rename(subject.with_name(name))
    lines = [f"{name} {'fm'[number % 2]}\n" for number, name in enumerate(PEOPLE)]
    (out / "groups.txt").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Write them where --out says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="the folder to write to")
    try:
        write(parser.parse_args().out)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    print("voices, faces, images and groups.txt are written")


if __name__ == "__main__":
    main()
