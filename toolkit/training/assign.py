"""Settings given as text: `FIELD=VALUE` on dataclasses and parts, typed by their annotations."""

import collections.abc
import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from likeness.eval.errors import LikenessError
from likeness.eval.option import if_option


def split_assignment(text: str) -> tuple[str, str]:
    """The field and the value of `FIELD=VALUE`.

    Raises:
        LikenessError: There is no "=".

    Example:
        >>> split_assignment("optim.lr = 0.05")
        ('optim.lr', '0.05')
    """
    name, equals, value = text.partition("=")
    if not equals:
        form = f"write FIELD=VALUE, as in optim.lr=0.05{if_option(', and name data by --data')}"
        raise LikenessError(f"override {text!r} has no '='; {form}")
    return name.strip(), value.strip()


def assign(owner: Any, path: list[str], text: str, name: str) -> Any:
    """Return a dataclass or part with one setting changed, at any depth.

    Args:
        owner: A dataclass, a class or function, or one of these in functools.partial.
        path: The names that lead to the setting: ["loss", "margin"].
        text: The new value as text; the setting's annotation says its type.
        name: What errors call the setting.

    Returns:
        A copy of the owner.

    Raises:
        LikenessError: There is no such setting, or the text is no value of it.
    """
    head, rest = path[0], path[1:]
    is_group = dataclasses.is_dataclass(owner) and not isinstance(owner, type)
    func: Any
    if is_group:
        func, known = type(owner), vars(owner)
    elif isinstance(owner, partial) or inspect.isclass(owner) or inspect.isfunction(owner):
        bound = owner if isinstance(owner, partial) else partial(owner)
        func, known = bound.func, bound.keywords
    else:
        raise LikenessError(
            f"override {name}: {'.'.join(path)!r} cannot be set inside {owner!r}; choose a variant "
            "that has it, or copy the recipe and add it (likeness recipes --copy)"
        )
    defaults = {
        key: parameter.default
        for key, parameter in inspect.signature(func).parameters.items()
        if is_group
        or parameter.kind is parameter.KEYWORD_ONLY
        or parameter.default is not parameter.empty
    }
    if head not in defaults:
        raise LikenessError(
            f"override {name}: {func.__name__} has no setting {head!r}{suggest(head, defaults)}; "
            f"it has {', '.join(defaults) or 'none'}"
        )
    if rest:
        value = assign(known.get(head, defaults[head]), rest, text, name)
    else:
        hint = _hint(func, head, defaults[head])
        try:
            value = _parse(text, hint)
        except (KeyError, ValueError):
            raise LikenessError(
                f"override {name}={text!r}: expected {kind(hint) or 'nothing'}; what is no number, "
                "text or list of them is changed in the recipe file"
            ) from None
    changed = {**known, head: value}
    return func(**changed) if is_group else partial(func, **changed)


def settings_as_text(func: Any, stated: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a class or function that `assign` can change, as the text it reads.

    Args:
        func: The class or function.
        stated: The settings that differ from its defaults.

    Example:
        >>> settings_as_text(sorted, {"reverse": True})
        {'reverse': 'true'}
    """
    parameters = inspect.signature(func).parameters.values()
    values = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    }
    texts: dict[str, str] = {}
    for name, value in {**values, **stated}.items():
        text = as_text(value)
        with suppress(KeyError, ValueError):
            if text is not None:
                _parse(text, _hint(func, name, value))
                texts[name] = text
    return texts


def _hint(func: Any, name: str, default: Any) -> Any:
    """Return the type of a setting: its annotation's, or its default's where it has none."""
    target = inspect.unwrap(func.__init__ if inspect.isclass(func) else func)
    try:
        hints = typing.get_type_hints(target)
    except Exception:  # parts of other projects may name what only type checkers import
        hints = {}
    is_plain = isinstance(default, bool | int | float | str)
    return hints.get(name, type(default) if is_plain else Any)


def _parse(text: str, hint: Any) -> Any:
    """Text to the annotated type; KeyError or ValueError where it is no value of it.

    Types are bool, int, float, str, Literal, a tuple of these, a union, and numbers by name, as in
    a:1,b:2.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if text.lower() == "none" and type(None) in args:
            return None
        for member in args:  # the first that takes it
            with suppress(KeyError, ValueError):
                return _parse(text, member)
        raise ValueError
    if origin is Literal:
        texts = {as_text(value): value for value in args}
        return texts[text if text in texts else text.lower()]
    if origin is tuple:
        values = [value.strip() for value in text.strip("()[]").split(",") if value.strip()]
        hints = args[:1] * len(values) if Ellipsis in args else args
        return tuple(_parse(value, inner) for value, inner in zip(values, hints, strict=True))
    if origin is collections.abc.Mapping:
        pairs = [pair.rpartition(":") for pair in text.strip("{}").split(",") if pair.strip()]
        return {key.strip(): _parse(value.strip(), args[1]) for key, _, value in pairs}
    if hint is bool:
        return {"true": True, "false": False}[text.lower()]
    return {int: int, float: float, str: str}[hint](text)


def as_text(value: Any) -> str | None:
    """The text that `assign` reads as this value; None for a part, which no text is.

    >>> as_text(True), as_text(None), as_text((1, 2)), as_text(print)
    ('true', 'none', '1,2', None)
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, tuple):
        texts = list(map(as_text, value))
        return None if None in texts else ",".join(filter(None, texts))
    return "" if value == {} else None


def kind(hint: Any) -> str:
    """A type as people say it; "" of a group of fields.

    >>> kind(Literal[False, "graphs"]), kind(float | tuple[int, ...] | None)
    ('`false` or `graphs`', 'a number or comma-separated whole numbers or none')
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        words = [word for word in map(kind, inner) if word not in ("", "a part")] or ["a part"]
        return " or ".join([*words, *["none"] * (type(None) in inner)])
    if origin is Literal:
        *first, last = (f"`{as_text(value)}`" for value in inner)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is tuple:
        many = {str: "texts", int: "whole numbers"}.get(inner[0], "numbers")
        return f"comma-separated {many}"
    if origin is collections.abc.Mapping:
        return "comma-separated NAME:NUMBER" if inner[1] is float else "parts by name"
    if origin is collections.abc.Callable or hint is typing.Any:
        return "a part"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return names.get(hint, "")


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error on a misspelt word: the known one that is most like it, "" for none.

    >>> suggest("margn", ["margin", "scale"])
    "; did you mean 'margin'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
