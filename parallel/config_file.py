"""A run's YAML file, read strictly into a tree of `Section` classes, with `--set key=value` overrides.

Every mistake of a file is listed, one line each: file and line (or the override), the key's full name, the value, what
is allowed, the nearest valid name. Paths: relative to the file's folder where the file says them, to the current folder
where an override or a default does; `~/` is the home folder; the result is absolute. An override merges into sections,
one key at a time; a map in place of a whole section is refused. A file may build on another one (`base:`, see yaml_tree).
"""
import argparse
import difflib
import os
import re
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError, create_model
from pydantic.fields import FieldInfo

from parallel.config import Section
from parallel.config_words import expected, section_of, sections
from parallel.errors import UserError
from parallel.yaml_tree import Keys, Tree, scalar, show, to_yaml

S = TypeVar("S", bound=Section)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every command of a run shares: --config FILE, --set KEY=VALUE ... (repeatable)."""
    parser.add_argument("--config", required=True, metavar="FILE", help="the run's YAML file")
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="override keys of the file, such as train.lr=3e-4")


def load(path: str | Path, tree: type[S], overrides: list[str]) -> S:
    """Read and check a whole file. Raises UserError with one line for each mistake."""
    return _check(_overridden(path, overrides, tree), tree)


def load_section(path: str | Path, overrides: list[str], name: str, section: type[S]) -> S:
    """Read and check the section `name` alone; the others are left to commands that know them."""
    one = create_model("One", __base__=Section, **{name: (section, ...)})
    for assignment in overrides:
        if not re.match(rf"\s*{name}\s*[.=]", assignment) and "=" in assignment:
            raise UserError(f"--set {assignment}: this command knows the section {name} only: set {name}.<key>=<value>")
    source = _overridden(path, overrides, one)
    source.values = {key: value for key, value in source.values.items() if key == name}
    return getattr(_check(source, one), name)


def dump(config: Section) -> str:
    """The resolved tree as YAML; `load` reads it back to an equal tree."""
    return to_yaml(plain(config))


def plain(value: Any) -> Any:
    """Values of a tree as YAML and JSON know them: lists for tuples, text for paths, maps for sections."""
    if isinstance(value, Section):
        return plain(value.model_dump())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _overridden(path: str | Path, overrides: list[str], tree: type[Section]) -> Tree:
    source = Tree(path)
    known = sections(tree)
    for assignment in overrides:
        source.override(assignment)
        keys = tuple(assignment.partition("=")[0].strip().split("."))
        if keys in known and isinstance(_lookup(source.values, keys), dict):
            raise UserError(f"--set {assignment}: {'.'.join(keys)} is a section: set its keys one at a time, "
                            f"{'.'.join(keys)}.<key>=<value>, of {', '.join(known[keys].model_fields)}")
    return source


def _check(source: Tree, tree: type[S]) -> S:
    messages: dict[str, None] = dict.fromkeys(source.errors)
    try:
        config = tree.model_validate(source.values)
    except ValidationError as e:
        problems = [_translate(error, source, tree) for error in e.errors(include_url=False)]
        messages.update(dict.fromkeys(text for _, text in sorted(problems, key=lambda problem: problem[0])))
    if messages:
        raise UserError("\n".join(messages).encode("utf-8", "backslashreplace").decode())
    return _absolute(config, (), source)


def _absolute(value: Any, keys: Keys, source: Tree) -> Any:
    """The same tree with absolute paths; everything else is the same object."""
    if isinstance(value, Section):
        pairs = {name: (getattr(value, name), _absolute(getattr(value, name), (*keys, name), source))
                 for name in type(value).model_fields}
        changed = {name: new for name, (old, new) in pairs.items() if new is not old}
        return value.model_copy(update=changed) if changed else value
    if isinstance(value, dict):
        return {key: _absolute(item, (*keys, key), source) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_absolute(item, (*keys, str(i)), source) for i, item in enumerate(value))
    if not isinstance(value, Path):
        return value
    origin = source.origins.get(keys)
    if origin and not origin.text:
        raise UserError(f"{source.where(keys)}: {'.'.join(keys)}: got an empty path; write `.` for the folder itself")
    home = value.parts[:1] == ("~",)
    base = Path(origin.file).absolute().parent if origin and not origin.override else Path.cwd()
    return Path(os.path.abspath(base / (value.expanduser() if home else value)))


# From here on: pydantic's errors in our own words.

def _translate(error: dict[str, Any], source: Tree, tree: type[Section]) -> tuple[Any, str]:
    """(sort key, line) of one error of pydantic."""
    keys, section, field = _locate(error["loc"], source.values, tree)
    name, origin = ".".join(keys), source.origins.get(keys)
    rank = source.rank(keys)
    order = (rank == 0, rank, origin.line if origin else 0)
    if error["type"] in ("value_error", "assertion_error"):
        text = str(error["ctx"]["error"])
        if not keys:  # a rule across sections: point at the first key that it names, of those the user wrote last
            named = [tuple(word.split(".")) for word in re.findall(r"\w+(?:\.\w+)+", text)]
            keys = min((key for key in named if key in source.origins), key=source.rank, default=())
            return order, f"{source.where(keys)}: {text}"
        return order, f"{source.where(keys)}: {name}: {text}"
    if error["type"] == "extra_forbidden":
        return order, f"{source.where(keys)}: {name}: unknown key{_suggest(keys, section, tree)}"
    wanted = expected(field.annotation, field.metadata)
    if error["type"] == "missing" and keys not in source.origins:  # else: a list that is too short
        return order, f"{source.where(keys)}: {name}: missing; expected {wanted}"
    value = _lookup(source.values, keys)
    text = origin.text if origin else ""
    got = f"{source.where(keys)}: {name}: got {show(value, text)}, expected {wanted}"
    if origin and origin.override and isinstance(value, int | float) and str in (field.annotation, *get_args(field.annotation)):
        return order, f"{got}; write it in quotes that the shell leaves: {name}='\"{text}\"'"
    return order, got + _hint(value, bool(origin and origin.quoted), field)


def _locate(loc: tuple, values: Any, tree: type[Section]) -> tuple[Keys, type[Section], FieldInfo | None]:
    """Pydantic's location without the names of union members -> keys, the innermost section, its field."""
    keys: Keys = ()
    section, field = tree, None
    for part in loc:
        known = isinstance(values, dict) and part in values or isinstance(values, list) and part in range(len(values))
        inner = section_of(field.annotation) if field else tree
        if inner is not None and part in inner.model_fields:
            section, field = inner, inner.model_fields[part]
        elif inner is not None and known and not isinstance(values, list):
            section, field = inner, None
        elif not known:
            continue
        keys, values = (*keys, str(part)), values[part] if known else None
    return keys, section, field


