"""Writes synthetic voices, faces and images to practise on: `python examples/practice_data.py`.

The tutorials in docs/tutorials begin with them. It takes half a minute, and downloads nothing.
Nobody in them exists, so what a model reaches on them says nothing about people.

    voices/NAME/1.flac ...      90 speakers with six recordings each
    faces/NAME/1.png ...        80 faces with six pictures each, of 112 x 112 pixels
    images/NAME/1.png ...       100 signs, each written by six hands
    groups.txt                  a line `NAME GROUP` for every speaker

With --scores it also runs COMMANDS there, in a minute or two: runs/voices, a trained model with a
threshold; lists/voices, voices.npz and voices.txt, the trials, embeddings and scores of its
held-out speakers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from likeness.data import synthetic, synthetic_faces, synthetic_glyphs

# So many that the held-out fifth has the nontarget trials that a FAR of 1 % needs.
PEOPLE = ("ann", "bob", *(f"who{number:02d}" for number in range(88)))
SIGNS = ("circle", "cross", *(f"sign{number:02d}" for number in range(98)))
NUM_FACES = 80
COMMANDS = """\
train speaker/folders schedule.steps=300 --data voices --out runs/voices
evaluate runs/voices --far 0.01 --save-to runs/voices
lists voices --out lists/voices
embed --model runs/voices --items lists/voices/items.txt --out voices.npz
score --trials lists/voices/trials.txt --embeddings voices.npz --out voices.txt"""


def write(out: Path, *, files: int = 6, seconds: tuple[float, float] = (1.5, 3.0)) -> None:
    """Write the three folders and the list of groups, all of them or none.

    Args:
        out: The folder to write to.
        files: How many files each subject has.
        seconds: The durations of the shortest and the longest recording.

    Raises:
        ValueError: One of the folders or the list of groups is there already.
        OSError: `out` is no folder that can be written to.
    """
    for name in ("voices", "faces", "images", "groups.txt"):
        if os.path.lexists(out / name):
            raise ValueError(
                f"{out / name} is there already; remove it, or name another folder by --out"
            )
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out, prefix=".practice-") as folder:
        write_whole(Path(folder), files, seconds)
        for path in sorted(Path(folder).iterdir()):
            path.rename(out / path.name)


def write_whole(out: Path, files: int, seconds: tuple[float, float]) -> None:
    """Write everything into an empty folder."""
    voices, faces, images = folders = [out / name for name in ("voices", "faces", "images")]
    synthetic.write_voices(voices, num_speakers=len(PEOPLE), num_utterances=files, seconds=seconds)
    synthetic_faces.write_faces(faces, num_subjects=NUM_FACES, num_shots=files)
    synthetic_glyphs.write_glyphs(
        images, num_alphabets=10, num_characters=10, num_drawers=files, size=64
    )
    for folder, names in zip(folders, (PEOPLE, PEOPLE[:NUM_FACES], SIGNS), strict=True):
        for subject, name in zip(sorted(folder.iterdir()), names, strict=True):
            for number, file in enumerate(sorted(subject.iterdir()), start=1):
                file.rename(file.with_name(f"{number}{file.suffix}"))
            subject.rename(subject.with_name(name))
    lines = [f"{name} {'fm'[number % 2]}\n" for number, name in enumerate(PEOPLE)]
    (out / "groups.txt").write_text("".join(lines), encoding="utf-8")


def run_commands(out: Path) -> None:
    """Train on the voices, and score the held-out ones.

    Raises:
        CalledProcessError: A command failed; it says why.
    """
    for command in COMMANDS.splitlines():
        print("likeness", command, flush=True)
        subprocess.run([sys.executable, "-m", "likeness", *command.split()], cwd=out, check=True)


def main() -> None:
    """Write them where --out says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="the folder to write to")
    parser.add_argument(
        "--scores", action="store_true", help="also train a voice model, and score with it"
    )
    arguments = parser.parse_args()
    try:
        write(arguments.out)
        print("voices, faces, images and groups.txt are written")
        if arguments.scores:
            run_commands(arguments.out)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{error}\n")
    except subprocess.CalledProcessError as error:
        parser.exit(error.returncode)


if __name__ == "__main__":
    main()
