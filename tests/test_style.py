"""The linter's rules hold everywhere (settings in pyproject.toml)."""
import subprocess
import sys
from pathlib import Path


def test_ruff():
    result = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "."], cwd=Path(__file__).parents[1],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
