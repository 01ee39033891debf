"""What several commands share: kinds of options, and what is refused before the work begins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import typer

from likeness.eval.errors import LikenessError
from likeness.eval.formats.writing import check_written
from likeness.toolkit.console import Interrupted, say

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from likeness.benchmark import Bench
    from likeness.eval.protocols.searching import SearchEvaluation
    from likeness.eval.protocols.verification import Evaluation
    from likeness.eval.scoring.threshold_files import Rule

Settings = TypeVar("Settings", bound="DataclassInstance")
Command = TypeVar("Command", bound=Callable[..., None])

app = typer.Typer(
    name="likeness",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
PACK: dict[str, Any] = {"exists": True, "file_okay": False}


def input_file(help: str) -> Any:
    """The option of a file to read, which has to exist."""
    return typer.Option(help=help, exists=True, dir_okay=False)


def writes(*endings: str) -> Callable[[Path | None], Path | None]:
    """What checks the option of a file to write, before the work: its ending, and its folder."""

    def check(path: Path | None) -> Path | None:
        if path is not None:
            check_written(path, endings)
        return path

    return check


def output_file(help: str, *endings: str) -> Any:
    """The option of a file to write, whose ending and folder are checked before the work."""
    return typer.Option(help=help, callback=writes(*endings))


# Options and arguments that are the same in several commands.
DATA_HELP = "A folder of one folder per label, a list, a table, a Kaldi folder or an .rttm file."
Modality = Annotated[
    Literal["speaker", "face", "image"] | None,
    typer.Option(help="What the items are (default: what most files are, recordings or images)."),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="The model: likeness:voice, the folder of a run, a .safetensors checkpoint, an .onnx "
        "file, speechbrain:SOURCE, wespeaker:FILE.pt, hub:FOLDER_OR_ID, own.py[:NAME], or "
        "insightface:PATH, the folder of a pack such as buffalo_l or a recognition .onnx file. "
        "InsightFace's own weights are for non-commercial research only.",
    ),
]
Recipe = Annotated[
    str,
    typer.Argument(help="RECIPE.py or a name that `likeness recipes` lists; :VARIANT may follow."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="FIELD=VALUE...", help="Changes of the recipe, such as optim.lr=0.05."),
]
TrainingData = Annotated[
    Path,
    typer.Option(
        help="The folder of the data set. Recipes that are called `folders` also take a list, "
        "a table, a Kaldi folder or an .rttm file."
    ),
]
Workers = Annotated[int, typer.Option(min=0, help="How many processes read files.")]
Frontend = Annotated[
    Literal["wespeaker", "3dspeaker"],
    typer.Option(help="The filterbanks that an .onnx or wespeaker: model was trained with."),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE|FILE|FOLDER",
        help="A package of others, a Python file, or a folder of such files, that may be imported "
        "because parts of the model are of it. It may be given several times.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE=COLUMN",
        help="Which column of a table is which, where its name does not say, such as "
        "label=spk or path=clip. It may be given several times.",
    ),
]
TrialColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        metavar="ROLE=COLUMN",
        help="Which column of a list of pairs is which, such as enrol=file_x, probe=file_y, "
        "label=Decision, score=3. It may be given several times.",
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(help="The folder that relative paths start from (default: the list's own)."),
]
ModelCalibration = Annotated[
    Path | None,
    input_file("What `likeness fit calibration` wrote (default: RUN/calibration.json)."),
]
FacesTaken = Annotated[
    Literal["central", "all"],
    typer.Option(
        help="Of photographs: the largest face near the centre, or all of them, with ids such as "
        "photo.jpg#2."
    ),
]
MinScore = Annotated[
    float | None,
    typer.Option(
        help="The lowest score by which a detector takes something for a face (default: 0.9 of "
        "YuNet, 0.5 of SCRFD)."
    ),
]
StoredThreshold = Annotated[
    str | None,
    typer.Option(
        "--far",
        metavar="RATE",
        help="The false-accept rate of a stored threshold, such as 0.01, or eer. `likeness "
        "evaluate SCORES --save-to MODEL` stores thresholds.",
    ),
]
Similarity = Annotated[
    str | None,
    typer.Option(help="How two embeddings are compared (default: as they name it, else cosine)."),
]
TrialList = Annotated[Path | None, input_file("The trial list.")]
TrialEmbeddings = Annotated[Path | None, input_file("The embeddings of both sides.")]
QualityMeasures = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A measure that helps the scores: log_norm, log_duration or cohort_mean. It may be "
        "given several times.",
    ),
]
Durations = Annotated[Path | None, input_file("Lines `id seconds`, for log_duration.")]
SubjectLines = Annotated[
    Path | None, input_file("Lines `id subject` (default: the first folder of the ids).")
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE[:COLUMN]",
        help="Measure within and across groups: lines `id group`, or items.csv:sex.",
    ),
]
QualityMeasured = Annotated[
    str | None,
    typer.Option(
        "--quality",
        metavar="norm|FILE",
        help="Measure how well the norm, or a list of lines `id quality`, says what is wrong.",
    ),
]
Terms = Annotated[Literal["likeness", "iso"], typer.Option(help="iso adds those of ISO 19795.")]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", help="Write the results into this JSON file.", callback=writes()),
]


# Groups of options, which `with_options` adds to a command: it finds them in its context.


def listing(root: Root = None, columns: Columns = None) -> None:
    """How data are listed."""


def labelling(
    root: Root = None,
    columns: Columns = None,
    label: Annotated[
        str,
        typer.Option(
            "--label",
            metavar="PATTERN",
            help="Take the labels from the paths by a pattern such as '{word}/{label}_NO_*.wav'.",
        ),
    ] = "",
) -> None:
    """How data are listed, and what their labels are."""


def loading(
    detector: Annotated[
        Path | None,
        input_file(
            "For faces: an SCRFD (with landmarks) or YuNet .onnx file, which finds them in "
            "photographs. Without one, aligned crops are taken, except by insightface:FOLDER."
        ),
    ] = None,
    min_score: MinScore = None,
    frontend: Frontend = "wespeaker",
    trust: Trust = None,
) -> None:
    """How a model is loaded, and finds faces."""


def deciding(
    far: StoredThreshold = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="The score from which on two are taken for one subject: your own number."
        ),
    ] = None,
    thresholds: Annotated[
        Path | None,
        input_file("The file of stored thresholds, for a model that has no place for them."),
    ] = None,
) -> None:
    """What decides."""


def scoring(
    columns: TrialColumns = None,
    models: Annotated[
        Path | None,
        typer.Option(
            "--enrolment",
            help="Lines `model item item ...`: several items enrol a model.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    pooling: Annotated[
        Literal["mean", "norm_weighted"], typer.Option(help="How items of a model are pooled.")
    ] = "mean",
    similarity: Similarity = None,
    subtract_mean: Annotated[
        Path | None, input_file("Embeddings whose mean is subtracted from all others.")
    ] = None,
    durations: Durations = None,
    strip_extension: Annotated[
        bool, typer.Option("--strip-extension", help="Ids may differ in a file's extension.")
    ] = False,
    missing: Annotated[
        Literal["refuse", "skip"], typer.Option(help="What becomes of ids without an embedding.")
    ] = "refuse",
) -> None:
    """How trials are scored."""


def normalising(
    plda: Annotated[Path | None, input_file("Score by this PLDA of `likeness fit plda`.")] = None,
    cohort: Annotated[
        Path | None, input_file("Embeddings of other subjects, by which scores are normalised.")
    ] = None,
    cohort_subjects: Annotated[
        Path | None, input_file("Lines `id subject`, whose means are then the cohort.")
    ] = None,
    norm: Annotated[
        Literal["as", "s", "z", "t"], typer.Option(help="With --cohort: how it normalises.")
    ] = "as",
    top_n: Annotated[
        int, typer.Option(min=1, help="How many of the highest cohort scores AS-norm takes.")
    ] = 300,
) -> None:
    """By what scores are made or normalised."""


def reporting(
    num_resamples: Annotated[
        int | None,
        typer.Option("--resamples", min=0, help="Draws of the bootstrap; 0: none (default: 1000)."),
    ] = None,
    json_file: JsonFile = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a self-contained HTML report into this folder.")
    ] = None,
) -> None:
    """What is written of a measurement."""


def showing(
    media: Annotated[
        Path | None,
        typer.Option(exists=True, help="Folder, list or table of the files that the report shows."),
    ] = None,
) -> None:
    """What a report shows."""


def grouping(
    subjects: SubjectLines = None,
    groups: Groups = None,
) -> None:
    """Of whom the items are."""


def packing(
    ijb: Annotated[
        Path | None,
        typer.Option("--ijb", help="The folder of IJB-B or IJB-C, whose protocol it is.", **PACK),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            "--preset",
            help="With --ijb: whose conventions are used, a name of docs/reference/protocols.md "
            "such as insightface, adaface or opensphere (default: likeness).",
        ),
    ] = None,
    switch: Annotated[
        list[str] | None,
        typer.Option("--switch", help="With --ijb: change one convention, as in keep_norm=false."),
    ] = None,
) -> None:
    """The protocol of IJB."""


def with_options(*groups: Callable[..., None]) -> Callable[[Command], Command]:
    """Give a command the options of these groups as well."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters
        every = dict(own)
        for group in groups:
            every |= inspect.signature(group, eval_str=True).parameters

        @wraps(command)
        def run(**given: Any) -> None:
            command(**{name: given[name] for name in own})

        # of keywords alone, since those without a default may follow others
        keywords = [each.replace(kind=each.KEYWORD_ONLY) for each in every.values()]
        setattr(run, "__signature__", inspect.Signature(keywords))  # noqa: B010
        return cast(Command, run)

    return decorate


