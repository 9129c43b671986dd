"""TensorBoard, written by rank 0 alone."""
import os
import time
from pathlib import Path

from tensorboardX import SummaryWriter

from train.metrics_log import finite

TAGS = {"loss": "train/loss", "lr": "train/learning_rate", "grad_norm": "train/grad_norm", "loss_scale": "train/loss_scale",
        "overflow": "train/overflow", "tokens_per_second": "speed/tokens_per_second", "step_seconds": "speed/step_seconds",
        "data_wait": "speed/data_wait_fraction", "memory_bytes": "speed/memory_bytes"}


class TensorBoard:
    """Scalars and texts of one run. Readers drop what the files of earlier starts say of steps after `last_step`."""

    def __init__(self, folder: Path, last_step: int):
        # tensorboardX names files by the second: two starts within one would overwrite each other without a suffix.
        self.writer = SummaryWriter(str(folder), purge_step=last_step + 1,
                                    filename_suffix=f".{os.getpid()}.{time.time_ns()}")

    def write(self, rows: list[dict]) -> None:
        """The scalars of some steps."""
        for row in rows:
            self.scalars(row["step"], {tag: row.get(key) for key, tag in TAGS.items()})

    def scalars(self, step: int, values: dict) -> None:
        """Tag -> value; None (not computed) is left out, and so is what is not finite."""
        for tag, value in values.items():
            if value is not None and finite(float(value)) is not None:
                self.writer.add_scalar(tag, float(value), step)

    def text(self, step: int, tag: str, text: str) -> None:
        """One text, as Markdown."""
        self.writer.add_text(tag, text, step)

    def sync(self) -> None:
        """Write out what is buffered."""
        self.writer.flush()

    def close(self) -> None:
        """Write out and close."""
        self.writer.close()
