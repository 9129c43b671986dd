"""The whole config of a run: each room's section, and the rules that cross sections."""
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from ckpt.config import CkptConfig
from data.config import DataConfig
from eval.config import EvalConfig, HealthConfig
from model.config import ModelConfig, PrecisionConfig
from parallel import config_file
from parallel.config import ParallelConfig, Section
from parallel.cost.parameters import all_parameters
from parallel.cost.sizes import model_sizes
from parallel.patterns import check_patterns


class RunSection(Section):
    """Which run this is."""

    name: str = Field("smoke", pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$", description="folder of the run below `dir`")
    dir: Annotated[Path, Field(strict=False)] = Field(description="folder that holds the runs")
    seed: int = Field(1234, ge=0, lt=2**31, description="initial weights, sample order, dropout, generated samples")
    language: Literal["auto", "en", "zh"] = Field(
        "auto", description="of the console; auto: by LC_ALL, LC_MESSAGES or LANG; notes and errors are in English")
    compile_cache: bool = Field(False, description="keep compiled graphs, for the next start with the same config and code")

    @property
    def folder(self) -> Path:
        """<dir>/<name>."""
        return self.dir / self.name


class ParameterGroup(Section):
    """Parameters by name, and how their learning rate and weight decay differ."""

    pattern: str = Field(min_length=1, description="glob on parameter names, such as blocks.*.mlp.*; * goes over dots")
    lr_factor: float = Field(1.0, ge=0.0, description="times the learning rate; 0: frozen, but its gradient counts in the norm")
    weight_decay: float | None = Field(None, ge=0.0, description="in place of train.weight_decay, on biases and norms too")
    weight_decay_factor: float | None = Field(None, ge=0.0, description="times the decay that it has without this group")

    @model_validator(mode="after")
    def _one_decay(self):
        if self.weight_decay is not None and self.weight_decay_factor is not None:
            raise ValueError("weight_decay and weight_decay_factor are two ways to say one thing: give one of them")
        return self


class TrainConfig(Section):
    """The optimization."""

    total_steps: int = Field(400, ge=1, lt=2**31, description="optimizer updates of the whole run; the schedule's length")
    stop_at_step: int | None = Field(None, ge=1, description="save and end here; the schedule keeps its length")
    global_batch_size: int = Field(16, ge=1, lt=2**24, description="samples in one update, over all ranks and micro-batches")
    micro_batch_size: Literal["auto"] | PositiveInt = Field(
        "auto", description="samples that one rank computes at once; auto: its share of the batch / num_micro_batches")
    lr: float = Field(1e-3, gt=0.0, description="peak learning rate")
    min_lr: float = Field(0.0, ge=0.0, description="floor of the schedule")
    schedule: Literal["cosine", "linear", "constant", "wsd", "inverse_sqrt"] = Field(
        "cosine", description="shape after the warm-up; wsd: constant, then linear decay")
    decay_fraction: float = Field(0.1, gt=0.0, le=1.0, description="wsd: share of the steps after the warm-up that decay")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    weight_decay: float = Field(0.1, ge=0.0, description="decoupled; not on biases and norms")
    groups: Annotated[tuple[ParameterGroup, ...], Field(strict=False)] = Field(
        (), description="parameters with another learning rate or weight decay; the first pattern that matches counts")
    optimizer: Literal["adamw", "adafactor"] = Field(
        "adamw", description="adafactor: of matrices it keeps means of rows and columns alone, and no betas")
    betas: tuple[float, float] = Field((0.9, 0.95), strict=False, description="AdamW's decay of the two moments")
    eps: float = Field(1e-8, gt=0.0, description="AdamW's epsilon; adafactor adds its square to squared gradients")
    clip_norm: float | None = Field(1.0, gt=0.0, description="what clip_by limits; null: no clipping")
    clip_by: Literal["global_norm", "norm", "value"] = Field(
        "global_norm", description="clip_norm is the largest norm of all gradients together (global_norm), of each parameter's "
                                   "(norm), or the largest absolute value of each element (value)")
    log_every_steps: int = Field(10, ge=1, description="steps between two lines on the console")

    @property
    def clips_each(self) -> bool:
        """Whether the norm of each parameter's gradient is needed."""
        return self.clip_norm is not None and self.clip_by == "norm"


class SuperviseConfig(Section):
    """What `python -m train.supervise` takes for a hang, and how often it starts again."""

    start_minutes: float = Field(120.0, gt=0.0, description="no sign of life until the first step is done; compiling is long")
    step_minutes: float = Field(15.0, gt=0.0, description="no sign of life between two steps")
    eval_minutes: float = Field(120.0, gt=0.0, description="one evaluation")
    ckpt_minutes: float = Field(60.0, gt=0.0, description="one wait for a checkpoint")
    max_restarts: int = Field(5, ge=0, description="starts after the first, within within_hours")
    within_hours: float = Field(24.0, gt=0.0, description="the time in which restarts are counted")
    pause_seconds: float = Field(10.0, ge=0.0, description="before the first restart; doubled before each next, 10 min at most")
    lease_seconds: float = Field(30.0, ge=3.0, description="a node of several that gives no sign for so long is lost")
    node_minutes: float = Field(60.0, gt=0.0, description="wait for a lost node to come back")


class ProfileConfig(Section):
    """When mindspore.profiler looks on; `touch <run>/request_profile` asks for a window at any other time."""

    enabled: bool = Field(False, description="profile by this schedule; on request alone if not")
    skip_first: int = Field(10, ge=0, description="steps of a start before the first cycle; the very first compiles")
    wait: int = Field(0, ge=0, description="steps at the beginning of each cycle that pass as if there were no profiler")
    warmup: int = Field(2, ge=0, description="steps after these in which the profiler runs, but which are not told")
    active: int = Field(5, ge=1, le=1000, description="steps after these that are profiled")
    repeat: int = Field(1, ge=1, description="cycles of wait, warmup and active")
    ranks: Literal["all"] | Annotated[tuple[NonNegativeInt, ...], Field(strict=False, min_length=1)] = Field(
        (0,), description="ranks that are profiled; stragglers show with several")

    def takes(self, rank: int) -> bool:
        """Whether a rank is profiled."""
        return self.ranks == "all" or rank in self.ranks


class RunConfig(Section):
    """One run, from text to checkpoint."""

    run: RunSection
    model: ModelConfig = ModelConfig()
    data: DataConfig
    parallel: ParallelConfig = ParallelConfig()
    train: TrainConfig = TrainConfig()
    precision: PrecisionConfig = PrecisionConfig()
    health: HealthConfig = HealthConfig()
    eval: EvalConfig = EvalConfig()
    ckpt: CkptConfig = CkptConfig()
    supervise: SuperviseConfig = SuperviseConfig()
    profile: ProfileConfig = ProfileConfig()

    @model_validator(mode="after")
    def _rules(self):
        m, t = self.model, self.train
        if m.hidden_size % m.num_heads:
            raise ValueError(f"model.num_heads={m.num_heads} does not divide model.hidden_size={m.hidden_size}: allowed "
                             f"are {', '.join(str(h) for h in range(1, m.hidden_size + 1) if m.hidden_size % h == 0)}")
        m.check_architecture()
        if self.data.seq_length > m.seq_length:
            raise ValueError(f"data.seq_length={self.data.seq_length} is longer than model.seq_length={m.seq_length}, the "
                             "model's longest context: lower the one or raise the other")
        if t.optimizer == "adafactor" and (self.parallel.tp > 1 or self.parallel.optimizer_sharding):
            raise ValueError(f"train.optimizer=adafactor takes means over whole matrices, and parallel.tp={self.parallel.tp} "
                             f"optimizer_sharding={str(self.parallel.optimizer_sharding).lower()} cut them: set tp to 1 and "
                             "optimizer_sharding to false, or take adamw")
        if t.optimizer == "adafactor" and t.eps < 1e-18:
            raise ValueError(f"train.eps={t.eps:g}: train.optimizer=adafactor takes its square, which float32 does not hold: "
                             "allowed are 1e-18 and more")
        if self.ckpt.init_partial and not self.ckpt.init_from:
            raise ValueError("ckpt.init_partial=true needs ckpt.init_from, the checkpoint to take tensors from")
        if t.warmup_steps > t.total_steps:
            raise ValueError(f"train.warmup_steps={t.warmup_steps} exceeds train.total_steps={t.total_steps}: "
                             "lower the one or raise the other")
        parameters = all_parameters(model_sizes(m.model_dump(), 1, m.seq_length))
        check_patterns("train.groups", [g.pattern for g in t.groups], [p.name for p in parameters])
        check_patterns("model.init", [rule.pattern for rule in m.init], [p.name for p in parameters])
        for p in parameters:
            m.check_init(p.name, p.shape)
        if t.min_lr > t.lr:
            raise ValueError(f"train.min_lr={t.min_lr} exceeds train.lr={t.lr}: lower the one or raise the other")
        if not all(0.0 <= b < 1.0 for b in t.betas):
            raise ValueError(f"train.betas={list(t.betas)}: each must be at least 0 and below 1")
        if t.stop_at_step is not None and t.stop_at_step > t.total_steps:
            raise ValueError(f"train.stop_at_step={t.stop_at_step} exceeds train.total_steps={t.total_steps}: "
                             "lower it, or set null to run to the end")
        f = self.profile
        if f.enabled and (ends := f.skip_first + f.wait + f.warmup + f.active) > t.total_steps:
            raise ValueError(f"profile: its first window ends at step {ends} (skip_first + wait + warmup + active), the run at "
                             f"train.total_steps={t.total_steps}: lower one of them")
        p = self.precision
        if p.level == "O0" and (p.white_list or p.black_list):
            raise ValueError("precision.white_list and black_list need precision.level O1, O2 or O3: O0 is float32 everywhere")
        s = p.loss_scale
        if s.min > s.max:
            raise ValueError(f"precision.loss_scale.min={s.min} exceeds max={s.max}: lower the one or raise the other")
        if not s.min <= s.initial <= s.max:
            raise ValueError(f"precision.loss_scale.initial={s.initial} must lie between min={s.min} and max={s.max}")
        return self


# For a checkpoint's config. Its weights are whole, so the mesh need not be the one that they were trained under.
ONE_CARD = ["parallel.dp=auto", "parallel.tp=1", "parallel.pp=1", "parallel.num_micro_batches=auto", "parallel.virtual_stages=1",
            "parallel.stage_layers=auto", "parallel.sequence_parallel=false"]


def load_config(path: str | Path, overrides: list[str] | None = None) -> RunConfig:
    """Read and check a run's YAML file, with `key=value` overrides. Raises UserError."""
    return config_file.load(path, RunConfig, overrides or [])
