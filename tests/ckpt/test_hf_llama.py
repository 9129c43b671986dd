"""Weights to and from transformers' Llama. What transformers makes of them: tests/model/test_llama_live.py."""
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckpt import hf, store
from ckpt.__main__ import main
from parallel.errors import UserError

GOLDEN = Path(__file__).parents[1] / "golden" / "llama"
SIZES = {"architecture": "llama", "vocab_size": 48, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "seq_length": 16,
         "ffn_hidden_size": 24, "num_kv_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "tie_embeddings": False}


@pytest.fixture
def source(tmp_path) -> Path:
    """A copy of the golden Llama."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "llama"))


def change_config(source: Path, **changes) -> None:
    path = source / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_import_then_export_is_the_same_model(source, tmp_path, capsys):
    theirs = load_file(source / "model.safetensors")
    assert main(["import-hf", str(source), str(tmp_path / "ckpt")]) == 0
    assert "num_kv_heads: 2" in capsys.readouterr().out
    checkpoint = store.load_given(tmp_path / "ckpt")
    assert checkpoint.state["identity"]["model"] == SIZES
    ours = checkpoint.tensors["model"]
    assert {name: a.shape for name, a in ours.items()} == hf.our_shapes(SIZES)
    np.testing.assert_array_equal(ours["head.token"], theirs["lm_head.weight"])
    np.testing.assert_array_equal(ours["blocks.1.mlp.gate.weight"], theirs["model.layers.1.mlp.gate_proj.weight"])
    assert main(["export-hf", str(tmp_path / "ckpt"), str(tmp_path / "out")]) == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == theirs.keys() and all(np.array_equal(found[name], a) for name, a in theirs.items())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert hf.model_of(config, tmp_path) == SIZES and config["architectures"] == ["LlamaForCausalLM"]


def test_the_place_of_theta_before_transformers_5(source):
    config = json.loads((source / "config.json").read_text())
    del config["rope_parameters"]
    assert hf.model_of(config, source)["rope_theta"] == 10000.0
    assert hf.model_of(config | {"rope_theta": 5e5, "rope_scaling": None}, source)["rope_theta"] == 5e5


def test_a_tied_head(source):
    tensors, sizes = load_file(source / "model.safetensors"), SIZES | {"tie_embeddings": True}
    with pytest.raises(UserError, match="lm_head.weight differs from model.embed_tokens.weight"):
        hf.from_hf(tensors, sizes)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    found = hf.from_hf(tensors, sizes)
    assert "head.token" not in found and "lm_head.weight" not in hf.to_hf(found)


@pytest.mark.parametrize(("changes", "text"), [
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "rope_parameters": None}, "rope_type=llama3, supported: default"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": "big"}}, "rope_theta=big, expected a number above 1"),
    ({"hidden_act": "gelu"}, "hidden_act=gelu, supported: silu"), ({"attention_bias": True}, "attention_bias=True"),
    ({"head_dim": 8}, "head_dim=8, supported: hidden_size / num_attention_heads = 4"),
    ({"num_key_value_heads": 3}, "num_key_value_heads=3, expected a divisor of num_attention_heads=4"),
    ({"num_attention_heads": 5}, "num_attention_heads=5 does not divide hidden_size=16"),
    ({"rms_norm_eps": 0}, "rms_norm_eps=0, expected a number above 0"), ({"num_hidden_layers": None}, "num_hidden_layers=None"),
    ({"num_hidden_layers": 3}, "missing: model.layers.2.input_layernorm.weight [16]"),
    ({"num_key_value_heads": 4}, "shape of model.layers.0.self_attn.k_proj.weight: [8, 16] in the file, [16, 16] in the model"),
])
def test_what_we_do_not_have_is_refused_and_nothing_is_written(source, tmp_path, capsys, changes, text):
    change_config(source, **changes)
    assert main(["import-hf", str(source), str(tmp_path / "ckpt")]) == 2
    assert text in capsys.readouterr().err
    assert [f.name for f in tmp_path.iterdir()] == ["llama"]


def test_an_unknown_tensor_is_named(source, tmp_path, capsys):
    tensors = load_file(source / "model.safetensors")
    save_file(tensors | {"model.layers.0.self_attn.q_proj.bias": np.zeros(16, np.float32)}, source / "model.safetensors")
    assert main(["import-hf", str(source), str(tmp_path / "ckpt")]) == 2
    assert "unexpected: model.layers.0.self_attn.q_proj.bias [16]" in capsys.readouterr().err
