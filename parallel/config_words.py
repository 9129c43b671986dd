"""A tree of `Section` classes in words: what a key takes, and which sections there are."""
import re
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as at
from pydantic.fields import FieldInfo

from parallel.config import Section

_BOUNDS = {at.Gt: ("gt", "> "), at.Ge: ("ge", ">= "), at.Lt: ("lt", "< "), at.Le: ("le", "<= "),
           at.MultipleOf: ("multiple_of", "a multiple of "), at.MinLen: ("min_length", "length >= "),
           at.MaxLen: ("max_length", "length <= ")}
_TYPES = {bool: "true or false", int: "an integer", float: "a number", str: "text", Path: "a path",
          type(None): "null", Any: "any value"}


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a field is or holds; None: neither."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(section_of, get_args(annotation))), None)


def sections(tree: type[Section], keys: tuple[str, ...] = ()) -> dict[tuple[str, ...], type[Section]]:
    """The sections of a tree by their keys; not those in lists, whose keys are not set one at a time."""
    found = {keys: tree}
    for name, field in tree.model_fields.items():
        inner = None if get_origin(field.annotation) in (list, tuple) else section_of(field.annotation)
        found.update(sections(inner, (*keys, name)) if inner else {})
    return found


def expected(annotation: Any, metadata: Any = ()) -> str:
    """What a field takes, in words: an integer >= 1, "auto" or an integer, a path or null."""
    bounds = [sign + re.sub(r"\.0$", "", str(getattr(m, name))) for m in metadata
              for kind, (name, sign) in _BOUNDS.items() if isinstance(m, kind)]
    bounds += [f"matching {m.pattern}" for m in metadata if getattr(m, "pattern", None)]
    suffix = f" {' and '.join(bounds)}" if bounds else ""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [x for m in args[1:] for x in (m.metadata if isinstance(m, FieldInfo) else [m])]
        return expected(args[0], [*inner, *metadata])
    if origin in (Union, types.UnionType):  # bounds say nothing about null
        shown = [expected(arg, () if arg is type(None) else metadata) for arg in args]
        return " or ".join(dict.fromkeys(shown))
    if origin is Literal:
        return ", ".join(f'"{a}"' if isinstance(a, str) else str(a) for a in args[:-1]) \
            + (" or " if len(args) > 1 else "") + (f'"{args[-1]}"' if isinstance(args[-1], str) else str(args[-1]))
    if origin is dict:
        return f"a map of names, each with {expected(args[1])}{suffix}"
    if origin is tuple and args[-1] is not Ellipsis:
        return f"a list of {len(args)}, [{', '.join(map(expected, args))}]"
    if origin in (list, tuple):
        return f"a list, each {expected(args[0])}{suffix}"
    section = section_of(annotation)
    if section:
        needed = [name for name, field in section.model_fields.items() if field.is_required()]
        return "a section of `key: value` lines" + (f" with {', '.join(needed)}" if needed else "")
    return _TYPES.get(annotation, getattr(annotation, "__name__", str(annotation))) + suffix
