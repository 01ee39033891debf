"""Every metric on bare arrays, in one flat list: `from likeness.metrics import eer, min_dcf`.

Scores are higher for more similar pairs. None of these needs torch. docs/reference/protocols.md
says what each number means.

Example:
    >>> from likeness.metrics import eer, tar_at_far
    >>> eer([0.9, 0.8, 0.3], [0.4, 0.2, 0.1])
    0.3333333333333333
"""

from likeness.eval.intervals import per_item as per_item
from likeness.eval.intervals.bootstrap import bounds as bounds
from likeness.eval.intervals.bootstrap import bounds_of as bounds_of
from likeness.eval.intervals.bootstrap import drawn_from as drawn_from
from likeness.eval.intervals.bootstrap import interval as interval
from likeness.eval.intervals.guarantee import guaranteed_threshold as guaranteed_threshold
from likeness.eval.intervals.small_rates import upper_bound as upper_bound
from likeness.eval.intervals.uncertainty import discard_area as discard_area
from likeness.eval.intervals.uncertainty import quality_auroc as quality_auroc
from likeness.eval.intervals.uncertainty import risk_coverage as risk_coverage
from likeness.eval.metrics.calibration import error_versus_reject as error_versus_reject
from likeness.eval.metrics.calibration import fit_fusion as fit_fusion
from likeness.eval.metrics.calibration import fit_ratio_fusion as fit_ratio_fusion
from likeness.eval.metrics.classification import accuracy as accuracy
from likeness.eval.metrics.classification import auroc as auroc
from likeness.eval.metrics.classification import ece as ece
from likeness.eval.metrics.classification import fit_temperature as fit_temperature
from likeness.eval.metrics.classification import softmax as softmax
from likeness.eval.metrics.differentials import gini as gini
from likeness.eval.metrics.differentials import worst_to_geometric_mean as worst_to_geometric_mean
from likeness.eval.metrics.diversity import cluster_diversity as cluster_diversity
from likeness.eval.metrics.diversity import feature_diversity as feature_diversity
from likeness.eval.metrics.diversity import spectral_decay as spectral_decay
from likeness.eval.metrics.evidence import dev_pav as dev_pav
from likeness.eval.metrics.evidence import elub as elub
from likeness.eval.metrics.evidence import pav as pav
from likeness.eval.metrics.identification import cmc as cmc
from likeness.eval.metrics.identification import rank_k as rank_k
from likeness.eval.metrics.identification import tpir_at_fpir as tpir_at_fpir
from likeness.eval.metrics.retrieval import f1 as f1
from likeness.eval.metrics.retrieval import nmi as nmi
from likeness.eval.metrics.retrieval import query_metrics as query_metrics
from likeness.eval.metrics.retrieval import retrieval_metrics as retrieval_metrics
from likeness.eval.metrics.similarity import matrix as matrix
from likeness.eval.metrics.similarity import pairs as pairs
from likeness.eval.metrics.spoofing import actual_a_dcf as actual_a_dcf
from likeness.eval.metrics.spoofing import apcer as apcer
from likeness.eval.metrics.spoofing import bpcer_at_apcer as bpcer_at_apcer
from likeness.eval.metrics.spoofing import min_a_dcf as min_a_dcf
from likeness.eval.metrics.spoofing import min_t_dcf as min_t_dcf
from likeness.eval.metrics.spoofing import sasv_eer as sasv_eer
from likeness.eval.metrics.spoofing import t_eer as t_eer
from likeness.eval.metrics.verification import actual_dcf as actual_dcf
from likeness.eval.metrics.verification import balanced_accuracy as balanced_accuracy
from likeness.eval.metrics.verification import cllr as cllr
from likeness.eval.metrics.verification import det as det
from likeness.eval.metrics.verification import eer as eer
from likeness.eval.metrics.verification import min_cllr as min_cllr
from likeness.eval.metrics.verification import min_dcf as min_dcf
from likeness.eval.metrics.verification import min_dcf_threshold as min_dcf_threshold
from likeness.eval.metrics.verification import roc as roc
from likeness.eval.metrics.verification import tar_at_far as tar_at_far
from likeness.eval.metrics.verification import tar_threshold as tar_threshold
from likeness.eval.metrics.verification import threshold_at_eer as threshold_at_eer
from likeness.eval.metrics.verification import verification_metrics as verification_metrics
from likeness.eval.protocols.lfw import ten_fold_accuracy as ten_fold_accuracy
from likeness.eval.scoring.normalization import as_norm as as_norm
from likeness.eval.scoring.normalization import cohort_mean as cohort_mean
from likeness.eval.scoring.normalization import s_norm as s_norm
from likeness.eval.scoring.normalization import subtract_mean as subtract_mean
from likeness.eval.scoring.normalization import t_norm as t_norm
from likeness.eval.scoring.normalization import z_norm as z_norm
from likeness.eval.scoring.plda import fit_plda as fit_plda
