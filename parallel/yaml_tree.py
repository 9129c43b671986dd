"""One YAML file, or one `--set` value, as plain Python values, each with the place where it was written.

Scalars follow YAML 1.2 and nothing more: `1e-4` is a number, only `true` and `false` are booleans, integers are decimal
digits. What other readers turn into something else (0100, 1_000, 1:30, yes, .inf) stays text, so that the type check
refuses it. Duplicate keys, anchors, aliases, merge keys and tags are refused.

`base: other.yaml` at the top of a file (relative to it) takes over all that the other file says. Maps merge key by key; anything
else, a list too, replaces what the base has. Each value keeps the file and line where it stands.
"""
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from parallel.errors import UserError

Keys = tuple[str, ...]
DEEPEST = 100  # sections and lists in each other; Python's own limit is MindSpore's to set
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,299})")
_NUMBER = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def scalar(text: str) -> Any:
    """None, bool, int, finite float, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


@dataclass(frozen=True)
class Origin:
    """Where a value was written: a line of a file or an override; as which text; in quotes or not."""

    file: str
    line: int
    override: str = ""
    text: str = ""
    quoted: bool = False


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML up to its nodes, without its guesses about types."""

    def __init__(self, text: str):
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self.depth = 0

    def compose_node(self, parent, index):
        event = self.peek_event()
        for what in ("anchor", "tag"):
            if getattr(event, what, None) is not None:
                raise yaml.MarkedYAMLError(
                    problem="anchors (&), aliases (*) and tags (!) are not used here, found "
                            f"{getattr(event, what)!r}: write the value itself, in quotes if it is text",
                    problem_mark=event.start_mark)
        if self.depth == DEEPEST:
            raise RecursionError
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class Tree:
    """Nested dicts, lists and scalars (`values`) and, by their keys, where each was written (`origins`).

    Args:
        path: the file; those that it is based on are read with it.
        above: the files that are based on this one.
    """

    def __init__(self, path: str | Path, above: tuple[Path, ...] = ()):
        self.path = str(path)
        self.files = [self.path]
        self.origins: dict[Keys, Origin] = {}
        self.errors: list[str] = []
        node = self._compose(_read(Path(path)), f"{self.path}:")
        if not isinstance(node, yaml.MappingNode):
            kind = "nothing" if node is None else "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
            raise UserError(f"{self.path}: the file holds {kind}; expected sections such as `train:` with `key: value` "
                            "lines below")
        self.values = self._value(node, (), "")
        if "base" in self.values:
            self._inherit((*above, Path(path).resolve()))

    def _inherit(self, files: tuple[Path, ...]) -> None:
        """Take over what `base` has and this file does not say."""
        where, name = self.where(("base",)), self.values.pop("base")
        del self.origins["base",]
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise UserError(f"{where}: base: got {show(name)}, expected the path of another config file, relative to this one")
        home = Path(name).parts[:1] == ("~",)
        path = Path(os.path.normpath(Path(self.path).parent / (Path(name).expanduser() if home else name)))
        if path.resolve() in files:
            chain = " -> ".join(file.name for file in (*files[files.index(path.resolve()):], path.resolve()))
            raise UserError(f"{where}: base: {name} leads in a circle ({chain}): remove one of these lines")
        if not path.is_file():
            raise UserError(f"{where}: base: there is no file {path}; a base is named relative to the file that names it")
        base = Tree(path, files)
        self.files += base.files
        self.errors += base.errors
        self._merge(base, self.values, base.values, ())

    def _merge(self, base: "Tree", mine: dict[str, Any], theirs: dict[str, Any], keys: Keys) -> None:
        for key, value in theirs.items():
            at = (*keys, key)
            if key not in mine:
                mine[key] = value
                self.origins.update({name: origin for name, origin in base.origins.items() if name[:len(at)] == at})
            elif isinstance(mine[key], dict) and isinstance(value, dict):
                self._merge(base, mine[key], value, at)

    def where(self, keys: Keys) -> str:
        """`file.yaml:12` or `--set a.b=c`, of the value or of the nearest section around it."""
        while keys and keys not in self.origins:
            keys = keys[:-1]
        origin = self.origins.get(keys) if keys else None
        if origin is None:
            return self.path
        return f"--set {origin.override}" if origin.override else f"{origin.file}:{origin.line}"

    def rank(self, keys: Keys) -> int:
        """Who wrote a value: 0 an override, 1 this file, 2 its base, 3 that one's, ..."""
        origin = self.origins.get(keys)
        return 1 if origin is None else 0 if origin.override else 1 + self.files.index(origin.file)

    def override(self, assignment: str) -> None:
        """Apply `a.b=c`: a map that is already there gets the key, anything else is replaced."""
        if not assignment.isprintable():
            raise UserError(f"--set {ascii(assignment)}: not valid text")
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not all(name.split(".")):
            raise UserError(f"--set {assignment}: expected key=value with the key's full name, such as train.lr=3e-4")
        keys = tuple(name.split("."))
        if keys == ("base",):
            raise UserError(f"--set {assignment}: base stands at the top of a config file: write one with this line, and name it "
                            "by --config")
        parent = self.values
        for depth, key in enumerate(keys[:-1], 1):
            parent = parent.setdefault(key, {})
            self.origins.setdefault(keys[:depth], Origin(self.path, 0, assignment))
            if not isinstance(parent, dict):
                raise UserError(f"--set {assignment}: {'.'.join(keys[:depth])} is {show(parent)} in "
                                f"{self.where(keys[:depth])}, not a section: it has no keys of its own")
        for old in [old for old in self.origins if old[:len(keys)] == keys]:
            del self.origins[old]
        if text[:1] in tuple("[{\"'"):  # anything else is one scalar, whatever YAML would make of its # or : or *
            parent[keys[-1]] = self._value(self._compose(text, f"--set {assignment}:"), keys, assignment)
        else:
            self._note(keys, Origin(self.path, 0, assignment, text))
            parent[keys[-1]] = scalar(text)

    def _compose(self, text: str, where: str) -> yaml.Node | None:
        try:
            return _Loader(text).get_single_node()
        except yaml.MarkedYAMLError as e:
            mark = e.problem_mark or e.context_mark
            line = f"{mark.line + 1}: column {mark.column + 1}:" if where.startswith(self.path) else ""
            raise UserError(f"{where}{line} not valid YAML: {' '.join(filter(None, (e.context, e.problem)))}") from None
        except yaml.reader.ReaderError as e:
            line = text.count("\n", 0, e.position) + 1
            raise UserError(f"{where}{line}: the character U+{e.character:04X} may not stand in YAML") from None
        except RecursionError:
            raise UserError(f"{where} nested too deeply") from None

    def _note(self, keys: Keys, origin: Origin) -> None:
        self.origins[keys] = origin
        try:
            origin.text.encode()
        except UnicodeEncodeError:
            self.errors.append(f"{self.where(keys)}: {'.'.join(keys)}: the text is not valid Unicode")

    def _value(self, node: yaml.Node, keys: Keys, override: str) -> Any:
        if isinstance(node, yaml.ScalarNode):
            plain = node.style is None
            self._note(keys, Origin(self.path, node.start_mark.line + 1, override, node.value, not plain))
            return scalar(node.value) if plain else node.value
        self.origins.setdefault(keys, Origin(self.path, node.start_mark.line + 1, override))
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*keys, str(i)), override) for i, item in enumerate(node.value)]
        values: dict[str, Any] = {}
        for key, item in node.value:
            line, name = key.start_mark.line + 1, key.value
            here = f"--set {override}" if override else f"{self.path}:{line}"
            if not isinstance(key, yaml.ScalarNode) or (name == "<<" and key.style is None):
                self.errors.append(f"{here}: {'.'.join(keys) or 'top level'}: a key must be plain text; no merge keys")
            elif name in values:
                first = self.origins[(*keys, name)].line
                self.errors.append(f"{here}: {'.'.join((*keys, name))}: written twice"
                                   + ("" if override else f", first in line {first}") + "; remove one")
            else:
                self.origins[(*keys, name)] = Origin(self.path, line, override)
                values[name] = self._value(item, (*keys, name), override)
        return values


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        hint = f"; is it a setting? --set {path}" if "=" in str(path) else ""
        raise UserError(f"{path}: no such config file (current folder: {Path.cwd()}){hint}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; expected a YAML file") from None
    except OSError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw.count(b"\n", 0, e.start) + 1
        raise UserError(f"{path}:{line}: byte 0x{raw[e.start]:02x} is not UTF-8; save the file as UTF-8") from None


def show(value: Any, text: str = "") -> str:
    """A value as a message names it, with its kind: "3e-4x" (text), 0.1 (number), null, a list of 2."""
    if isinstance(value, dict):
        return f"a map with the keys {', '.join(value)}" if value else "an empty map"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        shown = json.dumps(value if len(value) <= 60 else value[:57] + "...", ensure_ascii=False)
        return f"{shown} (text)"
    if value is None:
        return "null"
    kind = {bool: "boolean", int: "integer", float: "number"}[type(value)]
    return f"{text or value} ({kind})"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data):
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    style = None if isinstance(scalar(text), str) and text.isprintable() else '"'  # PyYAML folds U+0085 away unescaped
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(values: dict[str, Any]) -> str:
    """YAML that this module reads back to the same values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)
