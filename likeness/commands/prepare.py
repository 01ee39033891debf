"""`likeness prepare`: fetch a data set (likeness/prepare/) or a network (likeness/models/)."""

from likeness.commands._signature import Call, command
from likeness.eval.errors import LikenessError, install_line
from likeness.prepare import prepare as preparing
from likeness.toolkit.console import say


@command(
    preparing.prepare,
    optional=("DATASET",),
    epilog="Examples: likeness prepare fsdd --data data; likeness prepare voice; likeness prepare "
    "face",
)
def prepare(prepared_by: Call[None]) -> None:
    """Fetch a data set, or say what to fetch where its licence does not let us.

    What is fetched is compared with its checksum, and what is there is counted. Without a data set,
    those that there are get listed.

    `voice` is no data set, but a network of voices (Resemblyzer's, Apache 2.0): pip fetches its
    weights, which are checked and written as an .onnx file into the user's folder of models
    (~/.likeness/models, or what LIKENESS_MODELS names), and with it likeness:voice-plus. Writing
    them needs torch, and using them does not. `face` puts likeness:face there.
    """
    if (name := prepared_by["DATASET"]) in (None, "voice", "face"):
        prepared_by.refuse_idle(f"beside {name}" if name else "without DATASET", "--data")
    if name == "voice":
        _refuse_without_torch()
        from likeness.models import _resemblyzer

        _resemblyzer.prepare(say)
    elif name:
        prepared_by(say=say)
    else:
        say(f"{preparing.table()}\nvoice  likeness:voice-plus, see `likeness prepare --help`")


def _refuse_without_torch() -> None:
    """Say where the networks of voices can be written."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise LikenessError(
            "`likeness prepare voice` writes its files with torch, which cannot be imported here "
            f"({error}); run `{install_line('train')}`, or copy ~/.likeness/models from a machine "
            "where it was run: using them needs no torch"
        ) from None
