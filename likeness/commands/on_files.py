"""The commands on score, trial and embedding files, which start without torch: score, evaluate,
identify, retrieve, plda.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands.options import (
    EMBEDDINGS,
    EXISTING,
    PACK,
    is_default,
    refuse_idle,
    refuse_input_as_output,
)
from toolkit.printing import say

app = typer.Typer()
PRESET = (
    "With --ijb: whose conventions are used, a name of docs/protocols.md such as insightface, "
    "adaface or opensphere. It may be given several times (default: likeness)."
)
SWITCH = (
    "With --ijb: change one convention by SWITCH=VALUE, such as keep_norm=false or "
    "tar_rule=strict. It may be given several times."
)


@app.command(
    epilog="Example: likeness score --trials trials.txt --embeddings embeddings.npz --cohort "
    "cohort.npz --out scores.txt"
)
def score(
    context: typer.Context,
    trials: Annotated[
        Path, typer.Option(help="The trial list; its columns are detected.", **EXISTING)
    ],
    embeddings: Annotated[
        Path,
        typer.Option(help="The embeddings of the enrolment side, or of both sides.", **EMBEDDINGS),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write: lines `enrol probe score [label]`, or with --calibrate the "
            "calibration, a .json file."
        ),
    ],
    probe_embeddings: Annotated[
        Path | None,
        typer.Option(
            help="The embeddings of the probe side, where they are in another file.", **EMBEDDINGS
        ),
    ] = None,
    enrolment: Annotated[
        Path | None,
        typer.Option(
            help="Lines `model item item ...`: the enrolment ids of the trials are then models, "
            "which several items enrol.",
            **EXISTING,
        ),
    ] = None,
    pooling: Annotated[
        Literal["mean", "norm_weighted"], typer.Option(help="How the items of a model are pooled.")
    ] = "mean",
    similarity: Annotated[
        str | None,
        typer.Option(
            help="How two embeddings are compared, a name of docs/protocols.md (default: what the "
            "embeddings name, else cosine)."
        ),
    ] = None,
    subtract_mean: Annotated[
        Path | None,
        typer.Option(help="Embeddings whose mean is subtracted from all others.", **EMBEDDINGS),
    ] = None,
    plda: Annotated[
        Path | None,
        typer.Option(
            help="Score by a PLDA that `likeness plda` has fitted, instead of a similarity.",
            **EXISTING,
        ),
    ] = None,
    scoring_length: Annotated[
        Literal["kaldi", "simple", "none"] | None,
        typer.Option(
            help="With --plda: scale vectors to another length at scoring than the file says, see "
            "`likeness plda`."
        ),
    ] = None,
    cohort: Annotated[
        Path | None,
        typer.Option(
            help="Embeddings of other subjects, by which the scores are normalised.", **EMBEDDINGS
        ),
    ] = None,
    cohort_subjects: Annotated[
        Path | None,
        typer.Option(
            help="Lines `id subject` of the cohort: the mean embeddings of its subjects are then "
            "the cohort.",
            **EXISTING,
        ),
    ] = None,
    norm: Annotated[
        Literal["as", "s", "z", "t"],
        typer.Option(help="How the scores are normalised by the cohort."),
    ] = "as",
    top_n: Annotated[
        int, typer.Option(min=1, help="How many of the highest cohort scores AS-norm takes.")
    ] = 300,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="A calibration made with --calibrate, which turns the scores into log-likelihood "
            "ratios.",
            **EXISTING,
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit a calibration on these labelled trials instead of writing scores.",
        ),
    ] = False,
    quality: Annotated[
        list[str] | None,
        typer.Option(
            help="A quality measure of the calibration: log_norm, log_duration or cohort_mean. It "
            "may be given several times."
        ),
    ] = None,
    durations: Annotated[
        Path | None,
        typer.Option(help="Lines `id seconds`, from which log_duration is taken.", **EXISTING),
    ] = None,
) -> None:
    """Score the trials of a list.

    A model may be enrolled by several items. The scores may be normalised by a cohort, and
    calibrated.
    """
    from eval.scoring import Scoring
    from likeness.commands.score import calibrate_files, score_files

    refuse_input_as_output(context, "out")
    refuse_idle(context, ("cohort_subjects", "norm", "top_n"), "--cohort", cohort)
    refuse_idle(context, ("top_n",), "--norm as", norm == "as")
    refuse_idle(context, ("pooling",), "--enrolment", enrolment)
    refuse_idle(context, ("scoring_length",), "--plda", plda)
    refuse_idle(
        context, ("quality",), "--calibrate", calibrate
    )  # a calibration that is applied names its own measures
    timed = "log_duration" in (quality or ()) if calibrate else calibration
    refuse_idle(
        context, ("durations",), "--calibrate --quality log_duration, or --calibration,", timed
    )
    options = {field.name: context.params[field.name] for field in fields(Scoring)}
    options |= {"probe_embeddings": probe_embeddings, "enrolment": enrolment}
    if calibrate and calibration:
        raise ValueError(
            "--calibrate fits a calibration and --calibration applies one; give one of them"
        )
    if calibrate:
        say(calibrate_files(trials, embeddings, out, quality=tuple(quality or ()), **options))
    else:
        say(score_files(trials, embeddings, out, **options))


@app.command(
    epilog="Examples: likeness evaluate scores.txt --p-target 0.01 --far 1e-3 --json results.json "
    "--report report; "
    "likeness evaluate ijbc.npz --ijb IJBC --preset insightface --preset opensphere --json "
    "ijbc.json"
)
def evaluate(
    context: typer.Context,
    scores: Annotated[
        list[Path],
        typer.Argument(
            help="Score files, or with --ijb embeddings of faces. Several are set side by side.",
            **EXISTING,
        ),
    ],
    ijb: Annotated[
        Path | None,
        typer.Option(
            help="The folder of IJB-B or IJB-C. Its 1:1 protocol is evaluated from embeddings of "
            "its faces.",
            **PACK,
        ),
    ] = None,
    preset: Annotated[list[str] | None, typer.Option(help=PRESET)] = None,
    switch: Annotated[list[str] | None, typer.Option(help=SWITCH)] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="The score file to which the differences of the others are taken (default: the "
            "first)."
        ),
    ] = None,
    trials: Annotated[
        Path | None,
        typer.Option(
            help="A trial list with the labels, where the score files have none.", **EXISTING
        ),
    ] = None,
    subjects: Annotated[
        Path | None,
        typer.Option(
            help="Lines `id subject`, over whose subjects the intervals are resampled (default: "
            "the first folder of the ids, else what target trials link).",
            **EXISTING,
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Lines `id group` or `subject group`, such as age bands: error rates are then "
            "measured within and across groups as well.",
            **EXISTING,
        ),
    ] = None,
    p_target: Annotated[
        list[float] | None,
        typer.Option(
            help="The prior of a target trial in minDCF. It may be given several times (default: "
            ".01 and .05)."
        ),
    ] = None,
    far: Annotated[
        list[float] | None,
        typer.Option(
            help="A false-accept rate of TAR@FAR. It may be given several times (default: .1, .01 "
            "and .001, with --ijb 1e-6 to .1)."
        ),
    ] = None,
    eer_method: Annotated[
        Literal["interpolated", "convex_hull", "nearest"],
        typer.Option(help="How the EER is read off the ROC."),
    ] = "interpolated",
    tar_rule: Annotated[
        Literal["strict", "nearest", "interpolated"],
        typer.Option(help="Which threshold belongs to a false-accept rate."),
    ] = "strict",
    c_miss: Annotated[float, typer.Option(help="The cost of a miss in the DCF.")] = 1.0,
    c_fa: Annotated[float, typer.Option(help="The cost of a false accept in the DCF.")] = 1.0,
    llr: Annotated[
        bool,
        typer.Option(
            "--llr",
            help="The scores are log-likelihood ratios, so that Cllr, minCllr and the actual DCF "
            "are measured too.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results into this JSON file.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a self-contained HTML report into this folder.")
    ] = None,
    embeddings: Annotated[
        list[Path] | None,
        typer.Option(
            help="The embeddings that were scored, one file for all score files or one for each. "
            "The report then shows quality by norm and a map.",
            **EMBEDDINGS,
        ),
    ] = None,
    media: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="The folder of the images or recordings that the ids name, or a list `id path`. "
            "The report then shows them.",
        ),
    ] = None,
    resamples: Annotated[
        int,
        typer.Option(
            min=0,
            help="How often the bootstrap resamples for the intervals; 0 gives none, which is the "
            "default with --ijb.",
        ),
    ] = 1000,
) -> None:
    """Measure EER, minDCF and TAR@FAR of score files, with intervals resampled over subjects.

    Of several score files on the same trials, the paired differences are measured too.
    """
    refuse_input_as_output(context, "json_file")
    refuse_beside_ijb(
        context,
        ijb,
        (
            "reference",
            "trials",
            "subjects",
            "groups",
            "p_target",
            "eer_method",
            "tar_rule",
            "c_miss",
            "c_fa",
            "llr",
            "report",
            "embeddings",
            "media",
        ),
    )
    if ijb is not None:
        from eval.protocols.ijb import FARS, switches_of
        from likeness.commands import ijb as ijb_command

        chosen = {name: switches_of(name, switch or []) for name in preset or ["likeness"]}
        drawn = 0 if is_default(context, "resamples") else resamples
        say(
            ijb_command.evaluate_files(
                scores,
                ijb,
                chosen,
                fars=tuple(far or FARS),
                num_resamples=drawn,
                json_file=json_file,
            )
        )
        return
    from eval.protocols.verification import VerificationSettings
    from likeness.commands.evaluate import evaluate_files, page_of

    settings = VerificationSettings(
        p_targets=tuple(p_target or (0.01, 0.05)),
        fars=tuple(far or (0.1, 0.01, 0.001)),
        c_miss=c_miss,
        c_fa=c_fa,
        eer_method=eer_method,
        tar_rule=tar_rule,
        llr=llr,
        num_resamples=resamples,
    )
    text = evaluate_files(
        scores,
        settings,
        reference=reference,
        trial_list=trials,
        subject_list=subjects,
        group_list=groups,
        json_file=json_file,
        page=page_of(report, embeddings or (), media, str(context.obj)),
    )
    say(text)


@app.command(
    epilog="Examples: likeness identify --gallery gallery.npz --probes probes.npz --fpir 0.01 "
    "--json results.json; "
    "likeness identify --probes ijbc.npz --ijb IJBC --preset insightface"
)
def identify(
    context: typer.Context,
    probes: Annotated[
        Path,
        typer.Option(
            help="The embeddings to search for, or with --ijb those of all its faces.", **EMBEDDINGS
        ),
    ],
    gallery: Annotated[
        Path | None, typer.Option(help="The embeddings to search in.", **EMBEDDINGS)
    ] = None,
    ijb: Annotated[
        Path | None,
        typer.Option(
            help="The folder of IJB-B or IJB-C. Its 1:N protocol is evaluated from embeddings of "
            "its faces.",
            **PACK,
        ),
    ] = None,
    preset: Annotated[list[str] | None, typer.Option(help=PRESET)] = None,
    switch: Annotated[list[str] | None, typer.Option(help=SWITCH)] = None,
    gallery_subjects: Annotated[
        Path | None,
        typer.Option(help="Lines `id subject` (default: the first folder of the ids).", **EXISTING),
    ] = None,
    probe_subjects: Annotated[
        Path | None,
        typer.Option(help="Lines `id subject` (default: the first folder of the ids).", **EXISTING),
    ] = None,
    second_gallery: Annotated[
        Path | None,
        typer.Option(
            help="A second gallery, such as G2 of IJB. Open-set rates are the mean over both.",
            **EMBEDDINGS,
        ),
    ] = None,
    fpir: Annotated[
        list[float] | None,
        typer.Option(
            help="A false-positive identification rate of TPIR. It may be given several times "
            "(default: .01 and .1)."
        ),
    ] = None,
    rank: Annotated[
        list[int] | None,
        typer.Option(help="The K of rank-K. It may be given several times (default: 1, 5 and 10)."),
    ] = None,
    similarity: Annotated[
        str | None,
        typer.Option(
            help="How two embeddings are compared, a name of docs/protocols.md (default: what the "
            "probes name, else cosine)."
        ),
    ] = None,
    protocol: Annotated[
        Literal["open", "closed"],
        typer.Option(
            help="open takes the threshold from non-mated probes; closed is the variant of SimPLE "
            "and OpenSphere."
        ),
    ] = "open",
    resamples: Annotated[
        int,
        typer.Option(
            min=0, help="How often the bootstrap resamples for the intervals; 0 gives none."
        ),
    ] = 1000,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results into this JSON file.")
    ] = None,
) -> None:
    """Search every probe in a gallery, and measure rank-K and open-set TPIR@FPIR."""
    refuse_input_as_output(context, "json_file")
    if (gallery is None) == (ijb is None):
        raise ValueError("identify needs --gallery FILE or --ijb FOLDER, one of them")
    refuse_beside_ijb(
        context,
        ijb,
        ("gallery_subjects", "probe_subjects", "second_gallery", "similarity", "protocol"),
    )
    from eval.protocols.identification import IdentificationSettings

    settings = IdentificationSettings(
        similarity=similarity,
        fpirs=tuple(fpir or (0.01, 0.1)),
        ranks=tuple(rank or (1, 5, 10)),
        protocol=protocol,
        num_resamples=resamples,
    )
    if ijb is not None:
        from eval.protocols.ijb import switches_of
        from likeness.commands import ijb as ijb_command

        chosen = {name: switches_of(name, switch or []) for name in preset or ["likeness"]}
        say(ijb_command.identify_files(probes, ijb, chosen, settings=settings, json_file=json_file))
        return
    from likeness.commands.identify import identify_files

    assert gallery is not None
    text = identify_files(
        gallery,
        probes,
        settings,
        gallery_subjects=gallery_subjects,
        probe_subjects=probe_subjects,
        second_gallery=second_gallery,
        json_file=json_file,
    )
    say(text)


@app.command(
    epilog="Example: likeness retrieve --embeddings embeddings.npz --labels labels.txt --json "
    "results.json"
)
def retrieve(
    context: typer.Context,
    embeddings: Annotated[
        Path,
        typer.Option(
            help="The embeddings of the queries. Each searches all others, or --gallery.",
            **EMBEDDINGS,
        ),
    ],
    labels: Annotated[
        Path | None,
        typer.Option(help="Lines `id label` (default: the first folder of the ids).", **EXISTING),
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="The embeddings to search in.", **EMBEDDINGS)
    ] = None,
    gallery_labels: Annotated[
        Path | None,
        typer.Option(
            help="Lines `id label` of the gallery (default: those of --labels).", **EXISTING
        ),
    ] = None,
    similarity: Annotated[
        str | None,
        typer.Option(
            help="How two embeddings are compared, a name of docs/protocols.md (default: what the "
            "embeddings name, else cosine)."
        ),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option(
            "--k", help="The K of recall@K. It may be given several times (default: 1, 2, 4 and 8)."
        ),
    ] = None,
    lone: Annotated[
        Literal["exclude", "zero", "error"],
        typer.Option(
            help="What becomes of queries without any relevant item: they are left out, count as "
            "0, or are an error."
        ),
    ] = "exclude",
    resamples: Annotated[
        int,
        typer.Option(
            min=0, help="How often the bootstrap resamples for the intervals; 0 gives none."
        ),
    ] = 1000,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the results into this JSON file.")
    ] = None,
) -> None:
    """Measure recall@K, R-precision and MAP@R of retrieval, with intervals over classes."""
    from eval.protocols.retrieval import RetrievalSettings
    from likeness.commands.retrieve import retrieve_files

    refuse_input_as_output(context, "json_file")
    settings = RetrievalSettings(
        similarity=similarity, ks=tuple(k or (1, 2, 4, 8)), lone=lone, num_resamples=resamples
    )
    text = retrieve_files(
        embeddings,
        labels,
        settings,
        gallery=gallery,
        gallery_labels=gallery_labels,
        json_file=json_file,
    )
    say(text)


@app.command(
    epilog="Example: likeness plda --embeddings train.npz --labels utt2spk --lda-dim 150 --out "
    "plda.json"
)
def plda(
    context: typer.Context,
    embeddings: Annotated[
        Path,
        typer.Option(help="Embeddings of other subjects than those to be scored.", **EMBEDDINGS),
    ],
    out: Annotated[
        Path, typer.Option(help="The .json file to write, for `likeness score --plda`.")
    ],
    labels: Annotated[
        Path | None,
        typer.Option(help="Lines `id class` (default: the first folder of the ids).", **EXISTING),
    ] = None,
    lda_dim: Annotated[
        int, typer.Option(min=0, help="How many dimensions LDA leaves; 0 leaves LDA out.")
    ] = 0,
    length_norm: Annotated[
        bool, typer.Option(help="Scale the embeddings to one length first.")
    ] = True,
    iterations: Annotated[
        int, typer.Option(min=1, help="How many iterations of EM are done.")
    ] = 10,
    scoring_length: Annotated[
        Literal["kaldi", "simple", "none"],
        typer.Option(
            help="The length of a vector at scoring: kaldi takes what the model expects, as "
            "Kaldi's recipes do, simple takes sqrt(K), and none leaves it as it is."
        ),
    ] = "kaldi",
) -> None:
    """Fit a two-covariance PLDA by Kaldi's conventions on labelled embeddings."""
    from likeness.commands.plda import fit_files

    refuse_input_as_output(context, "out")
    say(
        fit_files(
            embeddings,
            out,
            labels=labels,
            lda_dim=lda_dim,
            length_norm=length_norm,
            iterations=iterations,
            scoring_length=scoring_length,
        )
    )


def refuse_beside_ijb(context: typer.Context, ijb: Path | None, others: tuple[str, ...]) -> None:
    """ValueError for options that --ijb leaves without meaning, and for --preset and --switch
    without it.
    """
    refuse_idle(context, ("preset", "switch"), "--ijb", ijb)
    refused = [f"--{name.replace('_', '-')}" for name in others if not is_default(context, name)]
    if refused and ijb is not None:
        raise ValueError(
            f"{' and '.join(refused)} {'does' if len(refused) == 1 else 'do'} not go with --ijb, "
            "whose protocol is set by --preset and --switch; leave it out"
        )
