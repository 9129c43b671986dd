"""GPT-2's initial weights."""
import math
import zlib

import numpy as np
from mindspore import Tensor, nn

from model.config import ModelConfig

RESIDUAL = (".attention.output.weight", ".mlp.down.weight")  # the projections that add to the residual stream


def initialize(network: nn.Cell, config: ModelConfig, seed: int) -> None:
    """Set every parameter of `network` as GPT-2 does."""
    for name, p in network.parameters_and_names():
        p.set_data(Tensor(initial_value(name, p.shape, config, seed)))


def initial_value(name: str, shape: tuple[int, ...], config: ModelConfig, seed: int) -> np.ndarray:
    """One parameter's value, float32.

    Normal(0, init_std) for weights, divided by sqrt(2 * num_layers) for projections onto the residual stream; biases 0,
    LayerNorm weights 1. Each parameter has a random stream of its own (seed and name), so the values depend neither on the
    order nor on which other parameters this rank holds.
    """
    if name.endswith("bias"):
        return np.zeros(shape, np.float32)
    if ".norm" in f".{name}":
        return np.ones(shape, np.float32)
    std = config.init_std / (math.sqrt(2 * config.num_layers) if name.endswith(RESIDUAL) else 1.0)
    value = np.random.RandomState([seed, zlib.crc32(name.encode())]).standard_normal(shape) * std
    if name.endswith("embedding.token"):
        value[config.vocab_size:] = 0.0  # padding
    return value.astype(np.float32)
