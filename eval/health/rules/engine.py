"""Rules over the rows of a run, in order. A rule that goes on being broken is told once in each of its windows."""
from eval.health.rules import data, layers, steps
from eval.health.rules.base import Event, Facts, Rule
from eval.health.rules.config import RulesConfig

RULES: dict[str, type[Rule]] = {
    "loss_spike": steps.LossSpike, "loss_variance": steps.LossVariance, "learning_nothing": steps.LearningNothing,
    "gradient_explosion": steps.GradientExplosion, "gradient_vanishing": steps.GradientVanishing,
    "overflow_streak": steps.OverflowStreak, "overflow_rate": steps.OverflowRate, "learning_rate": steps.LearningRate,
    "dead_layer": layers.DeadLayer, "update_ratio": layers.UpdateRatio, "activation_drift": layers.ActivationDrift,
    "saturation": layers.Saturation, "attention_collapse": layers.AttentionCollapse,
    "data_repeated": data.DataRepeated, "dominant_token": data.DominantToken, "mostly_padding": data.MostlyPadding,
    "throughput": steps.Throughput, "memory_growth": steps.MemoryGrowth,
}


class Rules:
    """Those that are not off."""

    def __init__(self, config: RulesConfig, facts: Facts):
        settings = {name: getattr(config, name) for name in RULES}
        self.rules = {name: (one, RULES[name](one, facts)) for name, one in settings.items() if one.level != "off"}
        self.quiet_until: dict[str, int] = {}

    def see(self, row: dict) -> list[Event]:
        """What the next step's row breaks. Call it with each row once, in order."""
        events = []
        for name, (setting, rule) in self.rules.items():
            if (message := rule.see(row)) and row["step"] >= self.quiet_until.get(name, 0):
                events.append(Event(row["step"], name, setting.level, message))
                self.quiet_until[name] = row["step"] + setting.window
        return events
