"""Every metric on bare arrays, in one flat list: `from likeness.metrics import eer, min_dcf`.

Scores are higher for more similar pairs. None of these needs torch. docs/reference/protocols.md
says what each number means.

Example:
    >>> from likeness.metrics import eer, tar_at_far
    >>> eer([0.9, 0.8, 0.3], [0.4, 0.2, 0.1])
    0.3333333333333333
"""

from __future__ import annotations

from eval.bootstrap import interval, intervals
from eval.calibration import error_versus_reject, fit_calibration
from eval.classification import accuracy, auroc, ece, fit_temperature, softmax
from eval.diversity import cluster_diversity, feature_diversity, spectral_decay
from eval.guarantee import guaranteed_threshold
from eval.identification import cmc, rank_k, tpir_at_fpir
from eval.protocols.lfw import ten_fold_accuracy
from eval.retrieval import f1, nmi, query_metrics, retrieval_metrics
from eval.scoring.normalization import as_norm, cohort_mean, s_norm, subtract_mean, t_norm, z_norm
from eval.scoring.plda import fit_plda
from eval.similarity import matrix, pairs
from eval.uncertainty import aurc, e_aurc, quality_auroc, risk_coverage
from eval.verification import (
    actual_dcf,
    cllr,
    det,
    eer,
    min_cllr,
    min_dcf,
    min_dcf_threshold,
    roc,
    tar_at_far,
    tar_threshold,
    threshold_at_eer,
    verification_metrics,
)

__all__ = [
    "accuracy",
    "actual_dcf",
    "as_norm",
    "aurc",
    "auroc",
    "cllr",
    "cluster_diversity",
    "cmc",
    "cohort_mean",
    "det",
    "e_aurc",
    "ece",
    "eer",
    "error_versus_reject",
    "f1",
    "feature_diversity",
    "fit_calibration",
    "fit_plda",
    "fit_temperature",
    "guaranteed_threshold",
    "interval",
    "intervals",
    "matrix",
    "min_cllr",
    "min_dcf",
    "min_dcf_threshold",
    "nmi",
    "pairs",
    "quality_auroc",
    "query_metrics",
    "rank_k",
    "retrieval_metrics",
    "risk_coverage",
    "roc",
    "s_norm",
    "softmax",
    "spectral_decay",
    "subtract_mean",
    "t_norm",
    "tar_at_far",
    "tar_threshold",
    "ten_fold_accuracy",
    "threshold_at_eer",
    "tpir_at_fpir",
    "verification_metrics",
    "z_norm",
]
