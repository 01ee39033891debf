"""Make `import torchaudio` work beside a CPU build of torch.

The torchaudio wheel carries a compiled extension that is linked against CUDA libraries. Beside a
CPU torch its import raises OSError, beside another version of CUDA RuntimeError. torchaudio has its
own path without the extension (its loader returns False), which the second import takes.
MelSpectrogram, MFCC, resample and compliance.kaldi work without the extension. torchaudio.load and
save do not: read audio with likeness.modalities.speaker.audio.
"""

import importlib
import sys
from types import ModuleType


def import_torchaudio() -> ModuleType:
    """Import torchaudio, without its extension where that cannot be loaded.

    Call it before anything imports speechbrain, which imports torchaudio itself. Calling it again
    is free.
    """
    try:
        return importlib.import_module("torchaudio")
    except (OSError, RuntimeError):
        loader = vars(sys.modules["torchaudio._extension.utils"])
        loader["_load_lib"] = lambda lib: False  # there is no extension
        return importlib.import_module("torchaudio")