def arguments_of(context: typer.Context, function: Callable[..., Any]) -> dict[str, Any]:
    """The options that were given, as far as they are parameters of a function, by their names."""
    known = inspect.signature(function).parameters
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in context.params.items()
        if name in known and value not in (None, [], ())
    }
    if "columns" in given:
        given["columns"] = ",".join(given["columns"])
    return given


def settings_of(context: typer.Context, kind: type[Settings], **more: Any) -> Settings:
    """The settings of a measurement that were given, by the options of the names of its fields."""
    return kind(**arguments_of(context, kind) | more)


def rule_in(context: typer.Context) -> Rule:
    """What decides, of the options of `deciding`. Raises as `rule_of`."""
    asked = context.params
    return rule_of(asked["threshold"], asked["far"], asked["thresholds"])


def rule_of(threshold: float | None, far: str | None, file: Path | None) -> Rule:
    """What decides, of the options --threshold, --far and --thresholds.

    Raises:
        LikenessError: They contradict each other, or --far is no rate.
    """
    from likeness.eval.scoring.threshold_files import Rule

    if file is not None and far is None:
        raise LikenessError(
            "--thresholds without --far would change nothing; name the threshold, as in --far 0.01"
        )
    rate: Any = far
    with suppress(TypeError, ValueError):
        rate = float(rate)
    return Rule(threshold, rate, file)


