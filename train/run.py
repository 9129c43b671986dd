"""One run, from a config to a report: builds every part, resumes if there is something to resume, trains, sums up."""
import hashlib
import json
import os
import platform
import uuid
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.nn.utils import no_init_parameters
from mindspore.train import Model

from ckpt import store, writing
from ckpt.cut import MOMENTS, Cut
from ckpt.saver import Saver
from data.dataset import train_dataset
from data.manifest import Manifest, load_manifest
from data.order import Places, Reading, SampleOrder
from model import cpu
from model.init import initial_value, initialize
from parallel import collectives, config_file, context
from parallel.cost.parameters import all_parameters, parameter_count
from parallel.errors import UserError
from parallel.files import replace_text
from parallel.layout import plain
from parallel.mesh import Mesh
from train import compile_cache, console, messages, passed_over, state, summary
from train.build import build_gpt, build_train_step, compiled, is_sharded, lack_of_kernels
from train.callbacks.evaluate import Evaluate, due_steps
from train.callbacks.health import build_health
from train.callbacks.locate import Locate
from train.callbacks.monitor import Monitor
from train.callbacks.profile import Profile
from train.callbacks.samples import SampleLog
from train.callbacks.save import Save
from train.checks import lock, plan
from train.clock import Clock
from train.compiling import Compiling
from train.config import RunConfig
from train.console import say
from train.groups import described
from train.heartbeat import Heartbeat
from train.initial import refuse_uninitialised, report_outputs
from train.messages import message
from train.metrics_log import MetricsLog
from train.nodes import NUMBER, fence
from train.passed_over import Ledger, PassedOver
from train.plans import plan_of, sizes_of
from train.report import write_page
from train.tensorboard import TensorBoard
from train.tiers import build_tiers
from train.triggers import Halted, RolledBack, Triggers
from train.watch import build_watch


def run(config: RunConfig) -> bool:
    """Train as the config says. Returns False if the run was interrupted, and saved.

    Raises UserError before anything is written where that cannot work.
    """
    messages.use(config.run.language)
    rank, world_size = context.start()
    mesh, num_micro_batches = plan(config, world_size, rank)
    manifest = load_manifest(config.data)
    config = resolve_vocab_size(config, manifest)
    if config.run.compile_cache:
        compile_cache.use(config, mesh, num_micro_batches, manifest, ms.get_context("device_target"))
    training = Training(config, mesh, num_micro_batches, manifest)
    training.start_or_resume()
    training.agree()
    training.header()
    if training.first_step < training.last_step or not training.reported():
        with training.signals:
            return training.train()
    if rank == 0:
        say(message("nothing_to_do", folder=config.run.folder, step=training.first_step, total=config.train.total_steps))
    return True


def precision_lines(config: RunConfig) -> list[tuple[str, str]]:
    """Number formats and loss scale in words, and what is odd about them."""
    p = config.precision
    scale, formats = p.loss_scale, "float32" if p.level == "O0" else f"{p.level} in {p.dtype}, weights float32"
    lines = [("precision", message("precision.dynamic" if scale.dynamic else "precision.value", formats=formats,
                                   initial=scale.initial))]
    if p.level != "O0" and p.dtype == "bfloat16" and (scale.dynamic or scale.initial != 1.0):
        lines.append(("note", "bfloat16 needs no loss scale: its range is that of float32"))
    if p.level != "O0" and p.dtype == "float16" and not scale.dynamic and scale.initial == 1.0:
        lines.append(("note", "float16 loses gradients under 6e-8: set precision.loss_scale.dynamic=true"))
    return lines


def resolve_vocab_size(config: RunConfig, manifest: Manifest) -> RunConfig:
    """The config with model.vocab_size as a number: the tokenizer's. Raises UserError where another number was given."""
    given, size = config.model.vocab_size, manifest.tokenizer.vocab_size
    if given not in ("auto", size):
        raise UserError(f"model.vocab_size={given}, but the tokenizer of the prepared data has {size} pieces: set it to "
                        f"{size} or auto, or prepare the data with another data.tokenizer.vocab_size")
    return config.model_copy(update={"model": config.model.model_copy(update={"vocab_size": size})})


