"""Weights from and for transformers' GPT-2 (here) and Llama (hf_llama.py): names and layouts, config.json, safetensors.

Only weights and sizes cross: no tokenizer, no optimizer state, no dropout rates on the way in. transformers keeps linear layers
as Conv1D, [in, out], and query, key and value side by side in one of them; ours are [out, in] (PyTorch's Linear) and apart.
"""
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save_file

from ckpt import hf_llama, store, writing
from parallel.errors import UserError
from parallel.files import fsync_file, fsync_folder
from parallel.progress import Progress
from parallel.yaml_tree import to_yaml

NORMS = {"ln_1": "norm1", "ln_2": "norm2"}
LINEARS = {"attn.c_attn": ("attention.query", "attention.key", "attention.value"), "attn.c_proj": ("attention.output",),
           "mlp.c_fc": ("mlp.up",), "mlp.c_proj": ("mlp.down",)}
SIZES = {"vocab_size": "vocab_size", "hidden_size": "n_embd", "num_layers": "n_layer", "num_heads": "n_head",
         "seq_length": "n_positions"}
# What config.json may say of the architecture; the first is what transformers takes where it says nothing.
ARCHITECTURE = {"model_type": ("gpt2",), "activation_function": ("gelu_new", "gelu_pytorch_tanh"), "scale_attn_weights": (True,),
                "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,), "tie_word_embeddings": (True,)}
BUFFERS = (".attn.bias", ".attn.masked_bias")  # old files hold the causal mask as a tensor
DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def is_llama(model: dict) -> bool:
    """Whether a section `model` is that of a Llama; sections from before there were two name no architecture."""
    return model.get("architecture", "gpt2") == "llama"


def names(num_layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(transformers' name, without the prefix `transformer.`; our names of its parts in order), for every tensor."""
    yield "wte.weight", ("embedding.token",)
    yield "wpe.weight", ("embedding.position",)
    for i in range(num_layers):
        for theirs, ours in ({k: (v,) for k, v in NORMS.items()} | LINEARS).items():
            for kind in ("weight", "bias"):
                yield f"h.{i}.{theirs}.{kind}", tuple(f"blocks.{i}.{name}.{kind}" for name in ours)
    yield "ln_f.weight", ("norm.weight",)
    yield "ln_f.bias", ("norm.bias",)


def hf_shapes(model: dict) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor by transformers' name. `model`: sizes, as in the section `model` of a run's config."""
    h = model["hidden_size"]
    ffn = 4 * h if model["ffn_hidden_size"] == "auto" else model["ffn_hidden_size"]
    matrices = {"wte": (model["vocab_size"], h), "wpe": (model["seq_length"], h), "attn.c_attn": (h, 3 * h),
                "attn.c_proj": (h, h), "mlp.c_fc": (h, ffn), "mlp.c_proj": (ffn, h)}
    shapes = {}
    for name, _ in names(model["num_layers"]):
        layer, _, kind = name.rpartition(".")
        shape = matrices.get(layer.split(".", 2)[-1], (h,))  # what is no matrix is a LayerNorm
        shapes[name] = shape if kind == "weight" else shape[-1:]
    return shapes


def our_shapes(model: dict) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor by our name."""
    if is_llama(model):
        return hf_llama.shapes(model)
    theirs = hf_shapes(model)
    shapes = {}
    for name, parts in names(model["num_layers"]):
        first, *rest = theirs[name][::-1] if name.startswith("h.") else theirs[name]
        shapes |= dict.fromkeys(parts, (first // len(parts), *rest))
    return shapes


def from_hf(tensors: dict[str, np.ndarray], model: dict) -> dict[str, np.ndarray]:
    """GPT-2's tensors by transformers' names, with or without `transformer.`, or Llama's -> float32 by our names.

    Masks kept as buffers are ignored; `lm_head.weight` must be the token embedding. Raises UserError with the list of what is
    missing, unexpected or of another shape than `model` (sizes, as in the section `model`) says.
    """
    if is_llama(model):
        return hf_llama.from_hf(tensors, model)
    tensors = {name.removeprefix("transformer."): a for name, a in tensors.items() if not name.endswith(BUFFERS)}
    head = tensors.pop("lm_head.weight", None)
    if problems := store.differences(hf_shapes(model), {name: a.shape for name, a in tensors.items()}):
        raise UserError("these tensors are not those of a GPT-2 of this config:\n  " + "\n  ".join(problems))
    if head is not None and not np.array_equal(head, tensors["wte.weight"]):
        raise UserError("lm_head.weight differs from wte.weight: an output matrix of its own cannot be imported, since ours is "
                        "the token embedding")
    ours = {}
    for name, parts in names(model["num_layers"]):
        a = tensors[name].astype(np.float32, copy=False)
        ours |= zip(parts, np.split(a.T if name.startswith("h.") else a, len(parts)), strict=True)
    return ours


def to_hf(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The whole model by our names -> by those of GPT2LMHeadModel or LlamaForCausalLM, without a tied `lm_head.weight`."""
    if "embedding.position" not in tensors:
        return hf_llama.to_hf(tensors)
    num_layers = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    joined = {name: np.concatenate([tensors[part] for part in parts]) for name, parts in names(num_layers)}
    return {f"transformer.{name}": a.T if name.startswith("h.") else a for name, a in joined.items()}


def import_hf(source: Path, target: Path) -> dict:
    """Make of a folder that transformers' save_pretrained wrote a checkpoint `target`, for `ckpt.init_from`. Returns the sizes.

    Raises UserError, with nothing written, where the architecture, a tensor or the target does not allow it.
    """
    refuse_used(target)
    if not source.is_dir():
        raise UserError(f"{source}: no such folder")
    model = model_of(read_json(source / "config.json"), source / "config.json")
    try:
        weights = from_hf(read_weights(source), model)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    state = {"step": 0, "identity": {"model": model}}
    writing.write(target, store.Checkpoint({store.MODEL: weights}, state, to_yaml({"model": model})))
    return model


def export_hf(source: Path, target: Path) -> store.Checkpoint:
    """Write a checkpoint's weights as a folder that transformers' from_pretrained loads. Returns the checkpoint.

    Raises UserError, with nothing written, where the checkpoint is broken or the target is in use. The tokenizer is not exported,
    and config.json names no special tokens: their ids belong to it.
    """
    refuse_used(target)
    checkpoint = store.load_given(source)
    model = yaml.safe_load(checkpoint.config)["model"]
    weights = checkpoint.tensors[store.MODEL]
    if problems := store.differences(our_shapes(model), {name: a.shape for name, a in weights.items()}):
        raise UserError(f"{source}: its tensors are not those of its {store.CONFIG}:\n  " + "\n  ".join(problems))
    target = Path(os.path.abspath(target))
    temporary = target.with_name(f".tmp-{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tensors = {}
    with Progress("convert", sum(a.nbytes for a in weights.values()), "MB", scale=1e6) as progress:
        for name, a in to_hf(weights).items():
            tensors[name] = np.ascontiguousarray(a)
            progress.advance(a.nbytes)
    save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})  # transformers refuses a file that names no format
    (temporary / "config.json").write_text(json.dumps(config_of(model), indent=2) + "\n", encoding="utf-8")
    for file in temporary.iterdir():
        fsync_file(file)
    fsync_folder(temporary)
    temporary.rename(target)
    fsync_folder(target.parent)
    return checkpoint


def refuse_used(target: Path) -> None:
    """Raise UserError unless `target` can become a new folder."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not an empty folder: give the name of a new one")


def model_of(config: dict, where: Path) -> dict:
    """config.json of a GPT-2 or Llama -> our section `model`. Raises UserError with the list of what we do not have."""
    if config.get("model_type") == "llama":
        model, problems = hf_llama.model_of(config)
        if problems:
            raise UserError(f"{where}: not a Llama that can be imported:\n  " + "\n  ".join(problems))
        return model
    problems = [f"{key}={config.get(key)}, expected a whole number of at least 1" for key in SIZES.values()
                if type(config.get(key)) is not int or config[key] < 1]
    for key, allowed in ARCHITECTURE.items():
        value = config.get(key, allowed[0] if key != "model_type" else None)
        if value not in allowed:
            problems.append(f"{key}={value}, supported: {' or '.join(map(str, allowed))}")
    ffn, eps = config.get("n_inner"), config.get("layer_norm_epsilon", 1e-5)
    if ffn is not None and (type(ffn) is not int or ffn < 1):
        problems.append(f"n_inner={ffn}, expected null or a whole number of at least 1")
    if type(eps) not in (int, float) or not eps > 0:
        problems.append(f"layer_norm_epsilon={eps}, expected a number above 0")
    if not problems and config["n_embd"] % config["n_head"]:
        problems.append(f"n_head={config['n_head']} does not divide n_embd={config['n_embd']}")
    if problems:
        raise UserError(f"{where}: not a GPT-2 that can be imported:\n  " + "\n  ".join(problems))
    sizes = {ours: config[theirs] for ours, theirs in SIZES.items()}
    return sizes | {"ffn_hidden_size": 4 * sizes["hidden_size"] if ffn is None else ffn, "layer_norm_eps": float(eps)}


def config_of(model: dict) -> dict:
    """Our section `model` -> config.json of a GPT2LMHeadModel or LlamaForCausalLM."""
    if is_llama(model):
        return hf_llama.config_of(model)
    ffn, dropout = model["ffn_hidden_size"], model.get("dropout", 0.0)
    return {"architectures": ["GPT2LMHeadModel"], **{key: allowed[0] for key, allowed in ARCHITECTURE.items()},
            **{theirs: model[ours] for ours, theirs in SIZES.items()}, "n_inner": None if ffn == "auto" else ffn,
            "layer_norm_epsilon": model["layer_norm_eps"], "embd_pdrop": dropout, "attn_pdrop": dropout, "resid_pdrop": dropout,
            "initializer_range": model.get("init_std", 0.02), "bos_token_id": None, "eos_token_id": None, "dtype": "float32"}


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of model.safetensors, or of the files that model.safetensors.index.json names, in float16 or float32."""
    if (folder / WEIGHTS).exists():
        return read_tensors(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise UserError(f"neither {WEIGHTS} nor {INDEX} is there: other formats become these by transformers' save_pretrained")
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) and Path(f).name == f for f in weight_map.values()):
        raise UserError(f"{INDEX}: weight_map must give for each tensor the name of a file in this folder")
    tensors = {}
    files = [folder / name for name in sorted(set(weight_map.values()))]
    with Progress("convert", sum(path.stat().st_size for path in files if path.exists()), "MB", scale=1e6) as progress:
        for path in files:
            tensors |= read_tensors(path)
            progress.advance(path.stat().st_size)
    if absent := sorted(weight_map.keys() - tensors.keys()):
        raise UserError(f"tensors of {INDEX} that its files do not hold: {', '.join(absent)}")
    return tensors


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of one safetensors file; bfloat16, which NumPy does not know, as float32. Raises UserError."""
    try:
        found = deserialize(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path.name} cannot be read: {error}") from None
    found = [(name, view) for name, view in found if not name.endswith(BUFFERS)]
    if wrong := [f"{name} is {view['dtype']}" for name, view in found if view["dtype"] not in DTYPES]:
        raise UserError(f"{path.name}: number formats other than {', '.join(DTYPES)}:\n  " + "\n  ".join(wrong))
    tensors = {}
    for name, view in found:
        a = np.frombuffer(view["data"], DTYPES[view["dtype"]]).reshape(view["shape"])
        tensors[name] = (a.astype("<u4") << 16).view("<f4") if view["dtype"] == "BF16" else a
    return tensors


def read_json(path: Path) -> dict:
    """A JSON object. Raises UserError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object")
    return value
