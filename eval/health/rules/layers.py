"""Rules over the layers' figures (`health.layers` of a row), where a step was looked at."""
from collections import deque
from statistics import median

from eval.health.rules.base import Facts, Rule
from eval.health.rules.config import RuleConfig

LOOKS, FEWEST_LOOKS = 20, 3  # that a layer's usual gradient norm is told from


class LayerRule(Rule):
    """Says of which layers it holds; a subclass says what it is that must not hold, and what to try."""

    what, remedy = "", ""

    def see(self, row: dict) -> str | None:
        layers = row.get("health", {}).get("layers", {})
        found = {name: value for name, figures in layers.items() if (value := self.value(name, figures, row)) is not None}
        if not found:
            return None
        shown = ", ".join(f"{name} {value:.3g}" for name, value in [*found.items()][:4])
        return f"{self.what}: {shown}{' ...' if len(found) > 4 else ''}. {self.remedy}"

    def value(self, name: str, figures: dict, row: dict) -> float | None:
        """The figure that breaks the rule, or None."""
        raise NotImplementedError


class DeadLayer(LayerRule):
    """No gradient arrives, or nothing is changed by it."""

    what = "layers that learn nothing (gradient norm, or update / weights)"
    remedy = "Check their initialisation, whether something before them is saturated or cut off, and which parameters are trained"

    def value(self, name: str, figures: dict, row: dict) -> float | None:
        if row["overflow"]:
            return None
        keys = ("grad_norm", "update_ratio") if row["lr"] > 0 else ("grad_norm",)
        return next((figures[key] for key in keys if figures.get(key) is not None and figures[key] <= self.limit), None)


class LayerGradient(LayerRule):
    """Against the layer's own median over the looks before, which takes in none that was far from it."""

    what = "gradient norms far from the layer's usual"
    remedy = "Look at the layer's activations and saturation in TensorBoard, and at the data of this step"

    def __init__(self, setting: RuleConfig, facts: Facts):
        super().__init__(setting, facts)
        self.norms: dict[str, deque[float]] = {}

    def value(self, name: str, figures: dict, row: dict) -> float | None:
        norm = figures.get("grad_norm")
        if not norm or row["overflow"]:  # no gradient at all is another rule's
            return None
        norms = self.norms.setdefault(name, deque(maxlen=LOOKS))
        usual = median(norms) if len(norms) >= FEWEST_LOOKS else norm
        if self.limit * usual < norm < usual / self.limit:
            norms.append(norm)
            return None
        return norm


class UpdateRatio(LayerRule):
    """One step changes a layer by too much of itself."""

    what = "update / weights of one step is large"
    remedy = "About 1e-3 is usual. Lower train.lr, or warm up longer"

    def value(self, name: str, figures: dict, row: dict) -> float | None:
        ratio = figures.get("update_ratio")
        return ratio if ratio is not None and ratio > self.limit else None


class ActivationDrift(LayerRule):
    """The spread of a block's output against the first look at it after the warm-up, in which it grows from next to nothing."""

    what = "activations have grown, to a spread of"
    remedy = "Lower train.lr or raise train.weight_decay; float16 ends at 65504"

    def __init__(self, setting: RuleConfig, facts: Facts):
        super().__init__(setting, facts)
        self.first: dict[str, float] = {}
        self.warmup = facts.warmup_steps

    def value(self, name: str, figures: dict, row: dict) -> float | None:
        spread = figures.get("std")
        if spread is None or row["step"] < self.warmup:
            return None
        return spread if spread > self.limit * self.first.setdefault(name, spread) else None


class Saturation(LayerRule):
    """Values after the MLP's activation that are nothing, or before it where its gradient is nothing."""

    what = "shares of values that are nothing or saturated"
    remedy = "Lower train.lr; check the initialisation of the layer before"

    def value(self, name: str, figures: dict, row: dict) -> float | None:
        share = max((figures[key] for key in ("zeros", "saturated") if figures.get(key) is not None), default=None)
        return share if share is not None and share > self.limit else None


class AttentionCollapse(LayerRule):
    """A head that looks at one position, whatever it reads."""

    what = "attention entropy of a head, as a share of the largest"
    remedy = "Such heads soon learn no more: lower train.lr, warm up longer, or start again from a checkpoint before"

    def value(self, name: str, figures: dict, row: dict) -> float | None:
        entropy = figures.get("attention_entropy_min")
        return entropy if entropy is not None and entropy < self.limit else None
