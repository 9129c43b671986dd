"""Glob patterns on the names of parameters, `blocks.*.mlp.*.weight`: of several, the first that matches counts."""
import difflib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from parallel.errors import UserError


def first_match(patterns: Sequence[str], name: str) -> int | None:
    """The place of the first pattern that matches a name; None: none does. `*` goes over dots, case counts."""
    return next((i for i, pattern in enumerate(patterns) if fnmatchcase(name, pattern)), None)


def check_patterns(key: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raise UserError for a pattern that would do nothing: none of `names` matches it, or those before it take them all."""
    counting = {first_match(patterns, name) for name in names}
    for i, pattern in enumerate(patterns):
        if i in counting:
            continue
        if any(fnmatchcase(name, pattern) for name in names):
            raise UserError(f"{key}: the pattern {pattern} does nothing, since the first match counts and those before it match "
                            "all that it matches: put it before them, or remove it")
        kinds = list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))
        near = difflib.get_close_matches(pattern, kinds, 3, 0.0)
        raise UserError(f"{key}: the pattern {pattern} matches no parameter; the nearest are {', '.join(near)}")
