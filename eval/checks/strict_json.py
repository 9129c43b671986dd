"""JSON as its standard has it: what Python's reader lets pass or corrects without a word is refused."""
import json
from collections import Counter
from typing import Any


def strict_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError also for keys that occur twice, NaN, and nesting without end."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict:
    twice = [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]
    if twice:
        raise ValueError(f"keys that occur twice: {json.dumps(twice, ensure_ascii=False)[1:-1]}")
    return dict(pairs)


def _no_constant(name: str):
    raise ValueError(f"{name} is no JSON value")
