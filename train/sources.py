"""What code a compiled graph depends on."""
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def contents(source: Path) -> Iterator[bytes]:
    """Of a source of ours and of all of ours that it imports, and so on; and of what these compile."""
    found = _imported(source, set())
    for path in sorted(found | {kernel for one in found for kernel in one.parent.glob("*.cc")}):
        yield path.read_bytes()


def _imported(source: Path, found: set[Path]) -> set[Path]:
    if source in found or not source.exists():
        return found
    found.add(source)
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.ImportFrom):
            module = ROOT.joinpath(*node.module.split("."))
            for path in (module.with_suffix(".py"), module / "__init__.py", *(module / f"{name.name}.py" for name in node.names)):
                _imported(path, found)
    return found
