"""Questions as rows of tokens, from held-out text and from item files; the tokenizer is a real one, trained here."""
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data import tokenizer as tokenizers
from data.config import TokenizerConfig
from data.manifest import load_manifest
from data.packing import SampleSet, Span, num_samples
from data.prepare import load_tokenizer
from data.tokenizer import EOS_ID, PAD_ID, Tokenizer
from eval.tasks import held_out
from eval.tasks.held_out import cloze, continuation, documents_of, read_held_out
from eval.tasks.questions import TOO_LONG, Item, Row, build_task, encode_pair, make_row, rows_of
from eval.tasks.scores import scores
from eval.tasks.shipped import BBH_FILE, GENERATION, MMLU_FILE, BbhItem, MmluItem, bbh, bbh_exact, mmlu, read_items
from parallel.errors import UserError

CORPUS = Path(__file__).parents[2] / "data" / "corpus"
HAN = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [(CORPUS / f"train_{name}.txt").read_text(encoding="utf-8")[:size]
             for name, size in (("en", 300_000), ("zh", 40_000))]
    return Tokenizer(tokenizers.train(texts, sum(map(len, texts)), TokenizerConfig(vocab_size=3500, character_coverage=0.98)))


@pytest.fixture(scope="module")
def sources():
    return {name: held_out.held_out(name, [(CORPUS / f"valid_{name}.txt").read_text(encoding="utf-8")]) for name in ("en", "zh")}


def continuation_of(row: Row, tokenizer: Tokenizer) -> str:
    """The text of the labels that count."""
    return tokenizer.decode(row.tokens[1:][row.first:])


# Context and continuation


def test_a_merge_across_the_border_counts_as_continuation(tokenizer):
    context, rest = "They were walking o", "ver the hills"
    whole, alone = tokenizer.encode(context + rest), tokenizer.encode(context)
    assert whole[:len(alone)] != alone, "the example is to merge across the border"
    tokens, border = encode_pair(tokenizer, context, rest)
    assert tokens == whole
    assert tokenizer.decode(tokens[:border]) == "They were walking" and tokenizer.decode(tokens[border:]) == " over the hills"


def test_a_border_between_tokens_is_the_number_of_the_context_s_tokens(tokenizer):
    for _, item in read_items(MMLU_FILE, MmluItem):
        context = f"Question: {item.question}\nAnswer:"
        tokens, border = encode_pair(tokenizer, context, f" {item.choices[0]}")
        assert border == len(tokenizer.encode(context)) and tokenizer.decode(tokens[border:]) == f" {item.choices[0]}"


def test_blanks_before_the_border_go_with_the_continuation(tokenizer):
    assert encode_pair(tokenizer, "She was very ", "happy") == encode_pair(tokenizer, "She was very", " happy")


@pytest.mark.parametrize("context, rest", [("", "happy"), ("  ", "happy"), ("h", "e was")])
def test_where_no_context_is_left_eos_stands_for_it(tokenizer, context, rest):
    assert encode_pair(tokenizer, context, rest) == ([EOS_ID, *tokenizer.encode(context + rest)], 1)


def test_an_empty_continuation_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="nothing to score"):
        encode_pair(tokenizer, "She was", "")


def test_a_long_context_loses_its_left_and_the_continuation_stays(tokenizer):
    context = "It is a truth universally acknowledged, that a single man in possession of a good fortune"
    rest = " must be in want of"
    whole, border = encode_pair(tokenizer, context, rest)
    size = len(whole) - border
    for seq_length in range(1, len(whole) + 3):
        made = make_row(tokenizer, context, rest, seq_length)
        if size > seq_length:
            assert made is None
            continue
        row, truncated = made
        assert row.tokens == whole[-(seq_length + 1):] and truncated == (len(whole) > seq_length + 1)
        assert row.counted == size and continuation_of(row, tokenizer) == rest
    assert make_row(tokenizer, context, rest, size)[0].first == 0  # one token of context is enough


