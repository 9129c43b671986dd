"""What a health rule found: to the console, events.jsonl, TensorBoard, a command of the user's, and a webhook."""
import contextlib
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

from eval.health.rules.base import Event
from train.console import LEVELS, painted, say, shown
from train.locating.diagnosis import last_good
from train.metrics_log import MetricsLog
from train.nodes import fence
from train.passed_over import RollBack
from train.reports import INDENT
from train.tensorboard import TensorBoard
from train.triggers import Triggers
from train.webhook import Webhook


class Events:
    """Tells events, once each: those of an earlier start's steps that come again are told again.

    Args:
        folder: the run's.
        command: for a shell; it is given the event as JSON on its standard input, and nobody waits for it.
        triggers: where an event of level stop asks for the run's end.
        webhook: an address to which each event is posted as JSON.
        roll_back: where an event of that level asks for one.
    """

    def __init__(self, folder: Path, last_step: int, board: TensorBoard, command: str | None, triggers: Triggers,
                 webhook: str | None = None, roll_back: RollBack | None = None):
        self.folder, self.board, self.command, self.triggers = folder, board, command, triggers
        self.webhook = Webhook(webhook, lambda text: say(f"{INDENT}note   {text}")) if webhook else None
        self.roll_back = roll_back
        self.log = MetricsLog(folder / "events.jsonl", last_step, fence(folder))
        self.running: list[subprocess.Popen] = []
        self.reason = ""

    def tell(self, events: list[Event], since: int | None = None) -> None:
        """Say each; ask for the end of the run if one is of that level.

        Args:
            since: the step at which it began, where that is known; else the event's own.
        """
        for event in events:
            if event.level == "roll_back" and (why := self.roll_back.ask(event)):
                event = replace(event, level="stop", message=f"{event.message}. No roll-back: {why}")
            self.log.write([asdict(event)])
            say(f"{INDENT}{painted(event.level, LEVELS.get(event.level))}   {event.rule} at step {event.step}: {event.message}")
            self.board.text(event.step, f"events/{event.rule}", f"**{event.level}** {event.message}")
            if self.command:
                self._run(event)
            if self.webhook:
                self.webhook.post(asdict(event))
            if event.level == "stop" and not self.reason:
                self.triggers.halt = True
                self.reason = f"{event.rule} at step {event.step}: {event.message}. {self._before(since or event.step)}"

    def close(self) -> None:
        """The end of the run: what is still to be posted is."""
        self.log.close()
        if self.webhook:
            self.webhook.close()

    def _before(self, step: int) -> str:
        """The last good checkpoint before a step."""
        good = last_good(self.folder / "checkpoints", step - 1)
        return f"The last good checkpoint before it is {shown(good)}" if good else "There is no good checkpoint before it"

    def _run(self, event: Event) -> None:
        for process in [p for p in self.running if p.poll() is not None]:
            self.running.remove(process)
            if process.returncode:
                say(f"{INDENT}note   health.on_event ended with exit code {process.returncode}")
        try:
            process = subprocess.Popen(["sh", "-c", self.command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, text=True)
            self.running.append(process)
            with contextlib.suppress(BrokenPipeError):  # it need not read what it is given
                process.stdin.write(json.dumps(asdict(event)) + "\n")
                process.stdin.close()
        except OSError as error:  # a command that cannot be told must not end the training
            say(f"{INDENT}note   health.on_event could not be run: {error}")
