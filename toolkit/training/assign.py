"""Settings given as text: `FIELD=VALUE` on dataclasses and parts, typed by their annotations."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

from eval.errors import LikenessError


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
    if owner is None:
        part = name.removesuffix("." + ".".join(path))
        raise LikenessError(
            f"override {name}: the recipe's {part} is None, so that nothing can be set inside it; "
            "choose a variant that has it, or copy the recipe and add it (likeness recipes --copy)"
        )
    is_group = dataclasses.is_dataclass(owner) and not isinstance(owner, type)
    func: Any
    if is_group:
        func, known = type(owner), vars(owner)
    elif isinstance(owner, partial) or inspect.isclass(owner) or inspect.isfunction(owner):
        bound = owner if isinstance(owner, partial) else partial(owner)
        func, known = bound.func, bound.keywords
    else:
        raise LikenessError(f"override {name}: {'.'.join(path)!r} cannot be set inside {owner!r}")
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
    value = (
        assign(known.get(head, defaults[head]), rest, text, name)
        if rest
        else _parse(text, _hint(func, head, defaults[head]), name)
    )
    changed = {**known, head: value}
    return func(**changed) if is_group else partial(func, **changed)


def _hint(func: Any, name: str, default: Any) -> Any:
    """Return the type of a setting: its annotation's, or its default's where it has none."""
    target = inspect.unwrap(func.__init__ if inspect.isclass(func) else func)
    try:
        hints = typing.get_type_hints(target)
    except Exception:  # parts of other projects may name what only type checkers import
        hints = {}
    is_plain = isinstance(default, bool | int | float | str)
    return hints.get(name, type(default) if is_plain else Any)


def _parse(text: str, hint: Any, name: str) -> Any:
    """Text to the annotated type: bool, int, float, str, Literal, a tuple of these, Optional, and
    numbers by name, as in a:1,b:2.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if text.lower() == "none" and type(None) in args:
            return None
        return _parse(text, next(kind for kind in args if kind is not type(None)), name)
    if origin is Literal:
        known = {str(value): value for value in args}
        if text not in known:
            raise LikenessError(f"override {name}={text!r}: must be one of {', '.join(known)}")
        return known[text]
    if origin is tuple:
        kinds = [kind for kind in args if kind is not Ellipsis]
        values = [value for value in text.strip("()[]").split(",") if value.strip()]
        if Ellipsis not in args and len(values) != len(kinds):
            raise LikenessError(
                f"override {name}={text!r}: expected {len(kinds)} values separated by commas"
            )
        return tuple(
            _parse(value.strip(), kinds[min(place, len(kinds) - 1)], name)
            for place, value in enumerate(values)
        )
    if origin is collections.abc.Mapping and args[1] in (int, float):
        return _parse_numbers(text, args[1], name)
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise LikenessError(f"override {name}={text!r}: expected true or false")
        return text.lower() == "true"
    if hint in (int, float):
        try:
            number = hint(text)
            if number != number:  # no setting means anything as NaN, and no comparison refuses it
                raise ValueError
            return number
        except ValueError:
            raise LikenessError(
                f"override {name}={text!r}: expected "
                f"{'a whole number' if hint is int else 'a number'}"
            ) from None
    if hint is str:
        return text
    raise LikenessError(
        f"override {name}={text!r}: this field is no number, text, true/false or list of them; "
        "change it in the recipe file"
    )


def _parse_numbers(text: str, kind: Any, name: str) -> dict[str, Any]:
    """Text such as a:1,b:2 to numbers by name."""
    pairs = [pair.rpartition(":") for pair in text.strip("{}").split(",") if pair.strip()]
    if not all(key.strip() for key, _, _ in pairs):
        raise LikenessError(f"override {name}={text!r}: expected NAME:NUMBER, separated by commas")
    return {key.strip(): _parse(value.strip(), kind, name) for key, _, value in pairs}


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error on a misspelt word: the known one that is most like it, "" for none.

    >>> suggest("margn", ["margin", "scale"])
    "; did you mean 'margin'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
