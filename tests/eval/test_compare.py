"""Intervals against a known distribution and scipy; comparison, series, plot and warning on made reports."""
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from eval.checks import instructions, safety
from eval.comparison.bootstrap import mean_difference_interval, mean_interval, ratio_difference_interval, ratio_interval
from eval.comparison.compare import compare
from eval.comparison.reports import direction, is_condition, leaves, series
from eval.comparison.trends import disagreement, plot
from parallel.errors import UserError

# ---- bootstrap ----


def oracle(data, statistic, seed, **options):
    """scipy's percentile interval with the same random numbers."""
    result = stats.bootstrap(data, statistic, n_resamples=2000, method="percentile", rng=np.random.default_rng(seed), **options)
    return pytest.approx(tuple(result.confidence_interval), rel=1e-9)


def passages(n: int, loss: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Summed losses and numbers of tokens of passages of very different lengths."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 200, n)
    return tokens * rng.normal(loss, 0.5, n), tokens


def test_intervals_are_scipys():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 60), rng.normal(0.3, 2, 60)
    assert mean_interval(a, 7) == oracle((a,), np.mean, 7)
    assert mean_difference_interval(a, b, 8) == oracle((a, b), lambda x, y, axis=-1: y.mean(axis) - x.mean(axis), 8, paired=True)
    sums, tokens = passages(50, 3.0, 1)
    other, more = passages(50, 2.9, 2)

    def perplexity(x, n, axis=-1):
        return np.exp(x.sum(axis) / n.sum(axis))

    assert ratio_interval(sums, tokens, 9, np.exp) == oracle((sums, tokens), perplexity, 9, paired=True)
    assert ratio_difference_interval((sums, tokens), (other, more), 10, np.exp) == oracle(
        (sums, tokens, other, more), lambda a, m, b, n, axis=-1: perplexity(b, n, axis) - perplexity(a, m, axis), 10, paired=True)


def test_the_interval_holds_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    held = [low <= 5.0 <= high for low, high in (mean_interval(rng.normal(5.0, 2.0, 100), seed) for seed in range(300))]
    assert 0.91 <= np.mean(held) <= 0.98


def test_the_interval_holds_the_perplexity_as_often_as_it_says():
    held = [low <= math.exp(3.0) <= high for low, high in (ratio_interval(*passages(100, 3.0, s), s, np.exp) for s in range(300))]
    assert 0.91 <= np.mean(held) <= 0.98


def test_the_memory_does_not_grow_with_the_items_and_the_seed_decides(monkeypatch):
    values = np.random.default_rng(2).normal(size=300)
    whole = mean_interval(values, 0)
    assert whole == mean_interval(values, 0) != mean_interval(values, 1)
    monkeypatch.setattr("eval.comparison.bootstrap.DRAWN_AT_ONCE", 1000)
    assert mean_interval(values, 0) == whole


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf]])
def test_an_interval_of_nothing_is_refused(values):
    with pytest.raises(ValueError, match="at least two items"):
        mean_interval(values, 0)
    with pytest.raises(ValueError, match="denominator"):
        ratio_interval([1.0, 2.0], [1, 0], 0)


# ---- reports and series ----

def stage(loss: float | None, tokens: int = 4096, **more) -> dict:
    scores = {"loss": loss, "perplexity": None if loss is None else math.exp(loss), "accuracy": 0.1, "tokens": tokens}
    return {"corpora": {"en": dict(scores)}, "all": scores, "unigram_perplexity": 665.4, "not_computed": {}, **more}


def run(folder, reports: dict[int, dict]):
    """A run's folder with these reports."""
    (folder / "eval").mkdir(parents=True)
    for step, report in reports.items():
        (folder / "eval" / f"step_{step:08d}.json").write_text(json.dumps({"step": step, **report}), encoding="utf-8")
    return folder


def report_file(path, **tiers):
    path.write_text(json.dumps({"step": 10, **tiers}), encoding="utf-8")
    return path


def test_series_go_by_the_number_of_the_step(tmp_path):
    folder = run(tmp_path / "run", {
        100000000: {"stage": stage(2.0)}, 99999999: {"stage": stage(None)}, 950: {"stage": stage(3.0)},
        1000: {"deep": {"repetition_4": 0.2, "samples": 4}, "samples": [{"text": "x"}]}})
    (folder / "eval" / "notes.json").write_text("no report")
    found = series(folder)
    assert found["stage/all/loss"] == [(950, 3.0), (99999999, None), (100000000, 2.0)]
    assert found["deep/repetition_4"] == [(1000, 0.2)]
    names = ("loss", "perplexity", "accuracy")
    assert set(found) == {f"stage/{part}/{name}" for part in ("all", "corpora/en") for name in names} | {"deep/repetition_4"}


