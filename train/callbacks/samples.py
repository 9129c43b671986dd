"""Which samples each step read, for whoever wants to see that a resume reads nothing twice and leaves nothing out."""
import zlib
from pathlib import Path

from mindspore.train import Callback

from train.metrics_log import MetricsLog
from train.nodes import fence


class SampleLog(Callback):
    """Writes {"step", "samples": CRC-32 of each row of tokens (int32, little-endian), in order} for each step that was done.

    It tells what the step was given, not what was planned; a resume drops the lines of steps that come again.
    """

    def __init__(self, run_folder: Path, rank: int, last_step: int):
        super().__init__()
        (folder := run_folder / "samples").mkdir(parents=True, exist_ok=True)
        self.log, self.step = MetricsLog(folder / f"rank_{rank}.jsonl", last_step, fence(run_folder)), last_step

    def on_train_step_end(self, run_context):
        tokens, *_ = run_context.original_args().train_dataset_element
        self.step += 1
        self.log.write([{"step": self.step, "samples": [zlib.crc32(row.tobytes()) for row in tokens.asnumpy()]}])

    def on_train_end(self, run_context):
        self.log.close()
