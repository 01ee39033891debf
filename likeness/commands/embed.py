"""`likeness embed`: a model and a list of items become a file of embeddings."""

from typing import Annotated

from likeness.commands._signature import Call, command
from likeness.embedding.extraction import embed_files, join_files
from likeness.eval.errors import LikenessError
from likeness.eval.option import Option


@command(
    embed_files,
    join_files,
    epilog="Examples: likeness embed --model runs/an4 --items list.txt --root wavs --out "
    "embeddings.npz; likeness embed --join part-*.npz --out embeddings.npz",
)
def embed(
    embedded_by: Call[None],
    joined_by: Call[None],
    *,
    join: Annotated[bool, Option(help="Join what --part wrote.")] = False,
) -> None:
    """Embed every item of a list, and write raw vectors with their norms.

    `likeness score` and other systems read them. A long list is embedded in pieces, and the same
    command goes on where it was stopped. Several processes of one machine share the work when the
    command is started by torchrun: torchrun --nproc-per-node N -m likeness embed ... Several
    machines share it by --ray, or as a job array by --part.
    """
    if join != ("PARTS" in joined_by):
        raise LikenessError("--join takes the files of all parts and --out, and nothing else")
    call = joined_by if join else embedded_by
    call.refuse_others()
    call()
