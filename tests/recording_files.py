"""Recordings with every field that their formats have, written byte by byte where no library can.

`RECORDINGS` has for each suffix that is read its fields, each with a file and what it is at 16 kHz:
samples, or the words of a refusal.
"""

import io
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

Heard = NDArray[Any] | str
Case = tuple[Callable[[], bytes], Heard]
HZ = 16_000
_TIME = np.arange(HZ) / HZ
# A glide, whose samples tell where they stand, of whole 16-bit levels.
GLIDE = np.rint(9000 * np.sin(2 * np.pi * (200 + 150 * _TIME) * _TIME)).astype("<i2")
WAVE = GLIDE / 32768
STEREO = np.stack([GLIDE, np.zeros_like(GLIDE)], axis=1)
OTHER = STEREO[:, ::-1]


def wav(samples, *, code=1, bits=0, rate=HZ, size=None, before=b"", behind=b"", valid=0, mask=0):
    """A WAV file; one of WAVE_FORMAT_EXTENSIBLE where `valid` bits are stated."""
    channels, data = 1 if samples.ndim == 1 else samples.shape[1], samples.tobytes()
    bits = bits or 8 * samples.dtype.itemsize
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", code, channels, rate, rate * block, block, bits)
    if valid:
        guid = bytes.fromhex("000000001000800000aa00389b71")
        form = b"\xfe\xff" + form[2:] + struct.pack("<HHIH", 22, valid, mask, code) + guid
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + before + b"data"
    body += struct.pack("<I", len(data) if size is None else size) + data + behind
    return b"RIFF" + struct.pack("<I", len(body)) + body


def bytes_24(samples: NDArray[Any]) -> NDArray[np.uint8]:
    """16-bit samples as 24 bits."""
    wide = (samples.astype("<i4") << 8).view(np.uint8).reshape(-1, 4)
    return np.ascontiguousarray(wide[:, :3]).reshape(-1)


def rf64(name: bytes, num: int = HZ) -> bytes:
    """A file of over 4 GiB by its header, where `num` is the number of its samples."""
    sizes = struct.pack("<QQQI", 72 + 2 * num, 2 * num, num, 0)
    head = name + b"\xff" * 4 + b"WAVEds64" + struct.pack("<I", len(sizes)) + sizes
    return head + wav(GLIDE, size=2**32 - 1)[12:]


def written(file_format: str, subtype: str, samples: NDArray[Any] = GLIDE, rate: int = HZ) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=file_format, subtype=subtype)
    return file.getvalue()


def sphere(samples: NDArray[Any] = GLIDE, **fields: str | int) -> bytes:
    """A NIST SPHERE file."""
    stated: dict[str, str | int] = {"channel_count": 1, "sample_count": len(samples)}
    stated |= {"sample_rate": HZ, "sample_n_bytes": 2, "sample_byte_format": "01"}
    stated |= {"sample_sig_bits": 16, "sample_coding": "pcm", **fields}
    lines = [
        f"{name} -i {value}" if isinstance(value, int) else f"{name} -s{len(value)} {value}"
        for name, value in stated.items()
    ]
    head = "\n".join(["NIST_1A", "   1024", *lines, "end_head\n"])
    return head.ljust(1024).encode() + samples.tobytes()


def opus(*, gain: int = 0, skip: int = 0) -> bytes:
    """An Opus file whose header states a gain (256ths of dB) and further samples to skip."""
    content = bytearray(written("OGG", "OPUS"))
    head = content.index(b"OpusHead")
    (before,) = struct.unpack_from("<H", content, head + 10)
    struct.pack_into("<H", content, head + 10, before + skip)
    struct.pack_into("<h", content, head + 16, gain)
    content[22:26] = bytes(4)
    checksum = 0
    for byte in content[: head + 19]:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = (checksum << 1) ^ (0x104C11DB7 if checksum >> 31 else 0)
    struct.pack_into("<I", content, 22, checksum)
    return bytes(content)


