"""Run with the extra `oracle`, from the repository: python tests/model/make_sampling.py

What transformers' logits processors, in the order in which its `generate` applies them, make of some logits: sampling.npz.

    logits         float32 [rows, vocab]
    tokens         int64 [rows, longest], the text so far, `lengths` [rows] tokens of it
    settings       float64 [settings, 4]: temperature, top_k, top_p, repetition_penalty
    probabilities  float64 [settings, rows, vocab]
"""
from itertools import product
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

VOCAB, LENGTHS = 40, (1, 7, 12, 30)
SETTINGS = [*product((0.3, 1.0, 2.5), (0, 1, 5, 100), (1.0,), (1.0,)),
            *product((0.7, 1.0), (0, 8), (1e-6, 0.3, 0.9, 0.999), (1.0,)),
            *product((1.0, 1.7), (0, 12), (1.0, 0.8), (0.8, 1.3, 5.0))]


def probabilities(model: GPT2LMHeadModel, tokens: list[int], logits: np.ndarray, setting: tuple) -> np.ndarray:
    """float64 [vocab]."""
    names = ("temperature", "top_k", "top_p", "repetition_penalty")
    config = GenerationConfig(do_sample=True, **dict(zip(names, setting, strict=True)))
    processors = model._get_logits_processor(generation_config=config, input_ids_seq_length=len(tokens))
    scores = processors(torch.tensor([tokens]), torch.tensor(logits, dtype=torch.float64)[None])
    return torch.softmax(scores, -1)[0].numpy()


def main() -> None:
    """Write sampling.npz."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=8, n_embd=4, n_layer=1, n_head=1))
    rng = np.random.RandomState(0)
    # One row is nearly flat, one is peaked and far from 0, so that top_p keeps many tokens and few.
    logits = rng.standard_normal((len(LENGTHS), VOCAB)) * [[2.0], [0.1], [6.0], [1.0]] + [[0.0], [0.0], [30.0], [-4.0]]
    logits = logits.astype(np.float32)
    tokens = rng.randint(0, VOCAB, (len(LENGTHS), max(LENGTHS)))
    found = [[probabilities(model, row[:n].tolist(), x, setting) for row, n, x in zip(tokens, LENGTHS, logits, strict=True)]
             for setting in SETTINGS]
    np.savez_compressed(Path(__file__).with_name("sampling.npz"), logits=logits, tokens=tokens, lengths=LENGTHS,
                        settings=np.array(SETTINGS), probabilities=np.array(found))


if __name__ == "__main__":
    main()
