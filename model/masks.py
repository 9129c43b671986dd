"""What keeps scores and logits from counting: numbers that are added, float32, and the fused kernel's mask."""
import functools

import numpy as np
from mindspore import Tensor


@functools.cache
def causal_mask(seq_length: int) -> Tensor:
    """[seq, seq]: 0 where position i may see position j <= i, elsewhere less than any score that training can have."""
    return Tensor(np.triu(np.full((seq_length, seq_length), -1e30, np.float32), 1))


@functools.cache
def fused_mask() -> Tensor:
    """uint8 [2048, 2048], 1 above the diagonal: what FlashAttentionScore wants for a causal mask, however long the sequence."""
    return Tensor(np.triu(np.ones((2048, 2048), np.uint8), 1))


def padding_mask(vocab_size: int, padding: int) -> Tensor:
    """[vocab_size + padding]: 0, and -1e9 for the logits that the table's padding would give."""
    return Tensor(np.repeat(np.float32([0, -1e9]), (vocab_size, padding)))
