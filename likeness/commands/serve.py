"""`likeness serve`: a model as a web page and REST service. The work is in likeness/service/."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands import options
from likeness.eval.errors import LikenessError
from likeness.eval.progress import reported_to
from likeness.models.included import VOICE


def listening(
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. 0.0.0.0 lets other machines connect, which then need "
            "the token for everything."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")
    ] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A further host name that requests may ask for, such as that of a proxy. It may "
            "be given several times."
        ),
    ] = None,
    token: Annotated[
        str,
        typer.Option(
            envvar="LIKENESS_TOKEN",
            show_envvar=True,
            help="The token that is needed to enrol and remove. By default one is made and printed "
            "at the start.",
        ),
    ] = "",
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="How many processes serve. Above 1 each loads the model, and the gallery has to "
            "be in PostgreSQL, which they share.",
        ),
    ] = 1,
    tls_certificate: Annotated[
        Path | None, options.input_file("A certificate in PEM, for HTTPS; --tls-key names its key.")
    ] = None,
    tls_key: Annotated[Path | None, options.input_file("Its key in PEM.")] = None,
) -> None:
    """Where and to whom the server answers."""


@options.app.command(epilog="Example: likeness serve --model runs/an4 --gallery people --far 0.01")
@options.with_options(options.deciding, options.loading, listening)
def serve(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help="The model, as for `likeness verify`; by default the voice model that comes with "
            "Likeness.",
        ),
    ] = VOICE,
    gallery: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="The folder of enrolled subjects, or another store, as for `likeness gallery`. It "
            "is made if it does not exist. Without one nobody is enrolled or searched: the page "
            "compares two files.",
        ),
    ] = None,
    calibration: options.ModelCalibration = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            help="A folder of recordings or images that the page offers to try, at most 24 of "
            "them. They are read at the start.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    keep_media: Annotated[
        bool,
        typer.Option(
            "--keep-media",
            help="Keep a small picture, or eight seconds of sound, of each enrolment beside the "
            "gallery, for the page to show. Without it nothing of an upload is kept but its "
            "embedding.",
        ),
    ] = False,
) -> None:
    """Serve a web page and a REST interface that compare two voices or photos.

    Both show score, probability and quality, and manage a gallery of enrolled subjects. Only this
    machine can connect, unless --host says otherwise.
    """
    asked = context.params
    if (asked["tls_certificate"] is None) != (asked["tls_key"] is None):
        raise LikenessError("--tls-certificate and --tls-key go together; give both or none")
    from likeness.service.server import Setup, start

    # The slider takes the file too, also where none of its thresholds decides.
    file = asked["thresholds"] if asked["far"] is not None else None
    rule = options.rule_of(asked["threshold"], asked["far"], file)
    setup = options.settings_of(context, Setup, rule=rule)
    with reported_to(None):  # how far the embedding of an upload is
        start(setup)
