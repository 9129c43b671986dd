"""The peer of the benchmark: a GPT-2 of the same sizes in PyTorch, eager or by torch.compile, as nanoGPT has it.

    python tests/bench/peer_torch.py eager|compiled LAYERS HIDDEN HEADS VOCAB SEQ BATCH STEPS

Float32, PyTorch's own fused causal attention, clipping by the global norm, fused AdamW with decay of the matrices alone.
Prints JSON: {"step_seconds": [...], "loss": of the last step, "matmul_gflops": of one large matrix product, the machine's best}.
"""
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, t, hidden = x.shape
        q, k, v = (y.view(batch, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(hidden, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, vocab: int, seq: int):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.token.weight
        self.apply(self.initialize)

    @staticmethod
    def initialize(module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens):
        ids, labels = tokens[:, :-1], tokens[:, 1:]
        x = self.token(ids) + self.position.weight[:ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def matmul_gflops(n: int = 2048) -> float:
    """Of the quickest of ten products of square matrices."""
    a, b, seconds = torch.randn(n, n), torch.randn(n, n), []
    for _ in range(10):
        began = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - began)
    return 2 * n**3 / min(seconds) / 1e9


def main(mode: str, layers: int, hidden: int, heads: int, vocab: int, seq: int, batch: int, steps: int) -> None:
    torch.manual_seed(1)
    model = GPT(layers, hidden, heads, vocab, seq)
    step = torch.compile(model) if mode == "compiled" else model
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    seconds = []
    for _ in range(steps):
        tokens = torch.randint(vocab, (batch, seq + 1))
        began = time.perf_counter()
        loss = step(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last = loss.item()
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"step_seconds": seconds, "loss": last, "matmul_gflops": matmul_gflops()}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
