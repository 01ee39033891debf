"""Model: a trained network that embeds recordings or images and compares them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.items.remote import refuse_missing_files
from likeness.eval.metrics.calibration import Fusion, load_fusion
from likeness.eval.option import Option
from likeness.eval.scoring.thresholds import Far, Thresholds
from likeness.eval.types import Floats, Floats32, name_first
from likeness.models.bundled import FACE, VOICE, resolve_model, run_of
from likeness.toolkit.console import shown

if TYPE_CHECKING:
    from likeness.models.verdicts import Comparer, Verification, VerifiedPairs
    from likeness.toolkit.data.images import Pixels
    from likeness.toolkit.models.export import Parity
    from likeness.toolkit.models.loaded import Loaded


class FoundFaces(NamedTuple):
    """F faces of one photograph, by falling score; boxes and points are in its pixels.

    Attributes:
        boxes: (F, 4) as left, top, right, bottom.
        points: (F, 5, 2): left eye, right eye (as seen in the picture), nose, left and right corner
            of the mouth.
        scores: (F,) between 0 and 1, of the detector.
        crops: (F, height, width, 3) uint8 RGB, as the network gets them.
        embeddings: (F, D) raw embeddings.
    """

    boxes: Floats
    points: Floats
    scores: Floats
    crops: Pixels
    embeddings: Floats32


@dataclass(eq=False, repr=False)
class Model:
    """A trained network, with the way it reads files and the similarity it was trained for.

    `likeness.load` gives one.

    Attributes:
        loaded: the network and what its checkpoint says of it.
        calibration: what turns scores into probabilities, or None.
        source: the text that named the model; thresholds are kept there.
        thresholds_file: the file of its thresholds; None for the one that lies with the model.

    Example:
        >>> import likeness
        >>> model = likeness.load("runs/voices")
        >>> model.modality, model.dim, model.similarity, model.norm_is_quality
        ('speaker', 8, 'cosine', False)
        >>> model.embed("voices").matrix.shape
        (8, 8)
    """

    loaded: Loaded
    calibration: Fusion | None = None
    source: str = ""
    thresholds_file: str | PathLike[str] | None = None

    @property
    def modality(self) -> str:
        """What the model takes: "speaker", "face" or "image"; "embedding" of a head alone."""
        return self.loaded.modality

    @property
    def dim(self) -> int:
        """Number of dimensions D of an embedding."""
        return self.loaded.embedder.dim

    @property
    def similarity(self) -> str:
        """How two embeddings are compared, such as "cosine"; higher is closer."""
        return self.loaded.similarity

    @property
    def norm_is_quality(self) -> bool:
        """Whether the norm of an embedding measures the quality of its input."""
        return self.loaded.norm_is_quality

    @property
    def meta(self) -> Mapping[str, str]:
        """What is stored beside embeddings: the model's digest, its modality and similarity."""
        return self.loaded.meta

    @property
    def thresholds(self) -> Thresholds | None:
        """The stored thresholds that hold for this model's scores of two files; None without any.

        `Evaluation.save_thresholds` and `likeness evaluate --save-to` store them.

        Raises:
            LikenessError: their file is damaged.

        Example:
            >>> import likeness
            >>> likeness.load("voices.onnx").thresholds.at(0.01)  # doctest: +SKIP
        """
        from likeness.eval.scoring.threshold_files import choose, find

        return choose(find(resolve_model(self.source), self.thresholds_file), self.meta)[0]

    def __repr__(self) -> str:
        calibrated = ", calibrated" if self.calibration else ""
        return (
            f"<Model for modality {self.modality!r}: {self.dim} dimensions, similarity "
            f"{self.similarity}{calibrated}, digest {self.loaded.digest[:16]}>"
        )

    def embed(
        self,
        inputs: Any,
        *,
        rate_hz: float | None = None,
        root: str | Path | None = None,
        columns: str | Mapping[str, str] = "",
        batch_size: int = 16,
        workers: int = 0,
        progress: bool = False,
        **reading: Any,
    ) -> Embeddings:
        """Embed recordings or images.

        Files that cannot be read are left out; a warning counts and names them.

        Args:
            inputs: a file, a folder, a list file, a .csv, .tsv or .parquet file or a table (of
                pandas, say) with a column of paths, a Kaldi folder, an .rttm file, an array or an
                open file, a sequence of files, arrays or open files, or a mapping from ids to
                these. `likeness.models.inputs.items_of` has the details.
            rate_hz: sampling rate in hertz of recordings that are given as arrays.
            root: folder that relative paths of a list, a table or a sequence start from.
            columns: which column of a table is which, where its name does not say: "path=clip".
            batch_size: how many inputs pass through the network at once; it changes no embedding.
            workers: processes that read files beside this one.
            progress: whether to show on stderr how far the work is.
            reading: as the options of `likeness embed`; the embeddings' meta states what differs.
                For images `flip`: how the embedding is joined with that of the mirror image, by
                "none", "sum", "mean", or "concat", which keeps both. For speech `crops=10`: the
                mean over so many evenly spaced crops of 4 s. `chunk_seconds=60`: the mean over
                chunks of at most this length, for recordings of hours. `only_speech=True`: without
                pauses, which are found by their energy.

        Returns:
            Raw embeddings (N, D) with their ids, in the order of the inputs. The norms are kept.

        Raises:
            LikenessError: a file, a folder or a list does not exist. Nothing can be read, inputs
                are of a kind that is not known, or this model cannot read as it is asked to.

        Example:
            >>> import likeness, soundfile
            >>> model = likeness.load("runs/voices")
            >>> wave, rate_hz = soundfile.read("a.wav")
            >>> found = model.embed({"ann": wave, "bob": wave[::-1]}, rate_hz=rate_hz)
            >>> found.ids, found.matrix.shape
            (('ann', 'bob'), (2, 8))
        """
        from likeness.models.inputs import items_of
        from likeness.toolkit.models.embed import embed, warn_if_alike

        loaded = self.loaded
        if reading:
            from likeness.models.reading import Reading, read_as

            loaded = read_as(loaded, Reading(**reading))
        listed = items_of(
            inputs, modality=self.modality, rate_hz=rate_hz, root=root, columns=columns
        )
        with listed as items, shown(progress):
            embeddings, bad = embed(
                loaded.embedder,
                items,
                loaded.read,
                batch_size=batch_size,
                workers=workers,
                meta=loaded.meta,
            )
        if bad:
            share = f"{len(bad)} of {len(items)} inputs cannot be read and are left out"
            names = name_first(item.id for item in bad)
            warnings.warn(f"{share} ({names}); the first: {bad[0].reason}", stacklevel=2)
        warn_if_alike(embeddings)
        return embeddings

    def faces(self, photo: Any) -> FoundFaces:
        """Find and embed all faces of a photograph, where the model was loaded with a detector.

        Args:
            photo: a path, an array or an open file.

        Returns:
            The faces, the surest first; there may be none.

        Raises:
            LikenessError: the model has no detector, or the photograph cannot be read.

        Example:
            >>> import likeness
            >>> model = likeness.load("sface.onnx", detector="yunet.onnx")  # doctest: +SKIP
            >>> found = model.faces("wedding.jpg")  # doctest: +SKIP
            >>> len(found.boxes), found.embeddings.shape  # doctest: +SKIP
            (7, (7, 128))
        """
        from likeness.modalities.face import align
        from likeness.models.inputs import items_of
        from likeness.models.load import detector_settings

        settings = detector_settings(self.loaded)
        size, frame = map(settings.pop, ("size", "frame"))
        with items_of(photo, modality=self.modality) as (item,):
            pixels, faces = align.find(item, **settings)
        faces, crops = align.crops_inside(pixels, faces, size, frame)
        pictures = np.array(crops, dtype=np.uint8).reshape(len(crops), *size, 3)
        rows = np.zeros((0, self.dim), dtype=np.float32)
        if crops:
            rows = self.loaded.embedder.embed_batch(pictures.transpose(0, 3, 1, 2))
        return FoundFaces(faces.boxes, faces.landmarks, faces.scores, pictures, rows)

    def verify(
        self,
        first: Any,
        second: Any,
        *,
        rate_hz: Annotated[float | None, Option(is_typed=False)] = None,
        threshold: float | None = None,
        far: Annotated[Far | None, Option(metavar="RATE")] = None,
        fusion: Annotated[str | Path | Fusion | None, Option(path="file")] = None,
        beside: Annotated[Model | str | Path | None, Option(metavar="MODEL")] = None,
    ) -> Verification:
        """Compare two recordings or images: are they of one subject?

        With a fusion, two people are compared by a recording and a picture of each.

        Args:
            first: a path, an array or an open file. With `fusion` a recording and a picture of one
                person: paths in any order, arrays and open files in that of the fusion.
            second: the other one; with `fusion` those of the other person.
            rate_hz: sampling rate in hertz of recordings that are given as arrays.
            threshold: as in `likeness.eval.scoring.threshold_files.Rule`.
            far: as in `likeness.eval.scoring.threshold_files.Rule`. Without it and without
                `threshold`, the model's calibration decides at a probability of one half. Without a
                calibration there is no decision.
            fusion: compare a recording and a picture of each person, by this model and another one,
                with this file of `likeness fit fusion` for the plain scores of both. Its
                probability decides where there is no `threshold`.
            beside: for a fusion: a model of pictures beside one of recordings, or the other way
                round (default: likeness:face, or likeness:voice beside pictures).

        Returns:
            The score, and `accepted`, `probability` and `threshold` where they are known. With
            `fusion` the score is a log-likelihood ratio, and `parts` has what each model gave.

        Raises:
            LikenessError: a file does not exist. An input cannot be read, the threshold is no
                number, or no threshold is stored at this false-accept rate. The fusion is of scores
                of other models, or the files are not two of each person.

        Example:
            >>> import likeness, soundfile
            >>> model = likeness.load("runs/voices")
            >>> wave, rate_hz = soundfile.read("a.wav")
            >>> result = model.verify(wave, wave, rate_hz=rate_hz)
            >>> round(result.score, 3), result.accepted
            (1.0, None)
        """
        from likeness.eval.metrics.self_matches import itself_text
        from likeness.eval.scoring.threshold_files import Rule
        from likeness.models.inputs import items_of
        from likeness.models.multimodal import fuse, in_order_of, refuse_other_kind, sorted_for
        from likeness.models.verdicts import compared, remedy_for
        from likeness.toolkit.models.embed import embedded_rows

        if fusion is not None:
            if far is not None:
                raise LikenessError(
                    "no thresholds are stored for a fusion; give a threshold in place of far, or "
                    "leave both out to decide by the probability"
                )
            threshold, _ = Rule(threshold).decide("", {})
            fitted = fusion if isinstance(fusion, Fusion) else load_fusion(fusion)
            models = in_order_of(fitted, [self, load_beside(self, beside)])
            pairs = zip(models, sorted_for(models, first), sorted_for(models, second), strict=True)
            parts = [of.verify(one, other, rate_hz=rate_hz) for of, one, other in pairs]
            return fuse(fitted, models, parts, threshold)
        if beside is not None:
            raise LikenessError("a model beside this one needs a fusion of both; give that too")
        comparer, model = self.comparer(threshold, far), self.loaded
        inputs = {"first": first, "second": second}
        with items_of(inputs, modality=self.modality, rate_hz=rate_hz) as items:
            rows, bad = embedded_rows(model.embedder, items, model.read, batch_size=2)
        if bad:
            refuse_other_kind(self, [first, second])
            raise LikenessError(
                f"with this {self.modality} model, {bad[0].reason}{remedy_for(model)}"
            )
        paths = [Path(of).resolve() for of in (first, second) if isinstance(of, str | PathLike)]
        if len(paths) == 2 and paths[0] == paths[1]:
            text = itself_text("pairs", 1, 1, f"{first} {second}", left_out=False)
            warnings.warn(text, stacklevel=2)
        return compared(comparer, np.stack([rows[0], rows[1]]))

    def verify_pairs(
        self,
        pairs: Annotated[str | Path | Iterable[Sequence[Any]], Option(path="file")],
        *,
        threshold: float | None = None,
        far: Annotated[Far | None, Option(metavar="RATE")] = None,
        root: str | Path | None = None,
        columns: str | Mapping[str, str] = "",
        batch_size: Annotated[int, Option(least=1)] = 16,
        workers: Annotated[int, Option(least=0)] = 0,
        progress: Annotated[bool, Option(is_typed=False)] = False,
    ) -> VerifiedPairs:
        """Compare many pairs of files. Each file is embedded once.

        Args:
            pairs: many pairs instead of A and B: a list, or a table with first and second. A list
                has lines of two paths and possibly a label; a table, also as of pandas, may have
                columns such as path1, path2 and label. It may be a sequence of pairs of paths.
            threshold: as in `Model.verify`.
            far: as in `Model.verify`.
            root: the folder that relative paths start from (default: the current one).
            columns: as in `likeness.eval.scoring.score.score`.
            batch_size: how many files pass through the network at once.
            workers: how many processes read files; 0 reads them in this one.
            progress: whether to show on stderr how far the work is.

        Returns:
            A row for each pair. A pair with a file that cannot be read has a note, and no score.

        Raises:
            LikenessError: the list or all of its files do not exist. As in `verify`, or the list is
                of another kind.

        Example:
            >>> import likeness
            >>> found = likeness.load("runs/voices").verify_pairs([("a.wav", "b.wav")])
            >>> found.rows[0].first, found.rows[0].accepted
            ('a.wav', None)
        """
        from likeness.models.verdicts import verify_pairs

        with shown(progress):
            comparer = self.comparer(threshold, far)
            return verify_pairs(
                comparer, pairs, root, columns, batch_size=batch_size, workers=workers
            )

    def comparer(self, threshold: float | None = None, far: Far | None = None) -> Comparer:
        """Give the network with the threshold and the calibration that decide, as in `verify`.

        Raises:
            LikenessError: the threshold is no number, or none is stored at this false-accept rate.
        """
        from likeness.eval.scoring.threshold_files import Rule
        from likeness.models.verdicts import Comparer

        rule = Rule(threshold, far, self.thresholds_file)
        threshold, source = rule.decide(resolve_model(self.source), self.meta)
        return Comparer(self.loaded, self.calibration, threshold, source)

    def estimate_thresholds(
        self,
        unlabelled: Annotated[Any, Option(path="any")],
        out: Annotated[str | Path, Option(path="output", endings=(".json",))],
        *,
        fars: Annotated[Sequence[float], Option("--far")] = (0.01,),
        root: str | Path | None = None,
        workers: Annotated[int, Option(least=0)] = 0,
    ) -> Thresholds:
        """Estimate thresholds for a new place from its recordings or images, without labels.

        `likeness.load(MODEL, thresholds=out)` and `--thresholds` of `verify`, `serve` and `gallery`
        then decide by them. See docs/how-to/new_place.md.

        Args:
            unlabelled: 50 files or more of the place, a folder or a list; nobody is named. They are
                of those who will be compared there, and may be all that `embed` takes.
            out: the file of thresholds to write.
            fars: a false-accept rate, from 0.001 to 0.1; there may be several.
            root: the folder that relative paths start from (default: the list's own).
            workers: how many processes read files; 0 reads them in this one.

        Raises:
            LikenessError: there are too few items, a rate is out of range, or the model was loaded
                with the thresholds of a place.
        """
        from likeness.eval.metrics.unlabelled import check_far
        from likeness.eval.scoring.threshold_files import write_thresholds
        from likeness.models._places import estimate

        if self.loaded.settings.get("mean"):
            raise LikenessError("the model is of a place already; load it without its thresholds")
        for far in fars:
            check_far(far)
        embeddings = self.embed(unlabelled, root=root, workers=workers)
        is_named = isinstance(unlabelled, str | Path)
        name = Path(unlabelled).resolve().name if is_named else "unlabelled items"
        return write_thresholds(out, estimate(self.loaded, embeddings, fars, data=name))

    def export(self, path: str | Path, *, size: tuple[int, int] | None = None) -> Parity:
        """Write front-end and network as one ONNX file that other systems can run.

        The stored thresholds of the model are written beside it.

        Args:
            path: where to write; the name ends in .onnx.
            size: height and width of images in pixels, where the model does not say them.

        Returns:
            How far the file's embeddings differ from this model's.

        Raises:
            LikenessError: the file would give other embeddings, or the network cannot be
                translated.
        """
        from likeness.models._places import carry
        from likeness.models.load import load_named
        from likeness.toolkit.models.export import export

        # One that runs in ONNX Runtime may have its network beside it.
        run = run_of(self.source)
        loaded = self.loaded if run == self.source else load_named(run)
        parity = export(loaded, Path(path), size=size)
        carry(self.source, self.meta, Path(path))
        return parity


