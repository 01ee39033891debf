"""Writes docs/how-to/networks.md, the page of published networks, from docs/networks.toml.

python docs/make_networks.py
"""

from __future__ import annotations

import textwrap
import tomllib
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "how-to" / "networks.md"
HEAD = """\
# Which published network do I take, and how do I get it?

```
likeness verify a.wav b.wav --model redimnet:b2-vox2-ft_lm.pt
```
Begin with likeness:voice-plus or likeness:face, whose licences allow commercial use. For voices,
WeSpeaker and ReDimNet are stronger, and for faces InsightFace (non-commercial).

Every network here is a MODEL in `verify`, `embed`, `gallery`, `serve` and `export`. The line beside
it fetches its weights, which belong to their project. `hub:` and `speechbrain:` ids are fetched
automatically. Likeness executes nothing in these files.

- Licences, sizes and numbers come from the projects' pages. If they state no licence, ask the
  project. A licence of weights does not cover the training data.
- Projects measure in different ways. Compare networks on your own recordings or photographs:
  [bench](bench.md), [thresholds](choose_threshold.md).
- **Tried here** is "yes" if we ran the published weights. "With random weights" means that our
  network and front-end give the project's output on the same random weights.
- `own.py` is [your Python file](own_networks.md) around the project's network.

This page is made by `python docs/make_networks.py` from `docs/networks.toml`.
"""


def page() -> str:
    """Return the page."""
    networks = tomllib.loads((DOCS / "networks.toml").read_text(encoding="utf-8"))["network"]
    parts = [HEAD]
    for takes in dict.fromkeys(network["takes"] for network in networks):
        chosen = [network for network in networks if network["takes"] == takes]
        rows = [
            f"| {network['name']} | `{network['model']}` | {network['published']} "
            f"| {network['tried']} |"
            for network in chosen
        ]
        parts += [f"## {takes.capitalize()}", "| network | MODEL | published | tried here |"]
        parts += ["| --- | --- | --- | --- |", *rows, ""]
        parts += [_details(network) for network in chosen]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _details(network: dict[str, str]) -> str:
    """Return how a network is fetched, its size and its licences, as an item of a list."""
    text = (
        f"- **{network['name']}**: {network['fetch']}. Size: {network['size']}. Code: "
        f"{network['code']}. Weights: {network['weights']}. Training data: {network['data']}. "
        f"Source: {network['source']}"
    )
    return textwrap.fill(
        text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
