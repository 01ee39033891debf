"""The frame of every report: one self-contained HTML page, light and dark, readable on a phone,
without scripts and without network.

A report is a mapping from headings to blocks (eval.reports.blocks, scores, embeddings). The frame
is templates/page.html and its style templates/page.css.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from markupsafe import Markup

from eval.reports.blocks import environment
from eval.reports.drawing import can_plot

NO_PLOTS = (
    "The plots need matplotlib, which is not installed: pip install 'likeness[report]' and make "
    "this report again."
)


def document(title: str, about: str, sections: Mapping[str, Markup]) -> str:
    """The whole page.

    The page holds a policy that forbids scripts and requests of any kind. Images and sound have to
    be data: URIs.

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
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            about=about,
            sections=list(zip(anchors, shown.keys(), shown.values(), strict=True)),
            hint="" if can_plot() else NO_PLOTS,
        )
    )
