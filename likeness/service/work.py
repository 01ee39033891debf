"""What requests of `likeness serve` ask for, without HTTP: uploads become embeddings, which are
compared, searched for and enrolled.
"""

from __future__ import annotations

import inspect
import io
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import soundfile

from eval.calibration import Calibration
from eval.errors import LikenessError
from eval.similarity import pairs
from eval.temporary import temporary_folder
from eval.thresholds import Thresholds
from eval.types import Embeddings
from likeness.inputs import suffix_of
from likeness.service.faces import choosing, crop_of, find_faces
from likeness.service.guard import Limits
from likeness.service.pages import Example
from likeness.verification import Comparer, judged, remedy_for
from modalities.face import align
from modalities.face import images as face_images
from modalities.speaker import audio
from toolkit.data.images import SUFFIXES, encode, open_encoded
from toolkit.data.items import Item
from toolkit.data.reading import reading_for
from toolkit.gallery import media
from toolkit.models.embed import embed_where_readable
from toolkit.models.loaded import Loaded

if TYPE_CHECKING:
    from toolkit.gallery.gallery import Gallery

_log = logging.getLogger("likeness.serve")
_HAS_MEMORY = hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()
_SOUNDS = ("WAV", "FLAC", "OGG (Vorbis, Opus)", "MP3", "AIFF", "SPHERE")
_IMAGES = ("JPEG", "PNG", "WebP", "BMP", "GIF", "TIFF", "PPM")
_KEPT_PIXELS = 192  # the longest edge of a picture that is kept
_KEPT_SECONDS = 8.0
_KEPT_HZ = 16_000


@dataclass(frozen=True)
class Extras:
    """What a server offers beside the answers, for people who look at its page.

    Attributes:
        thresholds: Stored thresholds of the model, among which a slider moves; None for no slider.
        no_thresholds: Why there are none, as a sentence.
        examples: Files to try.
        keeps_media: Whether a small picture or sound of each enrolment is kept beside the gallery.
        about: What people should know of the model; "" for nothing.
    """

    thresholds: Thresholds | None = None
    no_thresholds: str = ""
    examples: Sequence[Example] = ()
    keeps_media: bool = False
    about: str = ""


