"""What requests of `likeness serve` ask for, without HTTP: uploads become embeddings, which are
compared, searched for and enrolled.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np

from eval.calibration import Calibration
from eval.errors import LikenessError
from eval.similarity import pairs
from eval.thresholds import Thresholds
from eval.types import Embeddings, Floats32
from likeness.service.batches import Question
from likeness.service.examples import Example
from likeness.service.faces import choosing, find_faces
from likeness.service.limits import Limits
from likeness.service.miniatures import miniature
from likeness.service.takes import Takes, takes
from likeness.signatures import suffix_of
from likeness.verification import Comparer, judged, misfit, remedy_for
from toolkit.data.forms import reading_for
from toolkit.data.images import SUFFIXES, BadImage, check_size, open_encoded
from toolkit.data.items import Item
from toolkit.data.reading import Array, Bad
from toolkit.gallery import media
from toolkit.gallery.media import Medium
from toolkit.gallery.rules import Gallery
from toolkit.models.embed import inputs_of
from toolkit.models.loaded import Loaded

_log = logging.getLogger("likeness.serve")
_HAS_MEMORY = hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


@dataclass(frozen=True)
class Extras:
    """What a server offers beside the answers, for people who look at its page.

    Attributes:
        thresholds: stored thresholds of the model, among which a slider moves; None for no slider.
        no_thresholds: why there are none, as a sentence.
        examples: files to try.
        keeps_media: whether a small picture or sound of each enrolment is kept beside the gallery.
        about: what people should know of the model; "" for nothing.
    """

    thresholds: Thresholds | None = None
    no_thresholds: str = ""
    examples: Sequence[Example] = ()
    keeps_media: bool = False
    about: str = ""


NO_EXTRAS = Extras()


class Service:
    """What requests ask for, without HTTP. The methods run in worker threads.

    Args:
        model: embeds the uploads.
        gallery: of `toolkit.gallery`; None for no gallery.
        threshold: accept if score >= threshold; None where a calibration or nobody decides.
        calibration: turns scores into probabilities.
        source: where a stored threshold comes from; "" for a number of the caller's own.
        limits: of recordings and images.
        extras: what the page offers beside.

    Raises:
        LikenessError: the threshold is no finite number, or media are to be kept beside a gallery
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
        extras: Extras = NO_EXTRAS,
    ):
        if threshold is not None and not math.isfinite(threshold):
            raise LikenessError(f"threshold {threshold}: must be a finite number")
        self.limits = limits or Limits()
        self.model = _bounded(model, self.limits)
        self.gallery = gallery
        self.threshold, self.calibration, self.source = threshold, calibration, source
        self.extras, self.takes = extras, takes(self.model, self.limits)
        folder = None if gallery is None else gallery.folder
        if extras.keeps_media and folder is None:
            raise LikenessError(
                "media are kept beside a gallery, in its folder; name one with --gallery DIR"
            )
        self.media: Path | None = folder if extras.keeps_media else None
        # An enrolment and its media belong together: who removes the subject meanwhile would leave
        # media of somebody who is not enrolled.
        self._changing = Lock()

    @property
    def people(self) -> Gallery:
        """The gallery, for what needs one.

        Raises:
            LikenessError: There is none.
        """
        if self.gallery is None:
            raise LikenessError("this server has no gallery")
        return self.gallery

    def verify(
        self, first: bytes, second: bytes, chosen: Mapping[str, int] = MappingProxyType({})
    ) -> Question:
        """Compare two files.

        Args:
            first: a recording or an image.
            second: the other one.
            chosen: "first" or "second" -> the number of its face, as /faces counts.
        """
        if self.calibration is not None and (reason := misfit(self.model, self.calibration)):
            raise LikenessError(reason)
        comparer = Comparer(self.model, self.calibration, self.threshold, self.source)

        def finish(matrix: Floats32) -> dict[str, Any]:
            score = float(pairs(matrix[:1], matrix[1:], [0], [0], self.model.similarity)[0])
            first_norm, second_norm = self._embeddings(matrix).norms.tolist()
            return {
                **judged(comparer, score, (first_norm, second_norm))._asdict(),
                "modality": self.model.modality,
                "model": self.model.digest,
            }

        return self._asks([first, second], chosen, finish, ids=("first", "second"))

    def embed(self, file: bytes) -> Question:
        """Embed one of many files, each a recording or an image."""

        def finish(matrix: Floats32) -> dict[str, Any]:
            norm = float(self._embeddings(matrix).norms[0])
            return {"embedding": matrix[0].tolist(), "norm": norm}

        return self._asks([file], {}, finish)

    def find_faces(self, file: bytes) -> dict[str, Any]:
        """The faces of a photograph, and the crop of each that the network would get."""
        if self.model.modality != "face":
            raise KeyError(
                f"faces are found for models of faces; this is a {self.model.modality} one"
            )
        with private_items([file], ["file"]) as items, _anonymous([items[0].path]):
            self._refuse_images([file], items)
            return find_faces(self.model, items[0])

    def identify(
        self, file: bytes, k: int, threshold: float | None, face: int | None = None
    ) -> Question:
        """Search the gallery for the k subjects who are most similar to a file, or to one of its
        faces.
        """
        least = self.threshold if threshold is None else threshold

        def finish(matrix: Floats32) -> dict[str, Any]:
            probe = self._embeddings(matrix)
            matches = self.people.search(probe, k)[0]
            accepted = [least is not None and match.score >= least for match in matches]
            return {
                "identified": matches[0].subject if any(accepted) else None,
                "decided": least is not None,
                "threshold": least,
                "source": self.source if threshold is None else "",
                "similarity": self.people.similarity,
                "norm": float(probe.norms[0]),
                "matches": [
                    {**match._asdict(), "accepted": ok if least is not None else None}
                    for match, ok in zip(matches, accepted, strict=True)
                ],
            }

        return self._asks([file], {} if face is None else {"0": face}, finish)

    def enrol(
        self, subject: str, files: Sequence[bytes], *, replaces: bool, faces: Sequence[int] = ()
    ) -> Question:
        """Add a subject's files to its enrolments, or put them in their place.

        Args:
            subject: who it is.
            files: recordings or images.
            replaces: whether they replace what the subject has.
            faces: the number of the face of each file, as /faces counts; or nothing.
        """
        if faces and len(faces) != len(files):
            raise LikenessError(
                f"{len(faces)} numbers of faces for {len(files)} files; give one for each or none"
            )
        if subject in (".", ".."):
            raise LikenessError(
                f"the subject {subject!r} could never be removed here, because addresses have no "
                "such part; choose another name"
            )
        chosen = {str(i): face for i, face in enumerate(faces)}

        def finish(matrix: Floats32) -> dict[str, Any]:
            embeddings = self._embeddings(matrix)
            small = [] if self.media is None else self._miniatures(files, chosen)
            kept = 0
            with self._changing:
                store = self.people.update if replaces else self.people.enrol
                store(embeddings, [subject] * len(files))
                if self.media is not None:
                    kept = self._keep(self.media, subject, embeddings, small)
            return {
                "subject": subject,
                "added": len(files),
                "norms": embeddings.norms.tolist(),
                "subjects": len(self.people),
                "kept": kept,
            }

        return self._asks(files, chosen, finish)

    def enrolments(self, subject: str) -> dict[str, Any]:
        """The enrolments of a subject: number, norm, and where media are kept the day and what."""
        rows = self.people.enrolments(subject)
        known: list[Medium | None] = [None] * len(rows)
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
        """What is kept of an enrolment, and its media type.

        Raises:
            KeyError: Nothing is.
        """
        rows = self.people.enrolments(subject)
        known = []
        if self.media is not None and number < len(rows):
            known = media.kept(self.media, subject, rows[number : number + 1])
        if not known or known[0] is None:
            raise KeyError("nothing is kept of this enrolment")
        kind = "audio/flac" if known[0].path.suffix == ".flac" else "image/jpeg"
        try:
            return media.content(known[0]), kind
        except FileNotFoundError:
            raise KeyError("nothing is kept of this enrolment any more") from None

    def _miniatures(
        self, files: Sequence[bytes], chosen: Mapping[str, int]
    ) -> list[tuple[bytes, str] | None]:
        """A small picture or sound of each file, and its ending; None where none can be made."""
        small: list[tuple[bytes, str] | None] = []
        with private_items(files, [str(i) for i in range(len(files))]) as items:
            for item in items:
                try:
                    small.append(miniature(self.model, item, chosen.get(item.id)))
                except (ValueError, OSError) as error:
                    _log_not_kept(error)
                    small.append(None)
        return small

    def _keep(
        self,
        folder: Path,
        subject: str,
        embeddings: Embeddings,
        small: Sequence[tuple[bytes, str] | None],
    ) -> int:
        """Keep the small picture or sound of each embedding; how many were kept.

        What was enrolled stays enrolled, whatever the disk says to its picture.
        """
        kept = 0
        for row, made in zip(embeddings.matrix, small, strict=True):
            try:
                kept += made is not None and media.keep(folder, subject, row, *made)
            except OSError as error:
                _log_not_kept(error)
        return kept

    def remove(self, subject: str) -> dict[str, Any]:
        """Erase a subject."""
        with self._changing:
            self.people.remove([subject])
        return {"subject": subject, "subjects": len(self.people)}

    def _embeddings(self, matrix: Floats32) -> Embeddings:
        """Embeddings of this model, with numbers as ids."""
        return Embeddings(tuple(map(str, range(len(matrix)))), matrix, self.model.meta)

    def _asks(
        self,
        files: Sequence[bytes],
        chosen: Mapping[str, int],
        finish: Callable[[Floats32], Any],
        ids: Sequence[str] = (),
    ) -> Question:
        """Decode files, and ask for their embeddings.

        Args:
            files: Recordings or images.
            chosen: Id -> number of its face.
            finish: What follows from the embeddings.
            ids: Of the files; by default their numbers.

        Raises:
            LikenessError: One of them cannot be read; all are counted.
        """
        read = reading_for(choosing(self.model, chosen).read)
        names = names_of(len(files))
        inputs: list[Any] = []
        reasons: list[str] = []
        with private_items(files, ids or [str(i) for i in range(len(files))]) as items:
            for content, item, name in zip(files, items, names, strict=True):
                try:
                    with _anonymous([item.path], [name]):
                        self._refuse_images([content], [item])
                        inputs.append(_read(item, read))
                except ValueError as error:
                    reasons.append(str(error))
        if reasons:
            raise self._refusal(len(files), len(reasons), reasons[0])
        refusal = partial(self._refusal, len(files))
        return Question(self.model.embedder, names, inputs, refusal, finish)

    def _refusal(self, num_files: int, num_bad: int, reason: str) -> LikenessError:
        return LikenessError(
            f"with this {self.model.modality} model, {num_bad} of {num_files} files cannot be "
            f"read: {reason}{remedy_for(self.model)}"
        )

    def _refuse_images(self, files: Sequence[bytes], items: Sequence[Item]) -> None:
        """ValueError for an image of more pixels than are decoded here, and for a photograph where
        the model takes crops, by their headers.
        """
        for content, item in zip(files, items, strict=True):
            if item.suffix not in SUFFIXES:
                continue
            check_size(content, item.name, self.limits.max_pixels)
            if self.takes.kind == "crops":
                _refuse_photograph(content, item.name, self.takes)


