"""Models from elsewhere behind the one way of embedding: what MODEL means on the command line.

    load_named("runs/an4")
        a run directory or a .safetensors checkpoint of Likeness, or a folder with model.onnx, which
        is a joint model of `likeness export --beside`
    load_named("likeness:voice"), load_named("likeness:voice-plus"), load_named("likeness:face")
        a model that comes with Likeness, or by `likeness prepare` (likeness/models/bundled.py)
    load_named("speechbrain:FOLDER")
        a local folder of a SpeechBrain speaker model (hyperparams.yaml, embedding_model.ckpt)
    load_named("speechbrain:speechbrain/spkrec-ecapa-voxceleb")
        the same from the Hugging Face hub; it is asked only where it is named so
    load_named("wespeaker:FOLDER_OR_FILE.pt")
        a WeSpeaker checkpoint (avg_model.pt): ResNet, ECAPA-TDNN, CAM++ or x-vector. A config.yaml
        beside it states its sampling rate and frames
    load_named("redimnet:FILE.pt")
        a release of ReDimNet (IDRnD, such as b2-vox2-ft_lm.pt) or of ReDimNet2 (PalabraAI)
    load_named("insightface:FILE_OR_FOLDER")
        a face network of InsightFace: a recognition .onnx file, or an unpacked pack such as
        buffalo_l; or any face network over images of one size, whose size and pixels can be stated:
        insightface:FILE.onnx@size=112x96,mean=127.5,std=128,order=bgr,frame=dlib (_insightface.py)
    load_named("insightface:FILE.pth")
        weights of arcface_torch (backbone.pth), of an IResNet from r18 to r200
    load_named("hub:FOLDER_OR_ID")
        a network of Hugging Face's transformers: a folder with config.json and safetensors, or an
        id such as hub:facebook/dinov2-small, perhaps with @REVISION, which the hub is asked for
    load_named("own.py"), load_named("own.py:NAME")
        a network that a Python file of the user defines (_model_file.py); the file is run
    load_named("model.onnx")
        a file of `likeness export`, of any modality; otherwise a speaker network that takes
        filterbanks (B, T, F) or waves (B, S) and gives (B, dim)

The weights that InsightFace publishes are for non-commercial research only. Loading them prints
that. Nothing in these files is executed but own.py, which is the user's. Parts of other packages in
a checkpoint are imported where `trust` names the package (likeness/models/trust.py). SpeechBrain
runs its YAML as code (HyperPyYAML's !new: and !apply:); here it is read as plain data, and state
dicts are read by likeness.toolkit.backbones.weights. Front-ends come from the modality by name, as
with a checkpoint. Models of other projects are scored by the cosine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from likeness.eval.errors import LikenessError, install_line
from likeness.eval.formats.provenance import sha256
from likeness.eval.formats.runs import find_model
from likeness.eval.items.items import Item
from likeness.eval.progress import step
from likeness.eval.types import check_choice
from likeness.models import bundled
from likeness.models.trust import check_trusted
from likeness.toolkit.data.reading import Bad, Read
from likeness.toolkit.models.loaded import Loaded
from likeness.toolkit.models.parts import restore

if TYPE_CHECKING:
    from likeness.modalities.face.align import Frame
    from likeness.toolkit.training.start import Initial

Frontend = Literal["wespeaker", "3dspeaker"]  # the filterbanks of models that do not state them
_NEED_NO_PATH = ("speechbrain", "insightface", "hub")  # whose source may be an id or a name
_KINDS = ("wespeaker", "redimnet", *_NEED_NO_PATH)  # of the models of other projects
# a Python file of the user, perhaps with the name of a network in it
_MODEL_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<name>\w+))?", re.DOTALL)


@step("loading the model")
def load_named(
    model: str,
    *,
    detector: Path | Literal[False] | None = False,
    min_score: float | None = None,
    frontend: Frontend = "wespeaker",
    trust: Sequence[str] = (),
) -> Loaded:
    """Load the model that a text names, with its reading, modality, similarity and digest.

    A face model reads aligned crops, or photographs where there is a detector.

    Args:
        model: One of the forms at the top of this file.
        detector: An SCRFD or YuNet .onnx file. None takes that of likeness:face, or of the pack of
            insightface:FOLDER; False takes none.
        min_score: The lowest score of a face; None is the default of the detector.
        frontend: What an .onnx network over filterbanks or a `wespeaker:` state dict was trained
            with: "wespeaker" (Hamming window, int16 scale) or "3dspeaker" (Povey window, [-1, 1]).
            An .onnx file with the metadata of sherpa-onnx states it, and its sampling rate. Other
            kinds of models know their front-end.
        trust: The packages and Python files of others that may be imported for parts of a
            checkpoint or an exported model.

    Raises:
        LikenessError: The file is of another kind, its sizes contradict its weights, or its
            architecture is not known. A front-end or a lowest score is given and would change
            nothing; and as `add_detector`.
    """
    check_choice("frontend", frontend, get_args(Frontend))
    refuse_missing_model(model)
    if frontend != "wespeaker" and not takes_frontend(model):
        raise LikenessError(f"model {model!r} knows its front-end; leave {frontend!r} out")
    detector = find_detector(model) if detector is None else detector
    if min_score is not None and not detector:
        raise LikenessError(f"min_score {min_score:g} is of a detector, and none is used; omit it")
    loaded = _load(model, frontend, trust)
    return add_detector(loaded, detector, min_score) if detector else loaded


def takes_frontend(model: str) -> bool:
    """Whether a model may state no front-end: one of WeSpeaker, or an .onnx file from elsewhere."""
    kind, colon, _ = model.partition(":")
    if colon and kind in _KINDS:
        return kind == "wespeaker"
    from likeness.toolkit.models import onnx

    path = find_model(Path(model)) if Path(model).is_dir() else Path(model)
    return path.suffix.lower() == ".onnx" and onnx.read(path) is None


def _load(model: str, frontend: Frontend, trust: Sequence[str]) -> Loaded:
    """Load a model as its own file has it; the rest is as for `load_named`."""
    named = _MODEL_FILE.fullmatch(model)
    kind, colon, source = model.partition(":")
    if bundled.is_included(model) or not (named or (colon and kind in _KINDS)):
        path = bundled.onnx_file(model) if bundled.is_included(model) else Path(model)
        path = find_model(path) if path.is_dir() else path
        is_onnx = path.suffix.lower() == ".onnx"
        if is_onnx and (exported := load_exported(path, trust=trust)) is not None:
            return exported
        refuse_without_torch(model)
        from likeness.models import _other_projects, run

        if is_onnx:
            return _other_projects.load_onnx(path, frontend)
        return run.load_model(path, trust=trust)
    refuse_without_torch(model)
    from likeness.models import _hub, _model_file, _other_projects

    if named:
        return _model_file.load_file(Path(named["file"]), named["name"] or _model_file.DEFAULT)
    if kind == "hub":
        return _hub.load_hub(source)
    if kind == "wespeaker":
        return _other_projects.load_wespeaker(_wespeaker_file(source), frontend)
    if kind == "speechbrain":
        return _other_projects.load_speechbrain(source)
    if kind == "redimnet":
        return _other_projects.load_redimnet(source)
    return _other_projects.load_insightface(source)


def refuse_without_torch(model: str) -> None:
    """Raise an ImportError, with the way out, for a model that needs torch where there is none."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise LikenessError(
            f"model {model!r} needs torch, which cannot be imported here ({error}); run "
            f"`{install_line('train')}`, or where torch is `likeness export {model} --out "
            "FILE.onnx`, and give that file here as the model"
        ) from None


