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
likeness verify a.wav b.wav --model likeness:voice-plus
```
Begin with likeness:voice-plus or likeness:face, whose licences allow commercial use. WeSpeaker and
ReDimNet are stronger for voices, and InsightFace (non-commercial) for faces.

In every command that takes `--model`, give the name in the column MODEL. The list below each table
says how to fetch the weights, which belong to their projects. On [a machine without
internet](hub.md#on-a-machine-without-internet), copy those that are fetched automatically.

- Licences, sizes and numbers come from the projects' pages; ask the project about what is "not
  stated". The licence is that of the weights, and does not cover the training data.
- Projects measure in different ways. Compare networks on your own files: [bench](bench.md),
  [thresholds](choose_threshold.md).
- We ran the published weights only of networks with a `*`. For the others, our code gives the same
  output as the project's from the same random weights. AdaFace and SFace had neither check.
- `own.py` is [your Python file](own_networks.md) around the project's network.
"""


def page() -> str:
    """Return the page."""
    networks = tomllib.loads((DOCS / "networks.toml").read_text(encoding="utf-8"))["network"]
    parts = [HEAD]
    for takes in dict.fromkeys(network["takes"] for network in networks):
        chosen = [network for network in networks if network["takes"] == takes]
        rows = [
            f"| {network['name']}{' *' if network['tried'] == 'yes' else ''} "
            f"| `{network['model']}` | {network['published']} |"
            for network in chosen
        ]
        published = "EER on VoxCeleb1-O" if takes == "voices" else "published"
        parts += [f"## {takes.capitalize()}", f"| network | MODEL | {published} |"]
        parts += ["|---|---|---|", *rows, ""]
        parts += [_details(network) for network in chosen]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _details(network: dict[str, str]) -> str:
    """Return how a network is fetched, its size and its licences, as an item of a list."""
    source, size, data = network["source"], network["size"], network["data"]
    link = source if source.startswith("https://") else f"../../{source}"
    weights = network["weights"].replace("not stated", f"not stated (code: {network['code']})")
    text = f"- [{network['name']}]({link}): {network['fetch']}."
    text += "" if size == "not stated" else f" {size}."
    text += f" Licence: {weights}."
    text += "" if data == "not stated" else f" Trained on {data}."
    return textwrap.fill(
        text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
