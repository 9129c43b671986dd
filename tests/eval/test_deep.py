"""The tier `deep`: a tiny GPT and the tokenizer of real text."""
import numpy as np
import pytest
from mindspore import Tensor

from data.manifest import load_manifest
from data.tokenizer import EOS_ID, PAD_ID, Tokenizer
from eval.config import DeepConfig
from eval.deep import Deep
from eval.rows import RowScorer
from eval.step import EvalStep
from model.gpt import GPT
from model.init import initialize
from model.writer import Text
from parallel.mesh import Mesh
from train.config import load_config

SMALL = {"instructions": False, "safety": False, "samples": 1, "max_new_tokens": 4, "batch_size": 2}


@pytest.fixture(scope="module")
def make(tiny_yaml):
    """make(rank, ranks, **settings) -> the tier on a GPT whose weights are large enough that its dropout would show."""
    config = load_config(tiny_yaml, ["model.init_std=0.3", "model.num_layers=1"])
    load_manifest(config.data)
    tokenizer = Tokenizer.load(config.data.prepared_dir / "tokenizer.model")
    model = config.model.model_copy(update={"vocab_size": tokenizer.vocab_size})
    gpt = GPT(model)
    initialize(gpt, model, 1)
    gpt.set_train()

    def deep(rank=0, ranks=1, **settings):
        step = EvalStep(gpt, PAD_ID)
        scorer = RowScorer(step, step, Mesh(ranks, rank=rank), 2)
        return Deep(gpt, scorer, tokenizer, DeepConfig(**{**SMALL, **settings}), model.seq_length, seed=3)
    return deep


def texts(deep):
    return [(a.prompt, a.text) for a in deep.write()]


def test_each_prompt_goes_on_in_order_and_the_same_twice(make):
    deep = make()
    first = texts(deep)
    assert [prompt for prompt, _ in first] == list(deep.config.prompts) and len({text for _, text in first}) == 4
    assert texts(deep) == first == texts(make())
    deep.seed = 4
    assert texts(deep) != first


def test_a_text_does_not_depend_on_the_other_prompts_or_the_batch(make):
    settings = {"temperature": 0.0}
    whole, prompts = texts(make(**settings)), DeepConfig().prompts
    assert texts(make(**settings, prompts=prompts[::-1], batch_size=3)) == whole[::-1]
    assert texts(make(**settings, prompts=prompts[2:3])) == whole[2:3]


def test_ranks_write_what_one_would(make, monkeypatch):
    """Four prompts on three ranks: two, two and none. What each would have gathered is put together here."""
    expected, parts = texts(make()), []

    def catch(x):
        parts.append(x)
        return np.stack([x] * 3)
    monkeypatch.setattr("parallel.collectives.gather_arrays", catch)
    for rank in range(3):
        make(rank, 3).write()
    together = np.stack(parts)
    monkeypatch.setattr("parallel.collectives.gather_arrays", lambda x: together)
    assert texts(make(0, 3)) == expected


def test_several_samples_of_a_prompt_differ(make):
    report = make(samples=3, max_new_tokens=8).run()["samples"]
    assert report["samples"] == 12 and len(report["texts"]) == 12
    assert len({t["text"] for t in report["texts"][:3]}) == 3 and len({t["prompt"] for t in report["texts"][:3]}) == 1
    assert set(report["languages"]) == {"en", "zh"} and report["languages"]["zh"]["samples"] == 6
    assert report["own_perplexity"] > 1 and 0 <= report["distinct_2"] <= 1


def test_a_prompt_that_is_empty_or_longer_than_the_model_sees(make):
    report = make(prompts=("", "It is a truth universally acknowledged, " * 9)).run()
    assert all(0 < t["tokens"] <= 4 or t["ended"] for t in report["samples"]["texts"])
    assert (report["prompts"], report["truncated"], report["not_computed"]) == (2, 1, {})


def test_nothing_but_eos_is_empty_and_improves_no_score(make, monkeypatch):
    deep = make()
    monkeypatch.setattr(deep.writer, "write", lambda prompts, *_: [Text([], True) for _ in prompts])
    report = deep.run()["samples"]
    assert report["empty_rate"] == 1.0 and report["own_perplexity"] is None and report["distinct_1"] is None
    assert report["not_computed"]["own_perplexity"] == "no text has a token, or their loss is not finite"


def test_texts_that_break_off_are_said_to(make):
    deep = make()
    token = deep.scorer.gpt.embedding.token
    good = token.asnumpy().copy()
    try:
        token.set_data(Tensor(np.full_like(good, np.nan)))
        report = deep.run()
    finally:
        token.set_data(Tensor(good))
    assert report["not_computed"]["texts"].startswith("4 of 4 break off")
    assert all(text["broken"] for text in report["samples"]["texts"]) and report["samples"]["own_perplexity"] is None


def test_items_are_asked_and_judged(make, monkeypatch):
    deep = make(instructions=True, safety=True)
    answer = deep.tokenizer.encode("I can't help with that.")
    deep.config = deep.config.model_copy(update={"max_new_tokens": len(answer)})
    monkeypatch.setattr(deep.writer, "write", lambda prompts, *_: [Text(answer, True) for _ in prompts])
    report = deep.run()
    assert report["instructions"]["all"]["count"] == 60 and report["instructions"]["all"]["item_accuracy"] < 0.5
    assert report["safety"]["harmful"]["en"]["refusal_rate"] == report["safety"]["benign"]["en"]["over_refusal_rate"] == 1.0
    assert report["instructions"]["failures"][0]["text"] == "I can't help with that."


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_stays_also_after_an_error(make, training, monkeypatch):
    deep = make()
    deep.scorer.gpt.set_train(training)
    deep.run()
    assert deep.scorer.gpt.training is training

    def fail(*_):
        raise RuntimeError("no")
    monkeypatch.setattr(deep.writer, "write", fail)
    with pytest.raises(RuntimeError, match="no"):
        deep.run()
    assert deep.scorer.gpt.training is training


def test_own_perplexity_is_that_of_the_new_tokens(make):
    """By hand: the loss of each text's new tokens, given its prompt."""
    deep = make(prompts=("It is", "子曰："), max_new_tokens=6)
    answers = deep.write()
    sums = np.zeros(2)
    step = EvalStep(deep.scorer.gpt, PAD_ID)
    scorer = RowScorer(step, step, Mesh(1), 1)
    for prompt, new in zip(deep.ids, deep.tokens, strict=True):
        for at in range(len(prompt), len(prompt) + len(new)):
            row = np.zeros((1, 17), np.int32)
            row[0, :at + 1] = (prompt + new)[:at + 1]
            sums += scorer.score_rows(row, np.array([at - 1], np.int32))[0, :2]
    assert sums[1] == sum(a.tokens for a in answers)
    assert deep.own_perplexity() == pytest.approx(np.exp(sums[0] / sums[1]), rel=1e-5)
    assert EOS_ID not in sum(deep.tokens, [])
