"""Samples of generated text: a tiny GPT and the tokenizer of real text."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from data.tokenizer import EOS_ID, Tokenizer
from eval.deep import Samples
from model.gpt import GPT
from model.init import initialize


class Scripted:
    """In NextTokenLogits' place: logits that allow one token only, those of a script one after another, then eos."""

    def __init__(self, deep: Samples, script: list[int]):
        self.gpt, self.set_train = deep.network.gpt, deep.network.set_train
        self.rows = iter(np.where(np.eye(deep.tokenizer.vocab_size), 0.0, -1e9)[[*script, EOS_ID]].astype(np.float32))

    def __call__(self, ids, last):
        return Tensor(np.tile(next(self.rows), (ids.shape[0], 1)))


@pytest.fixture
def samples(tiny):
    """samples(**settings of eval.deep) -> Samples of a GPT whose weights are large enough that its dropout would show."""
    config = tiny("model.init_std=0.3", "model.num_layers=1")
    tokenizer = Tokenizer.load(config.data.prepared_dir / "tokenizer.model")
    model = config.model.model_copy(update={"vocab_size": tokenizer.vocab_size})
    gpt = GPT(model)
    initialize(gpt, model, 1)
    return lambda **settings: Samples(gpt, tokenizer, config.eval.deep.model_copy(update=settings), model.seq_length, seed=3)


def test_each_prompt_goes_on_in_order_and_the_same_twice(samples):
    deep = samples(max_new_tokens=4)
    result = deep.run()
    assert [row["prompt"] for row in result] == list(deep.config.prompts) and len(result) == 4
    assert all(0 < row["tokens"] <= 4 for row in result) and len({row["text"] for row in result}) == 4
    assert deep.run() == result == samples(max_new_tokens=4).run()
    deep.seed = 4
    assert deep.run() != result


def test_a_prompt_stays_with_its_text(samples):
    """Greedy: each alone goes on as among the others, whatever their order."""
    settings = {"max_new_tokens": 4, "temperature": 0.0}
    deep = samples(**settings)
    result = deep.run()
    prompts = deep.config.prompts
    assert samples(**settings, prompts=prompts[::-1]).run() == result[::-1]
    assert samples(**settings, prompts=prompts[2:3]).run() == result[2:3]


def test_fewer_tokens_than_configured(samples):
    deep = samples(max_new_tokens=4)
    assert all(row["tokens"] <= 1 for row in deep.run(max_new_tokens=1))


@pytest.mark.parametrize("prompts", [("",), ("", "子曰："), ("It is",)])
def test_an_empty_prompt_starts_from_eos(samples, prompts):
    deep = samples(prompts=prompts, max_new_tokens=4)
    assert [p == [EOS_ID] for p in deep.prompts] == [p == "" for p in prompts]
    result = deep.run()
    assert [row["prompt"] for row in result] == list(prompts)
    assert all(row["tokens"] > 0 and row["text"] for row in result)


@pytest.mark.parametrize("text", ["时习之，不亦说乎？", "龘𠮷“１”", "a man", "\n 关关\t雎鸠 "])
def test_what_the_model_writes_is_decoded_as_text(samples, text):
    deep = samples(prompts=("学而", "It is"), max_new_tokens=60)
    ids = deep.tokenizer.encode(text)
    deep.network = Scripted(deep, ids)
    assert [(row["text"], row["tokens"]) for row in deep.run()] == [(text, len(ids))] * 2


def test_a_character_cut_in_its_bytes_is_still_valid_text(samples):
    deep = samples(prompts=("学而",), max_new_tokens=2)
    ids = deep.tokenizer.encode("龘")
    assert len(ids) == 3  # rare: spelt in bytes
    deep.network = Scripted(deep, ids)
    (row,) = deep.run()
    assert row["tokens"] == 2 and set(row["text"]) == {"\ufffd"}


def test_random_weights_write_valid_text_too(samples):
    for row in samples(max_new_tokens=16, top_k=0, temperature=2.0).run():
        assert row["text"].encode().decode() == row["text"] != ""


@pytest.fixture
def graph_mode():
    """As in a run."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


@pytest.mark.parametrize("training", [True, False])
def test_the_training_mode_is_left_as_it_was_and_dropout_is_off(samples, training, graph_mode):
    deep, other = samples(max_new_tokens=8), samples(max_new_tokens=8)  # two, for a graph keeps the mode of its first call
    gpt = deep.network.gpt
    assert gpt.embedding.dropout.rate > 0
    gpt.set_train(training)
    result = deep.run()
    assert {cell.training for _, cell in gpt.cells_and_names()} == {training}
    gpt.set_train(False)
    assert other.run() == result


def test_the_training_mode_is_left_as_it_was_when_generation_fails(samples):
    deep = samples(prompts=("It is",), max_new_tokens=2)
    deep.network = Scripted(deep, [5])
    next(deep.network.rows), next(deep.network.rows)  # nothing is left
    gpt = deep.network.gpt
    gpt.set_train(True)
    with pytest.raises(StopIteration):
        deep.run()
    assert {cell.training for _, cell in gpt.cells_and_names()} == {True}


def test_dropout_would_show(samples):
    """The weights for which the test of the mode means something: with dropout on, the logits are others."""
    deep = samples()
    ids, last = Tensor([[5, 6, 7]], ms.int32), Tensor([2], ms.int32)
    logits = [deep.network.set_train(mode)(ids, last).asnumpy() for mode in (False, True)]
    assert np.abs(logits[0] - logits[1]).max() > 0.1
