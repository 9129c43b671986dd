"""The section `health.rules`: of each rule its level, threshold and window."""
from typing import Literal

from pydantic import Field, create_model

from parallel.config import Section

Level = Literal["off", "note", "warn", "stop"]
DataLevel = Literal["off", "note", "warn", "skip", "stop"]       # of rules over a batch that is not trained on yet
StepLevel = Literal["off", "note", "warn", "roll_back", "stop"]  # of rules over figures that a batch may be the cause of


class RuleConfig(Section):
    """A rule; what threshold and window mean is in the rule's description.

    Levels: note and warn are told; skip passes over the batch before it is trained on; roll_back ends the run, with exit code 5,
    and the next start goes on from before the step, and passes over its batch; stop saves and ends the run, with exit code 3.
    """

    level: str
    threshold: float = Field(gt=0.0)
    window: int = Field(ge=1)


def _rule(name: str, level: str, threshold: float, window: int, meaning: str, levels=Level) -> type[RuleConfig]:
    """A RuleConfig with defaults of its own, so that a config file may set any of the three alone."""
    return create_model(
        name, __base__=RuleConfig, __doc__=meaning,
        level=(levels, Field(level, description="what follows where the rule is broken; off: it is not watched")),
        threshold=(float, Field(threshold, gt=0.0, description=meaning)),
        window=(int, Field(window, ge=1, description="how far it looks back; what goes on is told once in so many steps")))


LabelShift = _rule("LabelShift", "stop", 0.001, 1, "at a start: share of the first batch's labels that are not the next token")
CorruptData = _rule("CorruptData", "stop", 1.0, 1, "tokens of a batch that the vocabulary does not have", DataLevel)
LossSpike = _rule("LossSpike", "warn", 8.0, 50, "a loss this many robust standard deviations above the level of health.window",
                  StepLevel)
LossVariance = _rule("LossVariance", "warn", 4.0, 50, "the spread of the loss over a window against that over the one before")
LearningNothing = _rule("LearningNothing", "warn", 0.2, 50, "a window of losses, none by this many nats below the unigram's")
GradientExplosion = _rule("GradientExplosion", "warn", 20.0, 100, "a gradient norm this many times the window's median",
                          StepLevel)
GradientVanishing = _rule("GradientVanishing", "warn", 1e-3, 100, "a gradient norm below this share of the window's median")
# More than the 24 halvings from the largest loss scale to 1, which a start with dynamic scale may take.
OverflowStreak = _rule("OverflowStreak", "stop", 30.0, 50, "steps in a row that were skipped since gradients were not finite",
                       StepLevel)
OverflowRate = _rule("OverflowRate", "warn", 0.1, 100, "share of a window's steps that were skipped")
LearningRate = _rule("LearningRate", "stop", 1e-3, 50, "distance of the learning rate from its schedule, relative")
DeadLayer = _rule("DeadLayer", "warn", 1e-12, 200, "a layer whose gradient's norm or whose update / weights is not above this")
LayerGradient = _rule("LayerGradient", "warn", 0.01, 500, "a layer's gradient norm below this share of its median, or as far "
                      "above it")
UpdateRatio = _rule("UpdateRatio", "warn", 0.1, 200, "update / weights of a layer in one step, above this")
ActivationDrift = _rule("ActivationDrift", "warn", 10.0, 500, "a block's output spread this many times that at the warm-up's end")
Saturation = _rule("Saturation", "warn", 0.9, 500, "share of values around the MLP's activation that are nothing or saturated")
AttentionCollapse = _rule("AttentionCollapse", "warn", 0.02, 500, "a head's attention entropy, of 1 at most, below this")
DataRepeated = _rule("DataRepeated", "warn", 1.0, 1000, "a batch that was read so many times in the window already",
                      DataLevel)
DominantToken = _rule("DominantToken", "warn", 0.5, 100, "share of one token in a batch, padding apart", DataLevel)
MostlyPadding = _rule("MostlyPadding", "note", 0.9, 100, "share of padding in a batch", DataLevel)
Throughput = _rule("Throughput", "note", 0.5, 100, "tokens/s below this share of the window's median")
SlowRank = _rule("SlowRank", "warn", 0.2, 20, "a rank that in most steps keeps the others waiting for this share of the step")
MemoryGrowth = _rule("MemoryGrowth", "warn", 1.3, 500, "memory this many times that of a window before")
EvalBudget = _rule("EvalBudget", "note", 1.2, 1, "the time of the tier stage, of its budget")
EvalDropout = _rule("EvalDropout", "warn", 1e-4, 1, "a loss in evaluation that differs by this share where only dropout could")
Quality = _rule("Quality", "warn", 0.05, 1, "a rise of the samples' repetition while perplexity falls")


class RulesConfig(Section):
    """What is told or stops the run; see eval/README.md for each rule."""

    label_shift: LabelShift = LabelShift()
    corrupt_data: CorruptData = CorruptData()
    loss_spike: LossSpike = LossSpike()
    loss_variance: LossVariance = LossVariance()
    learning_nothing: LearningNothing = LearningNothing()
    gradient_explosion: GradientExplosion = GradientExplosion()
    gradient_vanishing: GradientVanishing = GradientVanishing()
    overflow_streak: OverflowStreak = OverflowStreak()
    overflow_rate: OverflowRate = OverflowRate()
    learning_rate: LearningRate = LearningRate()
    dead_layer: DeadLayer = DeadLayer()
    layer_gradient: LayerGradient = LayerGradient()
    update_ratio: UpdateRatio = UpdateRatio()
    activation_drift: ActivationDrift = ActivationDrift()
    saturation: Saturation = Saturation()
    attention_collapse: AttentionCollapse = AttentionCollapse()
    data_repeated: DataRepeated = DataRepeated()
    dominant_token: DominantToken = DominantToken()
    mostly_padding: MostlyPadding = MostlyPadding()
    throughput: Throughput = Throughput()
    slow_rank: SlowRank = SlowRank()
    memory_growth: MemoryGrowth = MemoryGrowth()
    eval_budget: EvalBudget = EvalBudget()
    eval_dropout: EvalDropout = EvalDropout()
    quality: Quality = Quality()
