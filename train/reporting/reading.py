"""What a run's folder tells, also while it is written to, and where files are damaged or missing: in bounded memory."""
import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from parallel.errors import UserError
from train.profiling.tables import Broken, read_json, read_text
from train.reporting.curves import LAST_STEP, Curve, number
from train.reports import headline

FIGURES = ("loss", "lr", "grad_norm", "tokens_per_second", "loss_scale", "data_wait", "memory_bytes")
LONGEST = 2**22  # bytes of a line
EVENTS = 60      # the last ones, that are shown one by one
DEEP = 3         # evaluations whose texts are shown: the first, one between, the last
FOUND = 20       # nan_step_<N>.json


@dataclass
class Task:
    """Of one task: its headline figure over the run, and the scores of the newest evaluation."""

    curve: Curve = field(default_factory=Curve)
    scores: dict = field(default_factory=dict)


@dataclass
class Run:
    """What was read; `problems` says of what else, and why not."""

    folder: Path
    config_text: str = ""
    config: dict = field(default_factory=dict)
    report: dict | None = None                                          # report.json
    curves: dict[str, Curve] = field(default_factory=lambda: {name: Curve() for name in FIGURES})
    rows: int = 0                                                       # lines of metrics.jsonl
    first_step: int | None = None
    last_step: int | None = None
    skipped: int = 0                                                    # steps whose gradients were not finite
    tokens: float = 0.0
    step_seconds: float = 0.0
    wait_seconds: float = 0.0
    valid: Curve = field(default_factory=Curve)                         # loss of all held-out text together
    corpora: dict[str, Curve] = field(default_factory=lambda: defaultdict(Curve))  # perplexities
    stage: dict | None = None                                           # the newest evaluation's, without items
    stage_step: int = 0
    stage_seconds: float = 0.0
    evaluations: int = 0
    tasks: dict[str, Task] = field(default_factory=lambda: defaultdict(Task))
    deep: list[tuple[int, dict]] = field(default_factory=list)
    events: deque = field(default_factory=lambda: deque(maxlen=EVENTS))
    rules: Counter = field(default_factory=Counter)                     # (rule, level) -> events
    found: list[dict] = field(default_factory=list)                     # nan_step_<N>.json
    passed_over: list[dict] = field(default_factory=list)
    verdict: dict | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """By its folder, which a copy from another machine has too."""
        return self.folder.resolve().name

    def setting(self, *keys: str) -> Any:
        """A value of config.yaml; None where there is none."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def total_steps(self) -> int | None:
        """Of the whole run, if it is known."""
        total = self.setting("train", "total_steps")
        return total if isinstance(total, int) and 0 < total < LAST_STEP else None


def read(folder: Path) -> Run:
    """Everything there is. Raises UserError where this is no run's folder."""
    if not any((folder / name).is_file() for name in ("config.yaml", "metrics.jsonl", "report.json")):
        raise UserError(f"{folder}: no run here, there is neither config.yaml nor metrics.jsonl: give the folder of a run, such "
                        "as runs/smoke")
    run = Run(folder)
    _config(run)
    run.report = _object(run, folder / "report.json")
    _metrics(run)
    _evaluations(run)
    for row in _lines(run, folder / "events.jsonl"):
        if isinstance(row.get("step"), int):
            run.events.append(row)
            run.rules[str(row.get("rule")), str(row.get("level"))] += 1
    for path in sorted(folder.glob("nan_step_*.json"))[-FOUND:]:
        if found := _object(run, path):
            run.found.append(found)
    run.passed_over = _passed_over(run, folder / "passed_over.json")
    verdicts = sorted(folder.glob("profile/step_*/verdict.json"))
    run.verdict = _object(run, verdicts[-1]) if verdicts else None
    return run


def _config(run: Run) -> None:
    try:
        run.config_text = read_text(run.folder / "config.yaml")
        loaded = yaml.safe_load(run.config_text)
        run.config = loaded if isinstance(loaded, dict) else {}
    except Broken as error:
        run.problems.append(str(error))
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date that there is not
        run.problems.append(f"{run.folder / 'config.yaml'}: no YAML ({' '.join(str(error).split())})")


