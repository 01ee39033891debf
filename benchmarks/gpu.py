"""Compares a GPU with the CPU in value and gradient, and measures training and embedding.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --only losses,steps --minutes 3
    python benchmarks/gpu.py --small          tiny sizes, also without a GPU: shows that it runs

Measures: `losses` and `parts` say whether a GPU gives what the CPU gives. `steps`, `loops` and
    `extraction` measure how fast it is. The functions of benchmarks/gpu_correct.py and gpu_speed.py
    say what each row is. Times are the median wall time of repeated calls after a warm-up, each of
    which waits for the GPU.
Peer: arcface_torch's steps, written down in gpu_speed.py.
Limit: the bare forward and backward pass of the same network.
Needs: a clone, which need not be installed, Python 3.11 or newer, torch 2.11 or newer, torchaudio,
    numpy, scipy, scikit-learn, safetensors and rich. What needs more (soundfile, OpenCV, Pillow)
    says so in its rows. No data and no network.
Takes: at most nine minutes (--minutes). What the time does not suffice for is left out and named.
Gives: OUT/gpu.md, for section gpu of docs/reference/performance.md. It is written anew after each
    section, so that a run that is stopped leaves what it has.
"""

from __future__ import annotations

import platform
import re
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]  # of the clone, where it is not installed

import gpu_correct as correct  # noqa: E402
import gpu_speed as speed  # noqa: E402
import torch  # noqa: E402
from gpu_setting import Setting  # noqa: E402
from performance import parser_of  # noqa: E402

SECTIONS = {  # in the order of need
    "losses": correct.losses,
    "parts": correct.parts,
    "steps": speed.steps,
    "extraction": speed.extraction,
    "loops": speed.loops,
}


def machine_of(device: torch.device) -> str:
    """Return the GPU with its memory and driver, or that there is none, and the versions."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    if device.type != "cuda":
        return f"no GPU: the CPU with tiny sizes, {versions}"
    properties = torch.cuda.get_device_properties(device)
    memory = properties.total_memory / 2**30
    driver = Path("/proc/driver/nvidia/version")
    release = re.search(r"\d+(\.\d+)+", driver.read_text()) if driver.exists() else None
    return (
        f"{properties.name} with {memory:.0f} GiB, driver {release[0] if release else '?'}, "
        f"CUDA {torch.version.cuda}, {versions}"
    )


def main() -> None:
    """Run the sections, and write the report after each."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"there is no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.small:
        parser.error("there is no GPU; --small runs tiny sizes on the CPU")
    # Products of float32 are exact unless a section says otherwise.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    command = " ".join(["python benchmarks/gpu.py", *sys.argv[1:]])
    report = f"`{command}`, {time.strftime('%Y-%m-%d')}, {machine_of(device)}.\n"
    end = time.perf_counter() + 60 * arguments.minutes
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"{name} ...", flush=True)
            setting = Setting(device, arguments.small, end, Path(folder) / name)
            setting.folder.mkdir()
            report += f"\n### {name}\n\n{SECTIONS[name](setting).markdown()}\n"
            (arguments.out / "gpu.md").write_text(report, encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
