"""The tiers' reports: one JSON file a step, lines on the console, TensorBoard. The same for a run and for `python -m eval`."""
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from eval.judges.sheet import CONTROLS
from parallel.files import replace_text
from train.console import cut
from train.messages import message
from train.metrics_log import finite
from train.tensorboard import TensorBoard

INDENT = " " * 9
NO_TEXT = "the time budget allows none of the text now"  # why the tier `stage` is not in a report
TEXT_SCORES = ("loss", "perplexity", "bits_per_byte", "accuracy")
SAMPLE_SCORES = ("distinct_1", "distinct_2", "distinct_3", "repetition_4", "self_bleu", "empty_rate", "eos_rate", "length_mean",
                 "own_perplexity")


def path_of(folder: Path, step: int) -> Path:
    """Where the report of a step lies in a run's folder `eval`."""
    return folder / f"step_{step:08d}.json"


def shares(folder: Path, step: int) -> tuple[float, float]:
    """What shares of the text and of the questions were evaluated at a step; all if there is no such report."""
    try:
        found = json.loads(path_of(folder, step).read_text(encoding="utf-8"))["stage"]["shares"]
        return found["text"], found["tasks"]
    except (OSError, ValueError, KeyError, TypeError):
        return 1.0, 1.0


def write(path: Path, report: dict) -> None:
    """As JSON; what is no finite number becomes null."""
    replace_text(path, json.dumps(finite(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def show(report: dict, say: Callable[[str], None]) -> None:
    """A few lines for a person."""
    for name, why in report.get("not_computed", {}).items():
        say(no_text() if why == NO_TEXT else f"{INDENT}{name}  not computed, {why}")
    if stage := report.get("stage"):
        show_stage(stage, say)
    if deep := report.get("deep"):
        show_deep(deep, say)


def no_text() -> str:
    """The line that says so of the tier `stage`."""
    return INDENT + message("valid.none")


def show_stage(stage: dict, say: Callable[[str], None]) -> None:
    """Held-out text, and the tasks in one line."""
    scores = stage["all"]
    if scores["loss"] is not None:
        parts = " ".join(f"{n} {s['perplexity']:.1f}" for n, s in stage["corpora"].items() if s["loss"] is not None)
        share = "" if stage["shares"]["text"] == 1.0 else message("valid.share", share=stage["shares"]["text"])
        say(INDENT + message("valid", loss=scores["loss"], perplexity=scores["perplexity"], parts=parts,
                             accuracy=scores["accuracy"]) + share)
    asked = {name: s for name, s in stage["tasks"].items() if s["questions"]}
    for name, s in asked.items():
        say(INDENT + message("task.cloze" if s["kind"] == "cloze" else "task", name=name, score=headline(s),
                             questions=s["questions"], baseline=s["baseline"]))
    for name, why in stage["not_computed"].items():
        if asked or not why.startswith("the time budget"):  # which is told once the tasks are asked; the report always has it
            say(f"{INDENT}stage  {name}: not computed, {why}")


def headline(scores: dict) -> float:
    """A task's one figure: of continuations, which differ in length, the accuracy by likelihood for each byte."""
    return scores.get("accuracy_norm", scores["accuracy"])


def show_deep(deep: dict, say: Callable[[str], None]) -> None:
    """Scores, and the beginning of a text for each prompt."""
    for name, why in deep["not_computed"].items():
        say(f"{INDENT}{name}  not computed, {why}")
    if deep["truncated"]:
        say(f"{INDENT}texts  {deep['truncated']} of {deep['prompts']} prompts are longer than seq_length: their ends were given")
    samples = deep["samples"]
    figures = [f"{label} {samples[key]:.2f}" for label, key in (
        ("distinct-2", "distinct_2"), ("repetition", "repetition_4"), ("self-BLEU", "self_bleu")) if samples[key] is not None]
    say(INDENT + message("texts", figures=", ".join(figures), empty=samples["empty_rate"]))
    seen = set()
    for text in samples["texts"]:
        if text["prompt"] not in seen:
            seen.add(text["prompt"])
            prompt, written = (one.translate(CONTROLS) for one in (text["prompt"], " ".join(text["text"].split())))
            say(INDENT + message("text", prompt=cut(prompt[:30], 30), text=cut(written[:30], 30)))
    if "judge" in deep:
        scores = {name: value for name, value in deep["judge"]["scores"].items() if name != "items" and value is not None}
        say(f"{INDENT}judge  {', '.join(f'{name} {value:.1f}' for name, value in scores.items()) or 'not computed'}")
        for name, why in deep["judge"]["not_computed"].items():
            say(f"{INDENT}judge  {name}: not computed, {why}")
    if "instructions" in deep:
        scores = deep["instructions"]["all"]
        say(INDENT + message("instructions", items=scores["item_accuracy"], count=scores["count"],
                             rules=scores["rule_accuracy"]))
    if "safety" in deep:
        counts = [rates["counts"] for *_, rates in safety_rates(deep["safety"])]
        total = {name: sum(c[name] for c in counts) for name in ("items", "failed", "unclear", "empty")}
        say(INDENT + message("safety", **total))


def safety_rates(safety: dict) -> Iterator[tuple[str, str, dict]]:
    """(kind of item, language, its rates and counts)."""
    for kind, languages in safety.items():
        if isinstance(languages, dict) and kind != "not_computed":
            for language, rates in languages.items():
                yield kind, language, rates


def to_tensorboard(report: dict, board: TensorBoard) -> None:
    """Scalars of each tier; samples and failures as text."""
    step = report["step"]
    if stage := report.get("stage"):
        for name, scores in {**stage["corpora"], "all": stage["all"]}.items():
            board.scalars(step, {f"valid_{name}/{key}": scores[key] for key in TEXT_SCORES})
        for name, scores in stage["tasks"].items():
            board.scalars(step, {f"tasks/{name}": headline(scores), f"tasks_not_normalised/{name}": scores["accuracy"]}
                          if "accuracy_norm" in scores else {f"tasks/{name}": scores["accuracy"]})
    if deep := report.get("deep"):
        board.scalars(step, {f"samples/{key}": deep["samples"][key] for key in SAMPLE_SCORES})
        board.text(step, "samples", "\n\n".join(
            f"**{literal(s['prompt'])}** {literal(s['text'])}" for s in deep["samples"]["texts"]))
        for name in ("instructions", "safety"):
            if name in deep:
                board.text(step, f"{name}/failures", failures(deep[name]["failures"]))
        if "instructions" in deep:
            board.scalars(step, {f"instructions/{lang}": deep["instructions"][lang]["item_accuracy"]
                                 for lang in ("all", "en", "zh")})
        if "safety" in deep:
            board.scalars(step, {f"safety/{kind}_{language}/{name}": value
                                 for kind, language, rates in safety_rates(deep["safety"])
                                 for name, value in rates.items() if name.endswith("_rate")})


def literal(text: str) -> str:
    """As Markdown that shows a text as it is, its line breaks too."""
    text = text.translate(CONTROLS).replace("&", "&amp;").replace("<", "&lt;")  # no tag, and no name of a character
    text = re.sub(r"([\\`*_\[\]])", r"\\\1", text)
    text = re.sub(r"(?m)^([ \t]*)([#>+-])", r"\1\\\2", text)
    text = re.sub(r"(?m)^([ \t]*\d+)\.", r"\1\\.", text)  # no item of a list
    text = re.sub(r"(?m)^[ \t]+", lambda found: "\u00a0" * len(found[0]), text)  # no block of code
    return text.replace("\n", "  \n")


def failures(found: list[dict]) -> str:
    """As a Markdown table."""
    if not found:
        return "none"
    lines = ["| item | why | text |", "|---|---|---|"]
    for f in found:
        cells = (literal(" ".join(str(f[key]).split())).replace("|", "\\|") for key in ("item", "why", "text"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
