"""How diverse embeddings are: feature diversity and cluster diversity (nivMF paper, supplement L).

The paper's words, no equations: "we follow [57] and evaluate the uniformity of the sorted spectral
value distribution of all training image embeddings to measure the number of significant directions
of variances in feature space. The latter is simply computed as the variance (i.e. diversity) of
intraclass distances for each class-cluster. For both cases, we specifically care about relative
changes". Both are to rise (its Table 5).
"""

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.errors import LikenessError
from likeness.eval.metrics.ranks import Counts, check_rows, label_codes
from likeness.eval.types import Floats, norms_of, unit_rows

_SMALLEST = 1e-7  # singular values below this share of the sum are rounding


def spectral_decay(embeddings: ArrayLike) -> float:
    """rho = KL(uniform || s / sum s) of the sorted singular values s of the rows, nats; low = many
    directions of variance (Roth et al. 2020, [57], Sec. 5).

    embeddings: (N, D) raw; scaled to length 1 here, as retrieval is by cosine, and not centred, as
    in [57], whose code takes D - 1 values of a randomised SVD; this is all of min(N, D), exact.
    Values below 1e-7 of their sum count as 1e-7, so that a collapsed space scores a large number
    and not infinity.
    LikenessError: shapes, NaN, only zero vectors.

    >>> round(spectral_decay([[1, 0], [0, 1]]), 6), round(spectral_decay([[1, 0], [1, 0]]), 1)
    (0.0, 7.4)
    """
    values = np.linalg.svd(_unit(embeddings), compute_uv=False)
    if not values.sum() > 0:
        raise LikenessError("embeddings: every row is the zero vector; give others")
    share = np.maximum(values / values.sum(), _SMALLEST)
    return max(0.0, float(-np.log(share * values.size).mean()))


def feature_diversity(embeddings: ArrayLike) -> float:
    """exp(-rho) in (0, 1], rho = `spectral_decay`: 1 if all directions carry the same variance. Our
    reading of "uniformity": higher is more diverse, as in Table 5, where [57]'s rho falls. It is
    the geometric over the arithmetic mean of the singular values. Arguments and errors: of
    `spectral_decay`.
    """
    return float(np.exp(-spectral_decay(embeddings)))


def cluster_diversity(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Mean over classes of the variance of the distances between the items of one class.

    embeddings: (N, D) raw. labels: (N,) integers or strings. Our reading: cosine distances 1 - cos
    (the paper retrieves by cosine), each pair once, population variance within the class, classes
    weighted equally; classes of one item have no pair and those of two no variance but 0, so only
    classes of three or more count. LikenessError: shapes, NaN, no such class.

    >>> round(cluster_diversity([[1, 0], [1, 0], [0, 1]], [7, 7, 7]), 6)
    0.222222
    """
    codes, _ = label_codes(labels)
    rows = _unit(embeddings, codes)
    order = np.argsort(codes, kind="stable")
    variances = []
    for members in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        if members.size >= 3:
            similar = rows[members] @ rows[members].T
            variances.append(similar[np.triu_indices(members.size, 1)].var())
    if not variances:
        raise LikenessError("cluster diversity: no class has three items; add some")
    return float(np.mean(variances))


def _unit(embeddings: ArrayLike, codes: Counts | None = None) -> Floats:
    """(N, D) float64 rows of length 1, each with a label where there are; zero rows stay zero."""
    rows = check_rows("embeddings", embeddings, codes).astype(np.float64)
    return unit_rows(rows, norms_of(rows))
