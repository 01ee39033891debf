"""Recordings of synthetic speakers for miniatures of data sets."""

from pathlib import Path

import soundfile

from likeness.modalities import synthetic


def write_voices_to(folder: Path, *names: str) -> None:
    """Two recordings of each speaker in turn, below a folder."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        wave = synthetic.voice(number // 2, number % 2, seconds=(0.5, 0.8))
        soundfile.write(folder / name, wave, 16_000, subtype="PCM_16")