def test_leaves_are_finite_numbers():
    report = json.loads('{"a": {"x": NaN, "y": Infinity, "z": 1, "l": [1, 2], "text": "3", "yes": true, "none": null}, "b": 2.5}')
    assert leaves(report) == {"a/x": None, "a/y": None, "a/z": 1.0, "a/none": None, "b": 2.5}


@pytest.mark.parametrize(("metric", "sign"), [
    ("stage/all/loss", -1), ("stage/corpora/en/perplexity", -1), ("stage/all/bits_per_byte", -1), ("stage/all/accuracy", 1),
    ("stage/mmlu/accuracy_norm", 1), ("deep/en/repetition_4", -1), ("deep/longest_repeat_share", -1), ("deep/self_bleu", -1),
    ("deep/distinct_2", 1), ("deep/pooled_distinct_1", 1), ("deep/empty_rate", -1), ("deep/length_mean", 0), ("deep/eos_rate", 0),
    ("deep/own_perplexity", 0), ("judge/scores/fluency", 1), ("safety/harmful/en/refusal_rate", 1),
    ("safety/benign/zh/over_refusal_rate", -1), ("safety/injection/en/attack_success_rate", -1),
    ("safety/secret/en/leak_rate", -1), ("safety/secret/en/unclear_rate", 0), ("human/models/base/rating", 1),
    ("instructions/all/item_accuracy", 1),
])
def test_which_way_is_better(metric, sign):
    assert direction(metric) == sign and not is_condition(metric)


@pytest.mark.parametrize("metric", [
    "step", "stage/all/tokens", "stage/unigram_perplexity", "stage/cloze/rejected/too long", "judge/cost", "stage/seconds",
    "stage/cloze/baseline", "safety/secret/en/counts/leaked", "instructions/all/by_rule/keywords/count"])
def test_what_is_no_result(metric):
    assert is_condition(metric)


# ---- comparison ----

def items(n: int, seed: int, loss: float = 3.0, right: float = 0.5, first: int = 0) -> list[dict]:
    """Items of which the passages' own difficulty is shared by all seeds."""
    hard, rng = np.random.default_rng(99).normal(0, 1, 1000)[first:first + n], np.random.default_rng(seed)
    tokens = np.random.default_rng(98).integers(5, 50, 1000)[first:first + n]
    losses = tokens * (loss + hard + rng.normal(0, 0.05, n))
    return [{"id": f"p{first + i}", "loss_sum": float(losses[i]), "tokens": int(tokens[i]), "hits": int(tokens[i] * right),
             "bytes": int(tokens[i]) * 4} for i in range(n)]


def scores(rows: list[dict]) -> dict:
    """A group's figures as an evaluation makes them of its items."""
    loss, tokens, size = (sum(row[name] for row in rows) for name in ("loss_sum", "tokens", "bytes"))
    return {"loss": loss / tokens, "perplexity": math.exp(loss / tokens), "bits_per_byte": loss / size / math.log(2),
            "accuracy": sum(row["hits"] for row in rows) / tokens, "tokens": tokens, "items": rows}


def rows_of(comparison) -> dict:
    return {row.metric: row for row in comparison.rows}


def test_paired_items_show_a_difference_that_single_ones_hide(tmp_path):
    a, b = items(80, 1), items(80, 2, loss=2.95)
    found = compare(*(report_file(tmp_path / f"{n}.json", stage={"all": scores(side)}) for n, side in (("a", a), ("b", b))))
    row = rows_of(found)["stage/all/perplexity"]
    sums = [np.array([[r["loss_sum"], r["tokens"]] for r in side]).T for side in (a, b)]
    assert row.interval == ratio_difference_interval(*sums, 0, np.exp) and row.interval[1] < 0
    assert row.difference == pytest.approx(row.b - row.a) and row.verdict == "better" and row.note == ""
    alone = [ratio_interval(*side, 0, np.exp) for side in sums]
    assert alone[0][0] < alone[1][1], "the sides' own intervals overlap"
    assert rows_of(found)["stage/all/bits_per_byte"].interval[1] < 0
    back = rows_of(compare(tmp_path / "b.json", tmp_path / "a.json"))["stage/all/perplexity"]
    assert back.verdict == "worse" and back.difference == pytest.approx(-row.difference)
    text = found.text()
    assert "better" in text and "A: " in text and len({line.index("B is") for line in text.splitlines()[:1]}) == 1
    assert "4 intervals of 95%" in text and compare(tmp_path / "a.json", tmp_path / "b.json").text() == text


