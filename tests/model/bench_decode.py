"""Run from the repository: python -m tests.model.bench_decode [--rounds 2] [--tokens 256]

How much faster a text is written with the cache than by computing the whole context for each token: A B A B in one process, after
both are compiled. Both draw greedily and must write the same. Not part of the tests.
"""
import argparse
import time

import mindspore as ms
import numpy as np
from mindspore import Tensor

from model.config import ModelConfig
from model.gpt import GPT
from model.init import initialize
from model.sampling import Sampling
from model.writer import Writer
from tests.model.uncached import NextTokenLogits

CONFIG = ModelConfig(vocab_size=4000, hidden_size=192, num_layers=4, num_heads=4, seq_length=320, init_std=0.1)
LENGTHS = (1, 5, 12, 20, 30, 45, 60, 64)
NO_EOS = -1  # every text is to have all its tokens


def recompute(network: NextTokenLogits, prompts: list[list[int]], new: int) -> list[list[int]]:
    """Greedy; each token costs the whole window of every text. No text may outgrow the window."""
    ids = np.zeros((len(prompts), CONFIG.seq_length), np.int32)
    ends = np.array([len(p) for p in prompts])
    rows = np.arange(len(prompts))
    for row, prompt in zip(ids, prompts, strict=True):
        row[:len(prompt)] = prompt
    for step in range(new):
        ids[rows, ends + step] = network(Tensor(ids), Tensor(ends + step - 1, ms.int32)).asnumpy().argmax(1)
    return [row[end:end + new].tolist() for row, end in zip(ids, ends, strict=True)]


def main() -> None:
    """Print the seconds of each round and the ratio of the least ones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE)
    gpt = GPT(CONFIG)
    initialize(gpt, CONFIG, seed=1)
    prompts = [np.random.RandomState(n).randint(3, CONFIG.vocab_size, n).tolist() for n in LENGTHS]
    network, writer = NextTokenLogits(gpt), Writer(gpt, len(prompts), CONFIG.seq_length, NO_EOS)
    ways = {"whole context": lambda new: recompute(network, prompts, new),
            "cache": lambda new: [text.tokens for text in writer.write(prompts, new, Sampling(0.0), seed=0)]}
    seconds, texts = {name: [] for name in ways}, {}
    for write in ways.values():
        write(2)
    for _ in range(options.rounds):
        for name, write in ways.items():
            start = time.perf_counter()
            texts[name] = write(options.tokens)
            seconds[name].append(time.perf_counter() - start)
            print(f"{name}: {seconds[name][-1]:.2f} s for {len(prompts)} texts of {options.tokens} tokens", flush=True)
    least = [min(times) for times in seconds.values()]
    print(f"ratio {least[0] / least[1]:.1f}; same texts: {texts['whole context'] == texts['cache']}")


if __name__ == "__main__":
    main()
