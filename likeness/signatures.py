"""The format of a file from its first bytes, for files that bring no name that can be trusted."""

from __future__ import annotations

import re

# The ending by which readers choose a decoder, and what such a file begins with.
_STARTS = {
    ".wav": rb"RIFF....WAVE|RF64|RIFX",
    ".flac": rb"fLaC",
    ".opus": rb"OggS.{24}OpusHead",  # in a page header of 28 bytes; before .ogg, which fits as well
    ".ogg": rb"OggS",
    ".aiff": rb"FORM....AIF",
    ".sph": rb"NIST_1A",
    ".m4a": rb"....ftyp",
    ".jpg": rb"\xff\xd8\xff",
    ".png": rb"\x89PNG\r\n",
    ".webp": rb"RIFF....WEBP",
    ".bmp": rb"BM",
    ".gif": rb"GIF8",
    ".tif": rb"II\*\x00|MM\x00\*",
    ".ppm": rb"P[3-6]\s",
    ".mp3": rb"ID3|\xff[\xe2-\xff]",
}


def suffix_of(content: bytes) -> str:
    """Give the ending that fits the first bytes of a file.

    Args:
        content: The file, or at least its first 64 bytes.

    Returns:
        The ending in lower case, such as ".wav"; "" if the format is not known.

    Example:
        >>> suffix_of(b"fLaC and so on"), suffix_of(b"no sound")
        ('.flac', '')
    """
    kinds = (name for name, start in _STARTS.items() if re.match(start, content, re.DOTALL))
    return next(kinds, "")
