"""`likeness plda`: fit a PLDA on labelled embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import input_file, writes
from toolkit.console import say

app = typer.Typer()


@app.command(
    epilog="Example: likeness plda --embeddings train.npz --labels utt2spk --lda-dim 150 --out "
    "plda.json"
)
def plda(
    embeddings: Annotated[
        Path, input_file("Embeddings of other subjects than those to be scored.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The .json file to write, for `likeness score --plda`.", callback=writes()
        ),
    ],
    labels: Annotated[
        Path | None, input_file("Lines `id class` (default: the first folder of the ids).")
    ] = None,
    lda_dim: Annotated[
        int, typer.Option(min=0, help="How many dimensions LDA leaves; 0 leaves LDA out.")
    ] = 0,
    length_norm: Annotated[
        bool, typer.Option(help="Scale the embeddings to one length first.")
    ] = True,
    iterations: Annotated[
        int, typer.Option(min=1, help="How many iterations of EM are done.")
    ] = 10,
    scoring_length: Annotated[
        Literal["kaldi", "simple", "none"],
        typer.Option(
            help="The length of a vector at scoring: kaldi takes what the model expects, as "
            "Kaldi's recipes do, simple takes sqrt(K), and none leaves it as it is."
        ),
    ] = "kaldi",
) -> None:
    """Fit a two-covariance PLDA by Kaldi's conventions on labelled embeddings."""
    say(
        fit_files(
            embeddings,
            out,
            labels=labels,
            lda_dim=lda_dim,
            length_norm=length_norm,
            iterations=iterations,
            scoring_length=scoring_length,
        )
    )


def fit_files(embeddings: Path, out: Path, *, labels: Path | None = None, **options: Any) -> str:
    """Fit a PLDA on a file of embeddings and write it for `likeness score --plda`.

    Args:
        embeddings: Of other subjects than those to be scored.
        out: The file of the PLDA.
        labels: Lines `id class`. By default the class is the first folder of the id.
        options: Keywords of `eval.scoring.plda.fit_plda`.

    Returns:
        What was done, as text.

    Raises:
        LikenessError: Ids have no class. All are counted, the first are named. As in reading and in
            `fit_plda`.
    """
    from eval.formats import embeddings as embedding_files
    from eval.formats.subjects import read_mapping
    from eval.scoring.plda import fit_plda
    from eval.types import name_first

    rows = embedding_files.read(embeddings)
    class_of = read_mapping(labels) if labels else _first_folders(rows.ids)
    missing = [name for name in rows.ids if name not in class_of]
    if missing:
        where = f"{labels}: " if labels else ""
        raise LikenessError(
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
    """The first folder of each id that has one; Kaldi's and Windows' paths alike."""
    paths = {name: name.replace("\\", "/") for name in ids}
    return {name: path.partition("/")[0] for name, path in paths.items() if "/" in path.strip("/")}
