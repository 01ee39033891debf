"""Containers of sound, such as .m4a and .mp4, which PyAV (the extra "m4a") opens."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from likeness.eval.errors import LikenessError, install_line
from likeness.eval.items.suffixes import AV_SOUNDS

SECOND = 1_000_000  # of the durations of containers; av.time_base
# The reader of FFmpeg for each suffix; others, some of which open further files, are never tried.
_READERS = dict.fromkeys(AV_SOUNDS, "mov") | dict.fromkeys((".webm", ".mkv"), "matroska")
_READERS[".aac"] = "aac"


@contextmanager
def opened(source: Path | BinaryIO, kind: str) -> Iterator[tuple[Any, Any]]:
    """Open a file that PyAV reads; give its container and its sound track.

    Args:
        source: The file.
        kind: Its suffix, one of AV_SOUNDS.

    Raises:
        LikenessError: It cannot be decoded, in the block either; it has no sound track, or several;
            or PyAV is not installed.
    """
    try:
        av = import_module("av")
    except ImportError as error:
        line = install_line("m4a")
        raise LikenessError(f"{kind} needs PyAV; run `{line}`, or convert it to .flac") from error
    file = str(source) if isinstance(source, Path) else source
    try:
        options = {"format": _READERS[kind], "metadata_errors": "replace"}
        with av.open(file, mode="r", **options) as container:
            tracks = container.streams.audio
            if len(tracks) != 1:
                raise LikenessError(f"it has {len(tracks)} sound tracks; save one as its own file")
            if tracks[0].codec_context is None:
                raise LikenessError("FFmpeg has no decoder of its sound; convert it to .flac")
            yield container, tracks[0]
    except (av.FFmpegError, OSError) as error:
        raise LikenessError(f"unreadable by PyAV ({error}); convert it to .flac") from error
