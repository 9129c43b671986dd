"""Weights to and from transformers' GPT-2. What transformers makes of them: tests/model/test_gpt2_live.py."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from ckpt import hf, store, writing
from ckpt.__main__ import main
from parallel.errors import UserError

GOLDEN = Path(__file__).parents[1] / "golden" / "gpt2"


@pytest.fixture
def source(tmp_path) -> Path:
    """A copy of the golden GPT-2."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "gpt2"))


@pytest.fixture
def theirs() -> dict[str, np.ndarray]:
    return load_file(GOLDEN / "model.safetensors")


@pytest.fixture
def sizes() -> dict:
    return hf.model_of(hf.read_json(GOLDEN / "config.json"), GOLDEN)


def change_config(source: Path, **changes) -> None:
    path = source / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(source: Path, change) -> None:
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, source / "model.safetensors")


def bfloat16_file(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A safetensors file of the upper halves of float32 arrays, by the format's specification."""
    header, data = {}, b""
    for name, a in arrays.items():
        upper = (np.ascontiguousarray(a).view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(upper)]}
        data += upper
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_layout(theirs, sizes):
    ours = hf.from_hf(theirs, sizes)
    assert {name: a.shape for name, a in ours.items()} == hf.our_shapes(sizes)
    c_attn, bias = theirs["transformer.h.1.attn.c_attn.weight"], theirs["transformer.h.1.attn.c_attn.bias"]
    for i, part in enumerate(("query", "key", "value")):
        np.testing.assert_array_equal(ours[f"blocks.1.attention.{part}.weight"], c_attn[:, 32 * i:32 * (i + 1)].T)
        np.testing.assert_array_equal(ours[f"blocks.1.attention.{part}.bias"], bias[32 * i:32 * (i + 1)])
    np.testing.assert_array_equal(ours["blocks.0.mlp.down.weight"], theirs["transformer.h.0.mlp.c_proj.weight"].T)
    np.testing.assert_array_equal(ours["embedding.token"], theirs["transformer.wte.weight"])


def test_there_and_back(theirs, sizes):
    back = hf.to_hf(hf.from_hf(theirs, sizes))
    assert back.keys() == theirs.keys()
    assert all(np.array_equal(back[name], a) for name, a in theirs.items())


def test_names_without_prefix_masks_and_a_tied_head(theirs, sizes):
    expected = hf.from_hf(theirs, sizes)
    bare = {name.removeprefix("transformer."): a for name, a in theirs.items()}
    bare |= {"h.0.attn.bias": np.tril(np.ones((1, 1, 16, 16), np.uint8)), "h.1.attn.masked_bias": np.float32(-1e4).reshape(()),
             "lm_head.weight": theirs["transformer.wte.weight"].copy()}
    found = hf.from_hf(bare, sizes)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], a) for name, a in expected.items())


def test_an_untied_head_is_refused(theirs, sizes):
    theirs["lm_head.weight"] = theirs["transformer.wte.weight"] + np.float32(1e-3)
    with pytest.raises(UserError, match=r"lm_head\.weight differs from wte\.weight"):
        hf.from_hf(theirs, sizes)


def test_missing_unexpected_and_wrongly_shaped_tensors_are_listed(theirs, sizes):
    del theirs["transformer.h.1.ln_2.bias"]
    theirs["score.weight"] = np.zeros((2, 32), np.float32)
    theirs["transformer.h.0.mlp.c_fc.weight"] = theirs["transformer.h.0.mlp.c_fc.weight"].T.copy()
    with pytest.raises(UserError) as error:
        hf.from_hf(theirs, sizes)
    assert str(error.value).splitlines()[1:] == [
        "  missing: h.1.ln_2.bias [32]", "  unexpected: score.weight [2, 32]",
        "  shape of h.0.mlp.c_fc.weight: [128, 32] in the file, [32, 128] in the model"]