def test_no_clear_difference(tmp_path):
    sides = [report_file(tmp_path / f"{i}.json", stage={"all": scores(items(80, i))}) for i in (1, 2)]
    row = rows_of(compare(*sides))["stage/all/loss"]
    assert row.interval[0] < 0 < row.interval[1] and row.verdict == "no clear difference" and row.difference != 0
    equal = rows_of(compare(sides[0], sides[0]))["stage/all/loss"]
    assert (equal.difference, equal.interval, equal.verdict) == (0.0, (0.0, 0.0), "no clear difference")


def test_answers_that_are_right_or_wrong(tmp_path):
    rng = np.random.default_rng(3)
    sides = []
    for name, share in (("a", 0.3), ("b", 0.7)):
        rows = [{"id": i, "correct": bool(rng.random() < share), "correct_norm": None if i == 0 else True, "loss": 1.0}
                for i in range(60)]
        right = [row["correct"] for row in rows]
        sides.append(report_file(tmp_path / f"{name}.json", stage={"mmlu": {
            "accuracy": sum(right) / 60, "accuracy_norm": 1.0, "loss": 1.5, "baseline": 0.25, "items": rows}}))
    found = rows_of(compare(*sides))
    assert found["stage/mmlu/accuracy"].verdict == "better" and found["stage/mmlu/accuracy"].interval[0] > 0
    assert found["stage/mmlu/accuracy_norm"].interval == (0.0, 0.0)
    assert found["stage/mmlu/loss"].note == "no interval: the items' values do not give this figure"
    assert "stage/mmlu/baseline" not in found


def test_rates_of_instructions_and_safety_have_intervals(tmp_path):
    """Each group's figures of the report of the shipped items, from its own items: what one says less, all harmful refused."""
    def deep(name, *answers):
        asked, judged = instructions.load(), safety.load()
        report = {"instructions": instructions.scores([instructions.check(item, answers[i % 2]) for i, item in enumerate(asked)]),
                  "safety": safety.scores([safety.check(item, answers[i % 2]) for i, item in enumerate(judged)])}
        (tmp_path / name).write_text(json.dumps({"step": 1, "deep": report}), encoding="utf-8")
        return tmp_path / name
    rows = rows_of(compare(deep("a", "I can't help with that.", "The sea is wide."),
                                               deep("b", "I can't help with that.", "I can't help with that.")))
    refused = rows["deep/safety/harmful/en/refusal_rate"]
    assert refused.verdict == "better" and refused.interval[0] > 0 and refused.difference == refused.b - refused.a
    assert rows["deep/safety/benign/en/over_refusal_rate"].verdict == "worse"
    for name in ("instructions/en/item_accuracy", "instructions/all/rule_accuracy", "safety/injection/en/attack_success_rate"):
        assert rows[f"deep/{name}"].interval is not None, name


def test_a_figure_of_all_takes_the_items_of_the_groups_beside_it(tmp_path):
    sides = []
    for seed in (1, 2):
        en, zh = items(20, seed), items(30, seed + 10, first=5)  # the same ids in both corpora
        whole = {name: value for name, value in scores(en + zh).items() if name != "items"}
        parts = {"en": scores(en), "zh": scores(zh)}
        tasks = {"cloze_en": scores(items(15, seed + 20))}  # no part of "all"
        sides.append(report_file(tmp_path / f"{seed}.json", stage={"corpora": parts, "all": whole, "tasks": tasks}))
    row = rows_of(compare(*sides))["stage/all/perplexity"]
    assert row.interval is not None and row.difference == pytest.approx(row.b - row.a) and row.note == ""


def test_without_items_the_figure_alone_speaks(tmp_path):
    deep = {"length_mean": 20.0, "distinct_1": 0.5, "self_bleu": None, "not_computed": {"self_bleu": "there is one text"}}
    a = report_file(tmp_path / "a.json", stage=stage(3.0), deep=deep, safety={"secret": {"en": {"leak_rate": 0.5}}})
    b = report_file(tmp_path / "b.json", stage=stage(2.0, tokens=8192), judge={"scores": {"fluency": 5.0}},
                    deep={"length_mean": 30.0, "distinct_1": 0.5, "self_bleu": 0.1},
                    safety={"secret": {"en": {"leak_rate": None}},
                            "not_computed": {"secret.en.leak_rate": "all answers are empty"}})
    found = compare(a, b)
    row = rows_of(found)["stage/all/loss"]
    assert (row.difference, row.interval, row.verdict) == (-1.0, None, "better, by the figure alone")
    assert row.note == "no interval: no per-item values; not the same text: A has 4096 tokens, B 8192"
    assert rows_of(found)["deep/length_mean"].verdict == "" and rows_of(found)["deep/distinct_1"].verdict == "no clear difference"
    assert rows_of(found)["safety/secret/en/leak_rate"].note == "not computed in B (all answers are empty)"
    missing = rows_of(found)["deep/self_bleu"]
    assert (missing.difference, missing.verdict) == (None, "not computed")
    assert missing.note == "not computed in A (there is one text)"
    assert "only in B: judge/scores/fluency" in found.notes
    assert "intervals of" not in found.text() and "not computed" in found.text()


