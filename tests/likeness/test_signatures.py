"""The ending of a file from its first bytes, of files that other libraries write."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from PIL import Image

from likeness.inputs import suffix_of


@pytest.mark.parametrize(
    ("suffix", "kind", "subtype"),
    [
        (".wav", "WAV", "PCM_16"),
        (".wav", "WAVEX", "FLOAT"),
        (".wav", "RF64", "PCM_16"),
        (".flac", "FLAC", "PCM_16"),
        (".ogg", "OGG", "VORBIS"),
        (".opus", "OGG", "OPUS"),
        (".aiff", "AIFF", "PCM_16"),
        (".sph", "NIST", "PCM_16"),
        (".mp3", "MP3", "MPEG_LAYER_III"),
    ],
)
def test_recordings(suffix: str, kind: str, subtype: str) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(16000) / 9), 16000, format=kind, subtype=subtype)
    assert suffix_of(file.getvalue()) == suffix_of(file.getvalue()[:64]) == suffix


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        (".jpg", "JPEG"),
        (".png", "PNG"),
        (".webp", "WEBP"),
        (".bmp", "BMP"),
        (".gif", "GIF"),
        (".tif", "TIFF"),
        (".ppm", "PPM"),
    ],
)
def test_images(suffix: str, kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (9, 7)).save(file, format=kind)
    assert suffix_of(file.getvalue()) == suffix


@pytest.mark.parametrize("content", [b"", b"RIFF", b"RIFF1234AVI ", b"FORM1234ILBM", b"\xff\xd8"])
def test_what_is_of_no_known_format(content: bytes) -> None:
    assert suffix_of(content) == ""
