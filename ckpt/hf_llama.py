"""transformers' Llama: its names, its config.json. Its matrices lie as ours do, [out, in]."""
from collections.abc import Iterator

import numpy as np

from ckpt import store
from parallel.cost.sizes import ffn_size
from parallel.errors import UserError

LAYERS = {"input_layernorm": "norm1", "post_attention_layernorm": "norm2", "self_attn.q_proj": "attention.query",
          "self_attn.k_proj": "attention.key", "self_attn.v_proj": "attention.value", "self_attn.o_proj": "attention.output",
          "mlp.gate_proj": "mlp.gate", "mlp.up_proj": "mlp.up", "mlp.down_proj": "mlp.down"}
SIZES = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_layers": "num_hidden_layers",
         "num_heads": "num_attention_heads", "seq_length": "max_position_embeddings", "ffn_hidden_size": "intermediate_size"}
# What config.json may say of the architecture; the first is what transformers takes where it says nothing.
ARCHITECTURE = {"model_type": ("llama",), "hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)}


def names(num_layers: int, tied: bool) -> Iterator[tuple[str, str]]:
    """(transformers' name, ours), for every tensor."""
    yield "model.embed_tokens.weight", "embedding.token"
    for i in range(num_layers):
        for theirs, ours in LAYERS.items():
            yield f"model.layers.{i}.{theirs}.weight", f"blocks.{i}.{ours}.weight"
    yield "model.norm.weight", "norm.weight"
    if not tied:
        yield "lm_head.weight", "head.token"


def shapes(model: dict) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor by our name, of a section `model`."""
    h, heads, ffn = model["hidden_size"], model["num_heads"], ffn_size(model)
    kv = h // heads * (heads if model["num_kv_heads"] == "auto" else model["num_kv_heads"])
    ends = {"embedding.token": (model["vocab_size"], h), "head.token": (model["vocab_size"], h)}
    matrices = {"attention.query": (h, h), "attention.key": (kv, h), "attention.value": (kv, h), "attention.output": (h, h),
                "mlp.gate": (ffn, h), "mlp.up": (ffn, h), "mlp.down": (h, ffn)}
    found = {}
    for _, name in names(model["num_layers"], model["tie_embeddings"]):
        layer = name.removesuffix(".weight").split(".", 2)[-1]
        found[name] = ends.get(name) or matrices.get(layer, (h,))  # what is no matrix is a norm
    return found


def from_hf(tensors: dict[str, np.ndarray], model: dict) -> dict[str, np.ndarray]:
    """A Llama's tensors by transformers' names -> float32 by our names, as hf.from_hf."""
    tensors = {name: a for name, a in tensors.items() if not name.endswith(".rotary_emb.inv_freq")}  # a buffer of old files
    head = tensors.pop("lm_head.weight", None) if model["tie_embeddings"] else None
    pairs, ours = list(names(model["num_layers"], model["tie_embeddings"])), shapes(model)
    if problems := store.differences({theirs: ours[name] for theirs, name in pairs}, {n: a.shape for n, a in tensors.items()}):
        raise UserError("these tensors are not those of a Llama of this config:\n  " + "\n  ".join(problems))
    if head is not None and not np.array_equal(head, tensors["model.embed_tokens.weight"]):
        raise UserError("lm_head.weight differs from model.embed_tokens.weight, but config.json says tie_word_embeddings=true")
    return {name: tensors[theirs].astype(np.float32, copy=False) for theirs, name in pairs}


def to_hf(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The whole model by our names -> by those of LlamaForCausalLM."""
    num_layers = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    return {theirs: tensors[name] for theirs, name in names(num_layers, "head.token" not in tensors)}


def theta_of(config: dict) -> tuple[float, list[str]]:
    """The base of the rotary positions, and what of them we do not have. Since version 5 transformers writes both in one dict."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    problems = [f"rope_type={kind}, supported: default"] * (kind != "default")
    if type(theta) not in (int, float) or not theta > 1:
        return 10000.0, [*problems, f"rope_theta={theta}, expected a number above 1"]
    return float(theta), problems


def model_of(config: dict) -> tuple[dict, list[str]]:
    """config.json of a Llama -> (our section `model`, the list of what we do not have; then the section means nothing)."""
    problems = [f"{key}={config.get(key)}, expected a whole number of at least 1" for key in SIZES.values()
                if type(config.get(key)) is not int or config[key] < 1]
    for key, allowed in ARCHITECTURE.items():
        if (value := config.get(key, allowed[0])) not in allowed:
            problems.append(f"{key}={value}, supported: {' or '.join(map(str, allowed))}")
    theta, wrong = theta_of(config)
    problems += wrong
    eps, tied = config.get("rms_norm_eps", 1e-6), config.get("tie_word_embeddings", False)
    if type(eps) not in (int, float) or not eps > 0:
        problems.append(f"rms_norm_eps={eps}, expected a number above 0")
    if type(tied) is not bool:
        problems.append(f"tie_word_embeddings={tied}, expected true or false")
    if problems:
        return {}, problems
    sizes = {ours: config[theirs] for ours, theirs in SIZES.items()}
    hidden, heads = sizes["hidden_size"], sizes["num_heads"]
    kv_heads = heads if (given := config.get("num_key_value_heads")) is None else given
    if hidden % heads:
        problems.append(f"num_attention_heads={heads} does not divide hidden_size={hidden}")
    elif config.get("head_dim") not in (None, hidden // heads):
        problems.append(f"head_dim={config['head_dim']}, supported: hidden_size / num_attention_heads = {hidden // heads}")
    elif hidden // heads % 2:
        problems.append(f"hidden_size / num_attention_heads = {hidden // heads}, supported: even numbers")
    if type(kv_heads) is not int or kv_heads < 1 or heads % kv_heads:
        problems.append(f"num_key_value_heads={kv_heads}, expected a divisor of num_attention_heads={heads}")
    return {"architecture": "llama", **sizes, "num_kv_heads": kv_heads, "rms_norm_eps": float(eps), "rope_theta": theta,
            "tie_embeddings": tied}, problems


def config_of(model: dict) -> dict:
    """Our section `model` -> config.json of a LlamaForCausalLM."""
    kv_heads = model["num_heads"] if model["num_kv_heads"] == "auto" else model["num_kv_heads"]
    return {"architectures": ["LlamaForCausalLM"], **{key: allowed[0] for key, allowed in ARCHITECTURE.items()},
            **{theirs: model[ours] for ours, theirs in SIZES.items()}, "intermediate_size": ffn_size(model),
            "num_key_value_heads": kv_heads, "head_dim": model["hidden_size"] // model["num_heads"],
            "rms_norm_eps": model["rms_norm_eps"], "tie_word_embeddings": model["tie_embeddings"],
            # In the place that versions before 5 read, and in the one that later ones do.
            "rope_theta": model["rope_theta"], "rope_parameters": {"rope_type": "default", "rope_theta": model["rope_theta"]},
            "initializer_range": model.get("init_std", 0.02), "bos_token_id": None, "eos_token_id": None, "dtype": "float32"}
