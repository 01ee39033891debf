"""Stretches of recordings as files of their own, without loss: for tar shards, and to listen to."""

from __future__ import annotations

import io

import numpy as np
import soundfile

from modalities.speaker.decoding import (
    AV_SUFFIXES,
    MAX_SECONDS,
    MAX_VALUES,
    BadAudio,
    decode_av,
    decode_soundfile,
    source_of,
)
from toolkit.data.items import Item

_WHOLE_NUMBERS = ("PCM_S8", "PCM_16", "PCM_24")  # what FLAC holds


def cut(item: Item) -> tuple[bytes, str]:
    """Return the bytes of a file with nothing but the stretch of an item, and its suffix.

    It has the rate and the channels of the recording. Whole numbers of up to 24 bits become FLAC,
    all others a WAV file of floats; both give back the samples that were decoded.

    `toolkit.data.shards.write(items, folder, cut=cut)` packs stretches by it.

    Raises:
        BadAudio: The recording cannot be read, or the stretch is none of it.
    """
    is_av = item.suffix in AV_SUFFIXES
    blocks, rate_hz = [], 0
    for raw, rate_hz in (decode_av if is_av else decode_soundfile)(item, MAX_SECONDS, MAX_VALUES):
        blocks.append(raw)
    if not sum(map(len, blocks)):
        raise BadAudio(f"{item.name}: the stretch holds no samples; correct its start and end")
    kind, subtype, suffix = "WAV", "FLOAT", ".wav"
    if not is_av:
        stated = soundfile.info(source_of(item)).subtype
        if stated in _WHOLE_NUMBERS:
            kind, subtype, suffix = "FLAC", stated, ".flac"
    content = io.BytesIO()
    soundfile.write(content, np.concatenate(blocks), rate_hz, format=kind, subtype=subtype)
    return content.getvalue(), suffix
