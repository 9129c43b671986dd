"""python -m eval.lm_eval_adapter: run tasks of EleutherAI's lm-evaluation-harness on a checkpoint's model."""
import argparse
import json
import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

from data.tokenizer import EOS_ID, PAD_ID
from eval.harness import Adapter
from eval.rows import RowScorer
from eval.step import EvalStep
from model.writer import Writer
from parallel.errors import UserError
from parallel.mesh import Mesh
from train.evaluation import open_model


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eval.lm_eval_adapter", description=__doc__.partition(": ")[2])
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="D", help="a checkpoint's folder, or a run's")
    parser.add_argument("--tasks", required=True, metavar="A,B", help="names of the harness' tasks")
    parser.add_argument("--include-path", metavar="DIR", help="a folder with tasks of your own")
    parser.add_argument("--num-fewshot", type=int, metavar="N", help="examples before each question; default: the task's")
    parser.add_argument("--limit", type=int, metavar="N", help="questions of each task; default: all")
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="rows computed at once (default 8)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="other settings of the checkpoint's config")
    options = parser.parse_args(arguments)
    try:
        if options.batch_size < 1:
            raise UserError(f"--batch-size {options.batch_size}: give 1 or more")
        if options.limit is not None and options.limit < 1:
            raise UserError(f"--limit {options.limit}: give 1 or more")
        if options.num_fewshot is not None and options.num_fewshot < 0:
            raise UserError(f"--num-fewshot {options.num_fewshot}: give 0 or more")
        if options.include_path and not Path(options.include_path).is_dir():
            raise UserError(f"--include-path {options.include_path}: there is no such folder")
        if options.report and (options.report.is_dir() or not options.report.parent.is_dir()):
            raise UserError(f"--report {options.report}: give a file in a folder that exists")
        manager, tasks = TaskManager(include_path=options.include_path), options.tasks.split(",")
        if missing := [name for name in tasks if not manager.match_tasks([name])]:
            raise UserError(f"--tasks: the harness knows no {', '.join(missing)}; lm-eval ls tasks lists what it knows")
        adapter = build_adapter(options.checkpoint, options.overrides, options.batch_size)
        results = simple_evaluate(adapter, tasks=tasks, num_fewshot=options.num_fewshot, limit=options.limit,
                                  task_manager=manager, log_samples=False)
    except ConnectionError as error:
        print(f"error: --tasks: their data cannot be had here ({error})", file=sys.stderr)
        return 2
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(make_table(results))
    if options.report:
        options.report.write_text(json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8")
    return 0


def build_adapter(path: Path, overrides: list[str], batch_size: int) -> Adapter:
    """A checkpoint's model for the harness, on one card."""
    config, gpt, tokenizer = open_model(path, overrides)
    step, length = EvalStep(gpt, PAD_ID), config.model.seq_length
    return Adapter(RowScorer(step, step, Mesh(1), batch_size), Writer(gpt, batch_size, length, EOS_ID), tokenizer, length,
                   config.run.seed)
