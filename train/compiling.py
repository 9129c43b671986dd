"""Says that graphs are being compiled, how long it took last time, and how long it took; on a terminal as a bar."""
import contextlib
import hashlib
import json
import threading
import time

from mindspore.train import Callback

from parallel import progress
from parallel.errors import UserError
from parallel.files import cache_folder, replace_text
from parallel.mesh import Mesh
from train.config import RunConfig
from train.console import duration, say
from train.messages import message

FILE = "compile_seconds.json"  # in the cache folder
KEPT = 100  # configurations whose time is remembered
# What graphs depend on, as far as the time that they take is concerned; and whether they are taken from a cache.
GRAPHS = {"run": {"compile_cache"}, "model": True, "parallel": True, "precision": True, "train": True, "eval": True,
          "data": {"seq_length"}}


class Compiling(Callback):
    """From `start` until the first step is done. On rank 0 alone; a cache that cannot be read or written is done without."""

    def __init__(self, config: RunConfig, mesh: Mesh, device: str):
        super().__init__()
        settings = config.model_dump_json(include=GRAPHS, exclude={"train": {"stop_at_step", "total_steps", "log_every_steps"}})
        content = f"{device} {mesh.dp} {mesh.tp} {mesh.pp} {settings}"
        self.key = hashlib.sha256(content.encode()).hexdigest()[:20]
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Say so."""
        self.began = time.monotonic()
        last = remembered().get(self.key)
        say(message("compiling.again", last=duration(last)) if last else message("compiling"))
        if last:
            self.thread = threading.Thread(target=self._draw, args=(last,), name="compiling", daemon=True)
            self.thread.start()

    def on_train_step_end(self, run_context):
        if self.ended.is_set():
            return
        seconds = time.monotonic() - self.began
        self.close()
        say(message("compiled", seconds=duration(seconds)))
        remember(self.key, seconds)

    def close(self) -> None:
        """Draw no more, also after an error."""
        self.ended.set()
        if self.thread:
            self.thread.join()
            progress.clear()

    def _draw(self, last: float) -> None:
        bar = progress.Progress("compile", last, "s")
        while bar.terminal and not self.ended.wait(1.0):
            bar.advance(1.0)


def remembered() -> dict[str, float]:
    """Seconds by configuration, those used longest ago first."""
    try:
        found = json.loads((cache_folder() / FILE).read_text(encoding="utf-8"))
        return {key: float(value) for key, value in found.items()}
    except (OSError, UserError, ValueError, TypeError, AttributeError):
        return {}


def remember(key: str, seconds: float) -> None:
    """For the next time."""
    found = remembered()
    found.pop(key, None)
    found[key] = seconds
    with contextlib.suppress(OSError, UserError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        replace_text(cache_folder() / FILE, json.dumps(dict(list(found.items())[-KEPT:]), indent=1) + "\n")