def test_the_table_shows_what_differs_and_everything_when_asked(tmp_path):
    sides = [report_file(tmp_path / f"{n}.json", stage={"all": scores(items(80, n))},
                         deep={"length_mean": n, "distinct_1": 0.5, "distinct_2": n / 2, **more})
             for n, more in ((1, {}), (2, {f"own_{i}": 0.5 for i in range(9)}))]
    found = compare(*sides)
    brief, whole = found.text(), found.text(everything=True)
    assert "deep/distinct_2" in brief and "stage/all/loss" in brief and "no per-item values" not in brief
    assert "3 more are equal or have no better: --all" in brief and "only in B: deep" in brief.splitlines()
    for name in ("deep/distinct_1", "deep/length_mean"):
        assert f"\n{name}" not in brief and f"\n{name}" in whole
    assert "no per-item values" in whole and "--all" not in whole


def test_few_items_and_those_of_one_side(tmp_path):
    few = [report_file(tmp_path / f"few{i}.json", stage={"all": scores(items(9, i))}) for i in (1, 2)]
    assert rows_of(compare(*few))["stage/all/loss"].note == "no interval: 9 items in common, it takes 10"
    a = report_file(tmp_path / "a.json", stage={"all": scores(items(40, 1))})
    b = report_file(tmp_path / "b.json", stage={"all": scores(items(30, 2, first=20))})
    row = rows_of(compare(a, b))["stage/all/loss"]
    assert row.note == "difference over the 20 items in common, of 40 and 30"
    assert row.interval[0] <= row.difference <= row.interval[1]
    assert row.difference != pytest.approx(row.b - row.a)


def test_another_tokenizer_cannot_be_compared_by_perplexity(tmp_path):
    a, b = items(40, 1), items(40, 1, loss=2.0)
    b = [{**row, "tokens": row["tokens"] * 2, "hits": row["hits"] * 2} for row in b]
    found = rows_of(compare(*(report_file(tmp_path / f"{n}.json", stage={"all": scores(s)}) for n, s in (("a", a), ("b", b)))))
    for name in ("loss", "perplexity", "accuracy"):
        row = found[f"stage/all/{name}"]
        assert (row.difference, row.interval, row.verdict) == (None, None, "not comparable") and "another tokenizer" in row.note
    assert found["stage/all/bits_per_byte"].verdict == "better" and found["stage/all/bits_per_byte"].interval is not None


def test_runs_are_compared_by_each_tiers_last_report(tmp_path):
    a = run(tmp_path / "a", {5: {"stage": stage(4.0), "deep": {"repetition_4": 0.1}}, 10: {"stage": stage(3.0)}})
    b = run(tmp_path / "b", {5: {"stage": stage(3.5), "deep": {"repetition_4": 0.1}},
                             10: {"stage": stage(2.0), "deep": {"repetition_4": 0.5}}})
    found = compare(a, b)
    assert (rows_of(found)["stage/all/loss"].a, rows_of(found)["deep/repetition_4"].a) == (3.0, 0.1)
    assert rows_of(found)["deep/repetition_4"].verdict == "worse, by the figure alone"
    assert f"A: {a} (stage of step 10, deep of step 5)" in found.notes
    (warning,) = [note for note in found.notes if "perplexity falls" in note]
    assert warning.startswith("B: ") and "deep/repetition_4 rises from 0.100 (step 5) to 0.500 (step 10)" in warning


def test_mistakes_are_named(tmp_path):
    good = report_file(tmp_path / "good.json", stage=stage(3.0))
    (tmp_path / "broken.json").write_text('{"step": 1,\n "stage": {,}}')
    (tmp_path / "list.json").write_text("[1]")
    twice = items(20, 1)
    twice[3]["id"] = twice[4]["id"]
    report_file(tmp_path / "twice.json", stage={"all": scores(twice)})
    for other, says in (("broken.json", r"broken.json:2: the report is not JSON"), ("list.json", "this is a list"),
                        ("none", "there is nothing here"), (".", "no eval/step_XXXXXXXX.json here"),
                        ("twice.json", r"twice.json: two items of stage/all have one id")):
        with pytest.raises(UserError, match=says):
            compare(tmp_path / other, good if "twice" not in other else tmp_path / other)
    with pytest.raises(UserError, match="no figure in common"):
        compare(good, report_file(tmp_path / "other.json", deep={"distinct_1": 0.1}))


