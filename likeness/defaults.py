"""Settings that a command and the function behind it have in common.

They are apart from the functions because those import torch, and `--help` does not wait for it.
"""

PIECE_ITEMS = 1024  # the items of a piece of `likeness embed --pieces`
LEASE_MINUTES = 10.0  # without a sign of life, after which a worker's piece goes to others
MAX_LOSS = 0.2  # percentage points by which a smaller model may raise the EER
