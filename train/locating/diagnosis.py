"""Why a run is ended by a streak of skipped steps: what a person needs to see at once, on the console and in diagnosis.json."""
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ckpt import store
from eval.health.rules.base import Event
from train import reports
from train.console import say, shown
from train.locating.findings import activations, listed

RULE = "overflow_streak"
CHANGES = 12  # of the loss scale, on the console


class Diagnosis:
    """Tells events on; of a streak of skipped steps with all that is known of it.

    Args:
        folder: the run's.
        tell: is given events, and since which step it has been so, if that is known.
        rows: the last steps' rows, up to now.
        found: what `train.locating.locate` found in the last step that was looked into, if any.
    """

    def __init__(self, folder: Path, tell: Callable[[list[Event], int | None], None], rows: Callable[[], list[dict]],
                 found: Callable[[], dict | None]):
        self.folder, self.on, self.rows, self.found = folder, tell, rows, found

    def tell(self, events: list[Event]) -> None:
        """Tell events; say and write the diagnosis."""
        for event in events:
            if event.rule != RULE:
                self.on([event], None)
                continue
            rows = [row for row in self.rows() if row["step"] <= event.step]
            good = max((row["step"] for row in rows if not row["overflow"]), default=rows[0]["step"] - 1)
            report = diagnosed(event, rows, self.found(), good, last_good(self.folder / "checkpoints", good))
            reports.write(self.folder / "diagnosis.json", report)
            self.on([event], good + 1)
            for line in lines_of(report):
                say(f"{reports.INDENT}{line}")


def last_good(root: Path, step: int) -> Path | None:
    """The newest checkpoint of at most this step whose weights are all finite."""
    for folder in reversed(store.steps(root)):
        if store.read_state(folder)["step"] <= step:
            try:
                weights = store.load(folder).tensors[store.MODEL]
            except store.BrokenCheckpoint:
                continue
            if all(np.isfinite(value).all() for value in weights.values()):
                return folder
    return None


def diagnosed(event: Event, rows: list[dict], found: dict | None, good: int, checkpoint: Path | None) -> dict:
    """The report: since: the first skipped step; located: see train.locating, without its tables; gradients: those that were not
    finite, in the order of the backward pass; layers: abs_max of each layer's output; loss_scale: its changes, [step, scale]."""
    scales = [[row["step"], row["loss_scale"]] for row in rows]
    changes = [now for before, now in zip([[None, None], *scales], scales, strict=False) if before[1] != now[1]]
    keys = ("step", "loss_scale", "verdict", "message", "rank", "forward", "backward")
    located = {key: found.get(key) for key in keys} if found else None
    if not (layers := (found or {}).get("layers")):  # then those of the last probe
        seen = next((row["health"]["layers"] for row in reversed(rows) if row.get("health", {}).get("layers")), {})
        layers = {name: {"abs_max": f["abs_max"], "nonfinite": 0.0} for name, f in seen.items() if f.get("abs_max") is not None}
    return {"step": event.step, "since": good + 1, "message": event.message, "located": located,
            "gradients": [name for name, f in (found or {}).get("gradients", {}).items() if f["nonfinite"]],
            "layers": layers, "loss_scale": changes, "last_good_checkpoint": str(checkpoint) if checkpoint else None}


def lines_of(report: dict) -> list[str]:
    """For a person."""
    lines = []
    if located := report["located"]:
        lines.append(f"where       step {located['step']}: {located['message']}")
    if report["gradients"]:
        lines.append(f"gradients   not finite, first in the backward pass first: {listed(report['gradients'])}")
    if report["layers"]:
        lines.append(f"activations at most {activations(report['layers'])}")
    scales = [f"{scale:g} from step {step}" for step, scale in report["loss_scale"]]
    lines.append(f"loss scale  {'... ' if len(scales) > CHANGES else ''}{', '.join(scales[-CHANGES:])}")
    good = shown(Path(report["last_good_checkpoint"])) if report["last_good_checkpoint"] else "none"
    lines.append(f"checkpoint  the last before step {report['since']} with finite weights: {good}")
    return [*lines, "more        diagnosis.json"]
