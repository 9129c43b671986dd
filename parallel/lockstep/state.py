"""Parameters, and the operators that change them."""
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Ref:
    """A parameter. Its array is replaced, never written to, so that whoever has loaded the old one keeps it."""

    value: np.ndarray

    def set(self, x) -> None:
        self.value = np.asarray(x, self.value.dtype).reshape(self.value.shape)


def value(x):
    """x with parameters replaced by what they hold now."""
    if type(x) is Ref:
        return x.value
    return tuple(map(value, x)) if type(x) is tuple else x


def assign(target, x):
    target.set(x)
    return target


def assign_add(target, x):
    target.set(target.value + x)
    return target


def assign_sub(target, x):
    target.set(target.value - x)
    return target


def adam_weight_decay(weight, moment1, moment2, lr, beta1, beta2, eps, decay, gradient, *_):
    """MindSpore's AdamWeightDecay: no bias correction, and weight decay added to the update."""
    f = np.float32
    gradient = gradient.astype(f, copy=False)
    m = f(beta1) * moment1.value + (f(1) - f(beta1)) * gradient
    v = f(beta2) * moment2.value + (f(1) - f(beta2)) * np.square(gradient)
    weight.set(weight.value - f(lr) * (m / (np.sqrt(v) + f(eps)) + f(decay) * weight.value))
    moment1.set(m)
    moment2.set(v)
    return weight, moment1, moment2


# operator -> (what it does, how many of its first inputs it changes)
UPDATES: dict[str, tuple[Callable, int]] = {
    "Assign": (assign, 1), "AssignAdd": (assign_add, 1), "AssignSub": (assign_sub, 1), "AdamWeightDecay": (adam_weight_decay, 3),
}
