"""`likeness serve`: verification and a gallery over REST, and one web page for it."""

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # names where the processes of a server count together
