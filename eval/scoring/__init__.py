"""Embeddings and trials to scores: templates, normalisation by a cohort, PLDA, calibration."""
