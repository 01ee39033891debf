"""Compares a GPU with the CPU in value and gradient, and measures training and embedding.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --only losses,steps
    python benchmarks/gpu.py --small          tiny sizes, also without a GPU: shows that it runs

Measures: `losses` says whether a GPU gives what the CPU gives. The other sections measure how fast
    it is. The functions of this file and of benchmarks/gpu_speed.py say what each
    row is. Times are the median wall time of repeated calls after a warm-up, each of which waits
    for the GPU.
Peer: arcface_torch's steps, written down in gpu_speed.py.
Limit: the bare forward and backward pass of the same network.
Needs: a clone, which need not be installed, Python 3.11 or newer, torch 2.11 or newer, torchaudio,
    numpy, scipy, scikit-learn, safetensors and rich. What needs more (soundfile, OpenCV, Pillow)
    says so in its rows. No data and no network.
Takes: nine minutes, and four for `settings`, most of which compile.
Gives: the tables "Training on a GPU" and "GPU settings" of docs/reference/performance.md.
"""

import copy
import platform
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]  # of the clone, where it is not installed

import gpu_speed as speed  # noqa: E402
import torch  # noqa: E402
from losses import loss_classes  # noqa: E402
from performance import parser_of, table  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from likeness.toolkit.vmf.rows import full  # noqa: E402


def relative(value: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the norm of the expected value."""
    expected = expected.detach().double().cpu()
    difference = value.detach().double().cpu() - expected
    return float(difference.norm() / expected.norm().clamp(min=1e-30))


def losses(setting: speed.Setting) -> None:
    """Compare value and gradients of every loss, and its value for embeddings in bfloat16.

    Products are in float32 with TF32 off, so that only the order of sums differs. "relative" is the
    norm of the difference over the norm of the CPU's value. Without a GPU the CPU is compared with
    itself: that shows only that the section runs. Batches of 64 embeddings of 32 classes. A loss
    that draws random numbers draws others on a GPU.
    """
    headings = ("value, relative", "gradient of z", "of parameters", "z in bfloat16", "remark")
    table("loss", *headings)
    torch.manual_seed(0)
    dim, num_classes = setting.size(256, 32), 32
    z, y = torch.randn(64, dim), torch.arange(64) % num_classes

    def cells(make: Any) -> list[object]:
        torch.manual_seed(1)
        return loss_cells(make(dim, num_classes), z, y, setting.device)

    for name, make in loss_classes().items():
        setting.row(name, partial(cells, make))


def loss_cells(loss: nn.Module, z: Tensor, y: Tensor, device: torch.device) -> list[object]:
    """Return the cells of a loss, without its name."""

    def taken(loss: nn.Module, z: Tensor, device: torch.device, seed: int) -> list[Tensor]:
        here, rows = copy.deepcopy(loss).to(device), z.detach().clone().to(device).requires_grad_()
        torch.manual_seed(seed)
        value = here(full(rows), y.to(device))
        value.backward()
        assert rows.grad is not None
        every = [value.grad.flatten() for value in here.parameters() if value.grad is not None]
        return [value, rows.grad, torch.cat(every) if every else torch.zeros(1)]

    expected, again = (taken(loss, z, torch.device("cpu"), seed) for seed in (2, 3))
    draws = not torch.equal(expected[0], again[0])
    cells = [*map(relative, taken(loss, z, device, 2), expected)]
    half = taken(loss, z.bfloat16(), device, 2)[0]
    finite = bool(torch.isfinite(half))
    return [*cells, relative(half, expected[0]) if finite else "not finite", "draws" * draws]


SECTIONS = {  # in the order of need
    "losses": losses,
    "steps": speed.steps,
    "extraction": speed.extraction,
    "settings": speed.settings,
    "loops": speed.loops,
}


def machine_of(device: torch.device) -> str:
    """Return the GPU, or that there is none, and the versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU, tiny sizes"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{name}, {versions}, CUDA {torch.version.cuda}"


def main() -> None:
    """Run the sections."""
    only = ("only", ",".join(SECTIONS), "of them, with commas")
    parser = parser_of(__doc__, only, ("small", False, "tiny sizes"))
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.small:
        parser.error("there is no GPU; --small runs tiny sizes on the CPU")
    # Products of float32 are exact unless a section says otherwise.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    command = " ".join(["python benchmarks/gpu.py", *sys.argv[1:]])
    print(f"`{command}`, {time.strftime('%Y-%m-%d')}, {machine_of(device)}.")
    setting = speed.Setting(device, arguments.small)
    for name in arguments.only.split(","):
        print(f"\n### {name}\n", flush=True)
        SECTIONS[name](setting)


if __name__ == "__main__":
    main()
