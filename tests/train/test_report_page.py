"""report.html: of a whole run, of one in progress, of damaged and hostile files, and of a very long one."""
import json
import math
import re
import resource
from html.parser import HTMLParser

import pytest

from parallel.files import replace_text
from tests.train.profiles import make_ascend, make_run
from train import profile_report, report
from train.reporting import curves, reading
from train.reporting.page import page
from train.reporting.pictures import Line, picture

CONFIG = """run: {name: made, dir: runs}
train: {total_steps: 40, global_batch_size: 8, clip_norm: 1.0, clip_by: global_norm}
data: {seq_length: 16}
parallel: {dp: auto, tp: 2, pp: 1, num_micro_batches: auto, recompute: none}
"""
SCORES = {"loss": 2.0, "perplexity": math.exp(2.0), "bits_per_byte": 0.9, "accuracy": 0.4, "unigram_perplexity": 60.0,
          "samples": 4}
TEXT = "然后 <script>alert(1)</script> & кириллица \u200fعربي \x00\ud800 end"


def row(step, **other):
    return {"step": step, "loss": 5.0 - 0.05 * step, "lr": 1e-3, "grad_norm": 1.0 + step % 3, "loss_scale": 1024.0,
            "overflow": False, "consumed_samples": 8 * step, "tokens": 128, "tokens_per_second": 1000.0, "step_seconds": 0.128,
            "data_wait": 0.01, "memory_bytes": 5e8, **other}


def evaluation(step, deep=False):
    task = {"kind": "cloze", "questions": 10, "accuracy": 0.3, "baseline": 0.1, "items": [{"id": "0"}] * 50}
    found = {"step": step, "stage": {"corpora": {"en": {**SCORES, "items": []}, "<b>zh": SCORES}, "all": SCORES,
                                     "not_computed": {}, "tasks": {"cloze": task}, "shares": {"text": 0.5, "tasks": 1.0},
                                     "seconds": {"text": 1.0, "tasks": 2.0}}}
    if deep:
        samples = {"distinct_1": 0.5, "distinct_2": None, "texts": [
            {"prompt": f"prompt {i % 3}", "text": TEXT, "language": "zh", "item": str(i)} for i in range(6)]}
        found["deep"] = {"samples": samples, "instructions": {"all": {"item_accuracy": 0.25}}}
    return found


@pytest.fixture
def made(tmp_path):
    """A run's folder as a run leaves it, with a step that is not finite and a health rule's event."""
    run = tmp_path / "made"
    (run / "eval").mkdir(parents=True)
    (run / "config.yaml").write_text(CONFIG)
    rows = [row(s) for s in range(1, 41)]
    rows[19] = row(20, loss=None, grad_norm=None, overflow=True)
    rows[29] = row(30, loss=77.0)
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    for step in (20, 40):
        (run / "eval" / f"step_{step:08d}.json").write_text(json.dumps(evaluation(step, deep=True)))
    (run / "events.jsonl").write_text(json.dumps(
        {"step": 30, "rule": "loss_spike", "level": "warn", "message": "77 <img src=x>", "began": None}) + "\n")
    (run / "nan_step_20.json").write_text(json.dumps({"step": 20, "message": "forward, blocks.1 & more"}) + "\n")
    (run / "passed_over.json").write_text('[{"first": 8, "stop": 16, "step": 2, "rule": "repeat", "message": ""}]')
    (run / "report.json").write_text(json.dumps({
        "steps": 40, "total_steps": 40, "world_size": 4, "mesh": {"dp": 2, "tp": 2, "pp": 1}, "device": "CPU",
        "parameters": 12345, "train_seconds": 90.0, "compile_seconds": 12.0, "eval_time_fraction": 0.05,
        "health_time_fraction": 0.01, "cores": 2, "data_wait_fraction": 0.02, "checkpoint_time_fraction": 0.003,
        "peak_memory_bytes": 2**30,
        "versions": {"mindspore": "2.10.0", "python": "3.11.7"}}))
    return run


