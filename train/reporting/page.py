"""report.html: one file that needs nothing else, no script, and reads well on paper too."""
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape

from eval.judges.sheet import CONTROLS
from train.console import duration, size
from train.profiling import pages
from train.reporting import evaluation
from train.reporting.pictures import Line, figure, picture
from train.reporting.reading import Run

STYLE = """
:root{color-scheme:light}
body{font:15px/1.55 system-ui,"Noto Sans","Noto Sans CJK SC","PingFang SC","Microsoft YaHei",sans-serif;color:#222;
background:#fff;max-width:56rem;margin:2rem auto;padding:0 1.2rem}
h1{font-size:1.7rem;margin:0}h2{font-size:1.2rem;margin:2.4rem 0 .6rem;padding-bottom:.2rem;border-bottom:1px solid #ddd}
h3{font-size:1rem;margin:1.4rem 0 .3rem}
.state{color:#555;margin:.2rem 0 1rem}.note{color:#555}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.6rem}
.figures div{border:1px solid #ddd;border-radius:6px;padding:.5rem .8rem}
.side{display:flex;flex-wrap:wrap;column-gap:1.5rem;font-size:.8rem}.side td,.side th{padding-right:.5rem}
.figures b{display:block;font-size:1.25rem;font-weight:600}.figures span{color:#555;font-size:.85rem}
nav a{margin-right:1rem}a{color:#1f6f8b}
figure{margin:1rem 0;break-inside:avoid}figcaption{color:#555}figcaption b{color:#222}
svg{display:block;width:100%;height:auto}svg text{font-size:11px;fill:#555}
.grid{stroke:#e6e6e6;fill:none}.line{fill:none;stroke-width:1.6;stroke-linejoin:round}
.band{fill-opacity:.18;stroke-opacity:.3;stroke-width:.7}.level{fill:none;stroke-dasharray:5 4}.bad{stroke:#b3261e;fill:none;
stroke-width:1.4}.mark{fill:#b3261e}
.legend{margin:.1rem 0;color:#555;font-size:.85rem}.legend span{margin-right:1.2em}
.legend i{display:inline-block;width:1.2em;height:.25em;margin-right:.4em;vertical-align:middle}
table{border-collapse:collapse;margin:.6rem 0;width:auto;max-width:100%}td,th{padding:.25rem .8rem .25rem 0;
border-bottom:1px solid #e6e6e6;text-align:left;vertical-align:top;overflow-wrap:break-word}th{color:#555;font-weight:600}
tr{break-inside:avoid}
.bar{display:flex;height:1.7em;border-radius:4px;overflow:hidden;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.bar div{color:#fff;font-size:12px;line-height:2.2em;text-indent:.4em;white-space:nowrap;overflow:hidden}
.sign{padding:.5rem .9rem;border-left:4px solid #2a7f62;background:#f3f6f5}
blockquote{margin:.5rem 0;padding:.3rem .9rem;border-left:3px solid #ccc;white-space:pre-wrap;overflow-wrap:anywhere;
break-inside:avoid}blockquote b{color:#555;font-weight:600}
pre{font:12px/1.45 ui-monospace,"DejaVu Sans Mono",monospace;white-space:pre-wrap;overflow-wrap:anywhere;background:#f7f7f7;
padding:.8rem;border-radius:6px}
.mesh td{border:1px solid #ddd;padding:.15rem .5rem;text-align:center}
@media print{body{margin:0;max-width:none;font-size:11pt}nav{display:none}h2{break-after:avoid}}
"""
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><title>{title}</title><style>{style}</style></head>
<body>
"""
RANKS = 64  # that a mesh is drawn with
CONFIG = 100_000  # characters
PARTS = {"training": "#1f6f8b", "waiting for data": "#b8860b", "evaluation": "#2a7f62", "health": "#8a5a9e",
         "checkpoints": "#c8553d"}


def page(run: Run, now: datetime | None = None) -> str:
    """HTML. A part whose files are not as they should be is left out, and named at the end."""
    problems, parts = list(run.problems), []
    for title, part in (("Curves", curves), ("Evaluation", evaluation.section), ("Health", health), ("Time", time),
                        ("Plan", plan), ("Environment", environment), ("Configuration", config)):
        if body := _guarded(title, part, run, problems):
            parts.append((title, body))
    if problems:
        parts.append(("Not used", "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in problems) + "</ul>"))
    title, at = escape(f"Run {run.name}"), (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    links = " ".join(f'<a href="#{name.lower().replace(" ", "-")}">{name}</a>' for name, _ in parts)
    text = HEAD.format(title=title, style=STYLE) + (
        f'<h1>{title}</h1><p class="state">{escape(state(run))}. This page was written on {at}.</p>\n'
        f"{_guarded('figures', figures, run, [])}<nav><p>{links}</p></nav>\n"
        + "\n".join(f'<section id="{name.lower().replace(" ", "-")}"><h2>{name}</h2>\n{body}</section>' for name, body in parts)
        + "\n</body></html>\n")
    # What no file of UTF-8 can hold, or a browser drops: halves of surrogate pairs, control characters.
    return text.translate(CONTROLS).encode("utf-8", "replace").decode("utf-8")


def _guarded(title: str, part: Callable[[Run], str], run: Run, problems: list[str]) -> str:
    """A part; "" with a problem more if a file that it is made of is valid JSON of another form, of an older version perhaps."""
    try:
        return part(run)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        problems.append(f"{title}: not shown, a file has another form than this version writes ({type(error).__name__}: {error})")
        return ""


def state(run: Run) -> str:
    """How far it is."""
    at, total, report = run.last_step, run.total_steps, run.report or {}
    of = f" of {total:,}" if total else ""
    if at is None:
        return "No step is done yet"
    every = run.setting("train", "log_every_steps")
    fetched = every if isinstance(every, int) else 1  # steps that may have been done before it was found
    if (stop := next((e for e in run.events if e.get("level") == "stop" and e["step"] > at - fetched), None)) and at != total:
        return f"Step {at:,}{of}: stopped by the health rule {stop.get('rule')}"
    if report.get("steps") == at:
        return f"Complete: {at:,}{of} steps" if at == total else f"Ended as it was told to, at step {at:,}{of}"
    if at == total:
        return f"All {at:,} steps are done, but report.json does not say so yet"
    return f"Step {at:,}{of}; the run goes on, or ended before its time"


def figures(run: Run) -> str:
    """The first look."""
    found, report = [], run.report or {}
    if loss := run.curves["loss"].last:
        found.append((f"{loss[1]:.4f}", f"training loss at step {loss[0]:,}"))
    if run.valid.last:
        found.append((f"{run.valid.last[1]:.4f}", f"validation loss at step {run.valid.last[0]:,}"))
    if run.stage and (perplexity := run.stage["all"]["perplexity"]):
        found.append((f"{perplexity:,.1f}", f"perplexity; a unigram model has {run.stage['all']['unigram_perplexity']:,.0f}"))
    if speed := run.curves["tokens_per_second"].last:
        found.append((size(speed[1]), "tokens a second"))
    if run.tokens:
        found.append((size(run.tokens), "tokens trained on"))
    if report.get("peak_memory_bytes"):
        found.append((f"{report['peak_memory_bytes'] / 2**30:.2f} GiB", "of memory at most, on each rank"))
    if events := sum(run.rules.values()):
        found.append((f"{events:,}", "event of a health rule" if events == 1 else "events of health rules"))
    return '<div class="figures">' + "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>"
                                             for value, what in found) + "</div>\n"


def curves(run: Run) -> str:
    """Of metrics.jsonl, with the validation loss."""
    c, marks = run.curves, [event["step"] for event in run.events]
    pictures = [
        picture("Loss", "nats a token", [Line("training", c["loss"]), Line("held-out text", run.valid)],
                _note(run, "loss") + ("; triangles: events of health rules" if marks else ""), marks),
        picture("Learning rate", "", [Line("", c["lr"])]),
        picture("Gradient norm", "before clipping", [Line("gradient norm", c["grad_norm"]), *_limit(run)],
                _note(run, "grad_norm")),
        picture("Throughput", "tokens a second, all ranks together", [Line("", c["tokens_per_second"])],
                _note(run, "tokens_per_second")),
        picture("Data wait", "share of a step's time that the loop waits for its batch", [Line("", c["data_wait"])])]
    scale = c["loss_scale"]
    if scale.low < scale.high:
        pictures.append(picture("Loss scale", "", [Line("", scale)], f"{run.skipped:,} step(s) skipped: gradients not finite"))
    pictures.append(picture("Memory", "bytes that rank 0 holds", [Line("", c["memory_bytes"])]))
    width = c["loss"].width
    note = (f'<p class="note">Each point is the mean of {width:,} steps; the band behind it goes from their lowest to their '
            "highest.</p>") if width > 1 else ""
    return note + "\n".join(pictures) if any(pictures) else ""


def _note(run: Run, name: str) -> str:
    curve = run.curves[name]
    if not curve.count:
        return ""
    bad = f"; {curve.bad:,} step(s) not finite, shown as crosses" if curve.bad else ""
    return f"lowest {figure(curve.low)}, highest {figure(curve.high)}, last {figure(curve.last[1])}{bad}"


def _limit(run: Run) -> list[Line]:
    limit, of_all = run.setting("train", "clip_norm"), run.setting("train", "clip_by") == "global_norm"
    return [Line(f"clipped to {limit:g}", level=float(limit))] if limit and of_all else []


def health(run: Run) -> str:
    """Events, steps that were not finite, samples that are passed over."""
    parts = []
    if run.rules:
        parts.append(pages.table(["rule", "level", "events"], [[rule, level, f"{count:,}"]
                                                              for (rule, level), count in run.rules.most_common()]))
        shown, every = list(run.events), sum(run.rules.values())
        parts.append(f"<h3>{'The last ' + str(len(shown)) if every > len(shown) else 'All'} events</h3>" + pages.table(
            ["step", "rule", "level", "what"],
            [[f"{e['step']:,}", *(str(e.get(key, "")) for key in ("rule", "level", "message"))] for e in shown]))
    elif run.setting("health", "enabled") is not False:
        parts.append("<p>No health rule has found anything.</p>")
    if run.found:
        parts.append("<h3>Steps that were not finite</h3>" + pages.table(
            ["step", "where it breaks first"], [[str(one.get("step", "")), str(one.get("message", ""))] for one in run.found]))
    if run.passed_over:
        parts.append("<h3>Samples passed over</h3>" + pages.table(["samples", "at step", "rule"], [
            [f"{one.get('first')} to {one.get('stop', 0) - 1}", str(one.get("step")), str(one.get("rule"))]
            for one in run.passed_over[-100:]]))
    return "\n".join(parts)


def time(run: Run) -> str:
    """Where it went: of the last start by report.json, of the whole run by metrics.jsonl; and the profile's verdict."""
    parts, report = [], run.report
    if report and report["train_seconds"]:
        shares = {"waiting for data": report["data_wait_fraction"], "evaluation": report["eval_time_fraction"],
                  "health": report["health_time_fraction"], "checkpoints": report["checkpoint_time_fraction"]}
        shares = {"training": max(0.0, 1.0 - sum(shares.values())), **shares}
        parts += [
            pages.bar(shares, PARTS),
            pages.table(["part", "share"], [[name, f"{share:.2%}"] for name, share in shares.items()]),
            f"<p>The last start: {duration(report['train_seconds'])} after {report['compile_seconds']:.0f} s of compiling.</p>"]
    if run.step_seconds:
        parts.append(f"<p>The whole run: {duration(run.step_seconds)} of steps, {duration(run.wait_seconds)} of it waiting for "
                     f"data; {duration(run.stage_seconds)} in {run.evaluations:,} evaluation(s), without texts.</p>")
    if run.verdict:
        parts.append(f"<h3>Profile of {escape(str(run.verdict['window']))}</h3>" + pages.body(run.verdict, level=4))
    return "\n".join(parts)


