"""`likeness serve`: a model as a web page and REST service. The work is in likeness/service/."""

from typing import Annotated

from likeness.commands._signature import Call, command
from likeness.eval.errors import LikenessError
from likeness.eval.option import Option
from likeness.eval.progress import reported_to
from likeness.service.server import Setup, start


@command(Setup, epilog="Example: likeness serve --model runs/an4 --gallery people --far 0.01")
def serve(
    setup_by: Call[Setup],
    *,
    token: Annotated[
        str,
        Option(
            envvar="LIKENESS_TOKEN",
            help="What enrolling and removing need. By default one is made and printed.",
        ),
    ] = "",
) -> None:
    """Serve a web page and a REST interface that compare two voices or photos.

    Both show score, probability and quality, and manage a gallery of enrolled subjects. Only this
    machine can connect, unless --host says otherwise.
    """
    if ("--tls-certificate" in setup_by) != ("--tls-key" in setup_by):
        raise LikenessError("--tls-certificate and --tls-key go together; give both or none")
    if "--fusion" not in setup_by:
        setup_by.refuse_idle("without --fusion", "--beside")
    # The slider takes the file too, also where none of its thresholds decides.
    setup = setup_by(token=token, thresholds=setup_by["--thresholds"])
    with reported_to(None):  # how far the embedding of an upload is
        start(setup)