class Strict(HTMLParser):
    """Tags that are opened and closed, their attributes, and the text."""

    VOID = {"meta", "path", "circle"}  # of SVG those that end themselves

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "p", "li", "div"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in ("p", "li", "div"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def shown(run) -> Strict:
    return Strict(page(reading.read(run)))


def test_a_whole_run(made):
    found = shown(made)
    assert not found.open and found.tags.count("svg") >= 6
    for text in ("Run made", "Complete: 40 of 40 steps", "1 step(s) not finite", "highest 77", "loss_spike", "held-out text",
                 "dp 2 x tp 2 x pp 1", "2.10.0", "training 91.7%", "12 s of compiling", "8 to 15", "total_steps: 40", "cloze",
                 "30.0%", "25.0%", "on 50% of the text", "forward, blocks.1 & more", "кириллица", "然后"):
        assert text in found.text, text
    assert "Not used" not in found.text


def test_what_was_asked_once_has_figures_and_no_chart(made):
    assert "share that is right" in shown(made).text
    (made / "eval" / "step_00000020.json").unlink()
    found = shown(made).text
    assert "share that is right" not in found and "by guessing" in found and "30.0%" in found


def test_it_needs_nothing_else_and_runs_nothing(made):
    text = page(reading.read(made))
    found = Strict(text)
    assert not {"script", "img", "link", "iframe", "object", "b>zh"} & {*found.tags}
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "xlink:href")]
    assert all(value.startswith("#") for name, value in found.attributes if name == "href")
    assert "url(" not in text and "http" not in text.replace("http-equiv", "") and "default-src 'none'" in text
    assert "<script>alert(1)</script>" in found.text and "77 <img src=x>" in found.text  # as text
    assert "\x00" not in text and text.encode()


def test_a_run_in_progress(made):
    for name in ("report.json", "events.jsonl", "nan_step_20.json", "passed_over.json"):
        (made / name).unlink()
    rows = (made / "metrics.jsonl").read_text().splitlines(keepends=True)[:25]
    (made / "metrics.jsonl").write_text("".join(rows) + '{"step": 26, "los')
    found = shown(made)
    assert "Step 25 of 40; the run goes on" in found.text and "Not used" not in found.text
    assert "No health rule has found anything" in found.text and "Told when the run ends" in found.text


