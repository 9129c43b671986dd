"""Text generation: prompts in, continuations out."""
from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model.gpt import GPT, Head


class NextTokenLogits(nn.Cell):
    """ids int32 [batch, seq], last int32 [batch] (index of each row's last token) -> logits float32 [batch, vocab].

    What stands behind the last token is not seen: attention is causal.
    """

    def __init__(self, gpt: GPT):
        super().__init__(auto_prefix=False)
        self.gpt, self.head, self.gather, self.vocab_size = gpt, Head(), ops.Gather(), gpt.vocab_size

    def construct(self, ids, last):
        batch, t = ids.shape
        x, table = self.gpt(ids, ops.zeros((batch,), ms.int32))
        rows = last + ops.arange(0, batch * t, t).astype(ms.int32)
        return self.head(self.gather(x, rows, 0), table)[:, :self.vocab_size]


def choose(logits: np.ndarray, temperature: float, top_k: int, rng: np.random.RandomState) -> int:
    """One token id from finite logits [vocab]: the likeliest at temperature 0, else drawn among the top_k (0: all).

    Of equal logits the lower id is the likelier.
    """
    if temperature == 0.0:
        return int(logits.argmax())
    best = np.argsort(-logits, kind="stable")[:top_k or None]
    kept = logits[best].astype(np.float64)
    p = np.exp((kept - kept.max()) / temperature)
    return int(rng.choice(best, p=p / p.sum()))


def generate(next_logits: Callable[[Tensor, Tensor], Tensor], prompts: list[list[int]], window: int, max_new_tokens: int,
             eos_id: int, temperature: float = 0.8, top_k: int = 40, seed: int = 0) -> list[list[int]]:
    """Continue each prompt (token ids, at least one) until eos or max_new_tokens; returns the new ids, eos not among them.

    A model whose logits are not finite has nothing to say: the text ends there.

    All prompts go through the model together. The model sees the last `window` tokens of a text (at most the model's seq_length);
    that is a shape of the compiled graph, so calls with the same window and number of prompts share one. Random numbers come
    from `seed` and nothing else.
    """
    rngs = [np.random.RandomState([seed, i]) for i in range(len(prompts))]
    texts, live = [list(p) for p in prompts], [True] * len(prompts)
    for _ in range(max_new_tokens):
        if not any(live):
            break
        ids = np.zeros((len(texts), window), np.int32)
        for row, text in zip(ids, texts, strict=True):
            row[:len(text[-window:])] = text[-window:]
        logits = next_logits(Tensor(ids), Tensor([min(len(t), window) - 1 for t in texts], ms.int32)).asnumpy()
        for i, text in enumerate(texts):
            if live[i] and np.isfinite(logits[i]).all():
                token = choose(logits[i], temperature, top_k, rngs[i])
                live[i] = token != eos_id
                if live[i]:
                    text.append(token)
            else:
                live[i] = False
    return [text[len(prompt):] for text, prompt in zip(texts, prompts, strict=True)]
