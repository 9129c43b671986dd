"""TensorBoard, written by rank 0 alone."""
import os
import time
from pathlib import Path

import numpy as np
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

from eval.health.histogram import LIMITS, Histogram
from train.dashboards import LAYOUT, about, told
from train.metrics_log import finite

TAGS = {"loss": "train/loss", "lr": "train/learning_rate", "grad_norm": "train/grad_norm", "loss_scale": "train/loss_scale",
        "overflow": "train/overflow"}
SHARED_TAGS = {"tokens_per_second": "speed/tokens_per_second", "step_seconds": "speed/step_seconds",  # of all rows of a write
               "data_wait": "speed/data_wait_fraction", "memory_bytes": "speed/memory_bytes"}
HEALTH_TAGS = {"loss_mean": "health/loss_mean", "loss_std": "health/loss_std", "loss_z": "health/loss_robust_z",
               "spikes": "health/loss_spikes", "nonfinite_steps": "health/nonfinite_steps",
               "overflow_rate": "health/overflow_rate", "lr_expected": "health/learning_rate_of_schedule"}
FRESH = 10.0  # seconds


class TensorBoard:
    """Scalars and texts of one run. Readers drop what the files of earlier starts say of steps after `last_step`.

    By tensorboardX's writer of events, not its SummaryWriter: that one sends each event through a queue between processes to a
    thread, which takes several times as long, and hides a full disk.
    """

    def __init__(self, folder: Path, last_step: int):
        self.flushed = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        # tensorboardX names files by the second: two starts within one would overwrite each other without a suffix.
        self.writer = EventsWriter(str(folder / "events"), f".{os.getpid()}.{time.time_ns()}")
        self.writer.write_event(Event(wall_time=time.time(), step=last_step + 1, session_log=SessionLog(status=SessionLog.START)))
        self.described = set()  # tags: readers keep what the first value of each says of it
        charts = {category: {title: ["Multiline", tags] for title, tags in charts.items()} for category, charts in LAYOUT.items()}
        self._add(0, summary.custom_scalars(charts))
        self.text(0, "about/curves", about())

    def write(self, rows: list[dict]) -> None:
        """The scalars of some steps."""
        for row in rows:
            tags = TAGS if row is not rows[-1] else TAGS | SHARED_TAGS
            figures = {tag: row.get(key) for key, tag in tags.items()}
            if health := row.get("health"):
                figures |= {tag: health[key] for key, tag in HEALTH_TAGS.items()}
                figures |= {f"health_{key}/{layer}": value for layer, found in health["layers"].items()
                            for key, value in found.items()}
            self.scalars(row["step"], figures)
        if time.monotonic() - self.flushed > FRESH:
            self.sync()

    def scalars(self, step: int, values: dict) -> None:
        """Tag -> value; None (not computed) is left out, and so is what is not finite."""
        found = [Summary.Value(tag=tag, simple_value=float(value), metadata=self._described(tag)) for tag, value in values.items()
                 if value is not None and finite(float(value)) is not None]
        if found:
            self._add(step, Summary(value=found))

    def _described(self, tag: str) -> SummaryMetadata | None:
        """What TensorBoard shows beside a curve, with its first value."""
        if tag in self.described:
            return None
        self.described.add(tag)
        name, description = told(tag) or (tag, "")
        return SummaryMetadata(display_name=name, summary_description=description,
                               plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))

    def _add(self, step: int, values: Summary) -> None:
        self.writer.write_event(Event(wall_time=time.time(), step=step, summary=values))

    def histogram(self, step: int, tag: str, picture: Histogram) -> None:
        """One histogram; an empty one is left out."""
        used = np.flatnonzero(picture.counts)
        if used.size:
            buckets = slice(max(used[0] - 1, 0), used[-1] + 2)  # with an empty one on each side: readers draw from its limit on
            self._add(step, summary.histogram_raw(tag, picture.low, picture.high, int(picture.counts.sum()), picture.total,
                                                  picture.squares, np.minimum(LIMITS[buckets], 1e30).tolist(),
                                                  picture.counts[buckets].tolist()))

    def text(self, step: int, tag: str, text: str) -> None:
        """One text, as Markdown."""
        self._add(step, summary.text(tag, text))

    def sync(self) -> None:
        """Write out what is buffered."""
        self.flushed = time.monotonic()
        self.writer.flush()

    def close(self) -> None:
        """Write out and close."""
        self.writer.close()