def load_exported(path: Path, *, trust: Sequence[str] = ()) -> Loaded | None:
    """Load an .onnx file of `likeness export`; return None for an .onnx file from elsewhere.

    Front-end and network are in the graph. Only the reading of a model may be of another package.

    Args:
        path: The file.
        trust: The packages and Python files of others that may be imported for its reading.

    Raises:
        LikenessError: As likeness.toolkit.models.onnx.read, and for a reading that does not exist
            or is of a package that is not trusted.
    """
    from likeness.toolkit.models import onnx

    contents = onnx.read(path)
    if contents is None:
        return None
    embedder, stated = contents
    described = stated.get("read")
    trusted = check_trusted(described, trust, str(path))
    readings = [
        cast(Read, restore(each, f"{path}: read", kind="read", trusted=trusted))
        for each in (described if isinstance(described, list) else [described])
    ]
    read = readings[0] if len(readings) == 1 else partial(onnx.read_both, reads=readings)
    about = stated["modality"], stated["similarity"], stated["digest"]
    settings = {"frame": str(stated["frame"])} if "frame" in stated else {}
    is_quality = stated.get("norm_is_quality") is True
    return Loaded(embedder, read, *about, 0, settings, norm_is_quality=is_quality)


def read_initial(init: str) -> Initial:
    """Read the network that a recipe's `init` names.

    Args:
        init: A MODEL as on the command line, see `load_named`, whose network torch can
            train: a run's folder or a .safetensors checkpoint, speechbrain:SOURCE,
            wespeaker:FILE.pt, redimnet:FILE.pt, insightface:FILE.pth, hub:FOLDER_OR_ID,
            own.py[:NAME], or another of its forms.

    Returns:
        Its weights, which a run takes if its own network has the same tensors.

    Raises:
        LikenessError: There is no such model, or it cannot be trained on.
    """
    from likeness.toolkit.models.embedder import TorchEmbedder
    from likeness.toolkit.training import start

    if Path(init).is_dir() or Path(init).suffix == ".safetensors":
        return start.read_initial(init)  # its weights alone: no part that it names is imported
    loaded = load_named(bundled.run_of(init))
    embedder = loaded.embedder
    if not isinstance(embedder, TorchEmbedder) or not any(True for _ in embedder.parameters()):
        raise LikenessError(
            f"init={init!r} is a model that torch cannot train; give a run, a checkpoint, "
            "speechbrain:, wespeaker:, insightface:FILE.pth, hub:, own.py, or weights of torch"
        )
    revision = loaded.settings.get("revision", "")
    commit = f", commit {revision[:12]}" if revision else ""
    source = f"{init} ({loaded.digest[:12]}{commit})"
    return start.Initial(embedder.state_dict(), source, loaded.digest, revision)


