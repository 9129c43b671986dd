"""Parameter groups: which learning rate and which weight decay a parameter has. No MindSpore here."""
from collections.abc import Iterable

from parallel.patterns import first_match
from train.config import TrainConfig


def setting_of(name: str, ndim: int, config: TrainConfig) -> tuple[float, float]:
    """(factor of the learning rate, weight decay) of a parameter. Without a group: 1; and train.weight_decay for matrices and
    embeddings, none for biases and norms, which are vectors."""
    decay = config.weight_decay if ndim > 1 else 0.0
    found = first_match([group.pattern for group in config.groups], name)
    if found is None:
        return 1.0, decay
    group = config.groups[found]
    if group.weight_decay is not None:
        decay = group.weight_decay
    elif group.weight_decay_factor is not None:
        decay *= group.weight_decay_factor
    return group.lr_factor, decay


def settings(parameters: Iterable, config: TrainConfig) -> tuple[tuple[tuple[float, float], ...], tuple[int, ...]]:
    """The different settings that there are, and for each parameter (anything with name and shape) which of them it has."""
    each = [setting_of(p.name, len(p.shape), config) for p in parameters]
    different = tuple(dict.fromkeys(each))
    return different, tuple(map(different.index, each))


def described(names: Iterable[str], config: TrainConfig) -> list[str]:
    """A line for each group, for a person."""
    names, patterns = list(names), [group.pattern for group in config.groups]
    counts = [sum(first_match(patterns, name) == i for name in names) for i in range(len(patterns))]
    lines = []
    for group, count in zip(config.groups, counts, strict=True):
        rate = f"learning rate x {group.lr_factor:g}" if group.lr_factor else "frozen"
        decay = f", weight decay {group.weight_decay:g}" if group.weight_decay is not None \
            else f", weight decay x {group.weight_decay_factor:g}" if group.weight_decay_factor is not None else ""
        lines.append(f"{group.pattern} ({count} parameters): {rate}{decay}")
    return lines
