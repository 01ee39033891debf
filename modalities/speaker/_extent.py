"""Whether a recording holds what its header states, for files that libsndfile reads.

libsndfile takes the samples that are there for all of them.
"""

import io
import re
from typing import BinaryIO, Literal

import soundfile

# The share of the stated samples that a whole file gives: the delay and the padding of an encoder
# are a few thousandths of the file.
WHOLE = 0.9
FORMATS = ("WAV", "WAVEX", "RF64", "AIFF", "FLAC", "MP3", "OGG", "NIST")  # of libsndfile's
# A writer who does not know the end, as to a pipe, states 4 GiB or 2 GiB (SoX, arecord) as the size
# in bytes, less the header.
_HALF_OF_ALL, _LONGEST_HEADER = 2**31, 2**16
_ORDERS: dict[bytes, Literal["little", "big"]] = {
    b"RIFF": "little",
    b"RF64": "little",
    b"RIFX": "big",
    b"FORM": "big",
}
_COUNT = re.compile(rb"sample_count -i (\d+)")  # of NIST SPHERE
_SPHERE_HEADER = 1024  # bytes
_LARGEST_PAGE, _SERIAL = 2**16, slice(14, 18)  # of Ogg, both in bytes; what a stream's pages share
# What the first frame of an MP3 has, and the size that it states.
_LENGTH_MARKS = (b"Xing", b"Info")
_SIZE_OF_MP3 = re.compile(rb"(?:Xing|Info)\0\0\0[\x03\x07\x0b\x0f].{4}(.{4})", re.DOTALL)
_TAGS = (b"ID3\3", b"ID3\4")


def frames_of_header(file: soundfile.SoundFile, bare: BinaryIO) -> int:
    """Return how many samples the header of a file states, or as many as it has if that is open.

    Args:
        file: The file as libsndfile opened it.
        bare: Its bytes.
    """
    frames = int(file.frames)
    if file.format == "NIST" and (count := _COUNT.search(bare.read(_SPHERE_HEADER))):
        return int(count[1])
    begin, size = _samples(bare)
    there = bare.seek(0, io.SEEK_END) - begin
    return frames if there >= size or _is_open(size) else round(frames * size / max(there, 1))


def _samples(bare: BinaryIO) -> tuple[int, int]:
    """Where the samples of a WAV or AIFF file begin, and how many bytes its header states for them;
    zeros for another file.
    """
    bare.seek(0)
    order = _ORDERS.get(bare.read(12)[:4])
    size_of_64_bits = 0
    while order and len(head := bare.read(8)) == 8:
        name, size, begin = head[:4], int.from_bytes(head[4:], order), bare.tell()
        if name == b"ds64":
            size_of_64_bits = int.from_bytes(bare.read(16)[8:], order)
        if name in (b"data", b"SSND"):
            return begin, size_of_64_bits or size
        bare.seek(begin + size + size % 2)
    return 0, 0


def _is_open(size: int) -> bool:
    nearest = round(size / _HALF_OF_ALL) * _HALF_OF_ALL
    return nearest > 0 and abs(size - nearest) < _LONGEST_HEADER


def is_joined(file_format: str, bare: BinaryIO) -> bool:
    """Return whether a file has several streams, of which libsndfile reads the first.

    These are Ogg files whose last page is of another stream, and MP3 files that begin again where
    their first frame states their end.

    Args:
        file_format: The format as libsndfile names it.
        bare: The bytes of the file.
    """
    bare.seek(0)
    if file_format == "OGG":
        first = bare.read(_SERIAL.stop)
        bare.seek(max(0, bare.seek(0, io.SEEK_END) - _LARGEST_PAGE))
        tail = bare.read()
        last = tail.rfind(first[:4], 0, len(tail) - _SERIAL.start)
        return last >= 0 and first[_SERIAL] != tail[last:][_SERIAL]
    if file_format != "MP3":
        return False
    begin, frame = _first_frame(bare)
    stated = _SIZE_OF_MP3.search(frame)
    if stated is None:
        return False
    bare.seek(begin + max(len(frame), int.from_bytes(stated[1])))
    behind = bare.read(2**16)
    return any(mark in behind for mark in (*_LENGTH_MARKS, *_TAGS))


def states_length(bare: BinaryIO) -> bool:
    """Return whether the first frame of an MP3 states its length.

    Without that libsndfile guesses the length from the first bit rate. Where the bit rate varies,
    the guess is wrong.
    """
    frame = _first_frame(bare)[1]
    return any(mark in frame for mark in (*_LENGTH_MARKS, b"VBRI"))


def _first_frame(bare: BinaryIO) -> tuple[int, bytes]:
    """Where the first frame of an MP3 begins behind its tag, and its first bytes."""
    head = bare.read(10)
    # An ID3 tag states its size as four times seven bits.
    tag_size = sum(byte << 7 * place for place, byte in enumerate(reversed(head[6:])))
    begin = 10 + tag_size if head[:3] == b"ID3" and len(head) == 10 else 0
    bare.seek(begin)
    return begin, bare.read(256)


def replace_zero_size(bare: BinaryIO) -> bytes | None:
    """Return a WAV file whose header states 0 bytes of samples with an open end in its place.

    Streams are written so. It is None where nothing follows the header.
    """
    begin, size = _samples(bare)
    bare.seek(0)
    content = bare.read()
    if not begin or size or len(content) <= begin:
        return None
    return content[: begin - 4] + b"\xff" * 4 + content[begin:]
