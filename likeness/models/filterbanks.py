"""The filterbanks of models whose files do not state them. Nothing here imports torch."""

from typing import Any, Literal

Frontend = Literal["wespeaker", "3dspeaker"]

# These are WESPEAKER_FBANK and THREED_SPEAKER_FBANK of modalities/speaker/features.py without
# dither, which is for training only.
SETTINGS: dict[Frontend, dict[str, Any]] = {
    "wespeaker": {"window": "hamming", "scale": 32768.0},
    "3dspeaker": {"window": "povey", "scale": 1.0},
}
