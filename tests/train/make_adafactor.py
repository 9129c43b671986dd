"""Run with the extra `oracle`, from the repository: python tests/train/make_adafactor.py

Steps of transformers' Adafactor (the paper's settings, the learning rate given, no relative step, no scaling by the parameter)
for tests/train/test_adafactor.py, written to adafactor.json: weights before and after, gradients and learning rates. Some rows
have no gradient, one matrix has none at all in the first step, and in the last all are large, so that the update is scaled down.
"""
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.optimization import Adafactor

SHAPES = {"embedding.token": (7, 4), "mlp.weight": (5, 3), "mlp.bias": (5,)}
RATES = [1e-2, 2e-2, 2e-2, 5e-3]
DECAY = 0.1  # of matrices


def main() -> None:
    rng = np.random.RandomState(1)
    start = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    gradients = [{name: (rng.standard_normal(shape) * 10.0**(step - 2)).astype(np.float32) for name, shape in SHAPES.items()}
                 for step in range(len(RATES))]
    for step in gradients[:3]:
        step["embedding.token"][2:4] = 0.0
    gradients[0]["mlp.weight"][:] = 0.0
    weights = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    optimizer = Adafactor([{"params": [w], "weight_decay": DECAY if w.ndim > 1 else 0.0} for w in weights.values()],
                          lr=RATES[0], scale_parameter=False, relative_step=False, warmup_init=False)
    after = []
    for rate, gradient in zip(RATES, gradients, strict=True):
        for group, (name, w) in zip(optimizer.param_groups, weights.items(), strict=True):
            group["lr"], w.grad = rate, torch.tensor(gradient[name])
        optimizer.step()
        after.append({name: w.detach().numpy().tolist() for name, w in weights.items()})
    (Path(__file__).parent / "adafactor.json").write_text(json.dumps({
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "decay": DECAY, "rates": RATES,
        "start": {name: value.tolist() for name, value in start.items()},
        "gradients": [{name: value.tolist() for name, value in step.items()} for step in gradients], "after": after}) + "\n",
        encoding="utf-8")


if __name__ == "__main__":
    main()
