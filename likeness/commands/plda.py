"""The files of `likeness plda`: labelled embeddings become a PLDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.formats import embeddings as files
from eval.formats.subjects import read_mapping
from eval.plda import fit_plda
from eval.types import name_first


def fit_files(embeddings: Path, out: Path, *, labels: Path | None = None, **options: Any) -> str:
    """Fits a PLDA on an embeddings file and writes it for `likeness score --plda`.

    Args:
        embeddings: Of other subjects than those to be scored.
        out: The file of the PLDA.
        labels: `id class` list, else the first folder of the ids.
        options: Keywords of `eval.plda.fit_plda`.

    Returns:
        What was done, as text.

    Raises:
        KeyError: Ids have no class. All are counted, the first are named.
        ValueError: As in reading and in `fit_plda`.
    """
    rows = files.read(embeddings)
    class_of = read_mapping(labels) if labels else _first_folders(rows.ids)
    missing = [name for name in rows.ids if name not in class_of]
    if missing:
        where = f"{labels}: " if labels else ""
        raise KeyError(
            f"{where}{len(missing)} of {len(rows.ids)} ids have no class ({name_first(missing)}); "
            "give a list of `id class` lines"
        )
    classes = [class_of[name] for name in rows.ids]
    fitted = fit_plda(rows.matrix, classes, model=rows.meta.get("model", ""), **options)
    fitted.save(out)
    return (
        f"PLDA of {len(fitted.psi)} dims fitted on {len(rows.ids)} embeddings "
        f"of {len(set(classes))} classes in {out}"
    )


def _first_folders(ids: tuple[str, ...]) -> dict[str, str]:
    """Id -> its first folder, of the ids that have one; Kaldi's and Windows' paths alike."""
    paths = {name: name.replace("\\", "/") for name in ids}
    return {name: path.partition("/")[0] for name, path in paths.items() if "/" in path.strip("/")}