def through_av(suffix, codec="aac", *, tracks=1, layout="mono", samples=WAVE, **options) -> bytes:
    """A file that PyAV writes, with options of its container; all its channels are alike."""
    import av

    with TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        with av.open(str(path), "w", container_options=options) as container:
            streams = [container.add_stream(codec, rate=HZ, layout=layout) for _ in range(tracks)]
            for stream in streams:
                for start in range(0, len(samples), 1024):
                    part = np.tile(samples[start : start + 1024], (stream.channels, 1))
                    part = part.astype(np.float32)
                    frame = av.AudioFrame.from_ndarray(part, format="fltp", layout=layout)
                    frame.sample_rate, frame.pts, frame.time_base = HZ, start, Fraction(1, HZ)
                    container.mux(stream.encode(frame))
                container.mux(stream.encode(None))
        return path.read_bytes()


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flac(num: int) -> bytes:
    """A FLAC file that states `num` samples."""
    content = bytearray(written("FLAC", "PCM_16"))
    content[21] &= 0xF0
    content[22:26] = struct.pack(">I", num)
    return bytes(content)


def mp3() -> bytes:
    return written("MP3", "MPEG_LAYER_III")


def aiff(subtype: str = "PCM_16", samples: NDArray[Any] = GLIDE) -> bytes:
    return written("AIFF", subtype, samples)


