"""The tier `health`: looks at a step from both sides, and adds what it saw to the step's row."""
import math
from collections.abc import Callable, Iterable
from itertools import zip_longest

import numpy as np
from mindspore.train import Callback

from ckpt.cut import Cut
from data.dataset import valid_dataset
from data.manifest import Manifest
from eval.health.layers import LayerWatch, Watched
from eval.health.losses import LossWindow
from eval.health.probe import Probe, probe_ids
from eval.health.rules.base import Event, Facts
from eval.health.rules.data import batch_figures
from eval.health.rules.engine import Rules
from eval.metrics import unigram_losses
from model.gpt import GPT
from parallel.mesh import Mesh
from train.build import build_probe_step
from train.callbacks.gate import Gate
from train.clock import Clock
from train.config import RunConfig, TrainConfig
from train.console import say
from train.passed_over import RollBack
from train.schedule import learning_rate
from train.step import TrainStep
from train.tensorboard import TensorBoard


class Health(Callback):
    """Due every `every_steps` steps, the same on all ranks. It stands before the monitor, which calls `examine`.

    Args:
        watch: the layers; None on a rank that holds the same values as rank 0.
        probe: the activations; None where none are looked at.
    """

    def __init__(self, clock: Clock, config: RunConfig, last_step: int, watch: LayerWatch | None, probe: Probe | None):
        super().__init__()
        self.clock, self.config, self.settings = clock, config, config.health
        self.step, self.watch, self.probe = last_step, watch, probe
        self.window = LossWindow(self.settings.window, self.settings.spike_z)
        self.board: TensorBoard | None = None
        self.rules: Rules | None = None
        self.gate: Gate | None = None  # knows what a step has read
        self.tell: Callable[[list[Event]], None] = lambda events: None
        self.roll_back: RollBack | None = None
        self.layers: dict[int, dict] = {}  # step -> layer -> figures, until its row comes by
        self.batches: dict[int, tuple[np.ndarray, dict]] = {}  # step -> what it read, and what the ranks' hosts spent, likewise

    def due(self, step: int) -> bool:
        """Whether this step is looked at."""
        return step % self.settings.every_steps == 0

    def follow(self, rules: Rules, rows: Iterable[dict], tell: Callable[[list[Event]], None]) -> None:
        """Hold the steps against rules, on one rank.

        Args:
            rows: of an earlier start, by which spikes and the rest are told. Their events were told then; what goes on is told
                again.
            tell: is given what was broken.
        """
        self.rules, self.tell = rules, tell
        for row in rows:
            self.window.add(row["loss"], row["overflow"])
            if self.roll_back:
                self.roll_back.see(row)
            rules.see({**row, "loss_z": self.window.z})
        rules.quiet_until.clear()

    def warm_up(self) -> None:
        """Compile; say it if there is less to look at than the config asks for."""
        found = len(self.probe.ids) if self.probe else 0
        if self.board and found < self.settings.probe_samples:
            say(f"health: activations of {found} held-out samples, not of health.probe_samples={self.settings.probe_samples}")
        if self.probe:
            with self.clock.measure("compile"):
                self.probe.run(False)

    def on_train_step_begin(self, run_context):
        if self.watch and self.due(self.step + 1):
            with self.clock.measure("health"):
                self.watch.before()

    def on_train_step_end(self, run_context):
        self.step += 1
        if self.rules and self.gate:
            self.batches[self.step] = self.gate.read, self.gate.rank_seconds
        if self.watch and self.due(self.step):
            with self.clock.measure("fetch"):  # on an asynchronous device this waits for the step itself
                _, norm, _, overflow, *_ = (x.asnumpy().item() for x in run_context.original_args().net_outputs)
            with self.clock.measure("health"):
                self.layers[self.step] = self.look(None if overflow else 1.0 / clip_factor(norm, self.config.train))

    def look(self, scale: float | None) -> dict[str, dict]:
        """The figures of each layer now; the histograms go to TensorBoard. For `scale` see LayerWatch.after."""
        figures, gradients = self.watch.after(scale, self.settings.histograms)
        outputs = {}
        if self.probe:
            seen, outputs = self.probe.run(self.settings.histograms)
            figures = {layer: {**values, **seen.get(layer, {})} for layer, values in figures.items()}
        if self.board:
            for kind, pictures in (("gradients", gradients), ("activations", outputs)):
                for layer, picture in pictures.items():
                    self.board.histogram(self.step, f"{kind}/{layer}", picture)
        return figures

    def examine(self, rows: list[dict]) -> None:
        """Follow the loss; add `health` to the rows of the steps that were looked at; tell what rules are broken."""
        for row in rows:
            self.window.add(row["loss"], row["overflow"])
            if row["step"] in self.batches:
                tokens, seconds = self.batches.pop(row["step"])
                row |= batch_figures(tokens, self.config.model.vocab_size) | seconds
            if self.due(row["step"]):
                row["health"] = {**self.window.figures(), "lr_expected": learning_rate(self.config.train, row["step"] - 1),
                                 "layers": self.layers.pop(row["step"], {})}
            if self.roll_back:
                self.roll_back.see(row)
            if self.rules:
                self.tell(self.rules.see({**row, "loss_z": self.window.z}))