def _object(run: Run, path: Path) -> dict | None:
    """A JSON object; None if there is no such file, or it is broken."""
    if not path.is_file():
        return None
    try:
        return read_json(path)
    except Broken as error:
        run.problems.append(str(error))
        return None


def _passed_over(run: Run, path: Path) -> list[dict]:
    if not path.is_file():
        return []
    try:
        return [one for one in json.loads(read_text(path)) if isinstance(one, dict)]
    except (Broken, ValueError, TypeError, RecursionError) as error:
        run.problems.append(f"{path}: cannot be read ({error})")
        return []


def _lines(run: Run, path: Path) -> Iterator[dict]:
    """The objects of a JSONL file, one at a time. What is no object is counted and told, but not a last line without an end,
    which may be in the midst of being written."""
    if not path.is_file():
        return
    bad = 0
    try:
        with open(path, "rb") as file:
            while line := file.readline(LONGEST):
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict):
                    yield row
                elif line.endswith(b"\n") or len(line) == LONGEST:
                    bad += bool(line.strip())
    except OSError as error:
        run.problems.append(f"{path}: cannot be read to its end ({error.strerror})")
    if bad:
        run.problems.append(f"{path}: {bad} line(s) that are damaged")


def _metrics(run: Run) -> None:
    limit, beyond = run.total_steps or LAST_STEP, 0
    curves = list(run.curves.items())
    for row in _lines(run, run.folder / "metrics.jsonl"):
        step = row.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= limit:
            beyond += 1
            continue
        run.rows += 1
        run.first_step = step if run.first_step is None else min(run.first_step, step)
        run.last_step = step if run.last_step is None else max(run.last_step, step)
        for name, curve in curves:
            value = row.get(name)
            if value is not None or name in ("loss", "grad_norm") and name in row:
                curve.add(step, value)
        run.skipped += row.get("overflow") is True
        run.tokens += number(row.get("tokens")) or 0.0
        seconds = number(row.get("step_seconds")) or 0.0
        run.step_seconds += seconds
        run.wait_seconds += seconds * (number(row.get("data_wait")) or 0.0)
    if beyond:
        run.problems.append(f"{run.folder / 'metrics.jsonl'}: {beyond} line(s) without a step of this run")


def _evaluations(run: Run) -> None:
    """The reports of eval/, one at a time: with the scores of every item they are large."""
    deep = []
    for path in sorted(run.folder.glob("eval/step_*.json")):
        if not (report := _object(run, path)):
            continue
        try:
            _evaluation(run, report)
            if isinstance(report.get("deep"), dict):
                deep.append((report["step"], path))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            run.problems.append(f"{path}: not an evaluation's report ({type(error).__name__}: {error})")
    chosen = {round(i * (len(deep) - 1) / (DEEP - 1)) for i in range(DEEP)} if deep else set()
    run.deep = [(deep[i][0], found["deep"]) for i in sorted(chosen) if (found := _object(run, deep[i][1]))]


def _evaluation(run: Run, report: dict) -> None:
    step = report["step"]
    if not isinstance(step, int) or not 0 <= step <= LAST_STEP:
        raise ValueError(f"step {step}")
    run.evaluations += 1
    if not (stage := report.get("stage")):
        return
    run.valid.add(step, stage["all"]["loss"])
    for name, scores in stage["corpora"].items():
        run.corpora[str(name)].add(step, scores["perplexity"])
    for name, scores in stage["tasks"].items():
        if scores["questions"]:
            run.tasks[str(name)].curve.add(step, headline(scores))
            run.tasks[str(name)].scores = {key: value for key, value in scores.items() if key != "items"}
    run.stage_seconds += sum(filter(None, map(number, stage["seconds"].values())))
    run.stage_step = step
    run.stage = {**stage, "tasks": {}, "corpora": {
        name: {key: value for key, value in scores.items() if key != "items"} for name, scores in stage["corpora"].items()}}
