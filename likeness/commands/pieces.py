"""`likeness pieces`: how far the work of many machines is, and its result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eval.errors import LikenessError
from likeness.commands.options import NUM_NAMED, BadItems, placed, print_bad
from likeness.missing import refuse_missing_folder
from toolkit.console import say

if TYPE_CHECKING:
    from toolkit.parallel.claims import Place

app = typer.Typer()


@app.command(epilog="Example: likeness pieces s3://bucket/an4 --out embeddings.npz")
def pieces(
    place: Annotated[
        str, typer.Argument(help="The folder or bucket of `likeness embed --pieces PLACE`.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Join the pieces, when all are there, and write this file, as `embed` does.",
            parser=placed,
            metavar="FILE",
        ),
    ] = None,
    bad_items: BadItems = "skip",
) -> None:
    """Say how far the pieces of `embed --pieces` are, and join them.

    It needs neither the model nor the items. Pieces that are damaged are named and removed, so that
    the next worker makes them again.
    """
    from eval.formats import embeddings

    if out is not None:
        embeddings.check_suffix(out)
        refuse_missing_folder(out)

    from likeness import shared_pieces
    from toolkit.parallel.claims import open_place

    if "://" not in place and not Path(place).is_dir():
        raise LikenessError(f"there is no folder {place}; correct the place")
    opened = open_place(place)
    if out is None:
        say(f"{opened}: {shared_pieces.progress(opened)}")
    else:
        write_joined(opened, out, skips_bad=bad_items == "skip")


def write_joined(place: Place, out: Path, *, skips_bad: bool) -> None:
    """Join the pieces of a place, and write them as one file.

    Args:
        place: Where they lie.
        out: The file of embeddings.
        skips_bad: Whether unreadable items are left out; otherwise they are refused.

    Raises:
        LikenessError: Pieces are missing or damaged (`likeness.shared_pieces.join`), items are
            refused, or the file cannot hold some ids.
    """
    from eval.formats import embeddings
    from likeness import shared_pieces

    joined, bad = shared_pieces.join(place)
    print_bad(bad, f"items; `embed` names the first {NUM_NAMED}")
    if bad and not skips_bad:
        raise LikenessError(
            f"{len(bad)} of {len(joined.ids) + len(bad)} items cannot be read; nothing was written "
            "(--bad-items skip leaves them out)"
        )
    embeddings.write(out, joined)
    say(
        f"{len(joined.ids)} embeddings of {joined.matrix.shape[1]} dimensions in {out}"
        + (f"; {len(bad)} unreadable items left out" if bad else "")
    )
