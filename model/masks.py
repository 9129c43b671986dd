"""What is added to scores and logits so that they do not count; float32."""
import functools

import numpy as np
from mindspore import Tensor


@functools.cache
def causal_mask(seq_length: int) -> Tensor:
    """[seq, seq]: 0 where position i may see position j <= i, elsewhere less than any score that training can have."""
    return Tensor(np.triu(np.full((seq_length, seq_length), -1e30, np.float32), 1))


def padding_mask(vocab_size: int, padding: int) -> Tensor:
    """[vocab_size + padding]: 0, and -1e9 for the logits that the table's padding would give."""
    return Tensor(np.repeat(np.float32([0, -1e9]), (vocab_size, padding)))
