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
    decode = decode_av if is_av else decode_soundfile
    decoded = list(decode(item, MAX_SECONDS, MAX_VALUES))
    if not sum(len(raw) for raw, _ in decoded):
        raise BadAudio(f"{item.name}: the stretch holds no samples; correct its start and end")
    kind, subtype, suffix = "WAV", "FLOAT", ".wav"
    if not is_av:
        stated = soundfile.info(source_of(item)).subtype
        if stated in _WHOLE_NUMBERS:
            kind, subtype, suffix = "FLAC", stated, ".flac"
    samples = np.concatenate([raw for raw, _ in decoded])
    content = io.BytesIO()
    soundfile.write(content, samples, decoded[0][1], format=kind, subtype=subtype)
    return content.getvalue(), suffix
