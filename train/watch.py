"""Everything that watches a run for what it must not do, put together: tier `health`, its rules, the gate before each step."""
from dataclasses import dataclass

from mindspore.train import Callback

from data.manifest import Manifest
from data.order import Reading, SampleOrder
from data.verify import Verifier
from eval.comparison.reports import series
from eval.health.rules.reports import report_events
from parallel.mesh import Mesh
from train.callbacks.evaluate import Evaluate
from train.callbacks.gate import Gate, Start
from train.callbacks.health import Health, build_rules
from train.callbacks.locate import Locate
from train.config import RunConfig
from train.events import Events
from train.locating.diagnosis import Diagnosis
from train.metrics_log import MetricsLog
from train.passed_over import Ledger, RollBack
from train.tensorboard import TensorBoard
from train.triggers import Triggers


@dataclass
class Watch:
    """events, roll_back: on rank 0 alone."""

    health: Health
    locate: Locate
    gate: Gate
    start: Start
    events: Events | None = None
    roll_back: RollBack | None = None

    @property
    def callbacks(self) -> list[Callback]:
        """In the order in which they stand before the monitor."""
        return [self.start, self.gate, self.health, self.locate]

    def follow(self, config: RunConfig, log: MetricsLog, board: TensorBoard, triggers: Triggers, evaluate: Evaluate) -> None:
        """Rank 0: hold every step, every batch and every report against the rules.

        Args:
            log: with the rows of an earlier start.
        """
        h, health, gate = config.health, self.health, self.gate
        self.roll_back = RollBack(gate.ledger, h.roll_back_batches, triggers, gate.reading.consumed, gate.step)
        self.events = events = Events(config.run.folder, gate.step, board, h.on_event, triggers, h.webhook, self.roll_back)
        health.board, health.roll_back = board, self.roll_back
        self.locate.tell = events.tell
        self.locate.rows += log.last_rows
        diagnosis = Diagnosis(config.run.folder, events.tell, lambda: list(self.locate.rows), lambda: self.locate.found)
        health.follow(build_rules(config), log.last_rows, diagnosis.tell)
        gate.remember(log.last_rows)
        gate.tell, gate.reason = events.tell, lambda: events.reason
        evaluate.judge = lambda report: events.tell(report_events(report, series(config.run.folder),
                                                                  config.eval.stage.time_budget, h.rules))

    def settle(self) -> None:
        """All ranks end, to be rolled back."""
        if self.roll_back:
            self.roll_back.settle()

    def close(self) -> None:
        """The end of the run."""
        if self.events:
            self.events.close()


def build_watch(config: RunConfig, health: Health, locate: Locate, triggers: Triggers, ledger: Ledger, reading: Reading,
                last_step: int, manifest: Manifest, order: SampleOrder, mesh: Mesh) -> Watch:
    """On every rank."""
    wanted = config.health.rules.corrupt_data.level != "off"
    verifier = Verifier(manifest, config.data.prepared_dir, mesh.rank, mesh.world_size) if wanted else None
    gate = Gate(config.health.rules, reading, last_step, config.model.vocab_size, ledger, verifier)
    health.gate = gate
    return Watch(health, locate, gate, Start(gate, triggers, manifest, config.data, order, mesh.dp_rank))
