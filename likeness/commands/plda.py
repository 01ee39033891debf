"""`likeness plda`: fit a PLDA on labelled embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands.options import input_file, writes
from likeness.toolkit.console import say

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
    scoring_length: Annotated[
        Literal["kaldi", "simple", "none"],
        typer.Option(
            help="The length of a vector at scoring: kaldi takes what the model expects, as "
            "Kaldi's recipes do, simple takes sqrt(K), and none leaves it as it is."
        ),
    ] = "kaldi",
) -> None:
    """Fit a two-covariance PLDA by Kaldi's conventions on labelled embeddings."""
    from likeness.eval.protocols.labels import labels_of
    from likeness.eval.scoring.plda import fit_plda
    from likeness.files import embeddings_of, names_of

    rows = embeddings_of(embeddings)
    classes = labels_of(embeddings.name, rows.ids, names_of(labels, "labels"), "class")
    fitted = fit_plda(
        rows.matrix,
        classes,
        lda_dim=lda_dim,
        scoring_length=scoring_length,
        model=rows.meta.get("model", ""),
    )
    fitted.save(out)
    say(
        f"PLDA of {len(fitted.psi)} dims fitted on {len(rows.ids)} embeddings "
        f"of {len(set(classes))} classes in {out}"
    )