def plan(run: Run) -> str:
    """The mesh, and how the batch is cut."""
    mesh, rows = (run.report or {}).get("mesh"), []
    p = run.setting("parallel") or {}
    sizes = {axis: (mesh or p).get(axis) for axis in ("dp", "tp", "pp")}
    rows.append(["mesh", " x ".join(f"{axis} {n}" for axis, n in sizes.items())])
    t = run.setting("train") or {}
    rows += [["batch", f"{t.get('global_batch_size')} samples of {run.setting('data', 'seq_length')} tokens a step"]] if t else []
    keys = ("num_micro_batches", "virtual_stages", "stage_layers", "sequence_parallel", "optimizer_sharding", "recompute")
    rows += [[key.replace("_", " "), str(p[key])] for key in keys if key in p]
    return pages.table([], rows) + _mesh(sizes)


def _mesh(sizes: dict) -> str:
    """Which rank stands where: rank = (stage * dp + dp_rank) * tp + tp_rank."""
    if not all(isinstance(n, int) and n > 0 for n in sizes.values()):
        return ""
    dp, tp, pp = sizes.values()
    if not 1 < dp * tp * pp <= RANKS:
        return ""
    head = "<tr><th></th>" + "".join(f'<th colspan="{tp}">dp {d}</th>' for d in range(dp)) + "</tr>"
    body = "".join(f"<tr><th>stage {s}</th>" + "".join(f"<td>{(s * dp + d) * tp + r}</td>" for d in range(dp) for r in range(tp))
                   + "</tr>" for s in range(pp))
    return f'<table class="mesh">{head}{body}</table><p class="note">Ranks; side by side in a column of dp: tp.</p>'


def environment(run: Run) -> str:
    """By report.json, which the end of a run writes."""
    if not (report := run.report):
        return "<p>Told when the run ends (report.json).</p>"
    rows = [["device", f"{report['world_size']} x {report['device']}"], ["cores", f"{report['cores']} for rank 0"],
            ["parameters", f"{report['parameters']:,}"]]
    return pages.table([], rows + [[str(name), str(version)] for name, version in report["versions"].items()])


def config(run: Run) -> str:
    """Every setting."""
    cut = "" if len(run.config_text) <= CONFIG else f'<p class="note">The first {CONFIG:,} characters.</p>'
    return f"<pre>{escape(run.config_text[:CONFIG])}</pre>{cut}" if run.config_text else ""
