"""What requests of `likeness serve` ask for, without HTTP: uploads become embeddings, which are
compared, searched for and enrolled.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eval.calibration import Calibration
from eval.types import Embeddings
from likeness import verification
from likeness.service.limits import Limits
from likeness.signatures import suffix_of
from toolkit.data.images import SUFFIXES, check_size
from toolkit.data.items import Item
from toolkit.models.checkpoint import Loaded
from toolkit.models.embed import embed_where_readable

_log = logging.getLogger("likeness.serve")


class Service:
    """What requests ask for, without HTTP. The methods run in worker threads.

    Args:
        model: embeds the uploads.
        gallery: of `toolkit.gallery`; None for no gallery.
        threshold: accept if score >= threshold; None where a calibration or nobody decides.
        calibration: turns scores into probabilities.
        source: where a stored threshold comes from; "" for a number of the caller's own.
        limits: of recordings and images.

    Raises:
        ValueError: the threshold is no finite number.
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
    ):
        if threshold is not None and not math.isfinite(threshold):
            raise ValueError(f"threshold {threshold}: must be a finite number")
        self.limits = limits or Limits()
        self.model, self.gallery = _bounded(model, self.limits), gallery
        self.threshold, self.calibration, self.source = threshold, calibration, source

    def verify(self, first: bytes, second: bytes) -> dict[str, Any]:
        """Compare two files."""
        with private_files([first, second]) as paths:
            with _anonymous(paths):
                self._refuse_large_images([first, second], paths)
                compared = verification.verify(
                    self.model,
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

    def identify(self, file: bytes, k: int, threshold: float | None) -> dict[str, Any]:
        """Search the gallery for the k subjects who are most similar to a file."""
        least = self.threshold if threshold is None else threshold
        probe = self._embed([file])
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

    def enrol(self, subject: str, files: Sequence[bytes], *, replaces: bool) -> dict[str, Any]:
        """Add a subject's files to its enrolments, or put them in their place."""
        embeddings = self._embed(files)
        store = self.gallery.update if replaces else self.gallery.enrol
        store(embeddings, [subject] * len(files))
        return {
            "subject": subject,
            "added": len(files),
            "norms": embeddings.norms.tolist(),
            "subjects": len(self.gallery),
        }

    def remove(self, subject: str) -> dict[str, Any]:
        """Erase a subject."""
        self.gallery.remove([subject])
        return {"subject": subject, "subjects": len(self.gallery)}

    def _embed(self, files: Sequence[bytes]) -> Embeddings:
        with private_files(files) as paths, _anonymous(paths):
            self._refuse_large_images(files, paths)
            embedded, bad = embed_where_readable(
                self.model.embedder,
                [Item(str(i), path) for i, path in enumerate(paths)],
                self.model.read,
            )
            if embedded is None or bad:
                raise ValueError(
                    f"with this {self.model.modality} model, {len(bad)} of {len(files)} files "
                    f"cannot be read: {bad[0].reason}"
                )
            return Embeddings(embedded.ids, embedded.matrix, self.model.meta)

    def _refuse_large_images(self, files: Sequence[bytes], paths: Sequence[Path]) -> None:
        """ValueError for an image of more pixels than are decoded here, by its header."""
        for content, path in zip(files, paths, strict=True):
            if path.suffix in SUFFIXES:
                check_size(content, str(path), self.limits.max_pixels)


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
