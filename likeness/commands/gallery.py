"""`likeness gallery`: enrol files, search for them, list and remove subjects, group unknown files.

The work is done by likeness/embedding/galleries.py and eval/protocols/searching.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from likeness.commands import options
from likeness.eval.errors import LikenessError
from likeness.models.included import resolved
from likeness.toolkit.console import one_line, say
from likeness.toolkit.data.reading import print_bad

if TYPE_CHECKING:
    from likeness.eval.formats.embeddings import Embeddings
    from likeness.toolkit.models.loaded import Loaded

app = typer.Typer(
    name="gallery",
    help="Enrol people or things in a gallery, search it, and group unknown files. The gallery is "
    "a folder or a database, and belongs to one model.",
    no_args_is_help=True,
)
_MOST_SAID = 20  # doubts that are printed

Data = Annotated[
    Path,
    typer.Argument(
        exists=True,
        metavar="DATA",
        help="A folder, a file, a list of paths, a .csv, .tsv or .parquet table, a Kaldi folder, "
        "or an .rttm file.",
    ),
]
Gallery = Annotated[
    str,
    typer.Option(
        metavar="PLACE",
        help="The folder of the gallery, which is a SQLite file in it, or another store: "
        "faiss:DIR or postgresql://USER@HOST/DATABASE.",
    ),
]
ModelText = Annotated[str, typer.Option(help="The model, as for `likeness verify`.")]

Found = Annotated[
    Path | None,
    typer.Option(
        help="The file to write, .csv or .tsv (default: to the standard output).",
        callback=options.writes(".csv", ".tsv"),
    ),
]


@app.command(
    epilog="Example: likeness gallery enrol people_folder --gallery people --model runs/an4"
)
@options.with_options(options.labelling, options.loading)
def enrol(
    context: typer.Context,
    data: Data,
    gallery: Gallery,
    model: ModelText,
    subject: Annotated[
        str | None,
        typer.Option(
            help="Who all files are of (default: the label of a list or table, else the first "
            "folder of each file below DATA)."
        ),
    ] = None,
    existing: Annotated[
        Literal["refuse", "add", "replace", "skip"],
        typer.Option(
            help="What becomes of subjects who are enrolled already: refuse enrols nobody, add "
            "adds to their enrolments, replace puts the files in their place, skip leaves them."
        ),
    ] = "refuse",
    workers: options.Workers = 0,
) -> None:
    """Enrol the files of a folder, list or table.

    A subject may have several files, which are pooled. Files that cannot be read are named and
    left out.
    """
    from likeness.embedding import galleries
    from likeness.eval.types import counted
    from likeness.toolkit.gallery.postgres import masked

    given = options.arguments_of(context, galleries.enrol) | {"model": _loaded(context)}
    done = galleries.enrol(**_listing(context), **given)
    print_bad(done.bad, "files")
    for doubt in done.doubts[:_MOST_SAID]:
        say(one_line(doubt.text()), error=True)
    if len(done.doubts) > _MOST_SAID:
        say(f"{len(done.doubts):,} doubts; `likeness gallery check` lists all", error=True)
    if done.skipped:
        say(f"{len(done.skipped):,} subjects were enrolled before and stay as they are")
    say(
        f"{counted(done.files, 'file')} of {counted(done.subjects, 'subject')} enrolled in "
        f"{masked(gallery)}, which has {counted(done.size, 'subject')} now"
    )


@app.command(epilog="Example: likeness gallery check --gallery people --threshold 0.6")
@options.with_options(options.deciding)
def check(
    context: typer.Context,
    gallery: Gallery,
    model: options.ModelName = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The .csv or .tsv file to write (default: the findings are printed).",
            callback=options.writes(".csv", ".tsv"),
        ),
    ] = None,
) -> None:
    """Say which enrolments do not fit their subject, and which two subjects are one.

    It also says how often a stranger will pass for somebody. Nothing is changed: `gallery enrol
    --existing replace` and `gallery remove` do that.
    """
    rule = options.rule_in(context)
    from likeness.embedding import galleries
    from likeness.toolkit.gallery import checks as gallery_checks

    if rule.far is not None and model is None and rule.file is None:
        raise LikenessError("--far needs --model, whose stored threshold is meant, or --thresholds")
    with galleries.opened(gallery) as store:
        limit, _ = rule.decide(resolved(model or ""), store.meta)
        checked = gallery_checks.check(store, limit)
    for doubt in checked.doubts if out is None else ():
        say(one_line(doubt.text()))
    if out is not None:
        checked.save(out)
    say(checked.summary())


def matching(
    k: Annotated[
        int, typer.Option("--k", "-k", min=1, max=1000, help="How many subjects for each file.")
    ] = 5,
    by: Annotated[
        Literal["subject", "item"],
        typer.Option(help="What is found: subjects, or the enrolled files one by one."),
    ] = "subject",
    num_templates: Annotated[
        int,
        typer.Option("--templates", min=1, help="How many templates each subject has at most."),
    ] = 1,
    pool: Annotated[
        Literal["best", "mean"],
        typer.Option(help="Which score a subject with several templates gets."),
    ] = "best",
) -> None:
    """What is found, and by which templates."""


@app.command(
    epilog="Example: likeness gallery search unknown.wav --gallery people --model runs/an4 --far "
    "0.01"
)
@options.with_options(matching, options.deciding, options.listing, options.loading)
def search(
    context: typer.Context,
    data: Data,
    gallery: Gallery,
    model: ModelText,
    out: Found = None,
    faces: options.FacesTaken = "central",
) -> None:
    """Find the enrolled subjects, or files, that are most similar to each file.

    Every file gets a row for each of the K best, with the score, with the margin to the runner-up,
    and with a verdict where a threshold decides.
    """
    rule = options.rule_in(context)
    from likeness.embedding import galleries

    loaded = _loaded(context)
    given = options.arguments_of(context, galleries.search) | {"model": loaded}
    given["threshold"], given["source"] = rule.decide(resolved(model), loaded.meta)
    with galleries.opened(gallery, loaded.meta) as store:
        result = galleries.search(**given | {"gallery": store}, **_listing(context))
    if out is None:
        say(result.text().rstrip("\n"))
        say(result.summary(), error=True)
    else:
        result.save(out)
        say(f"{result.summary()}\n{len(result.rows):,} rows in {out}")


@app.command("list", epilog="Example: likeness gallery list --gallery people")
def list_subjects(gallery: Gallery) -> None:
    """List who is enrolled, with the number of enrolments and the norm of the template."""
    from likeness.embedding import galleries
    from likeness.eval.results import aligned
    from likeness.eval.types import counted
    from likeness.toolkit.gallery.postgres import masked

    with galleries.opened(gallery) as store:
        entries = store.entries()
    rows = [["subject", "enrolments", "norm"]]
    rows += [[e.subject, f"{e.enrolments:,}", f"{e.norm:.4g}"] for e in entries]
    say("\n".join(map(one_line, aligned(rows))))
    say(f"{counted(len(entries), 'subject')} in {masked(gallery)}", error=True)


@app.command(epilog="Example: likeness gallery remove ann bob --gallery people")
def remove(
    subjects: Annotated[list[str], typer.Argument(metavar="SUBJECT...", help="Whom to erase.")],
    gallery: Gallery,
) -> None:
    """Erase subjects, from the disk too."""
    from likeness.embedding import galleries

    with galleries.opened(gallery) as store:
        store.remove(subjects)
        say(f"subjects erased: {len(set(subjects)):,}; left: {len(store):,}")


def embedding(
    workers: options.Workers = 0,
    faces: options.FacesTaken = "central",
) -> None:
    """How files are embedded."""


@app.command(
    epilog="Example: likeness gallery cluster unknown --model runs/an4 --far 0.01 --out "
    "clusters.csv --report clusters"
)
@options.with_options(options.deciding, options.listing, embedding, options.loading)
def cluster(
    context: typer.Context,
    data: Data,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write, .csv or .tsv, with columns id and cluster.",
            callback=options.writes(".csv", ".tsv"),
        ),
    ],
    model: options.ModelName = None,
    num_clusters: Annotated[
        int | None,
        typer.Option(min=1, help="How many clusters there are, in place of a threshold."),
    ] = None,
    method: Annotated[
        Literal["agglomerative", "hdbscan"],
        typer.Option(
            help="agglomerative joins by average linkage down to the threshold or the number; "
            "hdbscan finds dense groups by itself and leaves out the rest (cluster 0)."
        ),
    ] = "agglomerative",
    report: Annotated[
        Path | None, typer.Option(help="Write a self-contained page into this folder.")
    ] = None,
) -> None:
    """Group unknown files: how many subjects are there, and which file is whose?

    DATA is a folder, a list or a table of at most 10,000 files, which --model embeds, or a file of
    their embeddings.
    """
    rule = options.rule_in(context)
    if (rule.decides + (num_clusters is not None)) != (method == "agglomerative"):
        raise LikenessError(
            "--method hdbscan takes no threshold and no number; leave them out"
            if method == "hdbscan"
            else "clusters need a threshold (--far or --threshold) or their number "
            "(--num-clusters), one of them"
        )
    import likeness

    embeddings, files = _embeddings(context)
    limit, source = rule.decide(resolved(model or ""), embeddings.meta)
    grouped = likeness.cluster(
        embeddings,
        threshold=limit,
        num_clusters=num_clusters,
        method=method,
        source=source,
    )
    grouped.save(out)
    none = int((grouped.numbers == 0).sum())
    say(
        f"{len(embeddings):,} items in {len(grouped):,} clusters in {out}"
        + (f", {none:,} of them in none. " if none else ". ")
        + grouped.how
    )
    if all("/" in name for name in embeddings.ids):
        numbers = grouped.agreement().items()
        text = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in numbers)
        say(f"if the first folders name the subjects: {text}")
    if report is not None:
        page = grouped.report(report, media=files, command=str(context.obj))
        say(f"page: {page}")


def _embeddings(context: typer.Context) -> tuple[Embeddings, dict[str, Path]]:
    """The embeddings that DATA is a file of, or those of its files, with the files by their ids."""
    from likeness.embedding import galleries
    from likeness.eval.formats.embeddings import embeddings_of

    data, model = context.params["data"], context.params["model"]
    suffix = data.suffix.lower()
    if suffix in (".npz", ".ark", ".scp") or (model is None and suffix == ".parquet"):
        return embeddings_of(data), {}
    if model is None:
        raise LikenessError(
            "--model is needed to embed the files; without one DATA has to be a file of embeddings"
        )
    given = options.arguments_of(context, galleries.embed) | {"model": _loaded(context)}
    embeddings, files, bad = galleries.embed(**given, **_listing(context))
    print_bad(bad, "files")
    return embeddings, files


def _listing(context: typer.Context) -> dict[str, Any]:
    """The options that say how DATA is listed."""
    from likeness.models.inputs import items_of

    return options.arguments_of(context, items_of)


def _loaded(context: typer.Context) -> Loaded:
    """The model, whose own thresholds and calibration are not asked for."""
    import likeness
    from likeness.models.load import refuse_head

    given = options.arguments_of(context, likeness.load) | {"thresholds": None}
    loaded = likeness.load(calibration=False, **given).loaded
    refuse_head(loaded, given["model"])
    return loaded
