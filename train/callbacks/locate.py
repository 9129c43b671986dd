"""Looks into the first step that is not finite without the loss scale being to blame, by running it again in another process."""
import json
import math
import shutil
import time
import zlib
from collections import deque
from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore.train import Callback

from eval.health.rules.base import Event
from parallel import collectives
from parallel.mesh import Mesh
from train import reports
from train.build import is_sharded
from train.callbacks.monitor import Examiner
from train.clock import Clock
from train.config import RunConfig
from train.locating.apart import POLL, by_hand, dump, rerun_apart
from train.locating.findings import LARGEST_SQUARE, listed
from train.locating.locate import Batch
from train.locating.probes import figures
from train.step import TrainStep
from train.triggers import Triggers

SEEN = ("step", "loss", "loss_scale", "overflow")
REMEMBERED = 1000  # rows
IN_A_ROW = 3  # skipped steps that a dynamic loss scale, once it has settled, does not explain
FINITE = ("finite", "other")


class Locate(Callback):
    """Once in each start of a run, and again where a streak of skipped steps is about to end it.

    On CPU each step's outputs are looked at, which are there already. On a device, where that would wait for it, those that the
    monitor has fetched; the step that is run again is then the last one, if it was skipped like all since the first: so that the
    weights are still the same.

    Args:
        network: the training step.
        examiner: sees the rows afterwards.
    """

    def __init__(self, clock: Clock, config: RunConfig, mesh: Mesh, num_micro_batches: int, network: TrainStep, last_step: int,
                 triggers: Triggers, examiner: Examiner):
        super().__init__()
        self.clock, self.config, self.mesh, self.network, self.triggers = clock, config, mesh, network, triggers
        self.num_micro_batches, self.step, self.examiner = num_micro_batches, last_step, examiner
        self.on_host = ms.get_context("device_target") == "CPU"
        self.tell: Callable[[list[Event]], None] = lambda events: None
        self.rows: deque[dict] = deque(maxlen=REMEMBERED)
        self.found: dict | None = None  # of the last step that was looked into, on rank 0
        self.streak, self.settled = 0, False
        self.looked: tuple[int, float] | None = None  # the weights (by the first step that skipped them) and the scale

    def on_train_step_end(self, run_context):
        self.step += 1
        arguments = run_context.original_args()
        self.batch = arguments.train_dataset_element
        if self.on_host:
            loss, _, scale, overflow, *_ = arguments.net_outputs
            overflow = bool(overflow.asnumpy())
            loss, scale = (x.asnumpy().item() if overflow else 1.0 for x in (loss, scale))
            if self.due(self.step, loss, scale, overflow):
                self.look(loss, scale)

    def examine(self, rows: list[dict]) -> None:
        """See the rows that the monitor has fetched."""
        self.rows += rows
        due = [] if self.on_host else [row for row in rows if self.due(*(row[key] for key in SEEN))]
        if due and self.streak > rows[-1]["step"] - due[0]["step"]:
            self.look(rows[-1]["loss"], rows[-1]["loss_scale"])
        elif due:
            self.say(due[0]["step"], f"gradients are not finite, and the weights have changed since. {by_hand(due[0]['step'])}")
        self.examiner.examine(rows)

    def due(self, step: int, loss: float, scale: float, overflow: bool) -> bool:
        """Whether a step is to be looked into; call it with each step once, in order.

        A dynamic scale is lowered by steps that are not finite until it fits, and now and then later: that is its work. It is not
        where the loss itself is not finite, where the scale is as low as it may be, or where it goes on falling.
        """
        self.streak = self.streak + 1 if overflow else 0
        self.settled |= not overflow
        s, rule = self.config.precision.loss_scale, self.config.health.rules.overflow_streak
        strange = not s.dynamic or not math.isfinite(loss) or scale <= s.min or (self.settled and self.streak >= IN_A_ROW)
        last = rule.level == "stop" and self.streak == math.ceil(rule.threshold)
        now = step - self.streak, scale
        if not (self.config.health.locate_nan and overflow and now != self.looked and (last or (strange and not self.looked))):
            return False
        self.looked = now
        return True

    def look(self, loss: float, scale: float) -> None:
        """Run the last step again, all ranks together; rank 0 tells what was found, and writes it down."""
        folder, mesh = self.config.run.folder / "locate", self.mesh
        files = [folder / f"rank_{rank}.json" for rank in range(mesh.world_size)]
        with self.clock.measure("health"):
            files[mesh.rank].unlink(missing_ok=True)
            weights, cut = {p.name: p.asnumpy() for p in self.network.weights}, is_sharded(mesh)
            finite_here = not cut and self.network.gradients.finite_here()
            told = collectives.gather([checksum(weights), finite_here])
            if cut:
                found = at_hand(weights, self.step)
            elif finite_here and not told[:, 1].all():
                found = {"verdict": "other", "message": "this rank's part was finite"}
            else:
                tokens, positions = (x.asnumpy() for x in self.batch)
                dump(here := folder / f"rank_{mesh.rank}", self.config, weights,
                     Batch(tokens, positions, scale, self.num_micro_batches))
                found = rerun_apart(here, self.step, self.pulse)
            folder.mkdir(parents=True, exist_ok=True)
            reports.write(files[mesh.rank], found)
            while not all(file.exists() for file in files):  # not in a collective: MindSpore's fails after a while of waiting
                self.pulse()
                time.sleep(POLL)
            collectives.barrier()
            if mesh.rank == 0:
                found = summed_up([json.loads(file.read_text(encoding="utf-8")) for file in files], told[:, 1] != 0)
                if not cut and len(set(told[:, 0])) > 1:
                    found["message"] += ". The ranks' weights are not equal, as they must be: a fault of memory or of a sum"
                self.found = {"step": self.step, "loss": loss, "loss_scale": scale, **found}
                reports.write(self.config.run.folder / f"nan_step_{self.step}.json", self.found)
                shutil.rmtree(folder, ignore_errors=True)
                self.say(self.step, found["message"])

    def pulse(self) -> bool:
        """A sign of life; whether somebody asked the run to end."""
        self.clock.on_phase("health")
        return self.triggers.stop

    def say(self, step: int, message: str) -> None:
        """An event."""
        self.tell([Event(step, "nonfinite_step", "warn", message)])