class Service:
    """What requests ask for. The methods run in worker threads.

    Args:
        model: Embeds the uploads.
        gallery: Who is enrolled; None for no gallery.
        threshold: Accept if score >= threshold; None where a calibration or nobody decides.
        calibration: Turns scores into probabilities.
        source: Where a stored threshold comes from; "" for a number of the caller's own.
        limits: Of recordings and images.
        extras: What the page offers beside.

    Raises:
        LikenessError: The threshold is no finite number, or media are to be kept beside a gallery
            without a folder.
    """

    def __init__(
        self,
        model: Loaded,
        gallery: Gallery | None = None,
        *,
        threshold: float | None = None,
        calibration: Calibration | None = None,
        source: str = "",
        limits: Limits | None = None,
        extras: Extras | None = None,
    ):
        if threshold is not None and not math.isfinite(threshold):
            raise LikenessError(f"threshold {threshold}: must be a finite number")
        self.limits, self.extras = limits or Limits(), extras or Extras()
        self.model = _bounded(model, self.limits)
        self.gallery = gallery
        self.threshold, self.calibration, self.source = threshold, calibration, source
        folder = None if gallery is None else gallery.folder
        if self.extras.keeps_media and folder is None:
            raise LikenessError(
                "--keep-media keeps pictures and sounds in the folder of a gallery; name one with "
                "--gallery DIR"
            )
        self.media: Path | None = folder if self.extras.keeps_media else None
        # An enrolment and its media belong together: who removes the subject meanwhile would leave
        # media of somebody who is not enrolled.
        self._changing = Lock()

    def verify(
        self,
        first: bytes,
        second: bytes,
        first_face: int | None = None,
        second_face: int | None = None,
    ) -> dict[str, Any]:
        """Compare two recordings or images, or faces of theirs by their numbers."""
        matrix = self._embed([first, second], [first_face, second_face]).matrix
        score = float(pairs(matrix[:1], matrix[1:], [0], [0], self.model.similarity)[0])
        first_norm, second_norm = np.linalg.norm(matrix.astype(np.float64), axis=1).tolist()
        comparer = Comparer(self.model, self.calibration, self.threshold, self.source)
        return {
            **judged(comparer, score, (first_norm, second_norm))._asdict(),
            "modality": self.model.modality,
            "model": self.model.digest,
        }

    def embed(self, file: bytes) -> dict[str, Any]:
        """Embed a recording or an image."""
        embeddings = self._embed([file])
        return {"embedding": embeddings.matrix[0].tolist(), "norm": float(embeddings.norms[0])}

    def find_faces(self, file: bytes) -> dict[str, Any]:
        """The faces of a photograph, and the crop of each that the network would get."""
        if self.model.modality != "face":
            raise KeyError(
                f"faces are found for models of faces; this is a {self.model.modality} one"
            )
        with private_items([file]) as items, _without_paths(items):
            open_encoded(file, items[0].id, max_pixels=self.limits.max_pixels)
            return find_faces(self.model, items[0])

    def identify(
        self, file: bytes, k: int, threshold: float | None = None, face: int | None = None
    ) -> dict[str, Any]:
        """Search the gallery for the k subjects who are most similar to a file, or to one of its
        faces.
        """
        assert self.gallery is not None
        least = self.threshold if threshold is None else threshold
        probe = self._embed([file], [face])
        matches = self.gallery.search(probe, k)[0]
        accepted = [least is not None and match.score >= least for match in matches]
        return {
            "identified": matches[0].subject if any(accepted) else None,
            "decided": least is not None,
            "threshold": least,
            "source": self.source if threshold is None else "",
            "similarity": self.gallery.similarity,
            "norm": float(probe.norms[0]),
            "matches": [
                {**match._asdict(), "accepted": ok if least is not None else None}
                for match, ok in zip(matches, accepted, strict=True)
            ],
        }

    def enrol(
        self, subject: str, files: Sequence[bytes], *, replaces: bool, faces: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Add a subject's files to its enrolments, or put them in their place; all or none.

        Args:
            subject: Who it is.
            files: Recordings or images.
            replaces: Whether they replace what the subject has.
            faces: The number of the face of each file, as /faces counts; or nothing.
        """
        assert self.gallery is not None
        if faces and len(faces) != len(files):
            raise LikenessError(
                f"{len(faces)} numbers of faces for {len(files)} files; give one for each or none"
            )
        if subject in (".", ".."):
            raise LikenessError(
                f"the subject {subject!r} could never be removed here, because addresses have no "
                "such part; choose another name"
            )
        embeddings = self._embed(files, faces)
        small = [] if self.media is None else self._miniatures(files, faces)
        kept = 0
        with self._changing:
            store = self.gallery.update if replaces else self.gallery.enrol
            store(embeddings, [subject] * len(files))
            for row, made in zip(embeddings.matrix, small, strict=False):
                assert self.media is not None
                try:
                    kept += made is not None and media.keep(self.media, subject, row, *made)
                except OSError as error:  # what was enrolled stays enrolled
                    _log_not_kept(error)
        return {
            "subject": subject,
            "added": len(files),
            "norms": embeddings.norms.tolist(),
            "subjects": len(self.gallery),
            "kept": kept,
        }

    def entries(self, offset: int, limit: int) -> dict[str, Any]:
        """Who is enrolled, from one place of the list on."""
        assert self.gallery is not None
        entries = self.gallery.entries()
        part = entries[max(0, offset) : max(0, offset) + min(max(0, limit), 1000)]
        return {"subjects": len(entries), "entries": [entry._asdict() for entry in part]}

    def enrolments(self, subject: str) -> dict[str, Any]:
        """The enrolments of a subject: number, norm, and where media are kept the day and what."""
        assert self.gallery is not None
        rows = self.gallery.enrolments(subject)
        known: list[media.Medium | None] = [None] * len(rows)
        if self.media is not None:
            known = media.kept(self.media, subject, rows)
        return {
            "subject": subject,
            "enrolments": [
                {
                    "number": number,
                    "norm": float(norm),
                    "date": medium and medium.date,
                    "medium": medium and ("sound" if medium.path.suffix == ".flac" else "image"),
                }
                for number, (norm, medium) in enumerate(
                    zip(np.linalg.norm(rows.astype(np.float64), axis=1), known, strict=True)
                )
            ],
        }

    def medium(self, subject: str, number: int) -> tuple[bytes, str]:
        """What is kept of an enrolment, and its media type; KeyError for nothing."""
        assert self.gallery is not None
        rows = self.gallery.enrolments(subject)
        if self.media is not None and number < len(rows):
            (medium,) = media.kept(self.media, subject, rows[number : number + 1])
            if medium is not None:
                kind = "audio/flac" if medium.path.suffix == ".flac" else "image/jpeg"
                return medium.path.read_bytes(), kind
        raise KeyError("nothing is kept of this enrolment")

    def remove(self, subject: str) -> dict[str, Any]:
        """Erase a subject."""
        assert self.gallery is not None
        with self._changing:
            self.gallery.remove([subject])
        return {"subject": subject, "subjects": len(self.gallery)}

    def _embed(self, files: Sequence[bytes], faces: Sequence[int | None] = ()) -> Embeddings:
        """Embed uploads.

        Args:
            files: Recordings or images.
            faces: The number of the face of each, None for the one that is taken by itself; or
                nothing.

        Raises:
            LikenessError: One of them cannot be read; all are counted.
        """
        with private_items(files) as items, _without_paths(items):
            numbers = zip(items, faces, strict=False)
            chosen = {item.id: face for item, face in numbers if face is not None}
            whole = reading_for(choosing(self.model, chosen).read)

            def read(item: Item) -> Any:
                if item.suffix in SUFFIXES:
                    open_encoded(item.path.read_bytes(), item.id, max_pixels=self.limits.max_pixels)
                return whole(item)

            try:
                embeddings, bad = embed_where_readable(self.model.embedder, items, read, part=True)
            except RuntimeError as error:  # of a network that cannot take this input
                _log.warning("an upload ended in %s", type(error).__name__)
                raise LikenessError(
                    f"the model cannot embed this ({type(error).__name__})"
                ) from None
            if embeddings is None or bad:
                (path,) = (str(item.path) for item in items if item.id == bad[0].id)
                reason = bad[0].reason  # which names the file, unless the network refuses it
                raise LikenessError(
                    f"with this {self.model.modality} model, {len(bad)} of {len(files)} files "
                    f"cannot be read: {'' if path in reason else f'{bad[0].id}: '}{reason}"
                    f"{remedy_for(self.model)}"
                )
            return Embeddings(embeddings.ids, embeddings.matrix, self.model.meta)

    def _miniatures(
        self, files: Sequence[bytes], faces: Sequence[int]
    ) -> list[tuple[bytes, str] | None]:
        """A small picture or sound of each file, and its ending; None where none can be made."""
        small: list[tuple[bytes, str] | None] = []
        numbers: Sequence[int | None] = faces or [None] * len(files)
        with private_items(files) as items:
            for item, face in zip(items, numbers, strict=True):
                try:
                    small.append(miniature(self.model, item, face))
                except (ValueError, OSError) as error:
                    _log_not_kept(error)
                    small.append(None)
        return small


def miniature(model: Loaded, item: Item, face: int | None = None) -> tuple[bytes, str]:
    """Make a small JPEG or FLAC file, without what else a file says, such as where it was taken.

    Args:
        model: What embeds the file. Of a photograph in which a detector finds faces the crop that
            the network saw is taken, and nothing of its surroundings.
        item: A recording or an image that the model can read.
        face: The number of the face that somebody chose, or None.

    Returns:
        The file, and its ending: an image of at most 192 pixels, or the first 8 s of sound.

    Raises:
        LikenessError: The file cannot be read.
    """
    if model.modality == "speaker":
        wave = np.asarray(audio.read(item, rate_hz=_KEPT_HZ))[: round(_KEPT_SECONDS * _KEPT_HZ)]
        sound = io.BytesIO()
        peak = max(1.0, float(np.abs(wave).max()))  # floats may be louder than full scale
        soundfile.write(sound, wave / peak, _KEPT_HZ, format="FLAC", subtype="PCM_16")
        return sound.getvalue(), ".flac"
    pixels = crop_of(model, item, face)
    if pixels is None:
        pixels = face_images.decode(item)
    height, width = pixels.shape[:2]
    factor = min(1.0, _KEPT_PIXELS / max(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    small = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    return encode(small, ".jpg", quality=85), ".jpg"


def takes(model: Loaded, limits: Limits) -> dict[str, Any]:
    """What a model takes, said before anything is uploaded.

    Returns:
        A JSON object: `kind` is "recordings"; "photographs", in which a detector finds faces;
        "crops", which are aligned faces of one size; "faces", which are cut out and resized; or
        "images". `height` and `width` of the crops in pixels, else None; `formats`, the formats of
        files that are read; and `text`, all of it in plain English.

    Example:
        >>> from likeness.models.load import load_to_embed
        >>> print(takes(load_to_embed("runs/voices"), Limits())["text"])
        Recordings of 0.1 to 60 s, at any sampling rate and with any number of channels.
    """
    read, settings = _reading(model)
    kind, size, formats = "images", (None, None), list(_IMAGES)
    most = f"up to {limits.max_pixels / 1e6:.0f} megapixels"
    text = f"Images of {most}."
    if model.modality == "speaker":
        kind, formats = "recordings", [*_SOUNDS, *(["M4A"] if find_spec("av") else [])]
        text = (
            f"Recordings of {settings.get('min_seconds', 0.1):g} to {limits.max_seconds:g} s, at "
            "any sampling rate and with any number of channels."
        )
        if needed := settings.get("needs_hz"):
            text += (
                f" Those with nothing above {needed / 1000:g} kHz, such as telephone calls, "
                "are refused."
            )
    elif read is align.read:
        height = settings.get("size", 112)
        kind, size = "photographs", (height, settings.get("width") or height)
        text = (
            f"Photographs of {most}. A detector finds the faces; the chosen one is aligned "
            f"to {size[0]} x {size[1]} pixels."
        )
    elif read is face_images.read:
        size = settings.get("size", (112, 112))
        kind = "crops" if settings.get("fit", "exact") == "exact" else "faces"
        shape = f"{size[0]} x {size[1]} pixels (height x width)"
        text = (
            f"Aligned crops of faces of {shape}, and no photographs: this server has no detector. "
            "Start it with --detector FILE.onnx to send photographs."
            if kind == "crops"
            else f"Pictures of {most} that show one face and little else. The whole picture is "
            f"resized to {shape}; no face is looked for in it."
        )
    return {
        "kind": kind,
        "height": size[0],
        "width": size[1],
        "formats": formats,
        "text": text,
    }


def _reading(model: Loaded) -> tuple[Any, Mapping[str, Any]]:
    """The function by which a model reads, and the arguments that it always gets."""
    read: Any = model.read
    settings: dict[str, Any] = {}
    while isinstance(read, partial):
        settings = {**read.keywords, **settings}
        read = read.func
    return read, settings


def _bounded(model: Loaded, limits: Limits) -> Loaded:
    """The model refusing longer and larger recordings, where its reading has such bounds."""
    known = inspect.signature(model.read).parameters
    most = {"max_seconds": limits.max_seconds, "max_values": limits.max_values}
    bounds: Any = {name: value for name, value in most.items() if name in known}
    return replace(model, read=partial(model.read, **bounds)) if bounds else model


@contextmanager
def private_items(files: Sequence[bytes]) -> Iterator[list[Item]]:
    """Items by which uploads can be read, whose ids are what errors call them.

    They lie in anonymous memory where the system has it, so that not even a kill leaves them
    behind, else in a private folder. What its sender calls a file is never looked at: its first
    bytes say what it is.
    """
    names = ["the first file", "the second file"]
    if len(files) != 2:
        names = [f"file {i + 1}" for i in range(len(files))] if len(files) > 1 else ["the file"]
    handles: list[int] = []
    with nullcontext() if _HAS_MEMORY else temporary_folder() as folder:
        try:
            items: list[Item] = []
            for name, content in zip(names, files, strict=True):
                ending = suffix_of(content)
                if folder is None:
                    handles.append(os.memfd_create("upload", os.MFD_CLOEXEC))
                    path = Path(f"/proc/{os.getpid()}/fd/{handles[-1]}")
                else:
                    path = Path(folder) / f"{len(items)}{ending}"
                path.write_bytes(content)
                items.append(Item(name, path, ending=ending))
            yield items
        finally:
            for handle in handles:
                os.close(handle)


@contextmanager
def _without_paths(items: Sequence[Item]) -> Iterator[None]:
    """Errors name the uploads by their ids, not by where they lie."""
    try:
        yield
    except (ValueError, OSError) as error:
        reason = str(error)
        for item in items:
            reason = reason.replace(str(item.path), item.id)
        raise LikenessError(reason) from None


def _log_not_kept(error: Exception) -> None:
    _log.warning("nothing was kept of an enrolment: %s", type(error).__name__)