def test_before_the_first_step(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert "No step is done yet" in shown(tmp_path).text


def test_a_run_that_a_rule_stopped(made):
    (made / "report.json").unlink()
    rows = (made / "metrics.jsonl").read_text().splitlines(keepends=True)[:30]
    (made / "metrics.jsonl").write_text("".join(rows))
    (made / "events.jsonl").write_text(json.dumps({"step": 30, "rule": "divergence", "level": "stop", "message": "m"}) + "\n")
    assert "Step 30 of 40: stopped by the health rule divergence" in shown(made).text


def test_damaged_files_are_named_and_the_rest_is_shown(made):
    (made / "report.json").write_text('{"steps": 4')
    (made / "eval" / "step_00000020.json").write_text('{"step": 20, "stage": 5}\n')
    (made / "events.jsonl").write_text('null\n[1]\n{"step": "x"}\n{"step": 3, "rule": 4}\n')
    (made / "passed_over.json").write_text("{}x\n")
    with open(made / "metrics.jsonl", "ab") as file:
        file.write(b'\xff\xfe\n\n{"step": 1e400}\n{"step": 99}\n{"step": true}\nNaN\n' + b"[" * 10_000 + b"\n")
        file.write(json.dumps(row(39, loss=[1], grad_norm="x", tokens_per_second=1e400)).encode() + b"\n")
    found = shown(made)
    assert not found.open and "All 40 steps are done, but report.json does not say so yet" in found.text
    for text in ("report.json", "step_00000020.json: not an evaluation's report", "events.jsonl: 2 line(s)", "passed_over.json",
                 "metrics.jsonl: 3 line(s) that are damaged", "metrics.jsonl: 3 line(s) without a step"):
        assert text in found.text.split("Not used")[-1], text
    assert "highest 77" in found.text and "Held-out text at step 40" in found.text


@pytest.mark.parametrize("name", ["report.json", "config.yaml", "events.jsonl", "profile/step_00000002/verdict.json",
                                  "eval/step_00000040.json", "metrics.jsonl", "passed_over.json", "nan_step_20.json"])
@pytest.mark.parametrize("content", ["", "{}\n", "[]\n", '{"step": 3, "stage": {}, "deep": {}}\n', "5\n", '{"a": \n',
                                     "\x00\xff\n", "x: 2024-13-45\n", "train: {log_every_steps: x10, total_steps: []}\n"])
def test_whatever_a_file_holds_there_is_a_page(made, name, content):
    (made / name).parent.mkdir(parents=True, exist_ok=True)
    (made / name).write_text(content)
    assert "Run made" in shown(made).text


def test_a_profile_is_shown(tmp_path):
    run = make_run(tmp_path, memory=[1e9] * 100)
    make_ascend(run, 0, 1, computing=60, exposed=5, free=35, data=30)
    assert profile_report.main([str(run)]) == 0
    found = shown(run)
    assert "Bottleneck: data" in found.text and "MatMulV2" in found.text and "What to try" in found.text and not found.open


def test_the_command(made, tmp_path, capsys):
    assert report.main([str(made)]) == 0
    assert "written to" in capsys.readouterr().out and "Run made" in (made / "report.html").read_text()
    assert report.main([str(made), "--output", str(tmp_path / "other.html")]) == 0 and (tmp_path / "other.html").is_file()
    assert report.main([str(tmp_path / "none")]) == 2 and "no such folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert report.main([str(tmp_path / "empty")]) == 2 and "no run here" in capsys.readouterr().err
    assert not (tmp_path / "empty" / "report.html").exists()
    assert report.main([str(made), "--output", str(tmp_path / "no" / "x.html")]) == 2 and "--output" in capsys.readouterr().err


def test_no_run_fails_by_its_page(made, monkeypatch, capsys):
    def refuse(path, text):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(report, "replace_text", refuse)
    report.write_page(made)
    assert "No space left" in capsys.readouterr().out and not (made / "report.html").exists()
    monkeypatch.setattr(report, "replace_text", replace_text)
    report.write_page(made)
    assert (made / "report.html").is_file()


def test_a_million_steps_keep_their_extremes_in_little_memory(made):
    steps, highest = 1_000_000, 654_321
    usual = json.dumps(row(1))
    (made / "config.yaml").write_text(CONFIG.replace("total_steps: 40", f"total_steps: {steps}"))
    with open(made / "metrics.jsonl", "w") as file:  # every 31st of a million steps has a line
        for step in range(1, steps + 1, 31):
            loss = 99.5 if step == highest - highest % 31 + 1 else 3.0 + math.sin(step / 1e5)
            file.write(usual.replace('"step": 1,', f'"step": {step},').replace('"loss": 4.95', f'"loss": {loss}'))
            file.write("\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = reading.read(made)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert run.curves["loss"].high == 99.5 and run.rows == 32_259 and len(run.curves["loss"].buckets) <= 2 * curves.POINTS
    assert grown < 12_000  # KiB; the file has 9 MB, its rows as objects several times as much
    text = page(run)
    assert "highest 99.5" in text and len(text) < 1_000_000


def test_curves_keep_means_extremes_and_what_is_not_finite():
    curve = curves.Curve()
    for step in reversed(range(10_000)):
        curve.add(step, None if step == 5000 else -7.0 if step == 1234 else 1.0)
    assert (curve.low, curve.high, curve.bad, curve.count) == (-7.0, 1.0, 1, 9_999)
    assert len(curve.buckets) <= 2 * curves.POINTS and curve.last == (9_999, 1.0)
    assert sum(bucket.total for bucket in curve.buckets) == pytest.approx(9_998 - 7)
    assert all(bucket.low <= bucket.mean <= bucket.high for bucket in curve.buckets if bucket.count)


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [-1.0, 1e30], [1e-12, 1e12], [5.0] * 3, [1e99, -1e99], [1e-300, 1.0]])
def test_pictures_stay_inside_their_frame(values):
    curve = curves.Curve()
    for step, value in enumerate(values):
        curve.add(step, value)
    text = picture("t", "u", [Line("a", curve), Line("b", level=1.0)])
    numbers = [float(n) for d in re.findall(r' d="([^"]*)"', text) for n in re.findall(r"-?[\d.]+(?:e-?\d+)?", d)]
    assert numbers and all(-10 <= n <= 800 for n in numbers) and "nan" not in text and "inf" not in text


def test_nothing_finite_gives_no_picture():
    curve = curves.Curve()
    curve.add(1, math.nan)
    assert picture("t", "u", [Line("a", curve)]) == ""
