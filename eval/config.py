"""The section `eval`: what is measured during training, and how often."""
from typing import Annotated

from pydantic import Field

from parallel.config import Section

DEFAULT_PROMPTS = (
    "It is a truth universally acknowledged, that",
    "\"My dear Mr. Bennet,\" said his lady",
    "子曰：“学而时习之，",
    "关关雎鸠，在河之洲。",
)
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class StageConfig(Section):
    """Validation: loss, perplexity and next-token accuracy of each corpus and of all together."""

    enabled: bool = Field(True, description="validate during training")
    every: float = Field(0.05, gt=0.0, le=1.0, description="share of the run between two validations")
    num_batches: int = Field(2, ge=1, description="batches of global_batch_size samples, of each corpus")


class DeepConfig(Section):
    """Samples of generated text at milestones."""

    enabled: bool = Field(True, description="generate samples during training")
    at: tuple[Share, ...] = Field((0.5, 1.0), strict=False, description="shares of the run at which to generate")
    prompts: tuple[str, ...] = Field(DEFAULT_PROMPTS, min_length=1, strict=False, description="what the samples go on from")
    max_new_tokens: int = Field(48, ge=1, description="tokens generated for each prompt")
    temperature: float = Field(0.8, ge=0.0, description="0: always the likeliest token")
    top_k: int = Field(40, ge=0, description="sample among the k likeliest tokens; 0: among all")


class EvalConfig(Section):
    """The tiers: stage (often, cheap) and deep (at milestones)."""

    stage: StageConfig = StageConfig()
    deep: DeepConfig = DeepConfig()
