"""Whether a recording holds what its header states, for files that libsndfile reads.

libsndfile takes the samples that are there for all of them, but its log has both numbers.
"""

import mmap
import re
from typing import BinaryIO

import soundfile

# The share of the stated samples that a whole file gives: the delay and the padding of an encoder
# are a few thousandths of the file.
WHOLE = 0.9
# A writer who does not know the end, as to a pipe, states 4 GiB or 2 GiB (SoX, arecord) as the size
# in bytes, less the header.
_HALF_OF_ALL, _LONGEST_HEADER = 2**31, 2**16
# Of the chunk with the samples, in the log; W64 says it of the whole file.
_SIZES = re.compile(r"^ *(?:data|SSND|Data Size|riff) *: (\d+) \(should be (\d+)\)", re.MULTILINE)
_FRAMES = re.compile(r"^ *Frames *: (\d+)$", re.MULTILINE)  # of RF64
_COUNT = re.compile(rb"sample_count -i (\d+)")  # of NIST SPHERE, which the log lacks
_SPHERE_HEADER = 1024  # bytes
_BEGIN_OF_STREAM = b"OggS\0\2"  # of Ogg
# What the first frame of an MP3 has, so many bytes behind its beginning.
_LENGTH_MARKS, _BEHIND = (b"Xing", b"Info"), (13, 21, 36)


def frames_of_header(file: soundfile.SoundFile, bare: BinaryIO) -> int:
    """Return how many samples the header of a file states, or as many as it has if that is open.

    Args:
        file: The file as libsndfile opened it.
        bare: Its bytes.
    """
    log, frames = str(file.extra_info), int(file.frames)
    if file.format == "NIST" and (count := _COUNT.search(bare.read(_SPHERE_HEADER))):
        return int(count[1])
    if file.format == "RF64" and (total := _FRAMES.search(log)):
        return max(frames, int(total[1]))
    for size, there in (map(int, sizes) for sizes in _SIZES.findall(log)):
        if there < size and not _is_open(size):
            return round(frames * size / max(there, 1))
    return frames


def _is_open(size: int) -> bool:
    nearest = round(size / _HALF_OF_ALL) * _HALF_OF_ALL
    return nearest > 0 and abs(size - nearest) < _LONGEST_HEADER


def is_joined(file_format: str, bare: BinaryIO) -> bool:
    """Return whether a file has several streams, of which libsndfile reads the first.

    These are Ogg files, and MP3 files whose first frame states their length.

    Args:
        file_format: The format as libsndfile names it.
        bare: The bytes of the file.
    """
    if file_format not in ("OGG", "MP3"):
        return False
    bare.seek(0)
    try:
        with mmap.mmap(bare.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _has_several(file_format, content)
    except (OSError, ValueError):  # it lies in memory
        return _has_several(file_format, bare.read())


def _has_several(file_format: str, content: bytes | mmap.mmap) -> bool:
    if file_format == "OGG":
        return content.find(_BEGIN_OF_STREAM, 1) > 0
    num = 0
    for mark in _LENGTH_MARKS:
        at = content.find(mark)
        while at >= 0:
            heads = (content[at - back : at - back + 2] for back in _BEHIND if back <= at)
            num += any(len(head) == 2 and head[0] == 0xFF and head[1] >= 0xE2 for head in heads)
            at = content.find(mark, at + 1)
    return num > 1


def states_length(bare: BinaryIO) -> bool:
    """Return whether the first frame of an MP3 states its length.

    Without that libsndfile guesses the length from the first bit rate. Where the bit rate varies,
    the guess is wrong.
    """
    head = bare.read(10)
    has_tag = head[:3] == b"ID3" and len(head) == 10
    # An ID3 tag states its size as four times seven bits.
    tag_size = sum(byte << 7 * place for place, byte in enumerate(reversed(head[6:])))
    bare.seek(10 + tag_size if has_tag else 0)
    frame = bare.read(256)
    return any(mark in frame for mark in (*_LENGTH_MARKS, b"VBRI"))


def replace_zero_size(bare: BinaryIO) -> bytes | None:
    """Return a WAV file whose header states 0 bytes of samples with an open end in its place.

    Streams are written so. It is None where nothing follows the header.
    """
    bare.seek(0)
    content = bare.read()
    chunk = content.find(b"data\0\0\0\0", 12)
    if chunk < 0 or len(content) == chunk + 8:
        return None
    return content[: chunk + 4] + b"\xff" * 4 + content[chunk + 8 :]