def test_import_makes_a_checkpoint(source, tmp_path, theirs, sizes):
    assert main(["import-hf", str(source), str(tmp_path / "new" / "ckpt")]) == 0
    checkpoint = store.load_given(tmp_path / "new" / "ckpt")
    assert checkpoint.step == 0
    assert checkpoint.state["identity"]["model"] == sizes == yaml.safe_load(checkpoint.config)["model"]
    assert sizes == {"vocab_size": 96, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "seq_length": 16,
                     "ffn_hidden_size": 128, "layer_norm_eps": 1e-5}
    expected = hf.from_hf(theirs, sizes)
    assert checkpoint.tensors.keys() == {"model"}
    assert checkpoint.tensors["model"].keys() == expected.keys()
    assert all(np.array_equal(checkpoint.tensors["model"][name], a) for name, a in expected.items())


def test_import_then_export_is_the_same_model(source, tmp_path, theirs):
    change_config(source, layer_norm_epsilon=1e-6, n_inner=128)
    assert main(["import-hf", str(source), str(tmp_path / "ckpt")]) == 0
    (tmp_path / "out").mkdir()  # an empty folder may be there
    assert main(["export-hf", str(tmp_path / "ckpt"), str(tmp_path / "out")]) == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == theirs.keys()
    assert all(np.array_equal(found[name], a) for name, a in theirs.items())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert hf.model_of(config, tmp_path) == hf.model_of(json.loads((source / "config.json").read_text()), tmp_path)
    assert config["layer_norm_epsilon"] == 1e-6
    assert config["n_inner"] == 128
    assert sorted(f.name for f in tmp_path.iterdir()) == ["ckpt", "gpt2", "out"]  # nothing temporary is left


def test_shards(source, tmp_path, theirs):
    (source / "model.safetensors").unlink()
    parts = {"model-00001-of-00002.safetensors": sorted(theirs)[:9], "model-00002-of-00002.safetensors": sorted(theirs)[9:]}
    for file, names in parts.items():
        save_file({name: theirs[name] for name in names}, source / file)
    index = {"metadata": {}, "weight_map": {name: file for file, names in parts.items() for name in names}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    found = hf.read_weights(source)
    assert found.keys() == theirs.keys()
    assert all(np.array_equal(found[name], a) for name, a in theirs.items())
    index["weight_map"]["transformer.extra"] = "model-00001-of-00002.safetensors"
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"do not hold: transformer\.extra"):
        hf.read_weights(source)
    (source / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match="model-00002-of-00002.safetensors cannot be read"):
        hf.read_weights(source)
    index["weight_map"]["transformer.extra"] = "../gpt2/model-00001-of-00002.safetensors"
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="a file in this folder"):
        hf.read_weights(source)


def test_half_precision_becomes_float32(source, theirs, sizes):
    save_file({name: a.astype(np.float16) for name, a in theirs.items()}, source / "model.safetensors")
    half = hf.from_hf(hf.read_weights(source), sizes)
    bfloat16_file(source / "model.safetensors", theirs)
    brain = hf.from_hf(hf.read_weights(source), sizes)
    for name, a in hf.from_hf(theirs, sizes).items():
        assert half[name].dtype == brain[name].dtype == np.float32
        np.testing.assert_array_equal(half[name], a.astype(np.float16))
        np.testing.assert_array_equal(brain[name].view(np.uint32), a.view(np.uint32) & 0xFFFF0000)