def _read(item: Item, read: Any) -> list[Array]:
    """What the network gets of a file: one input, or several.

    Raises:
        LikenessError: The file cannot be read.
    """
    parts: list[Array] = []
    for _, part in inputs_of([item], read):
        if isinstance(part, Bad):
            raise LikenessError(part.reason)
        if part is not None:
            parts.append(part)
    return parts


def _refuse_photograph(content: bytes, name: str, known: Takes) -> None:
    """ValueError for an image of another size than the crops; what has no header is left to the
    decoder.
    """
    try:
        height, width = open_encoded(content, name).size
    except BadImage:
        return
    if (height, width) != (known.height, known.width):
        raise LikenessError(
            f"{name} has {height} x {width} pixels (height x width), but this model takes aligned "
            f"crops of {known.height} x {known.width}; if it is a photograph, start the server "
            "with --detector FILE.onnx, which finds the face in it and aligns it"
        )


def _log_not_kept(error: Exception) -> None:
    _log.warning("nothing was kept of an enrolment: %s", type(error).__name__)


@contextmanager
def private_items(files: Sequence[bytes], ids: Sequence[str]) -> Iterator[list[Item]]:
    """Items by which uploads can be read.

    They lie in anonymous memory where the system has it, so that not even a kill leaves them
    behind, else in a private folder.
    """
    # What its sender calls a file is never looked at: its first bytes say what it is.
    named = list(zip(ids, files, map(suffix_of, files), strict=True))
    if not _HAS_MEMORY:
        with TemporaryDirectory(prefix="likeness-") as folder:
            items = []
            for i, (name, content, ending) in enumerate(named):
                items.append(Item(name, Path(folder) / f"{i}{ending}"))
                items[-1].path.write_bytes(content)
            yield items
        return
    handles: list[int] = []
    try:
        items = []
        for name, content, ending in named:
            handles.append(_in_memory(content))
            path = Path(f"/proc/{os.getpid()}/fd/{handles[-1]}")
            items.append(Item(name, path, ending=ending))
        yield items
    finally:
        for handle in handles:
            os.close(handle)


