"""How fast prepared data is read here, by workers, prefetch and cache: the same order and the same code as in training."""
import os
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from data.config import DataConfig
from data.dataset import train_dataset
from data.manifest import Manifest
from data.order import SampleOrder

ROUNDS = 3        # each setting in turn, that what else the machine does meets all of them
PREFETCH = (2, 8, 32)
NEAR_BEST = 0.95  # of the best speed: what is as good with fewer workers and less memory is the better setting
MEMORY_SHARE = 4  # of the machine's memory, that data.cache=memory may take here


class Setting(NamedTuple):
    """Of the section `data`."""

    cache: str
    num_workers: int
    prefetch: int

    def __str__(self) -> str:
        return f"data.num_workers={self.num_workers} data.prefetch={self.prefetch} data.cache={self.cache}"


def settings(config: DataConfig, nbytes: int) -> list[Setting]:
    """What is tried, what costs less first; the cache where `nbytes`, all samples, fit well into the memory."""
    workers = range(1, config.model_copy(update={"num_workers": 1 << 20}).workers() + 1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = [Setting("none", *pair) for pair in product(workers, PREFETCH)]
    if nbytes * MEMORY_SHARE < memory:
        found.append(Setting("memory", 1, config.prefetch))
    return found


def tune(manifest: Manifest, config: DataConfig, batch_size: int, seconds: float,
         show: Callable[[str], None] = print) -> tuple[Setting, float]:
    """The setting to take and its tokens/s: the cheapest that is near the best.

    Args:
        batch_size: samples of a step on one rank.
        seconds: for each of the ROUNDS of each setting.
    """
    size = config.seq_length + 1
    tried: dict[Setting, list[float]] = {one: [] for one in settings(config, manifest.sets["train"].samples * size * 4)}
    for _ in range(ROUNDS):
        for setting, speeds in tried.items():
            changed = config.model_copy(update=setting._asdict())
            speeds.append(tokens_per_second(_batches(manifest, changed, batch_size), seconds, batch_size * config.seq_length))
    median = {setting: statistics.median(speeds) for setting, speeds in tried.items()}
    show("   tokens/s (of each round)              setting")
    for setting, speeds in tried.items():
        rounds = ", ".join(f"{s / 1e6:.2f}" for s in speeds)
        show(f"{median[setting] / 1e6:9.2f} M ({rounds})".ljust(41) + str(setting))
    best = next(s for s, speed in median.items() if speed >= NEAR_BEST * max(median.values()))
    show(f"take         --set {best}")
    show(f"which reads  {median[best]:,.0f} tokens/s on this rank; a run needs its tokens_per_second over its dp")
    return best, median[best]


def tokens_per_second(batches: Iterator, seconds: float, tokens: int, now: Callable[[], float] = time.perf_counter) -> float:
    """Over so many seconds after the first batch, which waits for files to be opened; `tokens`: of a batch."""
    next(batches)
    began, count = now(), 0
    while (spent := now() - began) < seconds and next(batches, None) is not None:
        count += 1
    return count * tokens / spent


def _batches(manifest: Manifest, config: DataConfig, batch_size: int) -> Iterator:
    order = SampleOrder(manifest.sets["train"].samples, 1)
    dataset = train_dataset(manifest, config, order, 0, 1_000_000, batch_size, 0, 1)
    return iter(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True))
