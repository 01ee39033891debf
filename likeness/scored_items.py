"""What is known of the items whose trials were scored: their embeddings, and a quality of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.errors import LikenessError
from eval.formats import embeddings as embedding_files
from eval.formats.durations import read_qualities
from eval.types import Embeddings


def refuse_unmatched(embeddings: Sequence[Path], score_files: Sequence[Path]) -> None:
    """Refuse embeddings that do not pair up with the score files.

    Raises:
        LikenessError: There is neither one file for all score files nor one for each.
    """
    if len(embeddings) not in (0, 1, len(score_files)):
        raise LikenessError(
            f"{len(embeddings)} embedding files for {len(score_files)} score files; give one for "
            "all or one for each, in their order"
        )


def embeddings_by_system(files: Sequence[Path], systems: Sequence[str]) -> dict[str, Embeddings]:
    """System -> its embeddings, read once; one file serves all systems. Empty without files."""
    read = {path: embedding_files.read(path) for path in dict.fromkeys(files)}
    of_each = [read[path] for path in files]
    of_each *= len(systems) if len(of_each) == 1 else 1
    return dict(zip(systems, of_each, strict=True)) if of_each else {}


@dataclass(frozen=True)
class QualityFiles:
    """The files that the quality of the items comes from.

    Attributes:
        file: Lines `id quality`; None for the norms of the embeddings.
        embeddings: What was scored, one file for all score files or one for each; empty with
            `file`.
    """

    file: Path | None
    embeddings: Sequence[Path] = ()

    @property
    def files(self) -> list[Path]:
        """All of them."""
        return [*([self.file] if self.file else []), *self.embeddings]

    def read(self, systems: Sequence[str]) -> dict[str, Mapping[str, float]]:
        """System -> id -> its quality."""
        if self.file is not None:
            return dict.fromkeys(systems, read_qualities(self.file))
        embedded = embeddings_by_system(self.embeddings, systems)
        return {
            name: dict(zip(of.ids, of.norms.tolist(), strict=True)) for name, of in embedded.items()
        }


def quality_files(
    quality: str | None, embeddings: Sequence[Path], score_files: Sequence[Path]
) -> QualityFiles | None:
    """The files of the quality that `--quality` names; None without it.

    Args:
        quality: "norm", or a list of lines `id quality`.
        embeddings: What was scored, for its norms.
        score_files: The score files that the embeddings belong to.

    Raises:
        LikenessError: It is the norm, and there are no embeddings, or not one for each score file.
            There is no such file.
    """
    if quality is None:
        return None
    if quality != "norm":
        if not Path(quality).is_file():
            raise LikenessError(
                f"--quality {quality}: there is no such file; name a list of lines `id quality`, "
                "or give `norm`"
            )
        return QualityFiles(Path(quality))
    if not embeddings:
        raise LikenessError(
            "--quality norm needs the embeddings that were scored; give their file with "
            "--embeddings"
        )
    refuse_unmatched(embeddings, score_files)
    return QualityFiles(None, embeddings)
