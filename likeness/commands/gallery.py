"""`likeness gallery`: enrol files, search for them, list and remove subjects, group unknown files.

likeness/embedding and eval/metrics/clustering.py do the work.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from likeness.commands._outputs import Media, Report, command_line, write_rows_or_say
from likeness.commands._signature import Call, command, refuse_idle
from likeness.embedding import galleries, gallery_search
from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import SUFFIXES, TABLES, Embeddings, embeddings_of
from likeness.eval.items.levels import doubt_of_levels
from likeness.eval.metrics.clustering import Clusters
from likeness.eval.option import Option
from likeness.eval.results import aligned
from likeness.eval.types import counted
from likeness.models.bundled import about, model_of_data
from likeness.models.load import refuse_head
from likeness.models.model import Model, load
from likeness.toolkit.console import one_line, say
from likeness.toolkit.data.reading import Bad, print_bad
from likeness.toolkit.gallery.checks import Checked
from likeness.toolkit.gallery.postgres import mask_passwords
from likeness.toolkit.gallery.store import Entry

_MOST_SAID = 20  # doubts that are printed

Table = Annotated[
    Path | None,
    Option(help="The .csv or .tsv file to write.", path="output", endings=(".csv", ".tsv")),
]


def gallery() -> None:
    """Enrol people or things in a gallery, search it, and group unknown files. The gallery is a
    folder or a database, and belongs to one model.
    """


@command(
    load,
    galleries.enrol,
    galleries.enrol_embeddings,
    calls_all=True,
    optional=("--model", "DATA", "--embeddings"),
    without=("--calibration",),
    epilog="Examples: likeness gallery enrol album --gallery people; likeness gallery enrol "
    "people_folder --gallery people --model runs/an4; likeness gallery enrol --embeddings "
    "e.parquet --gallery people",
)
def enrol(
    loaded_by: Call[Model],
    enrolled_by: Call[galleries.Enrolled],
    stored_by: Call[galleries.Enrolled],
) -> None:
    """Enrol the files of a folder, list or table, or the embeddings of a file.

    A subject may have several files, which are pooled. Files that cannot be read are named and
    left out. Folders of photographs and of recordings need no --model: likeness:face and
    likeness:voice are taken. A gallery that is made with the --thresholds of `likeness threshold`
    keeps them, and subtracts the mean of that place from all that comes to it.
    """
    if "--embeddings" in stored_by:
        stored_by.refuse_others()
        enrolled, what = stored_by(), "embedding"
    else:
        model = _loaded(loaded_by, enrolled_by)
        if "mean" not in model.meta:
            loaded_by.refuse_idle("without a mean of `likeness threshold`", "--thresholds")
        enrolled, what = enrolled_by(model=model), "file"
    print_bad(enrolled.bad, "files")
    for doubt in enrolled.doubts[:_MOST_SAID]:
        say(one_line(doubt.text()), error=True)
    if len(enrolled.doubts) > _MOST_SAID:
        say(f"{len(enrolled.doubts):,} doubts; `likeness gallery check` lists all", error=True)
    if enrolled.skipped:
        say(f"enrolled before, and left as it was: {counted(len(enrolled.skipped), 'subject')}")
    files = f"{counted(enrolled.files, what)} of {counted(enrolled.subjects, 'subject')}"
    place = mask_passwords(enrolled_by["--gallery"])
    say(f"{files} enrolled in {place}, which has {counted(enrolled.size, 'subject')} now")
    if enrolled.mean_of:
        say(f"it subtracts the mean of {enrolled.mean_of} from all embeddings")


def _loaded(loaded_by: Call[Model], used_by: Call[Any], *beside: Call[Any]) -> Model:
    """The model that was named, or that of Likeness for such files."""
    used_by.refuse_others(loaded_by, *beside)
    used_by.refuse_missing("model")
    name, data = loaded_by["--model"], used_by["DATA"]
    if "--model" not in loaded_by:
        listing = {name: used_by[f"--{name}"] for name in ("columns", "label", "root")}
        name = model_of_data(data, **{name: each for name, each in listing.items() if each})
        say(about(name), error=True)
    model = loaded_by(model=name, calibration=False)
    refuse_head(model.loaded, name)
    return model


@command(
    galleries.check_gallery,
    epilog="Example: likeness gallery check --gallery people --threshold 0.6",
)
def check(checked_by: Call[Checked], *, out: Table = None) -> None:
    """Say which enrolments do not fit their subject, and which two subjects are one.

    It also says how often a stranger will pass for somebody. Nothing is changed: `gallery enrol
    --existing replace` and `gallery remove` do that.
    """
    if "--far" not in checked_by:
        checked_by.refuse_idle("without --far", "--thresholds", "--model")
    checked = checked_by()
    for doubt in checked.doubts if out is None else ():
        say(one_line(doubt.text()))
    if out is not None:
        checked.save(out)
    say(checked.summary())


@command(
    load,
    gallery_search.search,
    gallery_search.search_embeddings,
    calls_all=True,
    optional=("--model", "DATA", "--embeddings"),
    without=("--calibration",),
    epilog="Example: likeness gallery search a.wav --gallery people --model runs/an4 --far 0.01",
)
def search(
    loaded_by: Call[Model],
    searched_by: Call[gallery_search.Found],
    compared_by: Call[gallery_search.Found],
    *,
    out: Table = None,
) -> None:
    """Find the enrolled subjects, or files, that are most similar to each file or embedding.

    Every file gets a row for each of the K best, with the score, with the margin to the runner-up,
    and with a verdict where a threshold decides.
    """
    if "--far" not in searched_by:
        searched_by.refuse_idle("without --far", "--thresholds")
    if "--embeddings" in compared_by:
        compared_by.refuse_others()
        found = compared_by()
    else:
        found = searched_by(model=_loaded(loaded_by, searched_by))
    write_rows_or_say(found, out)


@command(galleries.list_subjects, epilog="Example: likeness gallery list --gallery people")
def list_(listed_by: Call[Sequence[Entry]]) -> None:
    """List who is enrolled, with the number of enrolments and the norm of the template."""
    entries = listed_by()
    rows = [["subject", "enrolments", "norm"]]
    rows += [[e.subject, f"{e.enrolments:,}", f"{e.norm:.4g}"] for e in entries]
    say("\n".join(map(one_line, aligned(rows))))
    say(
        f"{counted(len(entries), 'subject')} in {mask_passwords(listed_by['--gallery'])}",
        error=True,
    )


@command(galleries.remove, epilog="Example: likeness gallery remove ann bob --gallery people")
def remove(removed_by: Call[int]) -> None:
    """Erase subjects, from the disk too."""
    left = removed_by()
    say(f"subjects erased: {len(set(removed_by['SUBJECT'])):,}; left: {left:,}")


@command(
    load,
    gallery_search.embed,
    gallery_search.cluster_items,
    calls_all=True,
    optional=("--model",),
    without=("--calibration",),
    epilog="Example: likeness gallery cluster unknown --model runs/an4 --far 0.01 --out c.csv",
)
def cluster(
    loaded_by: Call[Model],
    embedded_by: Call[tuple[Embeddings, dict[str, Path], Sequence[Bad]]],
    clustered_by: Call[Clusters],
    *,
    out: Annotated[
        Path,
        Option(
            help="The file to write, .csv or .tsv, with columns id and cluster.",
            path="output",
            endings=(".csv", ".tsv"),
        ),
    ],
    report: Report = None,
    media: Media = None,
) -> None:
    """Group unknown files: how many subjects are there, and which file is whose?

    DATA is a folder, a list or a table of at most 10,000 files, which --model embeds, or a file of
    their embeddings. The report shows the files that were embedded, or what --media has, such as
    the crops of `likeness align --faces all`.
    """
    if report is None:
        refuse_idle("without --report", {"--media": media})
    if "--far" not in clustered_by:
        clustered_by.refuse_idle("without --far", "--thresholds")
    hows = [name in clustered_by for name in ("--far", "--threshold", "--num-clusters")]
    if sum(hows) != (clustered_by["--method"] != "hdbscan"):
        raise LikenessError(
            "give one of --far, --threshold and --num-clusters, and none with --method hdbscan"
        )
    data, files = embedded_by["DATA"], dict[str, Path]()
    suffix, is_embedded = data.suffix.lower(), "--model" not in loaded_by
    if suffix in SUFFIXES and (is_embedded or suffix not in TABLES):
        own = ("--workers", "--faces", "--root", "--label")
        clustered_by.refuse_others(embedded_by, idle=own)
        embeddings = embeddings_of(data, embedded_by["--columns"] or "")
    elif "--model" not in loaded_by:
        raise LikenessError("--model is needed to embed files; or give a file of embeddings")
    else:
        embeddings, files, bad = embedded_by(_loaded(loaded_by, embedded_by, clustered_by))
        print_bad(bad, "files")
    grouped = clustered_by(embeddings)
    grouped.save(out)
    text = f"{counted(len(embeddings), 'item')} in {counted(len(grouped), 'cluster')} in {out}"
    if num_alone := np.count_nonzero(grouped.numbers == 0):
        text += f", {num_alone:,} of them in none"
    say(f"{text}. {grouped.how}")
    if all("/" in name for name in embeddings.ids) and not doubt_of_levels(embeddings.ids):
        numbers = grouped.agreement().items()
        text = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in numbers)
        say(f"if the first folders name the subjects: {text}")
    if report is not None:
        say(f"page: {grouped.report(report, media=media or files, command=command_line())}")
