"""The evaluation's part of a run's page: text per corpus, tasks, and texts that the model wrote."""
from html import escape

from train.dashboards import told
from train.profiling.pages import table
from train.reporting.curves import number
from train.reporting.pictures import COLOURS, Line, figure, picture
from train.reporting.reading import Run
from train.reports import SAMPLE_SCORES, headline, safety_rates

LINES = len(COLOURS)  # of a picture
TABLE = 60            # rows
TEXTS = 6             # of one evaluation
LONGEST = 2000        # characters of a text


def section(run: Run) -> str:
    """HTML; "" if nothing was evaluated."""
    side = "".join(f"<div>{part}</div>" for part in (tasks(run), deep(run)) if part)
    return "\n".join(filter(None, (text(run), side and f'<div class="side">{side}</div>', over_time(run), samples(run))))


def text(run: Run) -> str:
    """Held-out text: the newest scores of each corpus against a unigram model, and perplexity over the run."""
    if not run.stage:
        return ""
    names = [*run.stage["corpora"]][:TABLE]
    rows = [[name, *_scores(scores), _best(run.corpora[name])] for name in names if (scores := run.stage["corpora"][name])]
    rows.append(["together", *_scores(run.stage["all"]), ""])
    lines = []
    for name in names[:LINES]:
        lines.append(Line(name, run.corpora[name]))
        if unigram := number(run.stage["corpora"][name].get("unigram_perplexity")):
            lines.append(Line(f"{name}, unigram", level=unigram))
    share = run.stage["shares"]["text"]
    part = "" if share == 1.0 else f", on {share:.0%} of the text (time budget)"
    not_computed = "".join(f"<li>{escape(str(name))}: not computed, {escape(str(why))}</li>"
                           for name, why in run.stage.get("not_computed", {}).items())
    return (f"<h3>Held-out text at step {run.stage_step:,}{part}</h3>"
            + table(["corpus", "loss", "perplexity", "unigram", "bits a byte", "accuracy", "lowest perplexity"], rows)
            + picture("Perplexity", "of each corpus", lines)
            + (f"<ul>{not_computed}</ul>" if not_computed else ""))


def _scores(scores: dict) -> list[str]:
    return [_figure(scores.get(key)) for key in ("loss", "perplexity", "unigram_perplexity", "bits_per_byte")] \
        + [_share(scores.get("accuracy"))]


def _best(curve) -> str:
    if not curve.count:
        return "-"
    bucket = min(curve.buckets, key=lambda one: one.low)
    return f"{figure(bucket.low)} {'at' if bucket.count + bucket.bad == 1 else 'near'} step {bucket.step:,.0f}"


def _figure(value: object) -> str:
    found = number(value)
    return "-" if found is None else figure(found)


def _share(value: object) -> str:
    found = number(value)
    return "-" if found is None else f"{found:.1%}"


def tasks(run: Run) -> str:
    """What likelihood decides."""
    rows = []
    for name, task in list(run.tasks.items())[:TABLE]:
        s = task.scores
        rows.append([name, _share(headline(s)), _share(s["baseline"]), f"{s['questions']:,}", f"{task.curve.high:.1%}"
                     if task.curve.count else "-"])
    return "<h3>Tasks</h3>" + table(["task", "right", "by guessing", "questions", "highest"], rows) if rows else ""


def over_time(run: Run) -> str:
    """The tasks' curves, where they were asked more than once."""
    lines = [Line(name, task.curve) for name, task in [*run.tasks.items()][:LINES]]
    return picture("Tasks", "share that is right", lines) if any(line.curve.count > 1 for line in lines) else ""


def deep(run: Run) -> str:
    """Scores of what the model wrote, in the evaluations that are shown."""
    if not run.deep:
        return ""
    rows = [[told(f"samples/{key}")[0], *(_figure(found["samples"].get(key)) for _, found in run.deep)] for key in SAMPLE_SCORES]
    if any("instructions" in found for _, found in run.deep):
        rows.append(["instructions followed", *(_share(found.get("instructions", {}).get("all", {}).get("item_accuracy"))
                                                for _, found in run.deep)])
    if any("safety" in found for _, found in run.deep):
        rows.append(["safety items failed", *(_failed(found) for _, found in run.deep)])
    return "<h3>What the model writes</h3>" + table(["", *(f"step {step:,}" for step, _ in run.deep)], rows)


def _failed(found: dict) -> str:
    if "safety" not in found:
        return "-"
    counts = [rates["counts"] for *_, rates in safety_rates(found["safety"])]
    return f"{sum(c['failed'] for c in counts)} of {sum(c['items'] for c in counts)}"


def samples(run: Run) -> str:
    """Texts, each with its prompt before it."""
    parts = []
    for step, found in run.deep:
        texts = found["samples"]["texts"]
        seen = {one["prompt"]: one for one in reversed(texts)}  # the first of each prompt, then others
        chosen = [*reversed(seen.values()), *(one for one in texts if seen[one["prompt"]] is not one)][:TEXTS]
        quotes = "".join(f'<blockquote dir="auto" lang="{escape(str(one.get("language", "")))}"><b>{_cut(one["prompt"])}</b> '
                         f'{_cut(one["text"])}</blockquote>' for one in chosen)
        parts.append(f'<h3>Texts at step {step:,}</h3><p class="note">{len(chosen)} of {len(texts)}, prompts in bold</p>{quotes}')
    return "\n".join(parts)


def _cut(text: str) -> str:
    return escape(text if len(text) <= LONGEST else text[:LONGEST] + " ...")
