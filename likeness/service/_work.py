"""What requests of `likeness serve` ask for: uploads become embeddings, which are compared,
searched for and enrolled. _app.py says which route asks for what, and what the errors are.

The docstrings of the methods are what /docs says of their routes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path as FilePath
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import File, Form, HTTPException, Path, Query
from fastapi.responses import Response, StreamingResponse

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.items.items import Item
from likeness.eval.items.suffixes import suffix_of
from likeness.eval.types import Floats32
from likeness.models.multimodal import fuse, in_order_of, sorted_for
from likeness.models.verdicts import Comparer, compared, remedy_for
from likeness.service import _inputs, _pages
from likeness.service._guard import MAX_BYTES
from likeness.service._pages import Example
from likeness.toolkit.data.reading import with_settings_of
from likeness.toolkit.gallery import media
from likeness.toolkit.models.embed import embed_where_readable

if TYPE_CHECKING:
    from likeness.eval.metrics.calibration import Fusion
    from likeness.toolkit.gallery.gallery import Gallery

MAX_FILES = 10  # of one enrolment
MAX_EMBEDDED = 256  # files of one request for embeddings
_log = logging.getLogger("likeness.serve")
_HAS_MEMORY = sys.platform == "linux" and FilePath("/proc/self/fd").is_dir()
Upload = Annotated[bytes, File()]
OfOne = Annotated[list[bytes], File(max_length=2)]  # a file, or a recording and a picture
Uploads = Annotated[list[bytes], File(max_length=MAX_FILES)]
Face = Annotated[int | None, Form(ge=0, le=9999)]
Faces = Annotated[list[Annotated[int, Form(ge=0, le=9999)]] | None, Form(max_length=MAX_FILES)]
Subject = Annotated[str, Path(max_length=256)]
Number = Annotated[int, Path(ge=0)]


class Service:
    """What requests ask for. The methods run in threads, of which `threads` embed at once.

    Args:
        comparer: The model that embeds the uploads, and what decides.
        gallery: Who is enrolled; without one, what needs it is answered with 404.
        threads: Uploads that are worked on at once.
        slider: What the page says of thresholds, as `pages.slider` makes it.
        examples: Files to try.
        keeps_media: Whether a small picture or sound of each enrolment is kept beside the gallery.
        about: What people should know of the model; "" for nothing.
        name: What the model is called.
        beside: What compares pictures beside a model of recordings, or the other way round, and the
            fusion of both scores, by which people are compared of whom both kinds are uploaded.

    Raises:
        LikenessError: The fusion is of other models. Media are to be kept beside a gallery without
            a folder.
    """

    def __init__(  # what the page says of a server is what its options say
        self,
        comparer: Comparer,
        gallery: Gallery | None = None,
        *,
        threads: int = 2,
        slider: Mapping[str, Any] | None = None,
        examples: Sequence[Example] = (),
        keeps_media: bool = False,
        about: str = "",
        name: str = "",
        beside: tuple[Service, Fusion] | None = None,
    ):
        self.model = _inputs.bounded(comparer.model)
        self._both, self._fusion = [self], None
        if beside is not None:
            other, self._fusion = beside
            models = in_order_of(self._fusion, [self.model, other.model])
            self._both = [self if model is self.model else other for model in models]
        self.threads = threads
        self._comparer, self._gallery = comparer, gallery
        self._slider, self._examples = slider or _pages.slider(None, ""), examples
        self._name, self._about, self._keeps_media = name, about, keeps_media
        self._media = gallery.folder if keeps_media and gallery is not None else None
        if keeps_media and self._media is None:
            raise LikenessError("--keep-media needs the folder of a gallery: --gallery DIR")
        self._turns = BoundedSemaphore(threads)
        # An enrolment and its media belong together: who removes the subject meanwhile would leave
        # media of somebody who is not enrolled.
        self._changing = Lock()

    def close(self) -> None:
        """Close the gallery."""
        if self._gallery is not None:
            self._gallery.close()

    def health(self) -> dict[str, Any]:
        """What is served: the model and its modality, how it decides, how many are enrolled."""
        model, comparer = self.model, self._comparer
        return {
            "status": "ok",
            "modality": model.modality,
            "name": self._name,
            "model": model.digest,
            "similarity": model.similarity,
            "norm_is_quality": model.norm_is_quality,
            "threshold": comparer.threshold,
            "source": comparer.source,
            "calibrated": comparer.calibration is not None,
            "gallery": None if self._gallery is None else len(self._gallery),
            "max_bytes": MAX_BYTES,
            "takes": _inputs.describe_input(model),
            "keeps_media": self._keeps_media,
            "about": self._about,
            "examples": len(self._examples),
        }

    def thresholds(self) -> dict[str, Any]:
        """What each threshold means: the stored error rates of the model, or the reason why there
        are none. A rate that fewer than ten trials stand behind is given as ten trials' share.
        """
        return dict(self._slider)

    def examples(self) -> dict[str, Any]:
        """The files to try that the server was started with, by their numbers."""
        listed = [{"name": of.name, "bytes": len(of.content)} for of in self._examples]
        return {"examples": listed}

    def example(self, number: Number) -> Response:
        """One of the files to try."""
        if number >= len(self._examples):
            raise HTTPException(404, "there is no example of this number; /examples lists them")
        chosen = self._examples[number]
        return Response(chosen.content, media_type=chosen.media_type)

    def verify(
        self, first: OfOne, second: OfOne, first_face: Face = None, second_face: Face = None
    ) -> dict[str, Any]:
        """Are two files of one subject? Score, probability if there is a calibration, decision, and
        the norms: a measure of quality where /health says so. Of photographs the faces may be
        chosen, by the numbers that /faces gives. A server with a fusion also takes a recording and
        a picture of each, and answers with one decision and in `parts` with both scores.
        """
        faces = [first_face, second_face]
        if len(first) == len(second) == 1:
            verified = compared(self._comparer, self._embed([*first, *second], faces).matrix)
        elif self._fusion is None:
            raise LikenessError("one file of each is compared here; two need `serve --fusion`")
        else:
            models, parts = [of.model for of in self._both], []
            sides = sorted_for(models, first), sorted_for(models, second)
            for service, *files in zip(self._both, *sides, strict=True):
                chosen = [None, None] if service.model.modality == "speaker" else faces
                parts.append(compared(service._comparer, service._embed(files, chosen).matrix))
            verified = fuse(self._fusion, models, parts, None)
        model = {"modality": self.model.modality, "model": self.model.digest}
        return verified._asdict() | model

    def embed(
        self, files: Annotated[list[bytes], File(max_length=MAX_EMBEDDED)]
    ) -> StreamingResponse:
        """The embeddings of from 1 to 256 files, raw: the norm may carry quality. The answer is a
        line of JSON for each file, in the order in which they were sent and as soon as it is ready:
        `file` is its number from 0, with `embedding` and `norm`, or with `error` where it cannot be
        read.
        """

        def one(file: bytes) -> dict[str, Any]:
            try:
                embeddings = self._embed([file])
            except LikenessError as error:
                return {"error": str(error)}
            return {"embedding": embeddings.matrix[0].tolist(), "norm": float(embeddings.norms[0])}

        def lines() -> Iterator[bytes]:
            pool = ThreadPoolExecutor(self.threads)
            try:
                for number, answer in enumerate(pool.map(one, files)):
                    yield json.dumps({"file": number, **answer}).encode() + b"\n"
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # also where the client has gone

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    def faces(self, file: Upload) -> dict[str, Any]:
        """The faces of a photograph: boxes in pixels of the upright picture, scores, the crop of
        each that the network would get, and the number of the face that is taken by itself.
        """
        with self._turns, private_items([file]) as items:
            return _inputs.find_faces(self.model, items[0])

    def identify(
        self,
        file: Upload,
        k: Annotated[int, Form(ge=1, le=100)] = 5,
        threshold: Annotated[float | None, Form(allow_inf_nan=False)] = None,
        face: Face = None,
    ) -> dict[str, Any]:
        """The k most similar subjects of the gallery, and who of them it is: the best, if its score
        reaches the threshold (default: the server's).
        """
        gallery = self._required_gallery()
        least = self._comparer.threshold if threshold is None else threshold
        probe = self._embed([file], [face])
        matches = gallery.search(probe, k)[0]
        accepted = [None if least is None else match.score >= least for match in matches]
        return {
            "identified": matches[0].subject if any(accepted) else None,
            "decided": least is not None,
            "threshold": least,
            "source": self._comparer.source if threshold is None else "",
            "similarity": gallery.similarity,
            "norm": float(probe.norms[0]),
            "matches": [
                {"subject": of.subject, "score": of.score, "norm": of.norm, "accepted": is_accepted}
                for of, is_accepted in zip(matches, accepted, strict=True)
            ],
        }

    def enrol(
        self, subject: Annotated[str, Form(max_length=256)], files: Uploads, faces: Faces = None
    ) -> dict[str, Any]:
        """Enrol a subject, or add to its enrolments, from 1 to 10 files; all of them or none. Of
        photographs the faces may be chosen, by one number of /faces for each file.
        """
        gallery = self._required_gallery()
        if faces and len(faces) != len(files):
            raise LikenessError(f"{len(faces)} faces for {len(files)} files; give one for each")
        chosen: Sequence[int | None] = faces or [None] * len(files)
        embeddings = self._embed(files, chosen)
        with self._changing:
            gallery.enrol(embeddings, [subject] * len(files))
            kept = 0
            if self._media is not None:
                with private_items(files) as items:
                    kept = sum(map(partial(self._keep, subject), items, chosen, embeddings.matrix))
        return {
            "subject": subject,
            "added": len(files),
            "norms": embeddings.norms.tolist(),
            "subjects": len(gallery),
            "kept": kept,
        }

    def gallery(
        self,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=1000)] = 100,
    ) -> dict[str, Any]:
        """Who is enrolled, with how many enrolments and the norm of the template."""
        entries = self._required_gallery().entries()
        part = entries[offset : offset + limit]
        return {"subjects": len(entries), "entries": [entry._asdict() for entry in part]}

    def enrolments(self, subject: Subject) -> dict[str, Any]:
        """The enrolments of a subject: the norm of each, and the day and what is kept of it, where
        the server keeps media.
        """
        rows = self._required_gallery().enrolments(subject)
        norms = np.linalg.norm(rows.astype(np.float64), axis=1).tolist()
        kept = media.kept(self._media, subject, rows)
        enrolments = []
        for number, (norm, medium) in enumerate(zip(norms, kept, strict=True)):
            kind = medium and ("sound" if medium.path.suffix == ".flac" else "image")
            date = medium and medium.date
            enrolments.append({"number": number, "norm": norm, "date": date, "medium": kind})
        return {"subject": subject, "enrolments": enrolments}

    def medium(self, number: Number, subject: Subject) -> Response:
        """The small picture or sound that is kept of an enrolment, where the server keeps media."""
        rows = self._required_gallery().enrolments(subject)
        for medium in media.kept(self._media, subject, rows[number : number + 1]):
            if medium is not None:
                kind = "audio/flac" if medium.path.suffix == ".flac" else "image/jpeg"
                return Response(medium.path.read_bytes(), media_type=kind)
        raise HTTPException(404, "nothing is kept of this enrolment")

    def remove(self, subject: Subject) -> dict[str, Any]:
        """Erase a subject, with what is kept of it."""
        gallery = self._required_gallery()
        with self._changing:
            gallery.remove([subject])
        return {"subject": subject, "subjects": len(gallery)}

    def _required_gallery(self) -> Gallery:
        if self._gallery is None:
            raise HTTPException(404, "this server has no gallery; start it with --gallery DIR")
        return self._gallery

    def _keep(self, subject: str, item: Item, face: int | None, embedding: Floats32) -> bool:
        """Keep a small picture or sound of an enrolment; returns whether there is one."""
        assert self._media is not None
        try:
            small = _inputs.miniature(self.model, item, face)
            return media.keep(self._media, subject, embedding, *small)
        except (ValueError, OSError) as error:  # what was enrolled stays enrolled
            _log.warning("nothing was kept of an enrolment: %s", type(error).__name__)
            return False

    def _embed(self, files: Sequence[bytes], faces: Sequence[int | None] = (None,)) -> Embeddings:
        """Embed uploads.

        Args:
            files: Recordings or images.
            faces: The number of the face of each, None for the one that is taken by itself.

        Raises:
            LikenessError: One of them cannot be read; all are counted.
        """
        with self._turns, private_items(files) as items:
            chosen = dict(zip((item.id for item in items), faces, strict=True))
            read = with_settings_of(_inputs.choosing(self.model, chosen).read)
            try:
                embeddings, bad = embed_where_readable(self.model.embedder, items, read, part=True)
            except RuntimeError as error:  # of a network that cannot take this input
                kind = type(error).__name__
                _log.warning("an upload ended in %s", kind)
                raise LikenessError(f"the model cannot embed this ({kind})") from None
            if embeddings is None or bad:
                # a reason names the file, unless the network refuses it
                path_of = {item.id: f"{item.path}: " for item in items}
                reasons = [f"{of.id}: {of.reason.removeprefix(path_of[of.id])}" for of in bad]
                raise LikenessError(
                    f"with this {self.model.modality} model, {len(bad)} of {len(files)} files "
                    f"cannot be read: {'; '.join(reasons)}{remedy_for(self.model)}"
                )
            return Embeddings(embeddings.ids, embeddings.matrix, self.model.meta)


@contextmanager
def private_items(files: Sequence[bytes]) -> Iterator[list[Item]]:
    """Items by which uploads can be read, whose ids are what errors call them.

    They lie in anonymous memory where the system has it, so that not even a kill leaves them
    behind, else in a private folder. What its sender calls a file is never looked at: its first
    bytes say what it is.

    Raises:
        LikenessError: The block ends in an error of a file; it names the upload by its id.
    """
    names = [f"file {i + 1}" for i in range(len(files))]
    if len(files) <= 2:
        names = ["the file"] if len(files) == 1 else ["the first file", "the second file"]
    handles: list[int] = []
    items: list[Item] = []
    with nullcontext() if _HAS_MEMORY else TemporaryDirectory() as folder:
        try:
            for name, content in zip(names, files, strict=True):
                ending = suffix_of(content)
                if sys.platform == "linux" and _HAS_MEMORY:
                    handles.append(os.memfd_create("upload", os.MFD_CLOEXEC))
                    path = FilePath(f"/proc/{os.getpid()}/fd/{handles[-1]}")
                else:
                    assert folder is not None
                    path = FilePath(folder, f"{len(items)}{ending}")
                path.write_bytes(content)
                items.append(Item(name, path, ending=ending))
            yield items
        except (ValueError, OSError) as error:
            reason = str(error)
            for item in items:
                reason = reason.replace(str(item.path), item.id)
            raise LikenessError(reason) from None
        finally:
            for handle in handles:
                os.close(handle)