def checksum(weights: dict[str, np.ndarray]) -> int:
    """CRC-32 of all values."""
    crc = 0
    for value in weights.values():
        crc = zlib.crc32(np.ascontiguousarray(value), crc)
    return crc


def at_hand(weights: dict[str, np.ndarray], step: int) -> dict:
    """What can be said of a step of a cut model afterwards: its gradients are gone, and it cannot be run cell by cell."""
    bad = {name: f for name, value in weights.items() if (f := figures(value))["nonfinite"]}
    return {"verdict": "weights" if bad else "cut", "weights": bad, "message":
            (f"weights are not finite: {listed(bad)}" if bad else "the weights are finite") +
            f"; a model that is cut over a mesh cannot be run again cell by cell. On one card, if it fits: {by_hand(step)}"}


def summed_up(ranks: list[dict], finite: np.ndarray) -> dict:
    """What the ranks found, as one: everything of the first that found something, and each rank's verdict.

    Args:
        finite: of each rank, whether its own part of the gradients is known to have been finite.
    """
    verdicts = [one["verdict"] for one in ranks]
    at = next((r for r, verdict in enumerate(verdicts) if verdict not in FINITE), None)
    if at is not None:
        whose = f"rank {at}: " if len(ranks) > 1 else ""
        return {**ranks[at], "message": whose + ranks[at]["message"], "rank": at, "verdicts": verdicts}
    if sum(one.get("norm", 0.0) for one in ranks) ** 2 > LARGEST_SQUARE:
        message = "every rank's gradients are finite, but the squares of their sum add up to more than float32 can hold"
        return {**ranks[0], "verdict": "norm", "message": message, "rank": None, "verdicts": verdicts}
    if finite.all():
        at, where = None, "where the ranks' gradients were added up"
    else:
        bad = [r for r, good in enumerate(finite) if not good]
        at, where = bad[0], f"on rank {listed(map(str, bad))}"
    message = f"the same weights and batch are finite when they are run again: a transient fault, of the hardware, {where}"
    return {**ranks[at or 0], "verdict": "transient", "message": message, "rank": at, "verdicts": verdicts}


