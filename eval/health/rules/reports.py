"""Rules over the reports of evaluations."""
from eval.comparison.trends import Series, disagreement
from eval.health.rules.base import Event
from eval.health.rules.config import RulesConfig

REPORT_RULES = ("eval_budget", "eval_dropout", "quality")


def report_events(report: dict, past: Series, time_budget: float | None, rules: RulesConfig) -> list[Event]:
    """What a report breaks.

    Args:
        report: of one evaluation, as train.callbacks.evaluate writes it; `dropout_spread` besides: see Stage.dropout_spread.
        past: the figures of all reports of the run, this one among them.
        time_budget: eval.stage.time_budget.
    """
    events, step = [], report["step"]
    share, budget = report.get("stage", {}).get("time_fraction"), rules.eval_budget
    if budget.level != "off" and time_budget and share is not None and share > budget.threshold * time_budget:
        events.append(Event(step, "eval_budget", budget.level, f"the tier stage has taken {share:.1%} of the training time; "
                            f"eval.stage.time_budget allows {time_budget:.1%}. Lower eval.stage.num_batches or max_questions, "
                            "or evaluate less often"))
    spread, dropout = report.get("dropout_spread"), rules.eval_dropout
    if dropout.level != "off" and spread is not None and not spread < dropout.threshold:
        events.append(Event(step, "eval_dropout", dropout.level, f"in evaluation the same text has losses that differ by "
                            f"{spread:.2%}, by nothing but the key of its dropout: dropout is on. The figures of evaluations are "
                            "too bad by it; look for a set_train(False) that is missing"))
    quality = rules.quality
    if quality.level != "off" and "deep" in report and (words := disagreement(past, quality.threshold)):
        events.append(Event(step, "quality", quality.level, words))
    return events
