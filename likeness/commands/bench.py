"""`likeness bench`: models on the same trials under conditions, such as codecs, noise and rooms."""

from likeness.benchmark import Bench
from likeness.benchmark import bench as bench_models
from likeness.commands._outputs import JsonFile, Report, write_evaluation
from likeness.commands._signature import Call, command


@command(
    bench_models,
    epilog="Example: likeness bench --model runs/voices --trials trials.txt --root voices "
    "--conditions mp3,8khz",
)
def bench(measure: Call[Bench], *, json: JsonFile = None, report: Report = None) -> None:
    """Measure models on the same trials under conditions: codecs, noise, rooms, level, light.

    Each cell has the EER, the FAR and FRR at the stored threshold of the model, and how many
    recordings the model refused. Intervals are over subjects.
    """
    write_evaluation(measure(), json, report)
