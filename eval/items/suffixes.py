"""What the suffix of a file says of it, and which suffix its first bytes ask for."""

import re

IMAGES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".pgm", ".ppm", ".pbm"),
    *(".heic", ".heif"),  # through pillow-heif, the extra "heic"
)
SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".sph")  # through libsndfile
AV_SOUNDS = (".m4a", ".aac", ".mp4", ".mov", ".webm", ".mkv")  # through PyAV, the extra "m4a"

# Recordings and images that people have and nothing here reads, or not everything.
UNREAD = {
    *(".heic", ".heif", ".avif", ".jxl", ".dng", ".cr2", ".nef", ".arw", ".mp4", ".m4a"),
    *(".wma", ".amr", ".3gp", ".mkv", ".mov", ".avi", ".webm"),
}


def suffixes_of(modality: str) -> tuple[str, ...]:
    """Return the endings of the files that a modality reads, in small letters.

    Example:
        >>> ".flac" in suffixes_of("speaker"), ".jpg" in suffixes_of("face")
        (True, True)
    """
    return SOUNDS + AV_SOUNDS if modality == "speaker" else IMAGES


# The ending by which readers choose a decoder, and what such a file begins with. The first that
# fits is taken.
_STARTS = {
    ".wav": rb"RIFF....WAVE|RF64|RIFX",
    ".flac": rb"fLaC",
    ".opus": rb"OggS.{24}OpusHead",  # in a page header of 28 bytes
    ".ogg": rb"OggS",
    ".aiff": rb"FORM....AIF",
    ".sph": rb"NIST_1A",
    ".webm": rb"\x1aE\xdf\xa3.{,50}webm",
    ".mkv": rb"\x1aE\xdf\xa3",
    ".heic": rb"....ftyp(?:hei|hev|mif|msf)",
    ".mov": rb"....(?:ftypqt|moov|mdat|wide|free|skip)",
    ".m4a": rb"....ftyp",
    ".aac": rb"\xff[\xf0\xf1\xf8\xf9]",
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