def refuse_head(model: Loaded, source: str) -> None:
    """Refuse a head, which takes embeddings, where recordings or images are embedded.

    Args:
        model: The model.
        source: The text that named it.

    Raises:
        LikenessError: It is a head.
    """
    if model.modality == "embedding":
        raise LikenessError(
            f"{source}: this is a head, which takes the embeddings of a model; join it with that "
            f"model, likeness export MODEL --head {source} --out RUN, and use the result"
        )


def reading_of(model: Loaded) -> tuple[Any, dict[str, Any]]:
    """Return the function by which a model reads, and the arguments that it always gets."""
    read = model.read
    return (read.func, dict(read.keywords)) if isinstance(read, partial) else (read, {})


def find_detector(model: str) -> Path | None:
    """Return the detector of likeness:face, or of a pack of InsightFace, `insightface:FOLDER`.

    None for every other MODEL, also for one file of a pack.
    """
    if model == bundled.FACE:
        return bundled.onnx_file(model, "detector.onnx")
    kind, _, source = model.partition(":")
    from likeness.models import _insightface

    if kind != "insightface" or Path(source).suffix.lower() in _insightface.OF_TORCH:
        return None
    return _insightface.find(source).detector


def aligned_as(model: Loaded) -> tuple[tuple[int, int], Frame]:
    """Return height and width of the faces that a model reads, and where it expects the landmarks.

    Raises:
        LikenessError: Faces cannot be aligned to this size. It is raised before any work is done.
    """
    from likeness.modalities.face import align

    size = reading_of(model)[1].get("size", (112, 112))
    frame = cast("Frame", model.settings.get("frame", "arcface"))
    align.check(size, frame)
    return size, frame


def add_detector(model: Loaded, detector: Path | None, min_score: float | None = None) -> Loaded:
    """Return the face model reading photographs, in which a detector finds faces.

    It takes the face that InsightFace takes, the largest near the centre, and aligns it to the
    model's size (likeness.modalities.face.align). The model's `settings` state it.

    Args:
        model: A face model.
        detector: An SCRFD or YuNet .onnx file; None gives the model as it is.
        min_score: The lowest score of a face; None is the default of the detector.

    Raises:
        LikenessError: The model is of another modality or takes faces that cannot be aligned, or
            the file is no detector that is known.
    """
    if detector is None:
        return model
    from likeness.modalities.face import align
    from likeness.modalities.face.detectors import load_detector

    if model.modality != "face":
        raise LikenessError(f"--detector finds faces; leave it out of modality {model.modality!r}")
    refuse_other_reading(model, f"--detector {detector}")
    load_detector(detector, min_score)  # a file that is no detector is refused now
    size, frame = aligned_as(model)
    read = partial(align.read, detector=str(detector), choose="central", size=size, frame=frame)
    faces = f"central, aligned to {size[0]} x {size[1]}, detector {sha256(detector)[:16]}"
    if min_score is not None:
        read, faces = partial(read, min_score=min_score), f"{faces}, scores from {min_score:g}"
    return replace(model, read=read, settings={**model.settings, "faces": faces})