def test_a_question_with_a_continuation_that_is_too_long_is_skipped_and_named(tokenizer):
    items = [Item("fits", "He was", (" glad", " sorry"), 0), Item("long", "He was", (" glad", " sorry" * 9), 0),
             Item("cut", "He was here and there and everywhere, but she was", (" glad", " sorry"), 1)]
    task = build_task("x", "choice", items, tokenizer, 8, skipped={"other": ["a"]}, rejected={"why": 2})
    assert [(q.id, q.truncated, q.target) for q in task.questions] == [("fits", False, "glad"), ("cut", True, "sorry")]
    assert task.skipped == {"other": ["a"], TOO_LONG: ["long"]} and task.rejected == {"why": 2}
    assert task.questions[0].lengths == (4, 5)


def test_rows_are_padded_and_numbered_through(tokenizer):
    one = build_task("x", "choice", [Item("a", "He was", (" glad", " sorry"), 0)], tokenizer, 32)
    two = build_task("y", "cloze", [Item("b", "“你好”，", ("世界",), None)], tokenizer, 32)
    tokens, first = rows_of([one, two], 32)
    assert tokens.shape == (3, 33) and tokens.dtype == first.dtype == np.int32
    rows = [*one.questions[0].rows, *two.questions[0].rows]
    for filled, begin, row, text in zip(tokens, first, rows, (" glad", " sorry", "世界"), strict=True):
        labels = filled[1:][begin:]
        assert tokenizer.decode(labels[labels != PAD_ID]) == text and (labels != PAD_ID).sum() == row.counted
    empty = rows_of([], 32)
    assert empty[0].shape == (0, 33) and empty[1].shape == (0,)


# Held-out text


def test_samples_give_their_documents_back(tokenizer, tmp_path):
    documents = ["It was so.\n\nBut “你好” ▁ or not!\n", "第二篇：读经宜冬，其神专也。"]
    row = np.array([t for d in documents for t in (*tokenizer.encode(d), EOS_ID)], np.int32)
    row.tofile(tmp_path / "row")
    samples = SampleSet((Span(tmp_path / "row", 0, num_samples(len(row), 7)),), 7)
    padding = np.full((2, 8), PAD_ID, np.int32)
    assert documents_of([*samples.blocks(0, len(samples)), padding], tokenizer) == documents
    assert documents_of([], tokenizer) == documents_of([padding], tokenizer) == []


@pytest.mark.parametrize("name", ["en", "zh"])
def test_cloze_asks_for_the_last_word_of_a_real_passage(tokenizer, sources, name):
    source = sources[name]
    task = cloze(source, tokenizer, 128)
    assert task.name == f"cloze_{name}" and len(task.questions) == len({q.id for q in task.questions}) == 100
    for question in task.questions:
        (row,), place = question.rows, int(question.id.removeprefix(f"{name}:"))
        end = place + len(question.target)
        assert source.text[place:end] == question.target == continuation_of(row, tokenizer).strip(" ")
        assert source.text[:end].endswith(tokenizer.decode(row.tokens)), "the passage is the text as it stands"
        assert 30 <= len(row.tokens) <= 60 and question.answer is None and not question.truncated
        if name == "zh":
            assert len(question.target) == 1 and HAN.match(question.target)
        else:
            assert re.fullmatch(r"[^\W\d_]+(?:['’-][^\W\d_]+)*", question.target)
            assert not re.match(r"\w", source.text[place - 1]) and not re.match(r"\w", source.text[end])
        running = tokenizer.encode(tokenizer.decode(row.tokens) + source.text[end:end + 16])
        assert running[:len(row.tokens)] == row.tokens, "the target's tokens are those of the running text"


