"""Scores against an independent NumPy computation from raw logits, and by hand."""
import json

import numpy as np
import pytest

from data.tokenizer import PAD_ID
from eval.tasks.questions import Question, Row, Task, rows_of
from eval.tasks.scores import all_scores, scores

SEQ, VOCAB = 24, 40


def random_task(rng: np.random.RandomState, name: str, kind: str, count: int) -> Task:
    questions = []
    for number in range(count):
        options = 1 if kind == "cloze" else rng.randint(2, 6)
        context = rng.randint(4, VOCAB, rng.randint(1, 10)).tolist()
        sizes = rng.randint(1, 3 if kind == "cloze" else 14, options)
        rows = tuple(Row(context + rng.randint(4, VOCAB, size).tolist(), len(context) - 1) for size in sizes)
        answer = None if kind == "cloze" else int(rng.randint(options))
        lengths = tuple(rng.randint(1, 30, options).tolist())
        questions.append(Question(f"{name}:{number}", rows, answer, f"t{number % 7}", lengths, False))
    return Task(name, kind, tuple(questions))


def figures(tokens: np.ndarray, first: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Loss sum, tokens and hits of each row as the network masks them, float32 [3, rows]; logits [rows, SEQ, VOCAB]."""
    labels = tokens[:, 1:]
    mask = (labels != PAD_ID) & (np.arange(SEQ) >= first[:, None])
    shifted = logits - logits.max(-1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(-1)) - np.take_along_axis(shifted, labels[..., None], -1)[..., 0]
    hits = np.take_along_axis(logits, labels[..., None], -1)[..., 0] >= logits.max(-1)
    return np.stack([(losses * mask).sum(1), mask.sum(1), (hits & mask).sum(1)]).astype(np.float32)


@pytest.fixture(scope="module")
def case():
    """Tasks, the logits of their rows (of which some labels are made likely), and the rows' figures."""
    rng = np.random.RandomState(3)
    tasks = [random_task(rng, "a", "choice", 40), random_task(rng, "b", "cloze", 60), random_task(rng, "c", "choice", 15)]
    tokens, first = rows_of(tasks, SEQ)
    logits = rng.normal(0, 2, (len(tokens), SEQ, VOCAB))
    likely = rng.rand(len(tokens), SEQ) < 0.6
    np.put_along_axis(logits, tokens[:, 1:, None], np.where(likely, 9.0, -1.0)[..., None], -1)
    return tasks, logits, figures(tokens, first, logits)


def by_hand(question: Question, logits: np.ndarray) -> list[tuple[float, bool]]:
    """(log-likelihood, whether greedy decoding gives it) of each continuation, token by token."""
    results = []
    for row, row_logits in zip(question.rows, logits, strict=True):
        total, greedy = 0.0, True
        for position in range(row.first, len(row.tokens) - 1):
            p = np.exp(row_logits[position]) / np.exp(row_logits[position]).sum()
            total += float(np.log(p[row.tokens[position + 1]]))
            greedy = greedy and int(p.argmax()) == row.tokens[position + 1]
        results.append((total, greedy))
    return results


def test_scores_are_those_of_the_raw_logits(case):
    tasks, logits, numbers = case
    results, start = all_scores(tasks, *numbers), 0
    for task in tasks:
        expected, expected_norm, nats, count = [], [], 0.0, 0
        for question in task.questions:
            pairs = by_hand(question, logits[start:start + len(question.rows)])
            start += len(question.rows)
            if task.kind == "cloze":
                expected.append(pairs[0][1])
                nats, count = nats - pairs[0][0], count + len(question.rows[0].tokens) - 1 - question.rows[0].first
            else:
                sums = [total for total, _ in pairs]
                expected.append(int(np.argmax(sums)) == question.answer)
                expected_norm.append(int(np.argmax(np.divide(sums, question.lengths))) == question.answer)
        result = results[task.name]
        assert [item["correct"] for item in result["items"]] == expected and 0 < sum(expected) < len(expected)
        assert result["accuracy"] == sum(expected) / len(expected) and result["questions"] == len(expected)
        assert [item["id"] for item in result["items"]] == [question.id for question in task.questions]
        if task.kind == "cloze":
            assert result["loss"] == pytest.approx(nats / count, rel=1e-6)
            assert sum(i["loss_sum"] for i in result["items"]) / sum(i["tokens"] for i in result["items"]) == \
                pytest.approx(nats / count, rel=1e-6)
        else:
            assert [item["correct_norm"] for item in result["items"]] == expected_norm != expected
            assert result["accuracy_norm"] == sum(expected_norm) / len(expected_norm)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_may_share_the_rows_in_any_way(case, ranks):
    tasks, _, numbers = case
    shares = np.split(np.random.RandomState(ranks).permutation(numbers.shape[1]), [7, 50][:ranks - 1])
    gathered = np.zeros_like(numbers)
    for share in shares:
        gathered[:, share] = numbers[:, share]
    assert all_scores(tasks, *gathered) == all_scores(tasks, *numbers)


def choice(losses, answer=0, lengths=None, counted=2) -> dict:
    rows = tuple(Row([5] * (counted + 3), 2) for _ in losses)
    task = Task("x", "choice", (Question("q", rows, answer, "t", tuple(lengths or [1] * len(losses)), True),))
    return scores(task, np.array(losses, np.float32), np.full(len(losses), counted), np.zeros(len(losses)))


@pytest.mark.parametrize("losses, lengths, correct, correct_norm", [
    ([1.0, 2.0], [4, 4], True, True),
    ([2.0, 1.0], [4, 4], False, False),
    ([3.0, 2.0], [9, 3], False, True),     # the longer one wins per byte: 1/3 against 2/3
    ([2.0, 3.0], [3, 9], True, False),
    ([2.0, 2.0], [4, 4], False, False),    # a tie is wrong
    ([2.0, 2.0], [4, 2], False, True),
    ([2.0, 4.0], [1, 2], True, False),     # a tie per byte
    ([1.0, 2.0, 1.0], [1, 1, 1], False, False),
    ([1.0, 2.0, 2.0], [1, 1, 1], True, True),  # the others may tie
    ([np.nan, 2.0], [1, 1], False, False),
    ([1.0, np.nan], [1, 1], False, False),
    ([np.inf, np.inf], [1, 1], False, False),
    ([1.0, np.inf], [1, 1], True, True),
])
def test_choices_by_hand(losses, lengths, correct, correct_norm):
    result = choice(losses, 0, lengths)
    assert result["items"] == [{"id": "q", "correct": correct, "correct_norm": correct_norm}]
    assert (result["accuracy"], result["accuracy_norm"]) == (correct, correct_norm)
    assert result["nonfinite"] == int(not np.isfinite(losses).all()) and result["truncated"] == 1
    assert result["baseline"] == 1 / len(losses) and result["not_computed"] is None
    json.dumps(result, allow_nan=False)


def test_the_baseline_is_the_mean_chance_and_the_answer_may_stand_anywhere():
    assert choice([3.0, 2.0, 1.0], answer=2)["accuracy"] == 1.0
    questions = tuple(Question(str(n), (Row([5, 6], 0),) * n, 0, "t", (1,) * n, False) for n in (2, 4))
    result = scores(Task("x", "choice", questions), np.zeros(6), np.ones(6), np.ones(6))
    assert result["baseline"] == 0.375 and result["accuracy"] == result["accuracy_norm"] == 0.0


def test_cloze_by_hand():
    questions = tuple(Question(str(i), (Row([5] * (2 + counted), 1),), None, target, (3,), False)
                      for i, (counted, target) in enumerate([(1, "the"), (2, "sea"), (2, "the"), (1, "moon"), (1, "the")]))
    task = Task("x", "cloze", questions, {}, {"why": 3})
    result = scores(task, np.array([0.5, 3.0, 1.0, np.nan, np.inf]), np.array([1, 2, 2, 1, 1]), np.array([1, 1, 2, 1, 1]))
    # What is not a number may count as a hit in the network (nothing is likelier), but is not right.
    assert [item["correct"] for item in result["items"]] == [True, False, True, False, False]
    assert [(i["loss_sum"], i["tokens"]) for i in result["items"]] == [(0.5, 1), (3.0, 2), (1.0, 2), (None, 1), (None, 1)]
    assert result["accuracy"] == 0.4 and result["loss"] == 4.5 / 5 and result["nonfinite"] == 2
    assert result["baseline"] == 3 / 5 and result["rejected"] == {"why": 3} and "accuracy_norm" not in result
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("kind, other", [("choice", "accuracy_norm"), ("cloze", "loss")])
def test_no_questions_give_no_number_and_the_reason(kind, other):
    task = Task("x", kind, (), {"too long": ["a", "b"]}, {"no word": 4})
    result = scores(task, *np.zeros((3, 0)))
    assert result["accuracy"] is result[other] is result["baseline"] is None and result["questions"] == 0
    assert result["not_computed"] == "no question could be made: too long (2); no word (4)"
    assert result["skipped"] == {"too long": ["a", "b"]} and result["items"] == []
    assert all_scores([], *np.zeros((3, 0))) == {}


def test_figures_of_other_rows_are_refused(case):
    tasks, _, numbers = case
    with pytest.raises(ValueError, match="figures of 3 rows"):
        all_scores(tasks, *numbers[:, :3])
    missing = numbers.copy()
    missing[:, 5] = 0  # a row that no rank computed
    with pytest.raises(ValueError, match="a: the rows count"):
        all_scores(tasks, *missing)