def _in_memory(content: bytes) -> int:
    """The handle of a file in anonymous memory."""
    handle = os.memfd_create("upload", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(content)
    return handle


def names_of(num_files: int) -> list[str]:
    """What errors call the files of a request."""
    if num_files == 1:
        return ["the file"]
    if num_files == 2:
        return ["the first file", "the second file"]
    return [f"file {i + 1}" for i in range(num_files)]


@contextmanager
def _anonymous(paths: Sequence[Path], names: Sequence[str] = ()) -> Iterator[None]:
    """Errors name the uploads by their number, not by where they lie.

    Whatever a network or a decoder cannot take is the upload's fault.
    """
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        reason = str(error)
        if not isinstance(error, ValueError):
            _log.warning("an upload ended in %s", type(error).__name__)
            reason = f"the model cannot embed this ({type(error).__name__})"
        for path, name in zip(paths, names or names_of(len(paths)), strict=True):
            reason = reason.replace(str(path), name)
        raise LikenessError(reason) from None


def _bounded(model: Loaded, limits: Limits) -> Loaded:
    """The model refusing longer and larger recordings, where its reading has such bounds."""
    known = inspect.signature(model.read).parameters
    bounds = {
        name: value
        for name, value in (("max_seconds", limits.max_seconds), ("max_values", limits.max_values))
        if name in known
    }
    if not bounds:
        return model
    bound: Any = partial  # which of the two kinds of reading has such bounds is not in their types
    return replace(model, read=bound(model.read, **bounds))