@pytest.mark.parametrize("name", ["en", "zh"])
def test_continuation_offers_the_true_one_and_three_from_elsewhere(tokenizer, sources, name):
    source = sources[name]
    task = continuation(source, tokenizer, 128)
    assert len(task.questions) == 100
    assert {q.answer for q in task.questions} == {0, 1, 2, 3}
    for question in task.questions:
        place = int(question.id.removeprefix(f"{name}:"))
        texts = [continuation_of(row, tokenizer) for row in question.rows]
        contexts = {tuple(row.tokens[:row.first + 1]) for row in question.rows}
        true = texts[question.answer]
        assert len(set(texts)) == 4 and len(contexts) == 1
        assert question.target == true.strip(" ") and source.text[place:].startswith(true)
        assert source.text[:place].endswith(tokenizer.decode(next(iter(contexts))))
        passage = tokenizer.decode(next(iter(contexts))) + true
        assert all(text in source.text and text not in passage for text in texts if text is not true)
        assert 30 <= len(question.rows[question.answer].tokens) <= 60
        counted = [row.counted for row in question.rows]
        assert max(counted) - min(counted) <= 2
        assert question.lengths == tuple(len(text.lstrip(" ").encode()) for text in texts)


@pytest.mark.parametrize("make", [cloze, continuation])
def test_questions_depend_on_the_seed_alone(tokenizer, sources, make):
    tasks = [make(sources["en"], tokenizer, 64, count=20, seed=seed) for seed in (0, 0, 1)]
    assert tasks[0] == tasks[1] and not {q.id for q in tasks[0].questions} & {q.id for q in tasks[2].questions}
    more = make(sources["en"], tokenizer, 64, count=40, seed=0)
    assert more.questions[:20] == tasks[0].questions, "a smaller number is the beginning of a larger"