def _lookup(values: Any, keys: Keys) -> Any:
    for key in keys:
        values = values[int(key)] if isinstance(values, list) else values.get(key)
    return values


def _hint(value: Any, quoted: bool, field: FieldInfo) -> str:
    kinds = str(field.annotation)
    number = "int" in kinds or "float" in kinds
    choices = [arg for arg in _literals(field.annotation) if isinstance(arg, str)]
    if isinstance(value, float) and value.is_integer() and "int" in kinds:
        return f"; write {int(value)}"
    if not isinstance(value, str):
        return ""
    if quoted and not isinstance(scalar(value), str):
        return f"; remove the quotes: {value}"
    if "bool" in kinds and value.lower() in ("true", "yes", "on", "y", "false", "no", "off", "n"):
        return f"; write {'true' if value.lower() in ('true', 'yes', 'on', 'y') else 'false'}"
    near = difflib.get_close_matches(value.lower(), [*choices, "null"], 1, 0.5)
    if near:
        return f"; did you mean {near[0]}?"
    if number and re.match(r"[-+]?0[0-9xXoObB]|[-+]?[0-9][0-9_:,]*$", value):
        return "; numbers are plain decimal digits: no leading 0, no _ or : or 0x"
    if number and re.match(r"[-+]?\.?(inf|nan)|[-+]?[0-9.]+[eE]?[-+]?[0-9]*$", value, re.I):
        return "; the number must be finite"
    typo = re.match(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?", value)
    return f"; did you mean {typo[0]}?" if number and typo and not isinstance(scalar(typo[0]), str) else ""


def _literals(annotation: Any) -> list[Any]:
    args = get_args(annotation)
    return list(args) if get_origin(annotation) is Literal else [x for arg in args for x in _literals(arg)]


def _suggest(keys: Keys, section: type[Section], tree: type[Section]) -> str:
    """The nearest valid names, of all sections; else the names of this section."""
    names = [(*path, name) for path, inner in sections(tree).items() for name in inner.model_fields]
    scores = {".".join(name): _likeness(keys[-1], name[-1]) + _nearness(name, keys) for name in names}
    near = sorted((name for name in scores if scores[name] >= 0.7), key=scores.get, reverse=True)[:3]
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; {'.'.join(keys[:-1]) or 'the top level'} has the keys {', '.join(section.model_fields)}"


def _nearness(name: Keys, keys: Keys) -> float:
    """In the same section more, and less the deeper a name lies elsewhere."""
    return 0.05 if name[:-1] == keys[:-1] else -0.1 * max(0, len(name) - 2)


def _likeness(given: str, name: str) -> float:
    """0 to 1: by spelling, by shared words (max_steps, total_steps), by initials (learning_rate, lr)."""
    given, name = (re.sub(r"(?<=[a-z])(?=[A-Z])|[-\s]", "_", text).lower() for text in (given, name))
    a, b = given.split("_"), name.split("_")
    if len(given) > 1 and (_initials(a) == name or _initials(b) == given):
        return 0.9
    words = 0.5 + 0.4 * len(set(a) & set(b)) / max(len(a), len(b)) if a[-1] == b[-1] else 0.0
    return max(difflib.SequenceMatcher(None, given, name).ratio(), words)


def _initials(words: list[str]) -> str:
    return "".join(word[:1] for word in words)
