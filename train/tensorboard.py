"""TensorBoard, written by rank 0 alone."""
import errno
import os
import time
from pathlib import Path

import numpy as np
from tensorboardX import SummaryWriter
from tensorboardX.proto.summary_pb2 import Summary

from eval.health.histogram import LIMITS, Histogram
from train.metrics_log import finite

TAGS = {"loss": "train/loss", "lr": "train/learning_rate", "grad_norm": "train/grad_norm", "loss_scale": "train/loss_scale",
        "overflow": "train/overflow", "tokens_per_second": "speed/tokens_per_second", "step_seconds": "speed/step_seconds",
        "data_wait": "speed/data_wait_fraction", "memory_bytes": "speed/memory_bytes"}
HEALTH_TAGS = {"loss_mean": "health/loss_mean", "loss_std": "health/loss_std", "loss_z": "health/loss_robust_z",
               "spikes": "health/loss_spikes", "nonfinite_steps": "health/nonfinite_steps",
               "overflow_rate": "health/overflow_rate", "lr_expected": "health/learning_rate_of_schedule"}


class TensorBoard:
    """Scalars and texts of one run. Readers drop what the files of earlier starts say of steps after `last_step`."""

    def __init__(self, folder: Path, last_step: int):
        # tensorboardX names files by the second: two starts within one would overwrite each other without a suffix.
        self.writer = SummaryWriter(str(folder), purge_step=last_step + 1,
                                    filename_suffix=f".{os.getpid()}.{time.time_ns()}")

    def write(self, rows: list[dict]) -> None:
        """The scalars of some steps."""
        self._check()
        for row in rows:
            figures = {tag: row.get(key) for key, tag in TAGS.items()}
            if health := row.get("health"):
                figures |= {tag: health[key] for key, tag in HEALTH_TAGS.items()}
                figures |= {f"health_{key}/{layer}": value for layer, found in health["layers"].items()
                            for key, value in found.items()}
            self.scalars(row["step"], figures)

    def _check(self) -> None:
        """Raise OSError if the thread that writes has died, as on a full disk: its queue would fill, and the training wait."""
        events = self.writer.file_writer.event_writer
        if not events._worker.is_alive():
            events._event_queue.cancel_join_thread()  # else the process does not end
            raise OSError(errno.EIO, "TensorBoard's events could not be written", self.writer.logdir)

    def scalars(self, step: int, values: dict) -> None:
        """Tag -> value; None (not computed) is left out, and so is what is not finite."""
        found = [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()
                 if value is not None and finite(float(value)) is not None]
        if found:  # in one event: an event costs tensorboardX some 0.1 ms
            self.writer.file_writer.add_summary(Summary(value=found), step)

    def histogram(self, step: int, tag: str, picture: Histogram) -> None:
        """One histogram; an empty one is left out."""
        used = np.flatnonzero(picture.counts)
        if used.size:
            buckets = slice(max(used[0] - 1, 0), used[-1] + 2)  # with an empty one on each side: readers draw from its limit on
            self.writer.add_histogram_raw(tag, picture.low, picture.high, int(picture.counts.sum()), picture.total,
                                          picture.squares, np.minimum(LIMITS[buckets], 1e30).tolist(),
                                          picture.counts[buckets].tolist(), step)

    def text(self, step: int, tag: str, text: str) -> None:
        """One text, as Markdown."""
        self.writer.add_text(tag, text, step)

    def sync(self) -> None:
        """Write out what is buffered."""
        self.writer.flush()

    def close(self) -> None:
        """Write out and close."""
        self.writer.close()
