"""The models that Likeness knows by a name of its own, and those that are taken unless another one
is named.

`likeness:voice` is a small model of voices. It lies in likeness/voice/: model.onnx, which is used
without torch, and the run that it was exported from, which is fine-tuned, joined and exported. Its
card, its thresholds and its calibration lie beside them.

`likeness:voice-plus` is likeness:voice beside Resemblyzer's network, which `likeness prepare voice`
writes into the user's folder of models: one .onnx file, whose dot product is the sum of both scores
by one weight. The weight, its card, thresholds and calibration lie in likeness/voice-plus/.

`likeness:face` is dlib's descriptor of faces with its detector. `likeness prepare face` writes both
into the user's folder of models. Its card, thresholds and calibration lie in likeness/face/.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from likeness.eval.errors import LikenessError
from likeness.eval.items.suffixes import suffixes_of

VOICE = "likeness:voice"
VOICE_PLUS = "likeness:voice-plus"
FACE = "likeness:face"
_OWN = "likeness:"
_FOLDERS = {
    name: Path(__file__).parents[1] / name.removeprefix(_OWN) for name in (VOICE, VOICE_PLUS, FACE)
}
RESEMBLYZER = "resemblyzer.onnx"  # in the user's folder of models
# What every error about a model that is not there ends with, and the help of `likeness verify`.
FINDING_MODELS = (
    "docs/how-to/networks.md lists the published networks and the line that fetches each, and "
    "`likeness prepare` makes some of them"
)
_ABOUT = {
    VOICE: f"{VOICE} is the small voice model that comes with Likeness. It was trained on a few "
    "hundred speakers, and is for trying things out, not for decisions about people: stronger ones "
    f"are {VOICE_PLUS}, after `likeness prepare voice`, and "
    "speechbrain:speechbrain/spkrec-ecapa-voxceleb.",
    VOICE_PLUS: f"{VOICE_PLUS} is {VOICE} beside Resemblyzer's network. It is no judge of people, "
    "and refuses recordings of telephones and those below 1 s.",
    FACE: f"{FACE} is dlib's descriptor of faces. It errs more often on children and in light from "
    "one side; pictures of other things than faces need another model, such as "
    "hub:facebook/dinov2-small.",
}


def resolve_model(model: str) -> str:
    """The folder of what comes with Likeness of a model; every other MODEL stays as it is.

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
            f"model {model!r} does not come with Likeness; {', '.join(_FOLDERS)} do; "
            + FINDING_MODELS
        )
    return str(_FOLDERS[model])


def models_folder() -> Path:
    """The user's folder of models: what LIKENESS_MODELS names, by default ~/.likeness/models."""
    folder = os.environ.get("LIKENESS_MODELS") or "~/.likeness/models"
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise LikenessError(
            f"{folder}: this home folder is not known; name a folder by LIKENESS_MODELS"
        ) from None


def onnx_file(model: str, file: str = "model.onnx") -> Path:
    """An .onnx file of a model that comes with Likeness.

    Raises:
        LikenessError: It has to be prepared.
    """
    if model == VOICE_PLUS:
        return _sum_file()
    folder = _FOLDERS[model] if model == VOICE else models_folder() / model.removeprefix(_OWN)
    return _prepared(folder / file, model, folder.name)


def _prepared(file: Path, model: str, dataset: str) -> Path:
    """A file of a model, if `likeness prepare` wrote it."""
    if not file.is_file():
        raise LikenessError(
            f"{model} is not on this machine yet ({file}); run `likeness prepare {dataset}`, which "
            "fetches it by pip"
        )
    return file


def _sum_file() -> Path:
    """The file of likeness:voice-plus, which is written where it is missing or of other parts."""
    described = json.loads((_FOLDERS[VOICE_PLUS] / "sum.json").read_text(encoding="utf-8"))
    path = models_folder() / f"voice-plus-{described['model'][:16]}.onnx"
    if not path.is_file():
        second = _prepared(models_folder() / RESEMBLYZER, VOICE_PLUS, "voice")
        from likeness.eval.writing import atomic_path
        from likeness.toolkit.models import joint

        with atomic_path(path) as temporary:
            made = joint.write((onnx_file(VOICE), second), (1.0, described["weight"]), temporary)
            if made != described["model"]:
                raise LikenessError(
                    f"{second} is another network than Resemblyzer's; remove it, and run `likeness "
                    "prepare voice`"
                )
    return path


def run_of(model: str) -> str:
    """The run that a model of Likeness was exported from, where it comes with Likeness."""
    return str(_FOLDERS[VOICE]) if model == VOICE else model


def is_included(model: str) -> bool:
    """Whether a MODEL is one of those that come with Likeness."""
    return model in _FOLDERS


def model_for(files: Iterable[str | Path]) -> str:
    """The model of Likeness for files of which nobody named a model.

    Args:
        files: What is to be compared; none where a list names them.

    Raises:
        LikenessError: None of the files is a recording or a picture by its name.

    Example:
        >>> model_for(["a.wav", "b.FLAC"]), model_for(["a.jpg", "b.png"])
        ('likeness:voice', 'likeness:face')
    """
    paths = [Path(file) for file in files]
    suffixes = {path.suffix.lower() for path in paths}
    for model, modality in ((VOICE, "speaker"), (FACE, "face")):
        if not paths or suffixes.intersection(suffixes_of(modality)):
            return model
    raise LikenessError(
        f"{paths[0]} is no recording (.wav, .flac, .mp3, .ogg, .m4a and others) or picture by its "
        f"name; name a model that takes such files by --model, as a run of your own, {VOICE} or "
        f"{FACE}; {FINDING_MODELS}"
    )


def model_of_data(data: str | Path, **listing: Any) -> str:
    """The model of Likeness for what most items of some data are: recordings or pictures.

    Args:
        data: A file, or whatever `likeness.items` takes.
        listing: Its columns, label and root.

    Raises:
        LikenessError: The data are missing, or hold neither.
    """
    from likeness.modalities.folders import list_most

    path = Path(data)
    if path.suffix.lower() in (*suffixes_of("speaker"), *suffixes_of("face")):
        return model_for([path])
    return VOICE if list_most(path, **listing)[1] == "speaker" else FACE


def about(model: str) -> str:
    """What everybody who uses an included model has to know of it; "" for other models."""
    return _ABOUT.get(model, "")