def size_of(text: str) -> tuple[int, int]:
    """The height and the width that are written as HEIGHTxWIDTH.

    Raises:
        LikenessError: It is written otherwise.

    Example:
        >>> size_of("112x96")
        (112, 96)
    """
    height, _, width = text.lower().partition("x")
    if not all(side.isdecimal() and 0 < int(side) < 100_000 for side in (height, width)):
        raise LikenessError(f"size {text!r}: give height and width in pixels, such as 112x96")
    return int(height), int(width)


def names_in(text: str) -> list[str]:
    """The names in a text that separates them by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def refuse_idle(context: typer.Context, names: Sequence[str], other: str, value: object) -> None:
    """Refuse options that would change nothing.

    Args:
        context: Says which options were given.
        names: The options, by the names of their parameters.
        other: The option without which they change nothing, as it is typed.
        value: Its value; a false one stands for an option that was left out.

    Raises:
        LikenessError: Some of the options were given, and the other was not.
    """
    idle = [] if value else _typed(context, names)
    if idle:
        raise LikenessError(
            f"{' and '.join(idle)} without {other} would change nothing; give that too, or leave "
            "it out"
        )


def refuse_beside(context: typer.Context, names: Sequence[str], other: str) -> None:
    """Refuse options that another one makes idle, such as those of scoring beside --fusion."""
    if idle := _typed(context, names):
        raise LikenessError(
            f"{' and '.join(idle)} would change nothing beside {other}; leave one of them out"
        )


def _typed(context: typer.Context, names: Sequence[str]) -> list[str]:
    """Those of the options that were given, as they are typed."""
    stated = {name: context.get_parameter_source(name) for name in names}
    typed = {param.name: param.opts[-1] for param in context.command.params}
    return [typed[name] for name, source in stated.items() if source and source.name != "DEFAULT"]


def refuse_beside_ijb(context: typer.Context, *allowed: str) -> None:
    """Refuse options that do not go with --ijb, and --preset and --switch without it."""
    of_ijb, ijb = {"preset", "switch"}, context.params["ijb"]
    if ijb is None:
        refuse_idle(context, sorted(of_ijb), "--ijb", ijb)
    else:
        goes = {"ijb", "num_resamples", "json_file", *allowed, *of_ijb}
        refuse_beside(context, sorted(context.params.keys() - goes), "--ijb")


@contextmanager
def stoppable(sentence: str = "") -> Iterator[None]:
    """Ctrl-C in training ends the command with exit code 130 and one sentence on stderr.

    Args:
        sentence: What is printed; by default what the run says of itself.
    """
    try:
        yield
    except Interrupted as stopped:
        say(sentence or str(stopped), error=True)
        raise typer.Exit(130) from None


def write_evaluation(
    context: typer.Context, evaluation: Evaluation | SearchEvaluation | Bench
) -> None:
    """Write the files that --report and --json name, and print what was measured."""
    asked = context.params
    if asked["json_file"]:
        evaluation.save(asked["json_file"])
    if asked["report"]:
        more = {"media": asked["media"]} if "media" in asked else {}
        evaluation.report(asked["report"], command=str(context.obj), **more)
    say(str(evaluation))
    if asked["report"]:
        say(f"\nthe report is {asked['report'] / 'index.html'}")
