"""Make `import torchaudio` work beside a CPU build of torch.

The torchaudio wheel carries a compiled extension that is linked against CUDA libraries. Beside a
CPU torch its import raises OSError, beside another version of CUDA RuntimeError. torchaudio has its
own path without the extension (its loader returns False), which the second import takes.
MelSpectrogram, MFCC, resample and compliance.kaldi work without the extension. torchaudio.load and
save do not: read audio with modalities.speaker.audio.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from eval.errors import LikenessError

_LOADER = "torchaudio._extension.utils"


def _no_extension(lib: str) -> bool:
    return False


def import_torchaudio() -> ModuleType:
    """Import torchaudio, without its extension where that cannot be loaded.

    Call it before anything imports speechbrain, which imports torchaudio itself. Calling it again
    is free.

    Raises:
        LikenessError: torchaudio is not installed, or it changed so that its extension can no
            longer be skipped.
    """
    loaded = sys.modules.get("torchaudio")
    if loaded is not None:
        return loaded
    try:
        return importlib.import_module("torchaudio")
    except (OSError, RuntimeError) as error:
        return _import_without_extension(error)


def _import_without_extension(cause: Exception) -> ModuleType:
    """Import torchaudio once more, with a loader that finds no extension."""
    loader = sys.modules.get(_LOADER)
    if loader is None or not hasattr(loader, "_load_lib"):
        raise LikenessError(_changed(cause)) from cause
    vars(loader)["_load_lib"] = _no_extension
    try:
        torchaudio = importlib.import_module("torchaudio")
    except (OSError, RuntimeError) as again:
        raise LikenessError(_changed(again)) from cause
    return torchaudio


def _changed(cause: Exception) -> str:
    """Return the message for a torchaudio whose extension cannot be skipped."""
    return (
        f"torchaudio: its compiled extension cannot be loaded ({cause}) and {_LOADER}._load_lib, "
        "which skips it, is not what toolkit/backbones/torchaudio_cpu.py expects; install "
        "torchaudio>=2.11,<2.12 (and a torch build that it was made for, if the extension is "
        "wanted)"
    )
