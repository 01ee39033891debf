"""The pages of `likeness serve`, made from templates/*.html, and the policy under which a browser
shows them: nothing comes from elsewhere, and no script runs but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

# The script of the page, in files by subject, in the order in which they run. They share their
# names: each may use those of the files before it, and within functions those of all.
SCRIPTS = (
    "basics.js",
    "turns.js",
    "sound.js",
    "faces.js",
    "inputs.js",
    "threshold.js",
    "answers.js",
    "gallery.js",
    "start.js",
)


@cache
def environment() -> Environment:
    """The templates of this package, which escape every value that is written in them.

    All of them know the style and the script of the page.
    """
    made = Environment(
        loader=PackageLoader("likeness.service"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["style"] = Markup(_source(made, "page.css"))
    made.globals["script"] = Markup("\n".join(_source(made, name) for name in SCRIPTS))
    return made


def _source(made: Environment, name: str) -> str:
    assert made.loader is not None
    # A browser takes the digest of text whose lines end in one character.
    return made.loader.get_source(made, name)[0].replace("\r\n", "\n")


def home() -> str:
    """The page on which people compare, search and enrol."""
    return environment().get_template("page.html").render()


def docs(schema: dict[str, Any]) -> str:
    """The OpenAPI document as a plain page.

    Args:
        schema: as FastAPI makes it.
    """
    operations = [
        {
            "method": method.upper(),
            "path": path,
            "token": bool(operation.get("security")),
            "text": operation.get("description", ""),
            "fields": _fields(operation, schema),
        }
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    page = environment().get_template("docs.html")
    return page.render(about=schema["info"]["description"], operations=operations)


def _fields(operation: dict[str, Any], schema: dict[str, Any]) -> list[tuple[str, str]]:
    """The parameters and the form fields of an operation: names, and what they are."""
    fields = [
        (parameter["name"], f"in the {parameter['in']}")
        for parameter in operation.get("parameters", [])
    ]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        form = schema["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        for name, field in form["properties"].items():
            optional = "" if name in form.get("required", []) else ", optional"
            fields.append((name, f"{_what(field)}{optional} ({kind})"))
    return fields


def _what(field: dict[str, Any]) -> str:
    if "contentMediaType" in field or field.get("format") == "binary":
        return "file"
    return "files" if field.get("type") == "array" else "text"


def content_policy() -> str:
    """The Content-Security-Policy of both pages.

    It allows what the page itself holds, its script and its style by their digests, and requests to
    this server.
    """

    def digest(name: str) -> str:
        content = str(environment().globals[name]).encode()
        return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {digest('script')}; style-src {digest('style')}; "
        "connect-src 'self'; img-src 'self' blob: data:; media-src blob:; "
        "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    )
