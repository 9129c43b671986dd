"""Live against transformers' Llama, for other models than the golden one. Needs the extra `oracle`; run with -m oracle."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from ckpt import hf, store, writing
from ckpt.__main__ import main
from model import gpt
from model.config import ModelConfig
from model.init import initialize
from parallel.yaml_tree import to_yaml
from tests.model.test_llama_golden import PAD, form, outputs  # noqa: F401  form is a fixture

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle

SIZES = {"architecture": "llama", "vocab_size": 211, "hidden_size": 60, "num_layers": 3, "num_heads": 6, "seq_length": 24,
         "ffn_hidden_size": 100, "num_kv_heads": 2, "rms_norm_eps": 1e-3, "rope_theta": 500000.0, "tie_embeddings": False}
CASES = [{}, {"tie_embeddings": True}, {"num_kv_heads": 6}, {"num_kv_heads": 1, "rope_theta": 10000.0}]


def random_tokens(*shape: int) -> np.ndarray:
    """Tokens with pads at the end of every second row."""
    tokens = np.random.RandomState(4).randint(1, 211, shape)
    tokens[..., 1::2, 9:] = PAD
    return tokens


@pytest.mark.parametrize("changes", CASES)
def test_import_has_the_same_logits_loss_and_gradients(form, changes, tmp_path):  # noqa: F811
    sizes = SIZES | changes
    config = transformers.LlamaConfig(**{theirs: sizes[ours] for ours, theirs in hf.hf_llama.SIZES.items()},
                                      num_key_value_heads=sizes["num_kv_heads"], rms_norm_eps=sizes["rms_norm_eps"],
                                      rope_theta=sizes["rope_theta"], tie_word_embeddings=sizes["tie_embeddings"],
                                      bos_token_id=None, eos_token_id=None, attn_implementation="eager")
    theirs, generator = transformers.LlamaForCausalLM(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.2 + ("norm" in name))
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="100KB")
    assert (tmp_path / "theirs" / hf.INDEX).exists()  # in several files
    assert main(["import-hf", str(tmp_path / "theirs"), str(tmp_path / "ckpt")]) == 0
    checkpoint = store.load_given(tmp_path / "ckpt")
    assert checkpoint.state["identity"]["model"] == sizes
    ours = gpt.GPT(ModelConfig(**sizes))
    for name, p in ours.parameters_and_names():
        p.set_data(Tensor(checkpoint.tensors["model"][name]))
    tokens = random_tokens(4, 24)
    ids = torch.tensor(tokens)
    wanted = theirs(input_ids=ids, labels=ids.masked_fill(ids == PAD, -100))
    wanted.loss.backward()
    loss, logits, gradients = outputs(ours, tokens)
    worst = np.abs(logits - wanted.logits.detach().numpy()).max()
    errors = {name: float(np.linalg.norm(gradients[name] - p.grad.numpy()) / p.grad.norm())
              for name, p in theirs.named_parameters()}
    print(f"\nlogits {worst:.2e}, loss {abs(loss - wanted.loss.item()):.2e}, gradients {max(errors.values()):.2e}")
    assert worst < 1e-4 and loss == pytest.approx(wanted.loss.item(), abs=1e-5) and max(errors.values()) < 1e-4, errors


@pytest.mark.parametrize("tied", [False, True])
def test_export_is_loaded_by_transformers_with_the_same_logits(tied, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    sizes = SIZES | {"tie_embeddings": tied}
    network, tokens = gpt.GPT(ModelConfig(**sizes)), random_tokens(4, 24)
    initialize(network, ModelConfig(**sizes, init_std=0.2), seed=3)
    weights = {name: p.asnumpy() for name, p in network.parameters_and_names()}
    writing.write(tmp_path / "ckpt", store.Checkpoint({"model": weights}, {"step": 7}, to_yaml({"model": sizes})))
    assert main(["export-hf", str(tmp_path / "ckpt"), str(tmp_path / "out")]) == 0
    theirs, info = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    _, logits, _ = outputs(network, tokens)
    wanted = theirs(input_ids=torch.tensor(tokens)).logits.detach().numpy()
    assert np.abs(wanted).max() > 1 and np.abs(logits - wanted).max() < 1e-4