@contextmanager
def every_face(
    model: Loaded, items: Sequence[Item]
) -> Iterator[tuple[Loaded, list[Item], list[Bad]]]:
    """Give all faces of photographs as items, for as long as the context lasts.

    Args:
        model: A face model with a detector.
        items: The photographs.

    Yields:
        The model reading aligned crops; the crops, with ids such as "photo.jpg#2"; and what could
        not be read or shows no face.

    Raises:
        LikenessError: The model has no detector.
    """
    settings = detector_settings(model)
    from likeness.modalities.face import align, images

    with TemporaryDirectory() as folder:
        crops, bad = align.faces_as_items(items, Path(folder), **settings)
        yield replace(model, read=partial(images.read, size=settings["size"])), crops, bad


def detector_settings(model: Loaded) -> dict[str, Any]:
    """Return how a face model finds faces: the detector, its lowest score, and the size of crops.

    Raises:
        LikenessError: The model has no detector.
    """
    settings = reading_of(model)[1]
    if "detector" not in settings:
        raise LikenessError("this model has no detector; name one by --detector FILE.onnx")
    return {name: settings.get(name) for name in ("detector", "size", "frame", "min_score")}


def refuse_other_reading(model: Loaded, option: str) -> None:
    """Refuse an option that would replace a reading which is not of a modality.

    What the option reads would not be what the network was trained on, and nobody would see it.

    Args:
        model: The model.
        option: What the error calls the option.

    Raises:
        LikenessError: The model has such a reading; the function is named.
    """
    function = reading_of(model)[0]
    module = str(getattr(function, "__module__", ""))
    if not module.startswith("likeness.modalities."):
        raise LikenessError(
            f"{option}: the model reads its items by {module}.{getattr(function, '__name__', '')}, "
            "which this option would replace; leave it out, or do its work in that function"
        )


def _wespeaker_file(source: str) -> Path:
    """The file of weights in a folder of WeSpeaker, or the file that is named."""
    return Path(source, "avg_model.pt") if Path(source).is_dir() else Path(source)


def refuse_missing_model(model: str) -> None:
    """Refuse a model that is a path to nothing.

    Args:
        model: One of the forms that `likeness.load` takes.

    Raises:
        LikenessError: There is no such file or folder. No model of this name comes with Likeness,
            or it has to be prepared.

    Example:
        >>> refuse_missing_model("runs/nothing")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        likeness.LikenessError: model 'runs/nothing' does not exist; give the folder of a run, ...
    """
    bundled.resolve_model(model)
    if bundled.is_included(model):
        bundled.onnx_file(model)
        return
    kind, colon, source = model.partition(":")
    path, _, name = model.rpartition(":")
    file = path if path.endswith(".py") and name.isidentifier() else model  # own.py:NAME
    file = source if colon and kind in ("wespeaker", "redimnet") else file
    if colon and kind == "wespeaker" and not _wespeaker_file(source).is_file():
        raise LikenessError(
            f"{model}: there is no file {_wespeaker_file(source)}; fetch one by `hf download "
            "Wespeaker/wespeaker-voxceleb-resnet293-LM avg_model.pt --local-dir english`, and give "
            f"wespeaker:english; {bundled.FINDING_MODELS}"
        )
    if not (colon and kind in _NEED_NO_PATH) and not (file and Path(file).exists()):
        raise LikenessError(
            f"model {model!r} does not exist; give the folder of a run, a .safetensors or .onnx "
            "file, a .py file (which may call timm.create_model), speechbrain:SOURCE, "
            "wespeaker:FILE.pt, redimnet:FILE.pt, hub:FOLDER_OR_ID, insightface:PATH, "
            f"likeness:face, likeness:voice or likeness:voice-plus; {bundled.FINDING_MODELS}"
        )
