"""The models that come with Likeness, and where they are taken unless another one is named.

`likeness:voice` is a small model of voices. It lies in likeness/voice/: model.onnx, which is used
without torch, and the run that it was exported from, which is fine-tuned, joined and exported. Its
card, its thresholds and its calibration lie beside them.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from likeness.eval.errors import LikenessError
from likeness.eval.items.listing import suffixes_of

VOICE = "likeness:voice"
_FOLDERS = {VOICE: Path(__file__).parents[1] / "voice"}
_OWN = "likeness:"


def resolve_model(model: str) -> str:
    """The folder of a model that comes with Likeness; every other MODEL stays as it is.

    Args:
        model: A MODEL, as `likeness.load` takes it.

    Raises:
        LikenessError: No such model comes with Likeness.

    Example:
        >>> resolve_model("runs/an4"), Path(resolve_model("likeness:voice")).name
        ('runs/an4', 'voice')
    """
    if not model.startswith(_OWN):
        return model
    if model not in _FOLDERS:
        raise LikenessError(
            f"model {model!r} does not come with Likeness; {', '.join(_FOLDERS)} does"
        )
    return str(_FOLDERS[model])


def models_folder() -> Path:
    """The user's folder of models: what LIKENESS_MODELS names, by default ~/.likeness/models."""
    return Path(os.environ.get("LIKENESS_MODELS") or "~/.likeness/models").expanduser()


def onnx_file(model: str) -> Path:
    """The .onnx file of a model that comes with Likeness."""
    return _FOLDERS[model] / "model.onnx"


def is_included(model: str) -> bool:
    """Whether a MODEL is one of those that come with Likeness."""
    return model in _FOLDERS


def model_for(files: Iterable[str | Path]) -> str:
    """The included model for files of which nobody named a model.

    Args:
        files: What is to be compared; none where a list names them.

    Raises:
        LikenessError: None of the files is a recording by its name.

    Example:
        >>> model_for(["a.wav", "b.FLAC"])
        'likeness:voice'
    """
    paths = [Path(file) for file in files]
    if paths and not any(path.suffix.lower() in suffixes_of("speaker") for path in paths):
        raise LikenessError(
            f"{paths[0]} is no recording by its name, and the model that comes with Likeness takes "
            "recordings (.wav, .flac, .mp3, .ogg, .m4a and others); name a model that takes such "
            "files by --model, as a run of your own, or for images hub:facebook/dinov2-small or "
            "insightface:buffalo_l; or --model likeness:voice if they are recordings"
        )
    return VOICE


def about(model: str) -> str:
    """What everybody who uses an included model has to know of it; "" for other models."""
    if not is_included(model):
        return ""
    return (
        f"{model} is the small voice model that comes with Likeness. It was trained on a few "
        "hundred speakers, and is for trying things out, not for decisions about people: a "
        "stronger one is speechbrain:speechbrain/spkrec-ecapa-voxceleb."
    )