@pytest.mark.parametrize("make", [cloze, continuation])
@pytest.mark.parametrize("seq_length", [2, 16, 45])
def test_passages_fit_a_short_context(tokenizer, sources, make, seq_length):
    task = make(sources["en"], tokenizer, seq_length, count=20)
    assert task.questions and sum(len(q.rows) for q in task.questions) == task.num_rows
    true = [q.rows[q.answer or 0].tokens for q in task.questions]
    assert all(seq_length // 2 <= len(tokens) <= seq_length for tokens in true)


def test_passages_stay_in_their_document(tokenizer):
    lines = (CORPUS / "valid_zh.txt").read_text(encoding="utf-8").split("\n")
    source = held_out.held_out("zh", [line for line in lines if line])
    for task in (cloze(source, tokenizer, 128, 30), continuation(source, tokenizer, 128, 30)):
        assert len(task.questions) == 30 and task.rejected["no passage of 30 to 60 tokens ends there"] > 0
        for row in (row for q in task.questions for row in q.rows):
            assert "\0" not in tokenizer.decode(row.tokens)


def test_false_continuations_do_not_overlap_the_passage(tokenizer, sources):
    source = held_out.held_out("en", [sources["en"].text[2_000:3_500]])
    task = continuation(source, tokenizer, 128, 40)
    assert len(task.questions) == 40
    for question in task.questions:
        context = tokenizer.decode(question.rows[0].tokens[:question.rows[0].first + 1])
        start = int(question.id.removeprefix("en:")) - len(context)
        end = start + len(context) + len(continuation_of(question.rows[question.answer], tokenizer))
        for text in (continuation_of(row, tokenizer) for i, row in enumerate(question.rows) if i != question.answer):
            assert not start - len(text) < source.text.find(text) < end


def test_false_continuations_begin_in_the_script_of_the_true_one(tokenizer, sources):
    mixed = held_out.held_out("mixed", [sources["en"].text[:40_000], sources["zh"].text[:8_000]])
    task = continuation(mixed, tokenizer, 128, 40)
    scripts = [{bool(HAN.search(continuation_of(row, tokenizer))) for row in question.rows} for question in task.questions]
    assert {True} in scripts and {False} in scripts and {True, False} not in scripts


@pytest.mark.parametrize("text", ["", "\n \n", "!?! ... 1813", "Short."])
def test_text_without_passages_gives_no_question_and_says_why(tokenizer, text):
    source = held_out.held_out("en", [text])
    for make in (cloze, continuation):
        task = make(source, tokenizer, 128)
        result = scores(task, *np.zeros((3, 0)))
        assert task.questions == () and result["accuracy"] is None and "no question could be made: " in result["not_computed"]


def test_numbers_and_cut_words_are_no_targets(tokenizer):
    words = "In the year was a day of joy and"
    text = "In the year 1813 the 3rd of _May was a day of joy, and " * 10 + "the w"
    task = cloze(held_out.held_out("en", [text]), tokenizer, 64)
    assert {q.target for q in task.questions} == set(words.split())
    assert task.rejected["the last word is not all letters"] and task.rejected["the text ends there, perhaps within a word"] == 1


def test_held_out_text_is_read_from_the_prepared_data_alone(tiny, tiny_yaml):
    config = tiny().data
    manifest, tokenizer = load_manifest(config), load_tokenizer(config)
    elsewhere = config.model_copy(update={"path": Path("/nowhere"), "valid_path": None})
    for name in ("en", "zh"):
        source = read_held_out(manifest, elsewhere, f"valid_{name}", tokenizer)
        assert source.corpus == name and source.text == (tiny_yaml.parent / f"valid_{name}.txt").read_text(encoding="utf-8")
    assert len(cloze(source, tokenizer, 16, 10).questions) == len(continuation(source, tokenizer, 16, 10).questions) == 10
    empty = manifest.sets["valid_zh"].model_copy(update={"samples": 0})
    manifest = manifest.model_copy(update={"sets": {**manifest.sets, "valid_zh": empty}})
    assert cloze(read_held_out(manifest, config, "valid_zh", tokenizer), tokenizer, 16).questions == ()


# Item files


def test_shipped_mmlu_questions(tokenizer):
    task = mmlu(tokenizer, 4096)
    assert len(task.questions) == 242 and task.num_rows == 968 and not task.skipped
    items = {f"{item.subject}:{line}": item for line, item in read_items(MMLU_FILE, MmluItem)}
    for question in task.questions:
        item = items[question.id]
        assert [continuation_of(row, tokenizer) for row in question.rows] == [f" {choice}" for choice in item.choices]
        assert question.answer == item.answer and question.lengths == tuple(len(choice.encode()) for choice in item.choices)
        assert tokenizer.decode(question.rows[0].tokens) == f"Question: {item.question}\nAnswer: {item.choices[0]}"
    assert len({q.id.split(":")[0] for q in task.questions[:40]}) > 20, "the beginning is a sample of all subjects"


def test_mmlu_in_a_short_context(tokenizer):
    task = mmlu(tokenizer, 32)
    assert sum(q.truncated for q in task.questions) > 100
    assert len(task.questions) + len(task.skipped[TOO_LONG]) == 242 and task.skipped[TOO_LONG]
    tokens, first = rows_of([task], 32)
    assert tokens.shape == (task.num_rows, 33) and (first >= 0).all()
    assert "anatomy:5" in {q.id for q in task.questions}


def test_shipped_bbh_options(tokenizer):
    task = bbh(tokenizer, 4096)
    left = {id_.split(":")[0] for id_ in task.skipped[GENERATION]}
    assert left == {"dyck_languages", "multistep_arithmetic_two", "object_counting", "word_sorting"}
    assert len(task.questions) == 69 and len(task.skipped[GENERATION]) == 12
    options = {q.id.split(":")[0]: [continuation_of(row, tokenizer)[1:] for row in q.rows] for q in task.questions}
    assert options["boolean_expressions"] == ["True", "False"] and options["web_of_lies"] == ["Yes", "No"]
    assert options["sports_understanding"] == ["yes", "no"] and options["formal_fallacies"] == ["valid", "invalid"]
    assert options["snarks"] == ["(A)", "(B)"] and options["reasoning_about_colored_objects"][-1] == "(R)"
    answers = {f"{item.task}:{line}": item.answer for line, item in read_items(BBH_FILE, BbhItem)}
    assert all(q.target == answers[q.id] for q in task.questions)


def test_bbh_exact_asks_for_every_answer_itself(tokenizer):
    task = bbh_exact(tokenizer, 4096)
    assert (task.kind, len(task.questions), task.skipped) == ("cloze", 81, {})
    answers = {f"{item.task}:{line}": item.answer for line, item in read_items(BBH_FILE, BbhItem)}
    assert {q.id: q.target for q in task.questions} == answers
    assert all(continuation_of(q.rows[0], tokenizer)[1:] == q.target for q in task.questions)


def test_answers_that_are_not_all_of_a_pair_are_left_to_generation(tokenizer, tmp_path):
    file = tmp_path / "items.jsonl"
    answers = [("open", "Yes"), ("open", "perhaps"), ("closed", "No")]
    file.write_text("".join(json.dumps({"task": task, "input": "Is it?", "answer": a}) + "\n" for task, a in answers))
    task = bbh(tokenizer, 64, file)
    assert task.skipped == {GENERATION: ["open:1", "open:2"]}
    assert [(q.id, q.answer, q.target) for q in task.questions] == [("closed:3", 1, "No")]


MMLU = {"subject": "s", "question": "q", "choices": ["a", "b"], "answer": 1}
BBH = {"task": "t", "input": "q\nOptions:\n- a\n- b", "answer": "b"}


@pytest.mark.parametrize("make, good, bad, says", [
    (mmlu, MMLU, "{", "not a JSON object in UTF-8 on one line"),
    (mmlu, MMLU, "", "not a JSON object"),
    (mmlu, MMLU, b"\xff", "not a JSON object in UTF-8"),
    (mmlu, MMLU, "[1]", "valid dictionary"),
    (mmlu, MMLU, '{"subject": "s", "subject": "s"}', "a field is given twice"),
    (mmlu, MMLU, {**MMLU, "answer": 2}, "answer 2 is none of the 2 choices"),
    (mmlu, MMLU, {**MMLU, "answer": "1"}, "answer: Input should be a valid integer"),
    (mmlu, MMLU, {**MMLU, "answer": True}, "answer: Input should be a valid integer"),
    (mmlu, MMLU, {**MMLU, "answer": -1}, "answer: "),
    (mmlu, MMLU, {**MMLU, "choices": ["a"]}, "choices: "),
    (mmlu, MMLU, {**MMLU, "choices": ["a", " "]}, "choices.1: "),
    (mmlu, MMLU, {**MMLU, "choices": ["b", "b"]}, "the right choice 'b' is there twice"),
    (mmlu, MMLU, {**MMLU, "hint": "x"}, "hint: Extra inputs"),
    (mmlu, MMLU, {"subject": "s"}, "question: Field required"),
    (bbh, BBH, {**BBH, "answer": "c"}, "answer 'c' is none of the options ['a', 'b']"),
    (bbh, BBH, {**BBH, "anwser": "b"}, "anwser: Extra inputs"),
    (bbh, BBH, {**BBH, "input": "\n"}, "input: "),
])
def test_a_broken_line_is_named(tokenizer, tmp_path, make, good, bad, says):
    bad = json.dumps(bad) if isinstance(bad, dict) else bad
    file = tmp_path / "items.jsonl"
    file.write_bytes(json.dumps(good).encode() + b"\n" + (bad if isinstance(bad, bytes) else bad.encode()) + b"\n")
    with pytest.raises(UserError) as error:
        make(tokenizer, 64, file)
    assert str(error.value).startswith(f"{file}:2: ") and says in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_missing_is_named_and_an_empty_one_gives_no_number(tokenizer, tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl: cannot be read"):
        mmlu(tokenizer, 64, tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    for make in (mmlu, bbh, bbh_exact):
        result = scores(make(tokenizer, 64, tmp_path / "empty.jsonl"), *np.zeros((3, 0)))
        assert result["accuracy"] is None and "there is no text or item" in result["not_computed"]


def test_tasks_need_no_mindspore():
    code = "import eval.tasks.scores, eval.tasks.held_out, eval.tasks.shipped, sys; assert 'mindspore' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=CORPUS.parents[1], check=True)
