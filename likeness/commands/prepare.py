"""`likeness prepare`: fetch and check a data set. The work is in likeness/prepare/."""

from likeness.commands._signature import Call, command
from likeness.prepare import prepare as preparing
from likeness.toolkit.console import say


@command(
    preparing.prepare, optional=("DATASET",), epilog="Example: likeness prepare fsdd --data data"
)
def prepare(prepared_by: Call[None]) -> None:
    """Fetch a data set, or say what to fetch where its licence does not let us.

    What is fetched is compared with its checksum, and what is there is counted. Without a data set,
    those that there are get listed.
    """
    if "DATASET" in prepared_by:
        prepared_by(say=say)
    else:
        say(preparing.table())