def load(
    model: Annotated[str | Path, Option(metavar="TEXT")],
    *,
    detector: Annotated[str | Path | Literal[False] | None, Option(path="file")] = None,
    min_score: float | None = None,
    calibration: Annotated[str | Path | Fusion | Literal[False] | None, Option(path="file")] = None,
    frontend: Literal["wespeaker", "3dspeaker"] = "wespeaker",
    device: str | None = None,
    trust: Annotated[str | Path | Sequence[str | Path], Option(metavar="PACKAGE|FILE|FOLDER")] = (),
    thresholds: Annotated[str | Path | None, Option(path="file")] = None,
) -> Model:
    """Load a trained model.

    Args:
        model: the model: likeness:voice, likeness:voice-plus, likeness:face, a run, a .safetensors
            checkpoint, an .onnx file, speechbrain:SOURCE, wespeaker:FILE.pt, redimnet:FILE.pt,
            hub:FOLDER_OR_ID, own.py[:NAME] or insightface:PATH. A Python file of yours is run
            (`likeness.Network`).
            PATH is the folder of a pack such as buffalo_l, or a recognition .onnx file;
            InsightFace's own weights are for non-commercial research only.
        detector: for faces: an SCRFD (with landmarks) or YuNet .onnx file, which finds them in
            photographs. The largest face near the centre of each is aligned. By default the
            detector of insightface:FOLDER is taken, and other models read aligned crops. False
            takes aligned crops always.
        min_score: the lowest score by which a detector takes something for a face (default: 0.9 of
            YuNet, 0.5 of SCRFD). It lies between 0 and 1.
        calibration: what `likeness fit calibration` wrote (default: RUN/calibration.json). It may
            be what `likeness.calibrate` gives; False takes none.
        frontend: the filterbanks that an .onnx or wespeaker: model was trained with.
        device: where the network runs (default: a GPU, if there is one).
        trust: a package of others, a Python file, or a folder of such files, that may be imported
            because parts of the model are of it. There may be several, and nothing else of others
            is imported.
        thresholds: the file of stored thresholds, for a model that has no place for them. It is
            what `likeness evaluate --save-to FILE.json` or `likeness threshold` wrote; with the
            latter the model embeds as it does at that place. By default those in the run's folder,
            or beside the .onnx file, are taken.

    Returns:
        The model.

    Raises:
        LikenessError: a file does not exist. The file is of another kind, or damaged.

    Example:
        >>> import likeness
        >>> model = likeness.load("runs/voices")
        >>> model.modality, model.dim, model.similarity
        ('speaker', 8, 'cosine')
    """
    named = (detector, calibration, thresholds)
    refuse_missing_files([Path(file) for file in named if isinstance(file, str | PathLike)])

    from likeness.eval.scoring.threshold_files import find
    from likeness.models import load as loading
    from likeness.models._places import at_place
    from likeness.models.trust import entries_of
    from likeness.models.verdicts import calibration_for

    name = str(model)
    loaded = loading.load_named(
        name,
        detector=Path(detector) if isinstance(detector, str | PathLike) else detector,
        min_score=min_score,
        frontend=frontend,
        trust=entries_of(trust),
    )
    if thresholds is not None:
        elsewhere, loaded = loaded, at_place(loaded, find(resolve_model(name), thresholds))
        if calibration is None and loaded is not elsewhere:
            calibration = False  # it is of the scores elsewhere
    fitted = calibration_for(loaded, name, calibration)
    loaded.embedder.to_device(device or "")
    return Model(loaded, fitted, source=name, thresholds_file=thresholds)


def load_beside(model: Model, beside: Model | str | Path | None) -> Model:
    """Load the second model of a fusion: `beside`, or the included one of the other modality."""
    if isinstance(beside, Model):
        return beside
    return load(beside or (FACE if model.modality == "speaker" else VOICE), calibration=False)
