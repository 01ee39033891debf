"""What requests of `likeness serve` ask for, without HTTP: uploads become embeddings, which are
compared, searched for and enrolled.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np

from eval.calibration import Calibration
from eval.thresholds import Thresholds
from eval.types import Embeddings
from likeness import verification
from likeness.diarisation import Clustering, Names, segmented
from likeness.service.examples import Example
from likeness.service.faces import choosing, find_faces
from likeness.service.limits import Limits
from likeness.service.miniatures import miniature
from likeness.service.takes import Takes, takes
from likeness.signatures import suffix_of
from toolkit.data.images import SUFFIXES, BadImage, check_size, open_encoded
from toolkit.data.items import Item
from toolkit.gallery import media
from toolkit.gallery.media import Medium
from toolkit.models.embed import embed_where_readable
from toolkit.models.loaded import Loaded

_log = logging.getLogger("likeness.serve")


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
        ValueError: the threshold is no finite number, or media are to be kept beside a gallery
            without a folder.
    """

    def __init__(
        self,
        model: Loaded,
        gallery: Any = None,
        *,
        threshold: float | None = None,
        calibration: Calibration | None = None,
        source: str = "",
        limits: Limits | None = None,
        extras: Extras = NO_EXTRAS,
    ):
        if threshold is not None and not math.isfinite(threshold):
            raise ValueError(f"threshold {threshold}: must be a finite number")
        self.limits = limits or Limits()
        self.model, self.gallery = _bounded(model, self.limits), gallery
        self.threshold, self.calibration, self.source = threshold, calibration, source
        self.extras, self.takes = extras, takes(self.model, self.limits)
        folder = None if gallery is None else gallery.folder
        if extras.keeps_media and folder is None:
            raise ValueError(
                "media are kept beside a gallery, in its folder; name one with --gallery DIR"
            )
        self.media: Path | None = folder if extras.keeps_media else None
        # An enrolment and its media belong together: who removes the subject meanwhile would leave
        # media of somebody who is not enrolled.
        self._changing = Lock()

    def verify(
        self, first: bytes, second: bytes, chosen: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Compare two files.

        Args:
            first: a recording or an image.
            second: the other one.
            chosen: "first" or "second" -> the number of its face, as /faces counts.
        """
        with private_files([first, second]) as paths:
            with _anonymous(paths):
                self._refuse_images([first, second], paths)
                compared = verification.verify(
                    choosing(self.model, chosen),
                    *paths,
                    threshold=self.threshold,
                    calibration=self.calibration,
                    source=self.source,
                )
            return {
                **compared._asdict(),
                "modality": self.model.modality,
                "model": self.model.digest,
            }

    def find_faces(self, file: bytes) -> dict[str, Any]:
        """The faces of a photograph, and the crop of each that the network would get."""
        if self.model.modality != "face":
            raise KeyError(
                f"faces are found for models of faces; this is a {self.model.modality} one"
            )
        with private_files([file]) as paths, _anonymous(paths):
            self._refuse_images([file], paths)
            return find_faces(self.model, paths[0])

    def identify(
        self, file: bytes, k: int, threshold: float | None, face: int | None = None
    ) -> dict[str, Any]:
        """Search the gallery for the k subjects who are most similar to a file, or to one of its
        faces.
        """
        least = self.threshold if threshold is None else threshold
        probe = self._embed([file], {} if face is None else {"0": face})
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

    def diarise(
        self, file: bytes, how: Clustering, threshold: float | None = None
    ) -> dict[str, Any]:
        """Say who speaks when in a long recording; with names where there is a gallery.

        Args:
            file: a recording.
            how: the bounds of the number of speakers.
            threshold: from which on a name is given; the server's by default.
        """
        least = self.threshold if threshold is None else threshold
        names = None if self.gallery is None else Names(self.gallery, least)
        with private_files([file]) as paths, _anonymous(paths):
            found = segmented(
                self.model,
                Item("0", paths[0]),
                how,
                names,
                max_seconds=self.limits.long_seconds,
                max_values=self.limits.max_values,
            )
        return {
            "seconds": found.seconds,
            "speakers": list(found.speakers),
            "segments": [asdict(segment) for segment in found],
            "named": names is not None and least is not None,
            "threshold": None if names is None else least,
            "similarity": self.model.similarity,
            "model": self.model.digest,
        }

    def enrol(
        self, subject: str, files: Sequence[bytes], *, replaces: bool, faces: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Add a subject's files to its enrolments, or put them in their place.

        Args:
            subject: who it is.
            files: recordings or images.
            replaces: whether they replace what the subject has.
            faces: the number of the face of each file, as /faces counts; or nothing.
        """
        if faces and len(faces) != len(files):
            raise ValueError(
                f"{len(faces)} numbers of faces for {len(files)} files; give one for each or none"
            )
        if subject in (".", ".."):
            raise ValueError(
                f"the subject {subject!r} could never be removed here, because addresses have no "
                "such part; choose another name"
            )
        chosen = {str(i): face for i, face in enumerate(faces)}
        embeddings = self._embed(files, chosen)
        small = [] if self.media is None else self._miniatures(files, chosen)
        kept = 0
        with self._changing:
            store = self.gallery.update if replaces else self.gallery.enrol
            store(embeddings, [subject] * len(files))
            if self.media is not None:
                kept = self._keep(self.media, subject, embeddings, small)
        return {
            "subject": subject,
            "added": len(files),
            "norms": embeddings.norms.tolist(),
            "subjects": len(self.gallery),
            "kept": kept,
        }

    def enrolments(self, subject: str) -> dict[str, Any]:
        """The enrolments of a subject: number, norm, and where media are kept the day and what."""
        rows = self.gallery.enrolments(subject)
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
        rows = self.gallery.enrolments(subject)
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
        with private_files(files) as paths:
            for i, path in enumerate(paths):
                try:
                    small.append(miniature(self.model, path, chosen.get(str(i))))
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
            self.gallery.remove([subject])
        return {"subject": subject, "subjects": len(self.gallery)}

    def _embed(
        self, files: Sequence[bytes], chosen: Mapping[str, int] = MappingProxyType({})
    ) -> Embeddings:
        with private_files(files) as paths, _anonymous(paths):
            self._refuse_images(files, paths)
            embedded, bad = embed_where_readable(
                self.model.embedder,
                [Item(str(i), path) for i, path in enumerate(paths)],
                choosing(self.model, chosen).read,
            )
            if embedded is None or bad:
                raise ValueError(
                    f"with this {self.model.modality} model, {len(bad)} of {len(files)} files "
                    f"cannot be read: {bad[0].reason}"
                )
            return Embeddings(embedded.ids, embedded.matrix, self.model.meta)

    def _refuse_images(self, files: Sequence[bytes], paths: Sequence[Path]) -> None:
        """ValueError for an image of more pixels than are decoded here, and for a photograph where
        the model takes crops, by their headers.
        """
        for content, path in zip(files, paths, strict=True):
            if path.suffix not in SUFFIXES:
                continue
            check_size(content, str(path), self.limits.max_pixels)
            if self.takes.kind == "crops":
                _refuse_photograph(content, path, self.takes)


def _refuse_photograph(content: bytes, path: Path, known: Takes) -> None:
    """ValueError for an image of another size than the crops; what has no header is left to the
    decoder.
    """
    try:
        height, width = open_encoded(content, str(path)).size
    except BadImage:
        return
    if (height, width) != (known.height, known.width):
        raise ValueError(
            f"{path} has {height} x {width} pixels (height x width), but this model takes aligned "
            f"crops of {known.height} x {known.width}; if it is a photograph, start the server "
            "with --detector FILE.onnx, which finds the face in it and aligns it"
        )


def _log_not_kept(error: Exception) -> None:
    _log.warning("nothing was kept of an enrolment: %s", type(error).__name__)


@contextmanager
def private_files(files: Sequence[bytes]) -> Iterator[list[Path]]:
    """Paths under which uploads can be read.

    They lie in anonymous memory where the system has it, so that not even a kill leaves them
    behind, else in a private folder.
    """
    with TemporaryDirectory(prefix="likeness-") as folder:
        handles: list[int] = []
        try:
            paths = []
            for i, content in enumerate(files):
                # What its sender calls it is never looked at.
                path = Path(folder) / f"{i}{suffix_of(content)}"
                if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
                    handles.append(os.memfd_create("upload", os.MFD_CLOEXEC))
                    with os.fdopen(os.dup(handles[-1]), "wb") as file:
                        file.write(content)
                    path.symlink_to(f"/proc/{os.getpid()}/fd/{handles[-1]}")
                else:
                    path.write_bytes(content)
                paths.append(path)
            yield paths
        finally:
            for handle in handles:
                os.close(handle)


@contextmanager
def _anonymous(paths: Sequence[Path]) -> Iterator[None]:
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
        names = [f"file {i + 1}" for i in range(len(paths))]
        if len(paths) == 2:
            names = ["the first file", "the second file"]
        for path, name in zip(paths, names, strict=True):
            reason = reason.replace(str(path), name)
        raise ValueError(reason) from None


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
