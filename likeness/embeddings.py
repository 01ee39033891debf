"""Embeddings as the front door gives them: they can be saved and become a table."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from eval import types
from eval.formats.embeddings import read, write


class Embeddings(types.Embeddings):
    """Raw embeddings of N items: the norm carries quality and is kept.

    Attributes:
        ids: N distinct names.
        matrix: (N, D) float32, finite.
        meta: texts that travel with a file: the model's digest, its modality and similarity.

    Raises:
        LikenessError: a wrong shape, repeated ids, or rows that are not finite.

    Example:
        >>> embeddings = Embeddings(("ann", "bob"), [[3, 4], [0, 2]])
        >>> len(embeddings), embeddings.norms.tolist()
        (2, [5.0, 2.0])
    """

    def save(self, path: str | PathLike[str]) -> None:
        """Write the embeddings to a file, whole or not at all.

        Args:
            path: where to write. The ending chooses the format: .npz, .ark (with .scp) or
                .parquet.

        Raises:
            LikenessError: another ending, or ids that the format cannot hold.

        Example:
            >>> Embeddings(("ann",), [[3, 4]]).save("ann.npz")
            >>> read_embeddings("ann.npz").matrix.tolist()
            [[3.0, 4.0]]
        """
        write(Path(path), self)


def read_embeddings(path: str | PathLike[str]) -> Embeddings:
    """Read embeddings from a file.

    Args:
        path: an .npz, .ark, .scp or .parquet file.

    Returns:
        The embeddings. The float32 numbers of a file come back bit for bit.

    Raises:
        FileNotFoundError: the file does not exist.
        LikenessError: the file is of another kind, or damaged.
    """
    stored = read(Path(path))
    return Embeddings(stored.ids, stored.matrix, stored.meta)