@dataclass
class Training:
    """The parts of one run in this process."""

    config: RunConfig
    mesh: Mesh
    num_micro_batches: int
    manifest: Manifest
    first_step: int = 0  # updates done when this process begins
    consumed_samples: int = 0
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)  # by which a checkpoint is known as this run's
    signals: ExitStack = field(default_factory=ExitStack)  # noted from the first step until everything is written
    notes: list[str] = field(default_factory=list)
    passed_over: list[PassedOver] = field(default_factory=list)
    best: dict | None = None  # the step and loss of the best validation so far

    def __post_init__(self):
        c = self.config
        self.micro_batch_size = c.train.global_batch_size // self.mesh.dp // self.num_micro_batches
        self.cut = None
        with no_init_parameters() if is_sharded(self.mesh) else nullcontext():
            self.gpt = build_gpt(c, self.mesh)
            self.step = build_train_step(self.gpt, c, self.mesh, self.num_micro_batches)
        self.network = compiled(self.step, c, self.mesh)
        if is_sharded(self.mesh):
            self.cut = Cut(*plan_of(c, self.mesh, self.num_micro_batches))
        if self.cut or c.precision.level != "O0":
            samples = c.train.global_batch_size // self.mesh.dp
            # Now: parameters may be given their parts only then, and a kernel that there is not ends the run before it has begun.
            with lack_of_kernels():
                self.network.set_train().compile(Tensor(np.zeros((samples, c.data.seq_length + 1), np.int32)),
                                                 Tensor(np.zeros(samples, np.int32)))
        if self.cut and (problems := self.cut.problems(self.network.parameter_layout_dict)):
            raise RuntimeError("MindSpore holds other parts of the parameters than would be saved:\n  " + "\n  ".join(problems))
        self.identity = state.identity_of(c, self.manifest.tokenizer.sha256, self.manifest.sets["train"].sha256)
        self.root = c.run.folder / "checkpoints"

    @property
    def num_parameters(self) -> int:
        """Of the whole model, without what pads the token table."""
        return parameter_count(replace(sizes_of(self.config, self.mesh.tp), vocab=self.config.model.vocab_size))

    @property
    def last_step(self) -> int:
        """The step at which this process ends."""
        return min(self.config.train.total_steps, self.config.train.stop_at_step or self.config.train.total_steps)

    def start_or_resume(self) -> None:
        """Initial weights, or the state of the checkpoint that ckpt.resume names."""
        c = self.config
        self.passed_over = passed_over.load(c.run.folder)
        checkpoint, where = self.find_checkpoint()
        self.passed_over = passed_over.load(c.run.folder, checkpoint.state if checkpoint else None)
        self.notes += [f"passes over the samples {one.first} to {one.stop - 1}: {one.rule} at step {one.step}"
                       for one in self.passed_over]
        if checkpoint is None:
            self.initialize()
            if (c.run.folder / "metrics.jsonl").exists():
                self.notes.append(f"no checkpoint in {console.shown(self.root)}: this run starts anew, at step 0")
            if c.ckpt.init_from:
                checkpoint = store.load_given(c.ckpt.init_from)
                self.notes += state.restore_weights(self.step, checkpoint, self.identity, str(c.ckpt.init_from), self.cut,
                                                    c.ckpt.init_partial)
            names = [p.name for p in all_parameters(sizes_of(c, self.mesh.tp))]
            refuse_uninitialised(self.step, c, names, self.cut)
            return
        if why := passed_over.spoilt(checkpoint.state, self.passed_over):
            raise UserError(f"{where}: {why}, see {c.run.folder / passed_over.FILE}: choose a checkpoint before, or another "
                            "run.name")
        state.restore(self.step, checkpoint, self.identity, where, self.cut)
        self.first_step, self.consumed_samples = checkpoint.step, checkpoint.state["consumed_samples"]
        self.run_id = checkpoint.state.get("run_id", self.run_id)
        self.best = checkpoint.state.get("best_validation")
        if self.first_step > self.last_step:
            end = "train.total_steps" if self.last_step == c.train.total_steps else "train.stop_at_step"
            raise UserError(f"{where} is at step {self.first_step}, past step {self.last_step} where this run shall end: raise "
                            f"{end}, or choose another run.name")
        newer = [f.name for f in store.steps(self.root) if store.read_state(f)["step"] > self.first_step]
        if newer and c.ckpt.resume != "auto":
            raise UserError(f"{self.root} holds newer checkpoints than {where}, which the next start would go on from: move "
                            f"{', '.join(newer)} away, or choose another run.name")
        self.notes.append(f"resumed from {where}")
        self.notes += [f"changed since: {line}" for line in state.changed_settings(c, checkpoint)]

    def initialize(self) -> None:
        """Initial weights, and moments of zero."""
        c = self.config
        if self.cut is None:
            initialize(self.gpt, c.model, c.run.seed)
            return
        for name, p in (item for part in state.tensors_of(self.step).values() for item in part.items()):
            shape = self.cut.shape(name)
            whole = np.zeros(shape, np.float32) if name.startswith(MOMENTS) else initial_value(name, shape, c.model, c.run.seed)
            state.put(p, self.cut.part(name, whole), self.cut)

    def find_checkpoint(self) -> tuple[store.Checkpoint | None, str]:
        """The checkpoint to resume from and its name; None for a new run."""
        resume = self.config.ckpt.resume
        if resume == "none":
            return None, ""
        if resume != "auto":
            return store.load_given(resume), str(resume)
        checkpoint, damaged = store.find(self.root, self.mesh.rank, self.mesh.world_size, collectives.gather,
                                         lambda state: passed_over.spoilt(state, self.passed_over))
        self.notes += [f"passed over: {line}" for line in damaged]
        if checkpoint is None and damaged:
            raise UserError(f"{self.root}: no checkpoint there is whole:\n  " + "\n  ".join(damaged) +
                            "\nchoose another run.name, or remove the folder to start anew")
        return checkpoint, console.shown(store.folder_of(self.root, checkpoint.step)) if checkpoint else ""

    def agree(self) -> None:
        """Every rank must start from the same state of the same run; also the barrier before rank 0 writes anything."""
        content = json.dumps([self.identity, [one.range for one in self.passed_over],
                              self.config.model_dump(mode="json", include={"model", "train", "precision"})])
        mine = [self.first_step, self.consumed_samples, int(hashlib.sha256(content.encode()).hexdigest()[:11], 16)]
        if (ranks := collectives.gather(mine)).min(0).tolist() != ranks.max(0).tolist():
            steps = ", ".join(f"rank {rank}: step {int(row[0])}" for rank, row in enumerate(ranks))
            raise UserError(f"the ranks would not start from the same state ({steps}): give all nodes the same config, the same "
                            f"prepared data, and a run.dir that they share ({self.config.run.dir})")

    def reported(self) -> bool:
        """Whether report.json is there for the last step: a process may have been killed just before it wrote it."""
        try:
            report = json.loads((self.config.run.folder / "report.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return report.get("steps") == self.last_step

    def header(self) -> None:
        """What will run, for a person to check before the time is spent."""
        c, m, t = self.config, self.config.model, self.config.train
        if self.mesh.rank:
            return
        if c.eval.deep.enabled and self.mesh.tp * self.mesh.pp > 1:
            self.notes.append("eval.deep: a model that is cut over tp or pp writes no texts in this version")
        if self.gpt.on_cpu and (problem := cpu.library.problem()):
            self.notes.append(f"slower CPU kernels than could be: no C++ compiler made ours ({problem}); install g++, or set CXX")
        tokens = t.global_batch_size * c.data.seq_length
        train_set = self.manifest.sets["train"]
        console.header([
            (message(name), value) for name, value in (
                ("run", console.shown(c.run.folder)),
                ("model", message("model.value", millions=self.num_parameters / 1e6, layers=m.num_layers, hidden=m.hidden_size,
                                  heads=m.num_heads, vocab=m.vocab_size)),
                ("mesh", message("mesh.value", mesh=self.mesh, ranks=self.mesh.world_size,
                                 device=ms.get_context("device_target"), machine=platform.machine())),
                ("data", message("data.value", tokens=train_set.tokens, samples=train_set.samples, length=c.data.seq_length)),
                ("batch", message("batch.value", tokens=tokens, samples=t.global_batch_size, dp=self.mesh.dp,
                                  micro=self.micro_batch_size, count=self.num_micro_batches)),
                ("steps", message("steps.value", first=self.first_step, last=self.last_step, total=t.total_steps,
                                  epochs=t.total_steps * tokens / train_set.tokens)),
                *precision_lines(c),
                *(("group", line) for line in described((p.name for p in all_parameters(sizes_of(c, 1))), t)),
                *(("note", line) for line in self.notes))])

    def train(self) -> bool:
        """The loop. Whatever ends it, the figures of the steps done are written. Returns False if interrupted, and saved."""
        c, t = self.config, self.config.train
        steps = self.last_step - self.first_step
        order = SampleOrder(self.manifest.sets["train"].samples, c.run.seed)
        ledger = Ledger(c.run.folder, self.passed_over, c.health.max_passed_over, self.mesh.rank)
        reading = Reading(Places(self.consumed_samples, ledger.ranges), t.global_batch_size)
        spare = ledger.room if c.health.enabled else 0  # batches that may yet be skipped
        dataset = train_dataset(self.manifest, c.data, order, self.consumed_samples, steps + spare, t.global_batch_size,
                                self.mesh.dp_rank, self.mesh.dp, passed_over=ledger.ranges) if steps else None
        clock = Clock()
        evaluate = self.evaluation(clock)
        evaluate.best = self.best
        sinks, board, folder = [], None, None
        if self.mesh.rank == 0:
            folder = c.run.folder
            folder.mkdir(parents=True, exist_ok=True)
            self.lock = lock(folder)
            replace_text(folder / "config.yaml", config_file.dump(c))
            if self.passed_over:
                passed_over.write(folder, self.passed_over)
                writing.discard(self.root, passed_over.spoilt_checkpoints(self.root, self.passed_over))
            board = TensorBoard(folder / "tensorboard", self.first_step)
            sinks = [MetricsLog(folder / "metrics.jsonl", self.first_step, fence(folder)), board, console.Console(t.total_steps)]
        health = build_health(clock, c, self.first_step, self.step, self.gpt, self.mesh, self.cut, self.manifest)
        triggers = Triggers(c.run.folder, c.ckpt.every_minutes, self.mesh.rank)
        compiling = Compiling(c, self.mesh, ms.get_context("device_target"))
        locate = Locate(clock, c, self.mesh, self.num_micro_batches, self.step, self.first_step, triggers, health) \
            if health else None
        monitor = Monitor(clock, sinks, t.log_every_steps, self.first_step, reading, locate)
        evaluate.report_to(monitor, folder / "eval" if folder else None, board)
        heartbeat = Heartbeat(clock, c.run.folder, self.mesh.rank, self.first_step)
        save, watch = self.saving(clock, monitor, triggers, ledger, evaluate), None
        profile = Profile(clock, c.profile, c.run.folder, self.mesh.rank, self.mesh.world_size, self.first_step)
        if health:
            watch = build_watch(c, health, locate, triggers, ledger, reading, self.first_step, self.manifest, order, self.mesh)
            save.gate = watch.gate
            if folder:
                watch.follow(c, sinks[0], board, triggers, evaluate)
        if self.mesh.rank == 0:
            compiling.start()
        try:
            evaluate.warm_up(c.eval.stage)
            if steps:
                if health:
                    health.warm_up()
                    if self.first_step == 0 and health.probe:
                        figures, _ = health.probe.run(False)  # by all ranks that it is cut over
                        if folder:
                            report_outputs(figures, folder)
                samples = [SampleLog(c.run.folder, self.mesh.rank, self.first_step)] if c.data.log_samples else []
                callbacks = [clock, profile, heartbeat, *samples, *(watch.callbacks if watch else ()), monitor, evaluate, save]
                if self.mesh.rank == 0:
                    callbacks.insert(1, compiling)
                if watch:
                    watch.start.verify()
                    dataset = watch.gate.over(dataset, steps)
                evaluate.pulse(triggers.pulse)  # not before: until a step is done there is nothing to save
                self.signals.enter_context(triggers.caught())
                Model(self.network).train(1, dataset, callbacks=callbacks, dataset_sink_mode=False)
            else:  # killed between its last checkpoint and its report
                evaluate.again()
            if save.halted:
                if folder:
                    write_page(folder)
                raise Halted(watch.gate.reason())
            if save.rolled_back:
                watch.settle()
                raise RolledBack("the same command goes on from a checkpoint before, and passes over "
                                 f"{passed_over.FILE} of {console.shown(c.run.folder)}")
            if not save.interrupted:
                summary.report(c, self.mesh, self.num_parameters, clock, monitor, evaluate)
        finally:
            compiling.close()
            profile.close()
            save.saver.close()
            monitor.close()
            if watch:
                watch.close()
            if self.mesh.rank == 0:
                self.lock.close()
        return not save.interrupted

    def saving(self, clock: Clock, monitor: Monitor, triggers: Triggers, ledger: Ledger, evaluate: Evaluate) -> Save:
        """When to save, and what this rank has of it: of a cut model its own part, else rank 0 everything."""
        c, mesh, copies, ranks = self.config, self.mesh, state.HostCopies(), self.mesh.world_size if self.cut else 1
        fixed = {"identity": self.identity, "run_id": self.run_id, "mesh": {"dp": mesh.dp, "tp": mesh.tp, "pp": mesh.pp},
                 "versions": {"mindspore": ms.__version__, "numpy": np.__version__}}

        layouts = plain(self.network.parameter_layout_dict) if self.cut else None

        def capture(milestone: bool):
            part, scalars = state.capture(self.step, copies, c.model.vocab_size, mesh.rank, self.cut, layouts)
            return part, {**scalars, "consumed_samples": monitor.reading.consumed, "milestone": milestone, **fixed,
                          "passed_over": passed_over.as_state(ledger.entries), "best_validation": evaluate.best}

        saver = Saver(self.root, c.ckpt.keep_last, mesh.rank, ranks, collectives.barrier if ranks > 1 else lambda: None,
                      fence(c.run.folder), os.environ.get(NUMBER, ""))
        return Save(clock, monitor, capture, saver, config_file.dump(c), triggers,
                    lambda step: step % c.ckpt.every_steps == 0 or step == self.last_step
                    or c.ckpt.keep_best and evaluate.best is not None and evaluate.best["step"] == step,
                    {max(1, round(c.train.total_steps * share)) for share in c.ckpt.milestones},
                    writes=self.cut is not None or mesh.rank == 0)

    def evaluation(self, clock: Clock) -> Evaluate:
        """The tiers that the config switches on, and when they run."""
        c, total = self.config, self.config.train.total_steps
        tiers = build_tiers(self.gpt, c, self.mesh, self.num_micro_batches, self.manifest)
        stage_steps = due_steps(total, c.eval.stage.every, c.eval.stage.every_steps)
        return Evaluate(clock, tiers, stage_steps, {max(1, round(total * s)) for s in c.eval.deep.at},
                        c.run.folder, c.train.log_every_steps)
