"""`likeness identify`: embeddings and their subjects become a table and JSON."""

from likeness.commands._outputs import JsonFile, Media, Report, write_evaluation
from likeness.commands._signature import Call, command, refuse_idle
from likeness.eval.errors import LikenessError
from likeness.eval.protocols.identification import identify as identify_probes
from likeness.eval.protocols.ijb.evaluate import identify_files
from likeness.eval.protocols.searching import SearchEvaluation
from likeness.toolkit.console import say


@command(
    identify_probes,
    identify_files,
    epilog="Examples: likeness identify --gallery gallery.npz --probes probes.npz --fpir 0.01; "
    "likeness identify --probes ijbc.npz --ijb IJBC --preset insightface",
)
def identify(
    measure: Call[SearchEvaluation],
    measure_pack: Call[str],
    *,
    json: JsonFile = None,
    report: Report = None,
    media: Media = None,
) -> None:
    """Search every probe in a gallery, and measure rank-K and open-set TPIR@FPIR.

    The search takes about 150 MB beside the embeddings and their ids, whatever their number.
    """
    if "--ijb" in measure_pack:
        # the presets say by which similarity and protocol
        measure_pack.refuse_others(idle=("--similarity", "--protocol"))
        refuse_idle("beside --ijb", {"--report": report, "--media": media})
        say(measure_pack(json_file=json))
        return
    measure_pack.refuse_idle("without --ijb", "--preset", "--switch")
    if "--gallery" not in measure:
        raise LikenessError("identify needs --gallery FILE or --ijb FOLDER to search in")
    measure.refuse_others()
    if report is None:
        refuse_idle("without --report", {"--media": media})
    write_evaluation(measure(), json, report, media=media)
