"""Rules over the rows of a run, in order. A rule that goes on being broken is told once in each of its windows."""
from eval.health.rules import data, layers, steps
from eval.health.rules.base import Event, Facts, Rule
from eval.health.rules.config import RulesConfig

DATA_RULES: dict[str, type[Rule]] = {  # see a batch before it is trained on
    "corrupt_data": data.CorruptData, "data_repeated": data.DataRepeated, "dominant_token": data.DominantToken,
    "mostly_padding": data.MostlyPadding,
}
RULES: dict[str, type[Rule]] = {
    "loss_spike": steps.LossSpike, "loss_variance": steps.LossVariance, "learning_nothing": steps.LearningNothing,
    "gradient_explosion": steps.GradientExplosion, "gradient_vanishing": steps.GradientVanishing,
    "overflow_streak": steps.OverflowStreak, "overflow_rate": steps.OverflowRate, "learning_rate": steps.LearningRate,
    "dead_layer": layers.DeadLayer, "layer_gradient": layers.LayerGradient, "update_ratio": layers.UpdateRatio,
    "activation_drift": layers.ActivationDrift, "saturation": layers.Saturation, "attention_collapse": layers.AttentionCollapse,
    **DATA_RULES,
    "throughput": steps.Throughput, "slow_rank": steps.SlowRank, "memory_growth": steps.MemoryGrowth,
}
START_RULES = ("label_shift",)  # hold once, before the first step; see train.callbacks.gate
BARS = ("skip", "stop")         # the levels at which a batch that breaks a rule is not trained on


class Rules:
    """Those that are not off; what bars a batch is seen by `Bars` alone, which tells it."""

    def __init__(self, config: RulesConfig, facts: Facts):
        settings = {name: getattr(config, name) for name in RULES}
        self.rules = {name: (one, RULES[name](one, facts)) for name, one in settings.items()
                      if one.level != "off" and not (name in DATA_RULES and one.level in BARS)}
        self.quiet_until: dict[str, int] = {}

    def see(self, row: dict) -> list[Event]:
        """What the next step's row breaks. Call it with each row once, in order."""
        events = []
        for name, (setting, rule) in self.rules.items():
            if (message := rule.see(row)) and row["step"] >= self.quiet_until.get(name, 0):
                events.append(Event(row["step"], name, setting.level, message, rule.began(row["step"])))
                self.quiet_until[name] = row["step"] + setting.window
        return events


class Bars:
    """The rules whose level keeps a batch from being trained on. Unlike Rules they are told of each time."""

    def __init__(self, config: RulesConfig):
        settings = {name: getattr(config, name) for name in DATA_RULES}
        self.rules = {name: (one, DATA_RULES[name](one, None)) for name, one in settings.items() if one.level in BARS}

    @property
    def hold_valid(self) -> bool:
        """Whether one may hold of a batch all whose tokens are valid."""
        return any(name != "corrupt_data" for name in self.rules)

    def see(self, row: dict) -> Event | None:
        """What a batch's figures break first, if anything; the row has the step that would read it."""
        found = [(name, setting.level, message) for name, (setting, rule) in self.rules.items() if (message := rule.see(row))]
        return Event(row["step"], *found[0]) if found else None
