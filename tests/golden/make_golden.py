"""Run with the extra `oracle`, from the repository: python tests/golden/make_golden.py

What PyTorch and transformers compute for a tiny GPT-2, for the tests that have neither (tests/*/test_*golden.py, tests/ckpt).

    gpt2/                 the model as GPT2LMHeadModel.save_pretrained writes it
    expected.safetensors  tokens [batch, seq], logits, and the gradient of every parameter (`grad.<name>`) of the mean loss; of
                          each block its output, attention's weights, the GELU's input (`output.<i>`, `weights.<i>`, `inner.<i>`)
    training.safetensors  tokens [steps, batch, seq + 1], the weights after the last step of each run (`<run>.<name>`)
    golden.json           the loss; of each run the settings, losses, gradient norms and learning rates, and for each step and
                          layer (LAYERS) the norm of its gradients, of its weights after the step, and |update| / |weights before|

Token 0 is the pad: as a label it counts nowhere. All in float32 on CPU, dropout 0.
Nothing of MindGPT is used here.
"""
import json
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

HERE = Path(__file__).parent
PAD, IGNORED = 0, -100
CONFIG = GPT2Config(vocab_size=96, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                    attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, attn_implementation="eager")
# The schedule is longer than the run, so that its middle is seen. In the first run clip_norm lies among the norms, so that some
# steps are clipped. In the second all are, epsilon matters, and the correction of the second moment is large.
TRAINING = {"total_steps": 8, "warmup_steps": 2, "lr": 1e-3, "min_lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8,
            "weight_decay": 0.1, "clip_norm": 3.6, "global_batch_size": 4}
RUNS = {"usual": TRAINING, "large_eps": {**TRAINING, "betas": [0.9, 0.999], "eps": 1e-4, "clip_norm": 1.0}}
LAYERS = {"embedding": ("transformer.wte", "transformer.wpe"), "block_00": ("transformer.h.0.",),
          "block_01": ("transformer.h.1.",), "norm": ("transformer.ln_f",)}
LENGTHS = ([17, 17, 17, 17], [17, 9, 3, 12], [4, 2, 17, 17], [17, 17, 2, 3], [11, 17, 5, 17])  # tokens before the pads


def make_model(config: GPT2Config, seed: int) -> GPT2LMHeadModel:
    """Random weights, large enough for every path to matter: attention far from uniform, biases and LayerNorms not at 0 and 1."""
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = np.random.RandomState([seed, zlib.crc32(name.encode())]).standard_normal(tuple(p.shape)) * 0.25
            p.copy_(torch.tensor(noise + (".ln_" in name and name.endswith("weight"))))
    return model


def make_tokens(lengths: list[int], width: int, vocab_size: int, seed: int) -> np.ndarray:
    """int64 [len(lengths), width]: so many random tokens in each row, then pads."""
    tokens = np.random.RandomState(seed).randint(1, vocab_size, (len(lengths), width))
    return np.where(np.arange(width) < np.array(lengths)[:, None], tokens, PAD)


def learning_rate(update: int, settings: dict) -> float:
    """Of update 0, 1, 2 ...: in the warm-up its share (update + 1) / warmup_steps of the peak; then half a cosine to min_lr."""
    warmup, peak, floor = settings["warmup_steps"], settings["lr"], settings["min_lr"]
    if update < warmup:
        return peak * (update + 1) / warmup
    share = (update - warmup) / (settings["total_steps"] - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * share)) / 2


def expected() -> tuple[dict, float]:
    """Logits, loss (transformers' own) and gradients of one batch."""
    model = make_model(CONFIG, seed=1)
    tokens = torch.tensor(make_tokens([16, 5, 16, 11], 16, CONFIG.vocab_size, seed=2))
    output = model(input_ids=tokens, labels=tokens.masked_fill(tokens == PAD, IGNORED))
    output.loss.backward()
    gradients = {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    return {"tokens": tokens, "logits": output.logits.detach(), **gradients, **inside(model, tokens)}, output.loss.item()


def inside(model: GPT2LMHeadModel, tokens: torch.Tensor) -> dict:
    """What passes through each block in a forward pass."""
    seen = {}
    for i, block in enumerate(model.transformer.h):
        for name, module in (("output", block), ("inner", block.mlp.c_fc)):
            def keep(_module, _inputs, output, key=f"{name}.{i}"):
                seen[key] = (output[0] if isinstance(output, tuple) else output).detach().clone()
            module.register_forward_hook(keep)
    weights = model(input_ids=tokens, output_attentions=True).attentions
    return seen | {f"weights.{i}": w.detach().clone() for i, w in enumerate(weights)}


def layer_figures(model: GPT2LMHeadModel, before: dict, gradients: dict) -> dict[str, list[float]]:
    """One step's figures of each layer, from the weights before it and its gradients before clipping."""
    found = {}
    for layer, prefixes in LAYERS.items():
        names = [n for n in before if n.startswith(prefixes)]
        now = {n: p.detach() for n, p in model.named_parameters()}

        def norm(tensors: list) -> float:
            return torch.cat([t.flatten() for t in tensors]).double().norm().item()
        weights = norm([before[n] for n in names])
        found[layer] = [norm([gradients[n] for n in names]), norm([now[n] for n in names]),
                        norm([now[n] - before[n] for n in names]) / weights]
    return found


def train(model: GPT2LMHeadModel, batches: torch.Tensor, settings: dict) -> dict[str, list]:
    """torch.optim.AdamW, decay on matrices alone, clip_grad_norm_, schedule; losses, norms before clipping, rates, by layer."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings["weight_decay"]},
              {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=tuple(settings["betas"]), eps=settings["eps"])
    figures, layers = {"losses": [], "grad_norms": [], "lrs": []}, []
    for update, tokens in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(update, settings)
        logits = model(input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
        norm = torch.nn.utils.clip_grad_norm_(parameters, settings["clip_norm"])
        optimizer.step()
        layers.append(layer_figures(model, before, gradients))
        for key, value in zip(figures, (loss.item(), norm.item(), learning_rate(update, settings)), strict=True):
            figures[key].append(value)
    return {**figures, "layers": layers}


def main() -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    make_model(CONFIG, seed=1).save_pretrained(HERE / "gpt2")
    tensors, loss = expected()
    save_file(tensors, HERE / "expected.safetensors")
    golden = {"pad": PAD, "loss": loss, "versions": {"torch": torch.__version__}, "runs": {}}
    batches = [make_tokens(lengths, 17, CONFIG.vocab_size, seed=3 + i) for i, lengths in enumerate(LENGTHS)]
    batches = torch.tensor(np.stack(batches))
    tensors = {"tokens": batches}
    for run, settings in RUNS.items():
        model = make_model(CONFIG, seed=1)
        golden["runs"][run] = {"settings": settings, **train(model, batches, settings)}
        tensors |= {f"{run}.{name}": p.detach() for name, p in model.named_parameters()}
    save_file(tensors, HERE / "training.safetensors")
    (HERE / "golden.json").write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(golden, indent=1))


if __name__ == "__main__":
    main()
