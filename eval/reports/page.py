"""The frame of every report: one self-contained HTML page, light and dark, readable on a phone,
without network.

Its scripts are BokehJS, which draws the figures, and SCRIPTS of templates/. The page reads without
them too: what they add are figures, and moving, sorting, enlarging and saving.

A report is a mapping from headings to blocks (eval.reports.blocks, scores, embeddings). The frame
is templates/page.html and its style templates/page.css.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256

from markupsafe import Markup

from eval.reports.blocks import environment, source
from eval.reports.drawing import can_plot, script

# The script of a page, in files by subject, in the order in which they run.
SCRIPTS = (
    "basics.js",
    "figures.js",
    "threshold.js",
    "tables.js",
    "media.js",
    "map.js",
    "start.js",
)
NO_PLOTS = (
    "The figures need Bokeh, which is not installed: pip install 'likeness[report]' and make "
    "this report again."
)


def document(title: str, about: str, sections: Mapping[str, Markup]) -> str:
    """The whole page.

    The page holds a policy that forbids requests of any kind, and scripts other than its own two.
    Images and sound have to be data: URIs.

    Args:
        title: text.
        about: text below the title.
        sections: heading (text) -> its blocks, in order. A section without any is left out, and
            what no block made is escaped.
    """
    shown = {heading: fragment for heading, fragment in sections.items() if fragment}
    anchors = [
        re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or f"section-{i}"
        for i, heading in enumerate(shown)
    ]
    scripts = [_own_script()]
    if any('class="plot"' in fragment for fragment in shown.values()):
        scripts.insert(0, script())
    digests = [b64encode(sha256(text.encode()).digest()).decode() for text in scripts]
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            about=about,
            sections=list(zip(anchors, shown.keys(), shown.values(), strict=True)),
            hint="" if can_plot() else NO_PLOTS,
            scripts=scripts,
            policy=" ".join(f"'sha256-{digest}'" for digest in digests),
        )
    )


def _own_script() -> str:
    """The files of the script as one, in a block, which keeps their names from those of BokehJS."""
    return '"use strict";\n{\n' + "\n".join(map(source, SCRIPTS)) + "}\n"
