"""lm-evaluation-harness on our model and items, against our own scores of the same; needs the extra `harness`."""
import json

import mindspore as ms
import numpy as np
import pytest
import yaml
from mindspore import Tensor

from data.tokenizer import EOS_ID, PAD_ID, Tokenizer
from eval.rows import RowScorer
from eval.step import EvalStep
from eval.tasks import scores, shipped
from eval.tasks.questions import Item, build_task, rows_of
from model.config import ModelConfig
from model.gpt import GPT
from model.init import initialize
from model.writer import Writer
from parallel.mesh import Mesh
from tests.model.uncached import NextTokenLogits

pytestmark = pytest.mark.oracle
SEQ = 64
TASK = {"task": "ours", "dataset_path": "json", "output_type": "multiple_choice", "test_split": "test",
        "doc_to_text": "{{context}}", "doc_to_target": "answer", "doc_to_choice": "choices", "target_delimiter": " ",
        "metric_list": [{"metric": m} for m in ("acc", "acc_norm")]}


@pytest.fixture(scope="module")
def parts(tiny_yaml):
    """(log-probabilities of what follows some tokens, scorer, tokenizer, adapter) of a model with large random weights."""
    pytest.importorskip("lm_eval")
    from eval.harness import Adapter
    from train.config import load_config

    ms.set_context(mode=ms.GRAPH_MODE)
    tokenizer = Tokenizer.load(load_config(tiny_yaml).data.prepared_dir / "tokenizer.model")
    config = ModelConfig(vocab_size=tokenizer.vocab_size, hidden_size=32, num_layers=2, num_heads=2, seq_length=SEQ, init_std=0.3)
    gpt = GPT(config)
    initialize(gpt, config, 5)
    step = EvalStep(gpt, PAD_ID)
    scorer = RowScorer(step, step, Mesh(1), 8)
    logits_of = NextTokenLogits(gpt)

    def follows(context: list[int]) -> np.ndarray:
        """Of these tokens, one context at a time: float64 [vocab]."""
        ids = np.zeros((1, SEQ), np.int32)
        ids[0, :len(context)] = context
        logits = logits_of(Tensor(ids), Tensor([len(context) - 1], ms.int32)).asnumpy()[0].astype(np.float64)
        return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())

    return follows, scorer, tokenizer, Adapter(scorer, Writer(gpt, 4, SEQ, EOS_ID), tokenizer, SEQ, 1)


def request(*arguments):
    """As the harness calls a model."""
    from lm_eval.api.instance import Instance

    return Instance("loglikelihood", {}, arguments, 0)


def test_the_multiple_choice_score_is_the_harness_own(parts, tmp_path):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    _, scorer, tokenizer, adapter = parts
    items = [Item(str(line), f"Question: {item.question.strip()}\nAnswer:", [f" {c}" for c in item.choices], item.answer)
             for line, item in shipped.read_items(shipped.MMLU_FILE, shipped.MmluItem)
             if (item.question + "".join(item.choices)).isascii()]  # the harness normalises by characters, we by bytes
    task = build_task("ours", "choice", items, tokenizer, SEQ)
    kept = {question.id for question in task.questions if not question.truncated}
    items = [item for item in items if item.id in kept]
    task = build_task("ours", "choice", items, tokenizer, SEQ)
    assert len(items) > 30
    mine = scores.scores(task, *scorer.score_rows(*rows_of([task], SEQ)).T)

    lines = [{"context": i.context, "choices": [c.strip() for c in i.continuations], "answer": i.answer} for i in items]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    config = {**TASK, "dataset_kwargs": {"data_files": {"test": str(tmp_path / "test.jsonl")}}}
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    found = simple_evaluate(adapter, tasks=["ours"], task_manager=TaskManager(include_path=str(tmp_path)), bootstrap_iters=0)
    theirs = found["results"]["ours"]
    assert 0 < mine["accuracy"] < 1 and mine["accuracy"] != mine["accuracy_norm"]
    assert (theirs["acc,none"], theirs["acc_norm,none"]) == pytest.approx((mine["accuracy"], mine["accuracy_norm"]))
    by_document = {s["doc_id"]: s["acc"] for s in found["samples"]["ours"]}
    assert [by_document[i] for i in range(len(items))] == [float(item["correct"]) for item in mine["items"]]


def test_a_long_text_in_windows(parts):
    follows, _, tokenizer, adapter = parts
    text = "It is a truth universally acknowledged, that a single man in want of a wife must be in possession of a fortune. " * 2
    tokens = [EOS_ID, *tokenizer.encode(text)]
    assert SEQ + 20 < len(tokens) < 2 * SEQ  # a second window, which begins earlier to be full
    starts = [0 if i <= SEQ else len(tokens) - 1 - SEQ for i in range(len(tokens))]
    expected = sum(follows(tokens[starts[i]:i])[tokens[i]] for i in range(1, len(tokens)))
    assert adapter.loglikelihood_rolling([request(text), request("")]) == [pytest.approx(expected, rel=1e-5), 0.0]


@pytest.mark.parametrize("context", ["the man", "", "the man and " * 60 + "so"])
def test_continuations(parts, context):
    follows, _, tokenizer, adapter = parts
    start = tokenizer.encode(context) or [EOS_ID]
    best = tokenizer.decode([*start, int(follows(start[-SEQ:]).argmax())])[len(tokenizer.decode(start)):]
    for continuation, likeliest in ((" and then", False), (best, True)):
        whole = [EOS_ID] * (not context) + tokenizer.encode(context + continuation)
        assert whole[:len(start)] == start  # nothing merges over the border
        seen = max(0, len(whole) - 1 - SEQ)
        expected = [follows(whole[seen:i]) for i in range(len(start), len(whole))]
        (score, greedy), = adapter.loglikelihood([request(context, continuation)])
        assert score == pytest.approx(sum(p[t] for p, t in zip(expected, whole[len(start):], strict=True)), rel=1e-5)
        assert greedy == likeliest == all(p.argmax() == t for p, t in zip(expected, whole[len(start):], strict=True))


def test_texts_end_where_the_task_says(parts):
    from parallel.errors import UserError

    follows, _, tokenizer, adapter = parts
    whole, = adapter.generate_until([request("the man", {"until": [], "max_gen_toks": 12})])
    greedy = tokenizer.encode("the man")
    start = len(greedy)
    for _ in range(12):
        greedy.append(int(follows(greedy).argmax()))
    assert whole == tokenizer.decode(greedy[start:]) and len(whole) > 4
    stop = whole[3:5]
    short, other = adapter.generate_until([request("the man", {"until": [stop], "max_gen_toks": 12}),
                                           request("a", {"until": stop, "max_gen_toks": 3, "temperature": 0.7})])
    assert short == whole[:whole.index(stop)] and stop not in other
    with pytest.raises(UserError, match="num_beams"):
        adapter.generate_until([request("a", {"num_beams": 2})])
