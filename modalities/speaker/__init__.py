"""Speech: reading, features, augmentation, data sets."""