INFO = b"LIST" + struct.pack("<I", 12) + b"INFOISFT\0\0\0\0"
LONG = b"LIST" + struct.pack("<I", 60) + b"INFOICMT" + struct.pack("<I", 48)
LONG += b"data".ljust(48, b"\0")
WAV: dict[str, Case] = {
    "16 bits": (lambda: wav(GLIDE), WAVE),
    "8 bits, unsigned": (lambda: wav((GLIDE // 256 + 128).astype(np.uint8)), WAVE),
    "12 bits": (lambda: wav(GLIDE, bits=16, valid=12), WAVE),
    "24 bits": (lambda: wav(bytes_24(GLIDE), bits=24), WAVE),
    "32 bits": (lambda: wav(GLIDE.astype("<i4") << 16), WAVE),
    "24 of 32 bits": (lambda: wav(GLIDE.astype("<i4") << 16, valid=24), WAVE),
    "floats": (lambda: wav(WAVE.astype("<f4"), code=3), WAVE),
    "doubles": (lambda: wav(WAVE.astype("<f8"), code=3), WAVE),
    "A-law": (lambda: written("WAV", "ALAW"), WAVE),
    "mu-law": (lambda: written("WAV", "ULAW"), WAVE),
    "ADPCM": (lambda: written("WAV", "MS_ADPCM"), WAVE),
    "an unknown code": (lambda: wav(GLIDE, code=0x7777), "unreadable"),
    "big endian": (lambda: rifx(), WAVE),
    "channels": (lambda: wav(STEREO), WAVE / 2),
    "mask of channels": (lambda: wav(STEREO, valid=16, mask=3), WAVE / 2),
    "no channel": (lambda: wav(np.zeros((HZ, 0), "<i2")), "unreadable"),
    "size of a pipe": (lambda: wav(GLIDE, size=2**32 - 1, before=INFO), WAVE),
    "size of SoX": (lambda: wav(GLIDE, size=0x7FFFF000), WAVE),
    "size of arecord": (lambda: wav(GLIDE, size=2**31), WAVE),
    "the largest even size": (lambda: wav(GLIDE, size=2**32 - 2), WAVE),
    "size 0": (lambda: wav(GLIDE, size=0), WAVE),
    "size 0 of nothing": (lambda: wav(GLIDE[:0]), "too short"),
    "a larger size": (lambda: wav(GLIDE, size=80_000), "cut short"),
    "a smaller size": (lambda: wav(GLIDE, size=HZ), WAVE[: HZ // 2]),
    "chunks behind": (lambda: wav(GLIDE, behind=INFO), WAVE),
    "rate 0": (lambda: wav(GLIDE, rate=0), "unreadable"),
    "rate 1": (lambda: wav(GLIDE, rate=1), "1 Hz"),
    "rate 2,147,483,647": (lambda: wav(GLIDE, rate=2**31 - 1), "Hz"),
    "rate 384,000": (lambda: wav(np.repeat(GLIDE, 24), rate=384_000), WAVE),
    "64-bit sizes": (lambda: rf64(b"RF64"), WAVE),
    "64-bit sizes of more": (lambda: rf64(b"RF64", 2 * HZ), "cut short"),
    "BW64": (lambda: rf64(b"BW64"), "unreadable"),
    "cut": (lambda: half(wav(GLIDE)), "cut short"),
    "cut behind long chunks": (lambda: half(wav(GLIDE, before=40 * LONG)), "cut short"),
    "size 0 behind chunks": (lambda: wav(GLIDE, size=0, before=INFO + LONG), WAVE),
    "text": (lambda: b"not audio at all", "unreadable"),
    "AU by its content": (lambda: written("AU", "PCM_16"), "format is AU"),
}
FLAC: dict[str, Case] = {
    "16 bits": (lambda: written("FLAC", "PCM_16"), WAVE),
    "24 bits": (lambda: written("FLAC", "PCM_24"), WAVE),
    "channels": (lambda: written("FLAC", "PCM_16", STEREO), WAVE / 2),
    "fewer samples": (lambda: flac(HZ // 2), WAVE[: HZ // 2]),
    "samples of a pipe": (lambda: flac(0), "length"),
    "cut": (lambda: half(written("FLAC", "PCM_16")), "unreadable"),
}
TAG = b"ID3\3\0\0\0\0\0\x0a" + bytes(10)
LONG_TAG = b"ID3\4\0\0\0\0\5\x2c" + bytes(5 * 128 + 0x2C)  # its size has 7 bits a byte
MP3: dict[str, Case] = {
    "delay and padding": (mp3, WAVE),
    "tags": (lambda: TAG + mp3() + b"TAG".ljust(128, b"\0"), WAVE),
    "cut": (lambda: half(mp3()), r"cut short, 0\.[3-6] s of the 1\.0 s"),
    "cut behind a long tag": (lambda: LONG_TAG + half(mp3()), "cut short"),
    "joined": (lambda: mp3() + mp3(), "several streams"),
    "joined with a tag": (lambda: mp3() + TAG + mp3(), "several streams"),
}
OGG: dict[str, Case] = {
    "delay and padding": (lambda: written("OGG", "VORBIS"), WAVE),
    "joined": (lambda: written("OGG", "VORBIS") + written("OGG", "OPUS"), "several streams"),
}
OPUS: dict[str, Case] = {
    "delay": (opus, WAVE),
    "gain": (lambda: opus(gain=-256 * 6), WAVE * 10 ** (-6 / 20)),
    "a longer delay": (lambda: opus(skip=4800), WAVE[HZ // 10 :]),
    "joined": (lambda: opus() + written("OGG", "OPUS"), "several streams"),
}
AIFF: dict[str, Case] = {
    "16 bits": (aiff, WAVE),
    "8 bits, signed": (lambda: aiff("PCM_S8"), WAVE),
    "8 bits, unsigned": (lambda: aiff("PCM_U8"), WAVE),
    "24 bits": (lambda: aiff("PCM_24"), WAVE),
    "floats": (lambda: aiff("DOUBLE", WAVE), WAVE),
    "A-law": (lambda: aiff("ALAW"), WAVE),
    "channels": (lambda: aiff(samples=STEREO), WAVE / 2),
    "cut": (lambda: half(aiff()), "cut short"),
}
SPHERE: dict[str, Case] = {
    "little endian": (sphere, WAVE),
    "big endian": (lambda: sphere(GLIDE.astype(">i2"), sample_byte_format="10"), WAVE),
    "channels": (lambda: sphere(STEREO, channel_count=2), WAVE / 2),
    "mu-law": (lambda: written("NIST", "ULAW"), WAVE),
    "shorten": (lambda: sphere(sample_coding="pcm,embedded-shorten-v2.00"), "unreadable"),
    "fewer samples": (lambda: sphere(sample_count=HZ // 2), "header states"),
    "more samples": (lambda: sphere(sample_count=2 * HZ), "cut short"),
    "rate 0": (lambda: sphere(sample_rate=0), "unreadable"),
}
M4A: dict[str, Case] = {
    "delay and padding (edit list)": (lambda: through_av(".m4a"), WAVE),
    "channels": (lambda: through_av(".m4a", layout="stereo"), WAVE),
    "a name in Latin-1": (
        lambda: through_av(".m4a").replace(b"SoundHandler", b"S\xf6undHandler"),
        WAVE,
    ),
    "an unknown codec": (
        lambda: through_av(".m4a").replace(b"mp4a", b"zzzz").replace(b"esds", b"zzzz"),
        "no decoder",
    ),
    "text": (lambda: b"no container", "unreadable"),
    "several tracks": (lambda: through_av(".mp4", tracks=2), "sound tracks"),
    "fragments, without an edit list": (
        lambda: through_av(".mp4", movflags="frag_keyframe+empty_moov"),
        np.pad(WAVE, (1024, 0)),
    ),
    "cut": (lambda: half(through_av(".m4a")), "unreadable"),
    "cut behind the index": (lambda: half(through_av(".m4a", movflags="faststart")), "unreadable"),
}
MOV: dict[str, Case] = {
    "AAC": (lambda: through_av(".mov"), WAVE),
    "PCM": (lambda: through_av(".mov", "pcm_s16le"), WAVE),
    "no type, as of old cameras": (lambda: through_av(".mov").replace(b"ftyp", b"wide", 1), WAVE),
}
WEBM: dict[str, Case] = {
    "delay and padding": (lambda: through_av(".webm", "libopus"), WAVE),
    "no duration, as of browsers": (lambda: through_av(".webm", "libopus", live="1"), WAVE),
    "cut": (lambda: half(through_av(".webm", "libopus")), "cut short"),
}
MKV: dict[str, Case] = {
    "Opus": (lambda: through_av(".mkv", "libopus"), WAVE),
    "PCM": (lambda: through_av(".mkv", "pcm_s16le"), WAVE),
    "AAC": (lambda: through_av(".mkv"), np.pad(WAVE, (0, 384))),
    "several tracks": (lambda: through_av(".mkv", tracks=2), "sound tracks"),
}
AAC: dict[str, Case] = {  # which states neither
    "delay": (lambda: through_av(".aac"), np.pad(WAVE, (1024, 384))),
    "a tag": (lambda: TAG + through_av(".aac"), np.pad(WAVE, (1024, 384))),
}


def rifx() -> bytes:
    """A WAV file whose numbers are big endian."""
    head = struct.pack(">IHHIIHH", 16, 1, 1, HZ, 2 * HZ, 2, 16)
    data = GLIDE.astype(">i2").tobytes()
    size = struct.pack(">I", len(data))
    return b"RIFX" + struct.pack(">I", 36 + len(data)) + b"WAVEfmt " + head + b"data" + size + data


RECORDINGS = {".wav": WAV, ".flac": FLAC, ".mp3": MP3, ".ogg": OGG, ".opus": OPUS, ".sph": SPHERE}
RECORDINGS |= {".aac": AAC, ".aiff": AIFF, ".aif": AIFF, ".m4a": M4A, ".mp4": M4A}
RECORDINGS |= {".mov": MOV, ".webm": WEBM, ".mkv": MKV}
