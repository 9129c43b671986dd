"""Run with the extra `oracle`, from the repository: python tests/golden/make_llama.py

What PyTorch and transformers compute for a tiny Llama, for the tests that have neither (tests/model/test_llama_golden.py).

    llama/                      the model as LlamaForCausalLM.save_pretrained writes it: grouped queries, a head of its own
    llama_expected.safetensors  tokens [batch, seq], logits, the loss, and the gradient of every parameter (`grad.<name>`) of the
                                mean loss; of each block its output, attention's weights, what goes into SiLU

Token 0 is the pad: as a label it counts nowhere. All in float32 on CPU. Nothing of MindGPT is used here.
"""
import torch
from make_golden import HERE, IGNORED, PAD, make_tokens
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, max_position_embeddings=16, rms_norm_eps=1e-5, rope_theta=500.0, bos_token_id=None,
                     eos_token_id=None, tie_word_embeddings=False, attn_implementation="eager")


def make_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """Random weights, large enough for every path to matter, norms not at 1."""
    model, generator = LlamaForCausalLM(config).eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.35 + ("norm" in name))
    return model


def inside(model: LlamaForCausalLM, tokens: torch.Tensor) -> dict:
    """What passes through each block in a forward pass."""
    seen = {}
    for i, block in enumerate(model.model.layers):
        for name, module in (("output", block), ("inner", block.mlp.gate_proj)):
            def keep(_module, _inputs, output, key=f"{name}.{i}"):
                seen[key] = (output[0] if isinstance(output, tuple) else output).detach().clone()
            module.register_forward_hook(keep)
    weights = model(input_ids=tokens, output_attentions=True).attentions
    return {**seen, **{f"weights.{i}": w.detach().clone() for i, w in enumerate(weights)}}


def main() -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    model = make_model(CONFIG, seed=1)
    model.save_pretrained(HERE / "llama")
    tokens = torch.tensor(make_tokens([16, 5, 16, 11], 16, CONFIG.vocab_size, seed=2))
    output = model(input_ids=tokens, labels=tokens.masked_fill(tokens == PAD, IGNORED))
    output.loss.backward()
    gradients = {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    save_file({"tokens": tokens, "logits": output.logits.detach(), "loss": output.loss.detach().reshape(1), **gradients,
               **inside(model, tokens)}, HERE / "llama_expected.safetensors")
    print(f"loss {output.loss.item():.6f}, largest logit {output.logits.abs().max().item():.3f}")


if __name__ == "__main__":
    main()
