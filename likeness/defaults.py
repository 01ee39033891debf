"""Settings that a command and the function behind it have in common.

They are apart from the functions because those import torch, and `--help` does not wait for it.
"""

MAX_LOSS = 0.2  # percentage points by which a smaller model may raise the EER
