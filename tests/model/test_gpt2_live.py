"""Live against transformers' GPT-2, for another model than the golden one. Needs the extra `oracle`; run with -m oracle."""
import math

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from ckpt import hf, store, writing
from ckpt.__main__ import main
from model import attention, gpt, layers
from model.config import LossScaleConfig, ModelConfig
from model.init import initialize
from parallel.mesh import Mesh
from parallel.yaml_tree import to_yaml
from train.config import TrainConfig
from train.gradients import LocalGradients
from train.step import TrainStep

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle

PAD = 0
SIZES = {"vocab_size": 211, "hidden_size": 60, "num_layers": 3, "num_heads": 5, "seq_length": 24, "ffn_hidden_size": 100,
         "layer_norm_eps": 1e-6}


@pytest.fixture(params=["cpu forms", "plain cells"])
def form(request, monkeypatch):
    ms.set_context(mode=ms.GRAPH_MODE)
    if request.param == "plain cells":
        for module in (layers, attention, gpt):
            monkeypatch.setattr(module, "on_cpu", lambda: False)


def random_theirs(seed: int):
    """GPT2LMHeadModel with every weight drawn; dropout 0."""
    config = transformers.GPT2Config(
        vocab_size=211, n_positions=24, n_embd=60, n_layer=3, n_head=5, n_inner=100, layer_norm_epsilon=1e-6, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, attn_implementation="eager")
    model, generator = transformers.GPT2LMHeadModel(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.2 + (".ln_" in name and name.endswith("weight")))
    return model


def random_tokens(*shape: int) -> np.ndarray:
    """Tokens with pads at the end of every second row."""
    tokens = np.random.RandomState(4).randint(1, 211, shape)
    tokens[..., 1::2, 9:] = PAD
    return tokens


def ours_of(weights: dict[str, np.ndarray]) -> gpt.GPT:
    network = gpt.GPT(ModelConfig(**SIZES))
    for name, p in network.parameters_and_names():
        p.set_data(Tensor(weights[name]))
    return network


class Outputs(nn.Cell):
    """(mean loss, logits) of tokens [batch, seq]; the last token is a label only for the loss, an input too for the logits."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.gpt, self.head, self.loss = network, gpt.Head(), gpt.GPTLoss(network, PAD)

    def construct(self, tokens, positions):
        sums = self.loss(tokens, positions)
        return sums[0] / sums[1], self.head(*self.gpt(tokens, positions))


def outputs(network: gpt.GPT, tokens: np.ndarray) -> tuple[float, np.ndarray, dict[str, np.ndarray]]:
    """(loss, logits, gradients by transformers' names) of ours."""
    weights = network.trainable_params()
    function = ms.value_and_grad(Outputs(network), None, weights, has_aux=True)
    (loss, logits), gradients = function(Tensor(tokens, ms.int32), Tensor(np.arange(len(tokens)), ms.int32))
    gradients = hf.to_hf({p.name: g.asnumpy() for p, g in zip(weights, gradients, strict=True)})
    return loss.asnumpy().item(), logits.asnumpy().reshape(*tokens.shape, -1), gradients


def test_import_has_the_same_logits_loss_and_gradients(form, tmp_path):
    theirs, tokens = random_theirs(seed=1), random_tokens(4, 24)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="100KB")
    assert (tmp_path / "theirs" / hf.INDEX).exists()  # in several files
    assert main(["import-hf", str(tmp_path / "theirs"), str(tmp_path / "ckpt")]) == 0
    checkpoint = store.load_given(tmp_path / "ckpt")
    assert checkpoint.state["identity"]["model"] == SIZES
    ids = torch.tensor(tokens)
    wanted = theirs(input_ids=ids, labels=ids.masked_fill(ids == PAD, -100))
    wanted.loss.backward()
    loss, logits, gradients = outputs(ours_of(checkpoint.tensors["model"]), tokens)
    worst_logit = np.abs(logits - wanted.logits.detach().numpy()).max()
    errors = {name: float(np.linalg.norm(gradients[name] - p.grad.numpy()) / p.grad.norm())
              for name, p in theirs.named_parameters()}
    print(f"\nlogits {worst_logit:.2e}, loss {abs(loss - wanted.loss.item()):.2e}, gradients {max(errors.values()):.2e}")
    assert worst_logit < 1e-4
    assert loss == pytest.approx(wanted.loss.item(), abs=1e-5)
    assert max(errors.values()) < 1e-4, errors


def test_export_is_loaded_by_transformers_with_the_same_logits(form, tmp_path):
    network, tokens = gpt.GPT(ModelConfig(**SIZES)), random_tokens(4, 24)
    initialize(network, ModelConfig(**SIZES, init_std=0.2), seed=3)
    weights = {name: p.asnumpy() for name, p in network.parameters_and_names()}
    checkpoint = store.Checkpoint({"model": weights}, {"step": 7}, to_yaml({"model": SIZES}))
    writing.save(tmp_path / "checkpoints", checkpoint, keep_last=1)
    assert main(["export-hf", str(tmp_path / "checkpoints"), str(tmp_path / "out")]) == 0
    theirs, info = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert not theirs.training and theirs.dtype == torch.float32
    _, logits, _ = outputs(network, tokens)
    wanted = theirs(input_ids=torch.tensor(tokens)).logits.detach().numpy()
    assert np.abs(wanted).max() > 1
    assert np.abs(logits - wanted).max() < 1e-4


def reference_steps(theirs, batches: np.ndarray, config: TrainConfig) -> tuple[list, list]:
    """PyTorch's AdamW, clipping and a linear schedule (LambdaLR). Returns losses and norms; changes the model."""
    parameters = list(theirs.parameters())
    groups = [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
              {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    floor, warmup, rest = config.min_lr / config.lr, config.warmup_steps, config.total_steps - config.warmup_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: (n + 1) / warmup if n < warmup else 1 - (1 - floor) * (n - warmup) / rest)
    losses, norms = [], []
    for tokens in torch.tensor(batches):
        labels = tokens[:, 1:].masked_fill(tokens[:, 1:] == PAD, -100)
        logits = theirs(input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, config.clip_norm or math.inf).item())
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_five_steps(form, clip_norm):
    # The large epsilon keeps the rounding of gradients near zero (a key's bias has no other) from becoming whole steps.
    config = TrainConfig(total_steps=9, global_batch_size=6, micro_batch_size=3, lr=2e-3, min_lr=2e-4, schedule="linear",
                         eps=1e-4, warmup_steps=2, weight_decay=0.2, betas=(0.9, 0.99), clip_norm=clip_norm)
    theirs, batches = random_theirs(seed=2), random_tokens(5, 6, 25)
    start = hf.from_hf({name: p.detach().numpy().copy() for name, p in theirs.named_parameters()}, SIZES)
    gradients = LocalGradients(gpt.GPTLoss(ours_of(start), PAD), Mesh(1), 2)
    step, positions = TrainStep(gradients, config, LossScaleConfig(), 6 * 24).set_train(), Tensor(np.arange(6), ms.int32)
    found = [[x.asnumpy().item() for x in step(Tensor(tokens, ms.int32), positions)[:2]] for tokens in batches]
    wanted = np.array(reference_steps(theirs, batches, config)).T
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-5)
    weights = hf.from_hf({name: p.detach().numpy() for name, p in theirs.named_parameters()}, SIZES)
    differences = {p.name: float(np.abs(p.asnumpy() - weights[p.name]).max()) for p in step.weights}
    print(f"\nlosses and norms {np.abs(found - wanted).max():.2e}, weights {max(differences.values()):.2e}")
    assert max(differences.values()) < 1e-5, differences