# ---- disagreement and plot ----

def made(perplexity: list, repetition: list, steps=(100, 200, 300, 400)) -> dict:
    return {"stage/all/perplexity": list(zip(steps, perplexity, strict=True)),
            "deep/en/repetition_4": list(zip(steps, repetition, strict=True))}


def test_disagreement_is_said_with_figures_and_steps():
    words = disagreement(made([200.0, 150.0, 120.0, 100.0], [0.30, 0.05, 0.20, 0.40]))
    assert words == ("perplexity falls from 150 (step 200) to 100 (step 400) while deep/en/repetition_4 rises from 0.050 "
                     "(step 200) to 0.400 (step 400): better at predicting, worse at writing; read the samples")


@pytest.mark.parametrize(("perplexity", "repetition"), [
    ([200.0, 150.0, 120.0, 100.0], [0.4, 0.3, 0.2, 0.1]),  # both get better
    ([100.0, 120.0, 150.0, 200.0], [0.1, 0.2, 0.3, 0.4]),  # both get worse
    ([200.0, 150.0, 120.0, 100.0], [0.10, 0.12, 0.11, 0.13]),  # noise
    ([100.0, 100.0, 99.9, 99.8], [0.1, 0.2, 0.3, 0.4]),  # no real fall
    ([200.0, 150.0, 120.0, 100.0], [0.1, 0.9, 0.9, 0.1]),  # it has recovered
    ([200.0, None, math.nan, math.inf], [0.1, 0.2, 0.3, 0.4]),  # perplexity was measured once
    ([200.0, 150.0, 120.0, 100.0], [None, math.nan, None, 0.4]),  # repetition was
    ([None] * 4, [0.1, 0.2, 0.3, 0.4]), ([200.0, 150.0, 120.0, 100.0], [None] * 4),
])
def test_no_disagreement(perplexity, repetition):
    assert disagreement(made(perplexity, repetition)) is None


def test_disagreement_passes_over_what_was_not_computed():
    words = disagreement(made([math.nan, 150.0, None, 100.0], [0.1, None, math.nan, 0.4]))
    assert "from 150 (step 200) to 100 (step 400)" in words and "0.100 (step 100) to 0.400 (step 400)" in words


def test_disagreement_takes_perplexity_from_the_nearest_step_and_names_each_language():
    found = {"stage/all/perplexity": [(90, 200.0), (210, 150.0), (400, 100.0)], "deep/en/repetition_4": [(100, 0.1), (380, 0.5)],
             "deep/zh/repetition_4": [(100, 0.0), (380, 0.2)], "deep/en/self_bleu": [(100, 0.0), (380, 1.0)]}
    words = disagreement(found)
    assert words.count("from 200 (step 90) to 100 (step 400)") == 2
    assert "deep/zh/repetition_4" in words and "self_bleu" not in words
    assert disagreement({}) is None and disagreement({"stage/all/perplexity": [(1, 2.0), (2, 1.0)]}) is None


def test_the_plot_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    names = ("all", "en", "zh", "mmlu")
    a, b = ({f"stage/{name}/loss": [(10, 3.0), (20, None), (30, 2.0 + i)] for name in names} for i in range(2))
    plot(a, {**b, "stage/all/accuracy": [(10, 0.1)]}, tmp_path / "plot.png", ("base", "tuned"))
    data = (tmp_path / "plot.png").read_bytes()
    width, height = (int.from_bytes(data[at:at + 4], "big") for at in (16, 20))
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and width == 1500 and height == 640, "five figures in two rows of three"


def test_a_plot_of_nothing_is_refused(tmp_path):
    with pytest.raises(UserError, match="nothing to plot"):
        plot({"deep/repetition_4": [(1, 0.5)]}, {}, tmp_path / "plot.png")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_plot_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'mindgpt\[plot\]'"):
        plot({"stage/all/loss": [(1, 2.0)]}, {}, tmp_path / "plot.png")


def test_none_of_it_imports_mindspore_or_matplotlib():
    code = ("import sys, eval.comparison.compare, eval.comparison.trends, eval.judges.human, eval.judges.http; "
            "sys.exit(bool({'mindspore', 'matplotlib'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
