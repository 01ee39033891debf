"""`likeness retrieve`: a file of embeddings and its labels become a table and JSON."""

from likeness.commands._outputs import JsonFile, Media, Report, write_evaluation
from likeness.commands._signature import Call, command, refuse_idle
from likeness.eval.protocols.retrieval import retrieve as retrieve_queries
from likeness.eval.protocols.searching import SearchEvaluation


@command(
    retrieve_queries,
    epilog="Example: likeness retrieve --embeddings e.npz --labels labels.txt --json results.json",
)
def retrieve(
    measure: Call[SearchEvaluation],
    *,
    json: JsonFile = None,
    report: Report = None,
    media: Media = None,
) -> None:
    """Measure recall@K, R-precision and MAP@R of retrieval, with intervals over classes.

    The search takes about 250 MB beside the embeddings and their ids, whatever their number.
    """
    if report is None:
        refuse_idle("without --report", {"--media": media})
    write_evaluation(measure(), json, report, media=media)
