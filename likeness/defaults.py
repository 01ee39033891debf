"""Settings that two modules have in common, of which one must not import the other's packages.

`--help` waits for no torch, and the process that starts a server for no prometheus_client.
"""

MAX_LOSS = 0.2  # percentage points by which a smaller model may raise the EER
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # names where the processes of a server count together
NUM_CALIBRATED = 100  # items for int8; more change the ranges little, and take longer
