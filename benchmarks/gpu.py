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
Takes: at most nine minutes (--minutes). A section that the time does not suffice for is left out
    and named.
Gives: OUT/gpu.json, and OUT/gpu.md for section gpu of docs/reference/performance.md. Both are
    written anew after each section, so that a run that is stopped leaves what it has.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]  # of the clone, where it is not installed

import torch  # noqa: E402
from gpu_setting import Setting, Table  # noqa: E402
from performance import parser_of  # noqa: E402

from eval.errors import first_line  # noqa: E402


@dataclass
class Section:
    """What became of a section: its table, or why there is none."""

    table: Table | None = None
    seconds: float = 0.0
    problem: str = ""


@dataclass
class Report:
    """What is written: the machine, and the sections in the order in which they ran."""

    machine: str
    date: str
    command: str
    sections: dict[str, Section] = field(default_factory=dict)

    def write(self, out: Path) -> None:
        """Write gpu.json and gpu.md."""
        out.mkdir(parents=True, exist_ok=True)
        (out / "gpu.json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        (out / "gpu.md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """Return the report as a section of docs/reference/performance.md."""
        lines = [f"`{self.command}`, {self.date}, {self.machine}.", ""]
        for name, section in self.sections.items():
            lines += [f"### {name}", ""]
            if section.table is None:
                lines += [f"Not measured: {section.problem}.", ""]
                continue
            lines += [section.table.about, ""] if section.table.about else []
            columns = section.table.columns
            lines += [_line(columns), _line(["---"] * len(columns))]
            lines += [_line(row) for row in section.table.rows]
            lines.append("")
        return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


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


def sections() -> dict[str, Callable[[Setting], Table]]:
    """Return every section by its name, in the order of need."""
    import gpu_correct as correct
    import gpu_speed as speed

    return {
        "losses": correct.losses,
        "parts": correct.parts,
        "steps": speed.steps,
        "extraction": speed.extraction,
        "loops": speed.loops,
    }


def run(work: Callable[[Setting], Table], setting: Setting) -> Section:
    """Run a section. What goes wrong in it must not cost the others their rows."""
    started = time.perf_counter()
    try:
        return Section(work(setting), time.perf_counter() - started)
    except ModuleNotFoundError as error:
        problem = f"{error.name} is not installed"
    except Exception as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {first_line(error)}"
    return Section(None, time.perf_counter() - started, problem)


def main() -> None:
    """Run the sections, and write the report after each."""
    parser = parser_of(__doc__)
    known = sections()
    parser.add_argument("--only", default=",".join(known), help="sections, separated by commas")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument("--device", default="", help="cuda, cuda:1 or cpu (default: a GPU)")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no section {', '.join(unknown)}; there are {', '.join(known)}")
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cpu" and not arguments.small:
        parser.error("there is no GPU; --small runs tiny sizes on the CPU")
    # Products of float32 are exact unless a section says otherwise.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    command = " ".join(["python benchmarks/gpu.py", *sys.argv[1:]])
    report = Report(machine_of(device), time.strftime("%Y-%m-%d"), command)
    end = time.perf_counter() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            left = end - time.perf_counter()
            if left < 5:
                report.sections[name] = Section(problem="there was no time left")
            else:
                print(f"{name} ...", flush=True)
                setting = Setting(device, arguments.small, end, Path(folder) / name)
                setting.folder.mkdir()
                report.sections[name] = run(known[name], setting)
                if device.type == "cuda":
                    torch.cuda.empty_cache()
            report.write(arguments.out)
    print(report.markdown())


if __name__ == "__main__":
    main()
