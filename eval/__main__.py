"""python -m eval --checkpoint D: see train/evaluate.py; compare, export-human, import-human: see eval/commands.py."""
import sys

from eval import commands
from train import evaluate

if __name__ == "__main__":
    works_on_reports = sys.argv[1:2] and sys.argv[1] in commands.NAMES
    sys.exit((commands.main if works_on_reports else evaluate.main)(sys.argv[1:]))
