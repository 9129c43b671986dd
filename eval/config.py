"""The sections `eval` and `health`: what is measured during training, and how often."""
from typing import Annotated, Literal

from pydantic import Field

from eval.health.rules.config import RulesConfig
from eval.judges.http import HttpJudgeConfig
from parallel.config import Section

DEFAULT_PROMPTS = (
    "It is a truth universally acknowledged, that",
    "\"My dear Mr. Bennet,\" said his lady",
    "子曰：“学而时习之，",
    "关关雎鸠，在河之洲。",
)
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class StageConfig(Section):
    """Held-out text (loss, perplexity, bits per byte, next-token accuracy) and tasks that likelihood decides."""

    enabled: bool = Field(True, description="evaluate this tier during training")
    every: float = Field(0.05, gt=0.0, le=1.0, description="share of the run between two evaluations")
    every_steps: int | None = Field(None, ge=1, description="steps between two evaluations, instead of a share")
    num_batches: int = Field(2, ge=1, description="batches of global_batch_size samples, of each corpus")
    tasks: tuple[Literal["cloze", "continuation", "mmlu", "bbh", "bbh_exact"], ...] = Field(
        ("cloze", "continuation", "mmlu", "bbh", "bbh_exact"), strict=False, description="questions asked besides")
    max_questions: int = Field(100, ge=1, description="questions of each task and language at most")
    time_budget: float | None = Field(0.05, gt=0.0, description="share of the training time that this tier may take; it then "
                                      "evaluates fewer samples and questions, and reports how many; null: no bound")


class DeepConfig(Section):
    """Texts that the model writes: their quality, instructions followed, safety."""

    enabled: bool = Field(True, description="evaluate this tier during training")
    at: tuple[Share, ...] = Field((0.5, 1.0), strict=False, description="shares of the run at which to evaluate")
    prompts: tuple[str, ...] = Field(DEFAULT_PROMPTS, min_length=1, strict=False, description="what the samples go on from")
    samples: int = Field(4, ge=1, description="texts written for each of these prompts")
    max_new_tokens: int = Field(48, ge=1, description="tokens written for each prompt")
    batch_size: int = Field(16, ge=1, description="prompts that one rank continues at once")
    temperature: float = Field(0.8, ge=0.0, description="0: always the likeliest token")
    top_k: int = Field(40, ge=0, description="draw among the k likeliest tokens; 0: among all")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="draw among the likeliest tokens that together have this probability")
    repetition_penalty: float = Field(1.0, ge=1.0, description="makes tokens that stand in the text already less likely; 1: not")
    instructions: bool = Field(True, description="ask the instruction-following items")
    safety: bool = Field(True, description="ask the safety items")
    judge: HttpJudgeConfig | None = Field(None, description="a model that judges the samples over HTTP; null: none")


class HealthConfig(Section):
    """What moves inside the model, by layer: gradients, updates, activations, attention."""

    enabled: bool = Field(True, description="watch this tier during training")
    every_steps: int = Field(100, ge=1, description="steps between two looks")
    window: int = Field(200, ge=20, description="steps that the loss's level, spread and spikes are told from")
    spike_z: float = Field(6.0, gt=0.0, description="a loss so many robust standard deviations above the median is a spike")
    probe_samples: int = Field(2, ge=0, description="held-out samples whose activations are looked at; 0: none")
    histograms: bool = Field(True, description="gradients and activations as histograms in TensorBoard")
    locate_nan: bool = Field(True, description="run the first step that is not finite again, cell by cell")
    rules: RulesConfig = RulesConfig()
    on_event: str | None = Field(None, description="shell command that is given each event as JSON on its standard input")
    webhook: str | None = Field(None, pattern=r"^https?://", description="address to which each event is posted as JSON")
    roll_back_batches: int = Field(2, ge=1, description="level roll_back: batches passed over, that of the step and those before")
    max_passed_over: int = Field(10, ge=0, description="skips and roll-backs of a run at most; the next one stops it")


class EvalConfig(Section):
    """The tiers: stage (often, on a time budget) and deep (at milestones)."""

    stage: StageConfig = StageConfig()
    deep: DeepConfig = DeepConfig()
