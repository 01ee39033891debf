"""Makes docs/reference/json.md: the keys of every JSON document that programs read.

    python docs/make_json.py

The page is made from the JSON Schema files in docs/reference/schemas, which are written by hand.
tests/test_json_schemas.py holds what the commands and the service really give against them.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "reference" / "json.md"
SCHEMAS = Path(__file__).parent / "reference" / "schemas"
WIDTH = 100
ORDER = (
    *("results", "verification", "pairs", "found", "check", "comparison"),
    *("thresholds", "origin", "calibration", "fusion", "service"),
)
TYPES = {
    "string": "text",
    "number": "number",
    "integer": "whole number",
    "boolean": "true or false",
    "null": "null",
    "object": "object",
    "array": "list",
}
HEAD = """# JSON

This page is made by `python docs/make_json.py` from the JSON Schema files in
[schemas](schemas/results.json). Change those, and not this page.

It lists the keys of the JSON that the commands write and the service answers, for people whose
programs read it. The tests hold real outputs of the commands against the schemas.
[formats.md](formats.md) has all other files.

- A document says in `schema` or `format` what it is, with the number of its version. Check it
  before you read on.
- Read the keys that you need, and pass over those that you do not know: a later version may add
  some. The schemas allow no others, so that our tests find a key that nobody described.
- `a[].b` is the key `b` of each entry of the list `a`. `a.NAME` stands for every entry of the
  object `a`, whose keys are names. A key is always there, unless it says "may be absent".
- Numbers are finite: what has no value is null.
- Paths are as they were given, and texts are UTF-8.

A file can be checked with any validator of draft 2020-12, such as the package jsonschema of Python:
```py
import json
from pathlib import Path

import jsonschema

schema = json.loads(Path("docs/reference/schemas/results.json").read_text())
jsonschema.validate(json.loads(Path("results.json").read_text()), schema)
```
"""


def kind(schema: dict[str, Any]) -> str:
    """The type of a value in words."""
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    if "enum" in schema:
        return _either("null" if v is None else f'`"{v}"`' for v in schema["enum"])
    types = schema.get("type", "object" if "$ref" in schema else [])
    names = [types] if isinstance(types, str) else types
    return _either(_list(schema) if name == "array" else TYPES[name] for name in names)


def _list(schema: dict[str, Any]) -> str:
    """A list in words, with its length and what is in it, where these are plain."""
    of = {"string": "texts", "number": "numbers", "integer": "whole numbers"}
    inner = schema["items"].get("type")
    if not isinstance(inner, str) or inner not in of:
        return "list"
    least, most = schema.get("minItems"), schema.get("maxItems")
    return f"list of {f'{least} ' if least is not None and least == most else ''}{of[inner]}"


def _either(words: Iterable[str]) -> str:
    """a; a or b; a, b or c."""
    *first, last = [part for word in words for part in word.split(" or ")] or ["any value"]
    return f"{', '.join(first)} or {last}" if first else last


def entries(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Every key of an object with its schema and whether it is always there; those of inner objects
    come after it.
    """
    for name, value in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, value, name in schema["required"]
        yield from below(value, path)


def below(value: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """The keys inside a value."""
    yield from entries(value, f"{path}.")
    if isinstance(inner := value.get("items"), dict):
        yield from below(inner, f"{path}[]")
    if isinstance(inner := value.get("additionalProperties"), dict) and "$ref" not in inner:
        yield from entries(inner, f"{path}.NAME.")


def names_of(schema: dict[str, Any]) -> str:
    """The name of the definition that a value, its entries or its items refer to; or ""."""
    for value in (schema, schema.get("items"), schema.get("additionalProperties")):
        if isinstance(value, dict) and "$ref" in value:
            return str(value["$ref"]).rpartition("/")[2]
    return ""


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def keys(schema: dict[str, Any]) -> str:
    """The list of the keys of a document.

    Raises:
        ValueError: A key has no description.
    """
    lines = []
    for path, value, is_always_there in entries(schema):
        text = value.get("description", "")
        if not text:
            raise ValueError(f"{schema.get('title')}: {path} has no description; add one")
        referred = names_of(value)
        more = f" See **{referred}** below." if referred else ""
        of = kind(value) if is_always_there else f"{kind(value)}; may be absent"
        lines.append(wrapped(f"- `{path}` ({of}): {text}{more}", "  "))
    if isinstance(further := schema.get("additionalProperties"), dict):
        lines.append(wrapped(f"- further keys ({kind(further)}): {further['description']}", "  "))
    return "\n".join(lines)


def example(value: Any) -> str:
    """A value as JSON, of which short parts stay on one line."""
    return f"```json\n{_laid_out(value, 0)}\n```"


def _laid_out(value: Any, depth: int) -> str:
    short = json.dumps(value, ensure_ascii=False)
    if len(short) + depth <= WIDTH - 20 or not isinstance(value, dict | list) or not value:
        return short
    inside = " " * (depth + 1)
    if isinstance(value, list):
        parts = [_laid_out(part, depth + 1) for part in value]
        return "[" + f",\n{inside}".join(parts) + "]"
    parts = [f"{json.dumps(key)}: {_laid_out(part, depth + 1)}" for key, part in value.items()]
    return "{" + f",\n{inside}".join(parts) + "}"


def section(schema: dict[str, Any], level: str, more: str = "") -> str:
    """One document: what it is, an example and its keys."""
    text = wrapped(f"{schema['description']}{more}")
    examples = "\n".join(map(example, schema["examples"]))
    parts = [f"\n{level} {schema['title']}", text, examples, keys(schema)]
    for name, inner in schema.get("$defs", {}).items():
        parts += [f"\n**{name}**: {inner['description']}\n", keys(inner)]
    return "\n".join(part for part in parts if part) + "\n"


def page() -> str:
    """Make the text of docs/reference/json.md."""
    text = HEAD
    for name in ORDER:
        schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
        link = f" The schema is [schemas/{name}.json](schemas/{name}.json)."
        if name == "service":
            text += f"\n## {schema['title']}\n{wrapped(schema['description'] + link)}\n"
            text += "".join(section(inner, "###") for inner in schema["$defs"].values())
        else:
            text += section(schema, "##", link)
    return text


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
