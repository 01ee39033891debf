"""Reading, augmenting and data sets of each modality."""
