"""The embeddings that belong to score files, and the quality of items that `--quality` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eval.types import Embeddings


def check_number(embeddings: Sequence[Path], score_files: Sequence[Path]) -> None:
    """ValueError for embeddings that do not pair up with the score files."""
    if len(embeddings) not in (0, 1, len(score_files)):
        raise ValueError(
            f"{len(embeddings)} embedding files for {len(score_files)} score files; give one for "
            "all or one for each, in their order"
        )


def embeddings_of(files: Sequence[Path], systems: Sequence[str]) -> dict[str, Embeddings]:
    """System -> its embeddings, read once; one file serves all systems. Empty without files."""
    from eval.formats import embeddings as embedding_files

    read = {path: embedding_files.read(path) for path in dict.fromkeys(files)}
    of_each = [read[path] for path in files]
    of_each *= len(systems) if len(of_each) == 1 else 1
    return dict(zip(systems, of_each, strict=True)) if of_each else {}


@dataclass(frozen=True)
class Rated:
    """Where the quality of the items comes from.

    Attributes:
        file: Lines `id quality`; None for the norms of the embeddings.
        embeddings: What was scored, one file for all score files or one for each.
    """

    file: Path | None
    embeddings: Sequence[Path] = ()

    def of(self, systems: Sequence[str]) -> dict[str, Mapping[str, float]]:
        """System -> id -> its quality."""
        if self.file is not None:
            from eval.formats.durations import read_qualities

            return dict.fromkeys(systems, read_qualities(self.file))
        embedded = embeddings_of(self.embeddings, systems)
        return {
            name: dict(zip(of.ids, of.norms.tolist(), strict=True)) for name, of in embedded.items()
        }


def rated(quality: str | None, embeddings: Sequence[Path], scores: Sequence[Path]) -> Rated | None:
    """Where the quality that --quality names comes from; None without it.

    Raises:
        ValueError: It is the norm, and there are no embeddings.
        FileNotFoundError: There is no such file.
    """
    if quality is None:
        return None
    if quality != "norm":
        if not Path(quality).is_file():
            raise FileNotFoundError(
                f"--quality {quality}: there is no such file; name a list of lines `id quality`, "
                "or give `norm`"
            )
        return Rated(Path(quality))
    if not embeddings:
        raise ValueError(
            "--quality norm needs the embeddings that were scored; give their file with "
            "--embeddings"
        )
    check_number(embeddings, scores)
    return Rated(None, embeddings)