@pytest.mark.parametrize(("changes", "text"), [
    ({"activation_function": "relu"}, "activation_function=relu, supported: gelu_new or gelu_pytorch_tanh"),
    ({"scale_attn_weights": False}, "scale_attn_weights=False, supported: True"),
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True, supported: False"),
    ({"add_cross_attention": True}, "add_cross_attention=True"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ({"model_type": "gpt_neo"}, "model_type=gpt_neo, supported: gpt2"),
    ({"n_layer": "2"}, "n_layer=2, expected a whole number"),
    ({"n_positions": None}, "n_positions=None, expected a whole number"),
    ({"n_inner": 0}, "n_inner=0, expected null or a whole number"),
    ({"layer_norm_epsilon": 0}, "layer_norm_epsilon=0, expected a number above 0"),
    ({"n_head": 5}, "n_head=5 does not divide n_embd=32"),
    ({"n_layer": 3}, "missing: h.2.ln_1.weight [32]"),
    ({"n_inner": 64}, "shape of h.0.mlp.c_fc.weight: [32, 128] in the file, [32, 64] in the model"),
])
def test_other_architectures_are_refused_and_nothing_is_written(source, tmp_path, capsys, changes, text):
    change_config(source, **changes)
    assert main(["import-hf", str(source), str(tmp_path / "ckpt")]) == 2
    assert text in capsys.readouterr().err
    assert [f.name for f in tmp_path.iterdir()] == ["gpt2"]


def test_all_that_differs_is_listed(source, tmp_path, capsys):
    change_config(source, activation_function="relu", add_cross_attention=True, n_embd=-1)
    assert main(["import-hf", str(source), str(tmp_path / "ckpt")]) == 2
    text = capsys.readouterr().err
    assert all(part in text for part in ("activation_function=relu", "add_cross_attention=True", "n_embd=-1", str(source)))


def test_unusable_sources(source, tmp_path, capsys):
    assert main(["import-hf", str(tmp_path / "nowhere"), str(tmp_path / "ckpt")]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
    change_tensors(source, lambda tensors: tensors.update({"transformer.wte.weight": np.zeros((96, 32))}))
    assert main(["import-hf", str(source), str(tmp_path / "ckpt")]) == 2
    assert "transformer.wte.weight is F64" in capsys.readouterr().err
    content = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(content[:-100])
    assert main(["import-hf", str(source), str(tmp_path / "ckpt")]) == 2
    assert "model.safetensors cannot be read" in capsys.readouterr().err
    (source / "model.safetensors").unlink()
    assert main(["import-hf", str(source), str(tmp_path / "ckpt")]) == 2
    assert "neither model.safetensors nor model.safetensors.index.json" in capsys.readouterr().err
    (source / "config.json").write_text("{")
    assert main(["import-hf", str(source), str(tmp_path / "ckpt")]) == 2
    assert "config.json cannot be read" in capsys.readouterr().err


def test_a_used_target_is_refused_and_kept(source, tmp_path, capsys):
    for command in ("import-hf", "export-hf"):
        assert main([command, str(source), str(source)]) == 2
        assert "exists and is not an empty folder" in capsys.readouterr().err
    assert sorted(f.name for f in source.iterdir()) == sorted(f.name for f in GOLDEN.iterdir())


def test_export_refuses_a_checkpoint_whose_tensors_do_not_fit_its_config(tmp_path, theirs, sizes, capsys):
    weights = hf.from_hf(theirs, sizes)
    del weights["norm.bias"]
    config = yaml.safe_dump({"model": sizes})
    writing.write(tmp_path / "ckpt", store.Checkpoint({"model": weights}, {"step": 3}, config))
    assert main(["export-hf", str(tmp_path / "ckpt"), str(tmp_path / "out")]) == 2
    assert "missing: norm.bias [32]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_list_and_verify(source, tmp_path, capsys):
    assert main(["import-hf", str(source), str(tmp_path / "run" / "checkpoints" / "imported")]) == 0
    folder = tmp_path / "run" / "checkpoints" / "imported"
    capsys.readouterr()
    assert main(["list", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"{folder}  step 0  samples 0  0.1 MB  model\n"
    assert main(["verify", str(folder)]) == 0
    assert "whole" in capsys.readouterr().out
    with open(folder / "model.safetensors", "r+b") as f:
        f.seek(5000)
        byte = f.read(1)
        f.seek(5000)
        f.write(bytes([byte[0] ^ 1]))
    (folder / "config.yaml").write_text("model: {}\n")
    assert main(["verify", str(folder)]) == 1
    assert [line.rpartition("/")[2].split(" ")[0] for line in capsys.readouterr().out.splitlines()] == \
        ["config.yaml", "model.safetensors"]
    for command in ("list", "verify"):
        assert main([command, str(tmp_path / "nothing")]) == 2
    assert main(["verify", str(tmp_path)]) == 2
    assert main(["list", str(source)]) == 2
    assert main(["export-hf", str(folder), str(tmp_path / "out")]) == 2
    assert "was altered" in capsys.readouterr().err


def test_the_command_line_starts_without_mindspore(source, tmp_path):
    code = "import sys, ckpt.__main__ as m; rc = m.main(sys.argv[1:]); assert 'mindspore' not in sys.modules; sys.exit(rc)"
    arguments = [sys.executable, "-c", code, "import-hf", str(source), str(tmp_path / "ckpt")]
    assert subprocess.run(arguments, cwd=Path(__file__).parents[2], check=False).returncode == 0