def clip_factor(norm: float, config: TrainConfig) -> float:
    """What TrainStep multiplies gradients of this global norm by; 1 where it clips each by itself, which is not undone."""
    clips = config.clip_norm is not None and config.clip_by == "global_norm"
    return min(config.clip_norm / (norm + 1e-6), 1.0) if clips else 1.0


def probe_tokens(config: RunConfig, manifest: Manifest) -> np.ndarray | None:
    """health.probe_samples held-out samples, of each corpus in turn: int32 [samples, seq + 1]; None: there are none."""
    wanted, corpora = config.health.probe_samples, []
    for name in manifest.valid_sets if wanted else ():
        if dataset := valid_dataset(manifest, config.data, name, wanted, 1, 0, 1):
            corpora.append([tokens[0] for tokens, in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)])
    found = [sample for row in zip_longest(*corpora) for sample in row if sample is not None][:wanted]
    return np.stack(found) if found else None


def build_health(clock: Clock, config: RunConfig, last_step: int, step: TrainStep, gpt: GPT, mesh: Mesh, cut: Cut | None,
                 manifest: Manifest) -> Health | None:
    """The tier as the config says; None: switched off."""
    if not config.health.enabled:
        return None
    watch, optimizer = None, step.optimizer
    if cut or mesh.rank == 0:
        moments = getattr(optimizer, "moment1", [None] * len(step.weights))  # Adafactor has no first moment
        watched = [Watched(weight, moment, cut.share(weight.name) if cut else 1.0)
                   for weight, moment in zip(step.weights, moments, strict=True)]
        watch = LayerWatch(watched, config.model.num_layers, config.train.betas[0], everywhere=cut is not None)
    return Health(clock, config, last_step, watch, build_probe(config, gpt, mesh, cut, manifest) if watch else None)


def build_rules(config: RunConfig) -> Rules:
    """The rules of health.rules for a run whose data is prepared."""
    counts = np.load(config.data.prepared_dir / "token_counts.npy")
    unigram = float((counts * unigram_losses(counts)).sum() / counts.sum())
    return Rules(config.health.rules,
                 Facts(unigram, config.train.warmup_steps, config.train.lr, lambda step: learning_rate(config.train, step - 1),
                       math.log(len(counts))))


def build_probe(config: RunConfig, gpt: GPT, mesh: Mesh, cut: Cut | None, manifest: Manifest) -> Probe | None:
    """None under a pipeline, and where there are no samples."""
    tokens = probe_tokens(config, manifest)
    if mesh.pp > 1 or tokens is None:
        return None
    part = (mesh.dp_rank, mesh.dp) if cut else (0, 1)
    ids = probe_ids(np.resize(tokens, (-(-len(tokens) // part[1]) * part[1], tokens.shape[1])))  # as many for each rank
    return Probe(gpt, ids, build_probe_step(gpt, config, mesh, *ids.shape), part)
