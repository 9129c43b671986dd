"""What a tree of `Section` classes says of itself: a line on each key for `--help`, a JSON schema for editors."""
import json
import re
import textwrap
from collections.abc import Iterator
from typing import get_origin

from pydantic.fields import FieldInfo

from parallel.config import Section
from parallel.config_file import plain
from parallel.config_words import expected, section_of, sections

# The unit of a number, by the key's name or the last word of it.
UNITS = {
    "seq_length": "tokens", "vocab_size": "tokens", "tokens": "tokens", "samples": "samples", "global_batch_size": "samples",
    "micro_batch_size": "samples", "batch_size": "prompts", "num_batches": "batches", "roll_back_batches": "batches",
    "prefetch": "batches",
    "steps": "steps", "step": "steps", "window": "steps", "growth_interval": "steps", "skip_first": "steps", "wait": "steps",
    "warmup": "steps", "active": "steps", "hours": "hours", "minutes": "minutes", "seconds": "seconds", "s": "seconds",
    "us": "microseconds", "kb": "KiB", "mb": "MiB", "gb": "GB", "gbs": "GB/s", "tflops": "TFLOP/s",
}
BASE = "another config file, relative to this one, on which this one builds: maps merge, anything else replaces"


def keys(tree: type[Section], path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(full name, field) of each key, sections among them, with those in them behind them; `name[]` is one of a list."""
    for name, field in tree.model_fields.items():
        yield path + name, field
        if inner := section_of(field.annotation):
            listed = "[]" if get_origin(field.annotation) in (list, tuple) else ""
            yield from keys(inner, f"{path}{name}{listed}.")


def meaning(field: FieldInfo) -> str:
    """A field's own line, or the first paragraph of its section."""
    section = section_of(field.annotation)
    return field.description or " ".join((section.__doc__ if section else "").partition("\n\n")[0].split())


def unit(name: str, field: FieldInfo) -> str | None:
    """What a number counts or is measured in; None: nothing, or no number."""
    if not {"int", "float"} & set(re.findall(r"\w+", str(field.annotation))):
        return None
    last = name.rpartition(".")[2]
    return UNITS.get(last) or UNITS.get(last.rpartition("_")[2])


def describe(tree: type[Section]) -> str:
    """All keys: what each takes, its unit, its default, and its meaning; for a terminal of 80 columns."""
    lines = ["base: a path", _filled(BASE, 4)]
    for name, field in keys(tree):
        if section_of(field.annotation) is field.annotation:
            lines += ["", _filled(f"{name}: {meaning(field)}", 0)]
            continue
        said = [expected(field.annotation, field.metadata), unit(name, field),
                "required" if field.is_required() else f"default {json.dumps(plain(field.default), ensure_ascii=False)}"]
        lines += [_filled(f"{name}: {'; '.join(filter(None, said))}", 0), _filled(meaning(field), 4)]
    return "\n".join(lines)


def _filled(text: str, indent: int) -> str:
    return textwrap.fill(text, 79, initial_indent=" " * indent, subsequent_indent="    ", break_on_hyphens=False)


def json_schema(tree: type[Section]) -> str:
    """The schema of a config file, as JSON. No key of a section is required: a base may have it."""
    schema = tree.model_json_schema()
    partial = {section.__name__ for section in sections(tree).values()}
    for part in (schema, *schema["$defs"].values()):
        if part.pop("title") in partial:
            part.pop("required", None)
        for field in part["properties"].values():
            field.pop("title", None)
            if "$ref" in field:
                field.pop("default", None)  # the section's own keys have theirs
    schema["properties"] = {"base": {"type": "string", "description": BASE}, **schema["properties"]}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
