"""Initial weights: GPT-2's, or what `model.init` says by name.

Not by `mindspore.common.initializer`, which takes its seed from numpy's global random state: here each parameter has a random
stream of its own (seed and name), so the values depend neither on the order nor on which other parameters this rank holds.
"""
import math
import zlib

import numpy as np
from mindspore import Tensor, nn

from model.config import InitRule, ModelConfig
from parallel.cost.parameters import TABLES

RESIDUAL = (".attention.output.weight", ".mlp.down.weight")  # the projections that add to the residual stream


def initialize(network: nn.Cell, config: ModelConfig, seed: int) -> None:
    """Set every parameter of `network`."""
    for name, p in network.parameters_and_names():
        p.set_data(Tensor(initial_value(name, p.shape, config, seed)))


def initial_value(name: str, shape: tuple[int, ...], config: ModelConfig, seed: int) -> np.ndarray:
    """One parameter's value, float32; zero in the rows that pad the token table."""
    rows = config.vocab_size if name.endswith(TABLES) else shape[0]
    random = np.random.RandomState([seed, zlib.crc32(name.encode())])
    value = drawn(rule_of(name, config), (rows, *shape[1:]), config, random).astype(np.float32)
    return value if rows == shape[0] else np.pad(value, ((0, shape[0] - rows), (0, 0)))


def rule_of(name: str, config: ModelConfig) -> InitRule:
    """The first of `config.init` that matches, else GPT-2's: Normal(0, init_std) for weights, divided by sqrt(2 * num_layers) for
    projections onto the residual stream; biases 0, LayerNorm weights 1."""
    kind = "zeros" if name.endswith("bias") else "ones" if ".norm" in f".{name}" \
        else "residual" if name.endswith(RESIDUAL) else "normal"
    return config.init_rule(name) or InitRule(pattern=name, kind=kind)


def drawn(rule: InitRule, shape: tuple[int, ...], config: ModelConfig, random: np.random.RandomState) -> np.ndarray:
    """Values of a matrix [out, in] or a vector.

    Xavier: Glorot and Bengio, AISTATS 2010: variance 2 / (fan_in + fan_out); uniform between +- sqrt(3) of that deviation.
    He: He et al., arXiv:1502.01852: variance 2 / fan_in. Residual: GPT-2 (Radford et al., 2019), section 2.3.
    """
    std = rule.std or config.init_std
    match rule.kind:
        case "zeros" | "ones":
            return np.full(shape, float(rule.kind == "ones"))
        case "xavier_uniform":
            return random.uniform(-1.0, 1.0, shape) * math.sqrt(6.0 / sum(shape))
        case "truncated_normal":
            return _truncated(random, shape) * std
        case "xavier_normal":
            std = math.sqrt(2.0 / sum(shape))
        case "he_normal":
            std = math.sqrt(2.0 / shape[1])
        case "residual":
            std /= math.sqrt(2 * config.num_layers)
    return random.standard_normal(shape) * std


def _truncated(random: np.random.RandomState, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers, drawn again where they lie beyond +-2."""
    values = random.standard_normal(shape)
    while (beyond := np.abs(values) > 2.0).any():
        values[beyond] = random.standard_normal(np.count_nonzero(beyond))
    return values
