"""Two-covariance PLDA: a speaker's embeddings scatter around a point of their own, x = m + y + e
with y ~ N(0, B) and e ~ N(0, W).

The score of a trial is the log-likelihood ratio of one y for both sides against two (natural
logarithm). The defaults are Kaldi's, as its VoxCeleb recipe sets them (egs/voxceleb/v2,
ivector/plda.cc, ivector-compute-lda, ivector-plda-scoring --normalize-length=true): the mean is
subtracted, LDA applied if wanted, the length set to sqrt(K), PLDA fitted by EM around the mean of
the class means; and at scoring each vector is scaled once more, in the coordinates u of the PLDA:
to sum_k u_k^2 / (psi_k + 1) = K, the value that the model expects.

A PLDA is adapted to a domain without labels as by Kaldi's ivector-adapt-plda (ivector/plda.cc,
PldaUnsupervisedAdaptor): where the new embeddings vary more than the model expects, W and B share
the excess.

Brümmer & de Villiers 2010 ("The speaker partitioning problem"), Sec. 3; Ioffe 2006, "Probabilistic
linear discriminant analysis"; Garcia-Romero & Espy-Wilson 2011 on length. Deep embeddings that were
trained for the cosine usually score better by the cosine (WeSpeaker's tables); PLDA helps x-vectors
and a shifted domain.

Legend: N items, D dims, K dims after LDA, C classes, P trials.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import ColumnNames
from likeness.eval.formats.embeddings import Embeddings, embeddings_of, vectors_of
from likeness.eval.formats.files import File, read_json
from likeness.eval.formats.subjects import Names, names_of
from likeness.eval.intervals.subjects import labels_of
from likeness.eval.metrics.similarity import pairs
from likeness.eval.option import Option
from likeness.eval.progress import track
from likeness.eval.types import Floats
from likeness.eval.writing import write_json

FORMAT = "likeness plda 3"
_ITERATIONS = 10  # of EM
ARRAYS = ("mean", "lda", "centre", "transform", "psi")


@dataclass(frozen=True, eq=False)
class Plda:
    """mean (D,) subtracted first; lda (D, K); rows are then scaled to sqrt(K). centre
    (K,) and transform (K, K): u = transform (x - centre) has W = I and B = diag(psi), psi (K,) >=
    0. model: digest of the embeddings' model, "" if unknown.
    """

    mean: Floats
    lda: Floats
    centre: Floats
    transform: Floats
    psi: Floats
    model: str = ""

    def __post_init__(self) -> None:
        dims, kept = len(self.mean), len(self.psi)
        shapes = [(dims,), (dims, kept), (kept,), (kept, kept), (kept,)]
        arrays = [getattr(self, name) for name in ARRAYS]
        finite = all(np.isfinite(array).all() for array in arrays)
        if [array.shape for array in arrays] != shapes or not finite or (self.psi < 0).any():
            each = [array.shape for array in arrays]
            problem = f"its arrays {each} do not fit, are not finite, or a variance is negative"
            raise LikenessError(f"plda: {problem}; fit it anew")

    def project(self, embeddings: ArrayLike) -> Floats:
        """(N, D) raw embeddings -> (N, K) coordinates in which the covariances are diagonal, of the
        length that the model expects; a zero row stays zero.

        Kaldi's Plda::TransformIvector for one utterance. ValueError for another D.
        """
        rows = self._checked(embeddings)
        projected: Floats = (_prepare(rows, self.mean, self.lda) - self.centre) @ self.transform.T
        squares = np.einsum("nk,nk,k->n", projected, projected, 1 / (self.psi + 1))
        projected *= np.sqrt(len(self.psi) / np.where(squares > 0, squares, 1.0))[:, None]
        return projected

    def _checked(self, embeddings: ArrayLike) -> Floats:
        rows: Floats = np.asarray(embeddings, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != len(self.mean):
            dims = len(self.mean)
            raise LikenessError(f"plda: fitted for {dims} dims, not {rows.shape}; fit it anew")
        return rows

    def adapt(self, embeddings: ArrayLike, *, within: float = 0.3, between: float = 0.7) -> "Plda":
        """The PLDA of another domain, from (N, D) raw embeddings of it without labels, N > K.

        Their mean is subtracted from now on. Let T = B + W be what the model expects as their
        covariance, C what they have, and C v = s T v with v' T v = 1. The excess is the sum of
        (s - 1) T v v' T over all s > 1; W grows by `within` times it, and B by `between` times it.
        C also holds the outer product of the shift of the centre (Kaldi's mean_diff_scale 1).

        Raises:
            LikenessError: Another D, or too few embeddings.
        """
        rows, dims = self._checked(embeddings), len(self.psi)
        if len(rows) <= dims:
            raise LikenessError(f"plda: {len(rows)} items cannot adapt {dims} dims; give more")
        mean = rows.mean(axis=0)
        rows = _prepare(rows, mean, self.lda)
        centre = rows.mean(axis=0)
        # in the coordinates u, with T = diag(psi + 1)
        apart, shift = (rows - centre) @ self.transform.T, self.transform @ (centre - self.centre)
        root = np.sqrt(self.psi + 1)
        share = (apart.T @ apart / len(rows) + np.outer(shift, shift)) / np.outer(root, root)
        values, vectors = np.linalg.eigh(share)
        excess = root[:, None] * (vectors * np.maximum(values - 1, 0)) @ (root[:, None] * vectors).T
        transform, psi = _diagonal(
            np.diag(self.psi) + between * excess, np.eye(dims) + within * excess
        )
        return replace(
            self, mean=mean, centre=centre, transform=transform @ self.transform, psi=psi
        )

    def score(self, enrol: ArrayLike, probe: ArrayLike, i: ArrayLike, j: ArrayLike) -> Floats:
        """LLR of enrol[i[p]] and probe[j[p]] for each trial. enrol: (N, D) raw rows. probe: (M, D).
        i, j: (P,). Symmetric; a model's rows are averaged before.

        With u, v projected, LLR = sum_k [log(1 + psi) - log(1 + 2 psi) / 2 + psi u v / (1 + 2 psi)
        - psi^2 (u^2 + v^2) / (2 (1 + psi) (1 + 2 psi))]: Kaldi's Plda::LogLikelihoodRatio with one
        utterance. Products are float32 as in similarity.pairs: an error of about 1e-7 of the sum of
        their magnitudes.
        """
        u, v, psi = self.project(enrol), self.project(probe), self.psi
        i, j = np.asarray(i), np.asarray(j)
        root, own = np.sqrt(psi / (1 + 2 * psi)), psi**2 / (2 * (1 + psi) * (1 + 2 * psi))
        constant = float((np.log1p(psi) - np.log1p(2 * psi) / 2).sum())
        llr: Floats = (
            pairs(u * root, v * root, i, j, "dot") - (u**2 @ own)[i] - (v**2 @ own)[j] + constant
        )
        return llr

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        fields = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }
        write_json(path, {"format": FORMAT, **fields})


def load_plda(path: str | Path) -> Plda:
    """Read what `Plda.save` wrote. LikenessError for anything else."""
    return read_json(
        Path(path),
        FORMAT,
        lambda fields: Plda(
            **fields | {name: np.array(fields[name], dtype=np.float64) for name in ARRAYS}
        ),
        "not a PLDA file ({error}); fit one with `likeness fit plda`",
    )


def fit_labelled(
    embeddings: Annotated[File | Embeddings, Option("EMBEDDINGS", path="file")],
    labels: Annotated[Names | None, Option(path="file")] = None,
    *,
    lda_dim: Annotated[int, Option(least=0)] = 0,
    adapt: Annotated[File | Embeddings | None, Option(path="file")] = None,
    within_covar_scale: Annotated[float, Option(least=0, most=1)] = 0.3,
    between_covar_scale: Annotated[float, Option(least=0, most=1)] = 0.7,
    columns: ColumnNames = "",
) -> tuple[Plda, list[str]]:
    """Fit a PLDA as `fit_plda` on embeddings with their classes, which may be files.

    Args:
        embeddings: Labelled embeddings.
        labels: Lines `id class` (default: the first folder of the ids).
        lda_dim: How many dimensions LDA leaves; 0 leaves LDA out.
        adapt: Embeddings without labels of the domain of use, to which the PLDA is adapted. An .npy
            needs no ids.
        within_covar_scale: The share of their excess variance that is within classes.
        between_covar_scale: The share that is between classes.
        columns: As in `likeness.eval.formats.embeddings.read_embeddings`, of both files.

    Returns:
        The PLDA, and the class of each item.

    Raises:
        LikenessError: The embeddings of the new domain are of another model; and as `fit_plda` and
            `Plda.adapt`.
    """
    rows = embeddings_of(embeddings, columns)
    name = "embeddings" if isinstance(embeddings, Embeddings) else Path(embeddings).name
    classes = labels_of(name, rows.ids, names_of(labels), "class")
    model = rows.meta.get("model", "")
    plda = fit_plda(rows.matrix, classes, lda_dim=lda_dim, model=model)
    if adapt is not None:
        others = vectors_of(adapt, columns)
        if model and others.meta.get("model", model) != model:
            both = f"{others.meta['model'][:16]}, and not {model[:16]}"
            raise LikenessError(f"adapt: embedded by the model {both}; embed both by one model")
        plda = plda.adapt(others.matrix, within=within_covar_scale, between=between_covar_scale)
    return plda, classes


def fit_plda(
    embeddings: ArrayLike,
    labels: Sequence[str] | NDArray[np.generic],
    *,
    lda_dim: int = 0,
    model: str = "",
) -> Plda:
    """Fit on labelled embeddings (N, D) of classes other than those to be scored. lda_dim: K, 0 =
    no LDA (K = D). EM takes 10 iterations, as Kaldi's does.

    Raises:
        LikenessError: Shapes differ, there is NaN, there are fewer than two classes, nobody has two
            items, or lda_dim is over D or C - 1. Or there are fewer than D items beyond one for
            each class: the covariance within classes, which LDA inverts before it leaves K dims,
            would not be determined.
    """
    rows = np.asarray(embeddings, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(labels) or not np.isfinite(rows).all():
        both = f"embeddings {rows.shape}, {len(labels)} labels"
        raise LikenessError(f"plda: {both}; give finite (N, D) and N labels")
    classes = np.unique(np.asarray(labels), return_inverse=True)[1]
    num, dims = int(classes.max(initial=-1)) + 1, rows.shape[1]
    # also with LDA, whose scatter within classes is (D, D)
    is_determined = num >= 2 and len(rows) - num >= dims
    if not is_determined or not 0 <= lda_dim <= min(dims, num - 1):
        raise LikenessError(
            f"plda: {len(rows)} items of {num} classes in {dims} dims, lda_dim {lda_dim}; it needs "
            f"2 classes, {num + dims} items, lda_dim up to {min(dims, max(num - 1, 0))}: add some"
        )
    mean = rows.mean(axis=0)
    lda = _lda(rows - mean, classes, lda_dim) if lda_dim else np.eye(rows.shape[1])
    rows = _prepare(rows, mean, lda)
    centre = _class_means(rows, classes).mean(axis=0)
    between, within = _em(rows - centre, classes, _ITERATIONS)
    return Plda(mean, lda, centre, *_diagonal(between, within), model)


def _diagonal(between: Floats, within: Floats) -> tuple[Floats, Floats]:
    """The transform (K, K) after which W = I and B = diag(psi), and psi (K,), largest first."""
    root = np.linalg.inv(np.linalg.cholesky(within))
    psi, vectors = np.linalg.eigh(root @ between @ root.T)
    return vectors.T[::-1] @ root, np.maximum(psi[::-1], 0.0)


def _prepare(rows: Floats, mean: Floats, lda: Floats) -> Floats:
    """The rows after LDA, scaled to sqrt(K) as by Kaldi's ivector-normalize-length; a zero row
    stays zero.
    """
    rows = (rows - mean) @ lda
    norms = np.sqrt(np.einsum("nk,nk->n", rows, rows))
    scaled: Floats = rows * (np.sqrt(rows.shape[1]) / np.where(norms > 0, norms, 1.0))[:, None]
    return scaled


def _class_means(rows: Floats, classes: NDArray[np.intp]) -> Floats:
    """(C, K)."""
    sums = np.zeros((int(classes.max()) + 1, rows.shape[1]))
    np.add.at(sums, classes, rows)
    return sums / np.bincount(classes)[:, None]


def _lda(rows: Floats, classes: NDArray[np.intp], kept: int) -> Floats:
    """(D, K): the directions of the largest ratio of scatter between classes to that within, in
    which the scatter within is the identity.
    """
    from scipy.linalg import eigh  # slow to import, needed here only

    means = _class_means(rows, classes)
    apart = rows - means[classes]
    within = apart.T @ apart / len(rows)
    total = rows.T @ rows / len(rows)
    ridge = 1e-10 * np.trace(within) / len(within) * np.eye(len(within))
    _, vectors = eigh(total - within, within + ridge)
    directions: Floats = vectors[:, ::-1][:, :kept]
    return directions


def _em(rows: Floats, classes: NDArray[np.intp], iterations: int) -> tuple[Floats, Floats]:
    """B and W (K, K) by expectation and maximisation in closed form from B = W = I: Kaldi's
    PldaEstimator with all weights 1.
    """
    means, sizes = _class_means(rows, classes), np.bincount(classes)
    apart = rows - means[classes]
    scatter = apart.T @ apart
    kept = rows.shape[1]
    between, within = np.eye(kept), np.eye(kept)
    for _ in track(range(iterations), "fitting PLDA"):
        precision, inverse = np.linalg.inv(between), np.linalg.inv(within)
        new_between, new_within = np.zeros((kept, kept)), scatter.copy()
        for size in np.unique(sizes):  # classes of one size have one posterior covariance
            group = means[sizes == size]
            covariance = np.linalg.inv(precision + size * inverse)
            y = group @ (size * inverse @ covariance)
            new_between += len(group) * covariance + y.T @ y
            new_within += size * (len(group) * covariance + (group - y).T @ (group - y))
        between, within = new_between / len(means), new_within / len(rows)
        between, within = (between + between.T) / 2, (within + within.T) / 2
    return between, within
