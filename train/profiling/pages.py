"""A verdict as Markdown, as one HTML file that needs nothing else, and in TensorBoard."""
from html import escape

from train.profiling.figures import PARTS
from train.profiling.memory import fragmented
from train.tensorboard import TensorBoard

COLOURS = {"computation": "#2a7f62", "communication": "#c8553d", "data": "#e0a458", "host": "#8d99ae"}
LABELLED = 0.08  # share of the bar from which on its part has room for its name
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.7rem}h2{font-size:1.2rem;margin-top:1.8rem}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:left}
.bar{display:flex;height:1.6em;border-radius:4px;overflow:hidden}.bar div{color:#fff;font-size:12px;line-height:2em;
text-indent:.4em;white-space:nowrap;overflow:hidden}.sign{padding:.6em 1em;border-left:4px solid #2a7f62;background:#f2f6f4}"""


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _figure(value: float | None, unit: str, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value / scale:,.4g} {unit}"


def summary(found: dict) -> list[tuple[str, str]]:
    """(name, figure) of what is told first."""
    memory, window = found["memory"], found["memory"]["window"] or {}
    leak = {None: "not known, too few steps", True: "grows: a leak", False: "no leak"}[memory["leak"]]
    small = window and not fragmented(window)
    slow = found["stragglers"]
    where = f"rank{'s' * (len(found['ranks']) > 1)} {_spans(found['ranks'])} of {found['world_size']}, {found['device']}"
    return [("profiled", f"steps {_spans(found['steps'])} on {where}"),
            ("a step", f"{_figure(found['step_seconds'], 'ms', 1e-3)} under the profiler, "
                       f"{_figure(found['usual_step_seconds'], 'ms', 1e-3)} as usual"),
            ("tokens", _figure(found["tokens_per_second"], "a second")),
            ("model FLOPs", _figure(found["model_flops_per_second"], "TFLOP/s", 1e12)),
            ("MFU", _share(found["mfu"]) if found["mfu"] is not None else f"- ({found['mfu_why']})"),
            ("memory", f"{leak} ({_figure(memory['slope_bytes_per_step'], 'KiB a step', 1024)}); fragmentation "
                       f"{_share(window.get('fragmentation'))}{' (of no concern)' if small else ''}"),
            ("stragglers", "one rank alone was profiled" if slow is None else ", ".join(
                f"rank {one['rank']} ({one['times']:.2f} times, by its {one['part']})" for one in slow["slow"]) or "none")]


def _spans(numbers: list[int]) -> str:
    """[1, 2, 3, 7] -> 1-3, 7."""
    spans: list[list[int]] = []
    for n in numbers:
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in spans) or "none"


def tables(found: dict) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, header, rows) of each table; those without rows are left out."""
    operators = [[one["type"], f"{one['calls']:,}", _figure(one["seconds"], "ms", 1e-3), _share(one["share"]),
                  _figure(one["flops_per_second"], "GFLOP/s", 1e9)] for one in found["operators"]]
    transfers = [[one["name"], f"{one['calls']:,}", _figure(one["seconds"], "ms", 1e-3), _share(one["wait_share"]),
                  _figure(one["gb_per_second"], "GB/s")] for one in found["communication"]]
    both = [("Operators that cost most", ["operator", "calls", "time", "share", "rate"], operators),
            ("Communication, hidden or not", ["operation", "calls", "time", "of it waiting", "bandwidth"], transfers)]
    return [table for table in both if table[2]]


def gain(item: dict) -> str:
    """In words."""
    return "" if item["gain"] is None else f" (at most {item['gain']:.2f} times as fast)"


def markdown(found: dict) -> str:
    """The whole verdict."""
    lines = [f"# Profile of {found['run']}, {found['window']}", ""]
    if found["shares"]:
        lines += [f"**{' : '.join(PARTS)} = {found['ratio']}** (7 : 2 : 1 or better is good)", "",
                  f"Bottleneck: **{found['bottleneck']['name']}** ({found['bottleneck']['why']}).", "",
                  f"{found['utilisation']['text']}.", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {figure} |" for name, figure in summary(found)), ""]
    for title, header, rows in tables(found):
        lines += [f"## {title}", "", f"| {' | '.join(header)} |", "|" + "---|" * len(header),
                  *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows), ""]
    if found["advice"]:
        lines += ["## What to try, in this order", ""]
        for number, item in enumerate(found["advice"], 1):
            lines += [f"{number}. **{item['area']}**: {item['why']}{gain(item)}", *(f"   - {one}" for one in item["try"])]
        lines.append("")
    if found["problems"]:
        lines += ["## Not used", "", *(f"- {problem}" for problem in found["problems"]), ""]
    return "\n".join(lines)


def html(found: dict) -> str:
    """The same as a page; nothing is loaded from anywhere."""
    title = f"Profile of {escape(found['run'])}"
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>\n"
            f"{body(found)}\n</html>\n")


def body(found: dict, level: int = 2) -> str:
    """What stands under the page's title, or in a section of another page, with headings of this level."""
    parts = []
    if shares := found["shares"]:
        parts += [bar(shares, COLOURS),
                  f"<p><b>{' : '.join(PARTS)} = {escape(found['ratio'])}</b> (7 : 2 : 1 or better is good)",
                  f"<p>Bottleneck: <b>{escape(found['bottleneck']['name'])}</b> ({escape(found['bottleneck']['why'])}).",
                  f"<p class=sign>{escape(found['utilisation']['text'])}."]
    parts += [table([], [list(line) for line in summary(found)]), _curve(found["memory"]["curve"], level)]
    for title, header, rows in tables(found):
        parts += [f"<h{level}>{escape(title)}</h{level}>", table(header, rows)]
    if found["advice"]:
        items = "".join(f"<li><b>{escape(item['area'])}</b>: {escape(item['why'] + gain(item))}<ul>"
                        + "".join(f"<li>{escape(one)}</li>" for one in item["try"]) + "</ul></li>" for item in found["advice"])
        parts.append(f"<h{level}>What to try, in this order</h{level}><ol>{items}</ol>")
    if found["problems"]:
        items = "".join(f"<li>{escape(problem)}</li>" for problem in found["problems"])
        parts.append(f"<h{level}>Not used</h{level}><ul>{items}</ul>")
    return "\n".join(parts)


def bar(shares: dict[str, float], colours: dict[str, str]) -> str:
    """A whole in its parts, by their colours; the names of small ones show under the pointer alone."""
    told = {part: f"{part} {shares[part]:.1%}" for part in colours}
    return '<div class="bar">' + "".join(
        f'<div style="width:{100 * shares[part]:.2f}%;background:{colour}" title="{told[part]}">'
        f'{told[part] if shares[part] >= LABELLED else ""}</div>' for part, colour in colours.items()) + "</div>"


def table(header: list[str], rows: list[list[str]]) -> str:
    """As HTML; every cell is text."""
    head = "<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in header) + "</tr>" if header else ""
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def _curve(points: list[tuple[int, float]], level: int) -> str:
    """Memory over the run's steps, from zero, as a picture; nothing without figures."""
    if len(points) < 2 or not (top := max(held for _, held in points)):
        return ""
    first, last = points[0][0], points[-1][0]
    line = " ".join(f"{600 * (step - first) / (last - first):.1f},{110 - 100 * held / top:.1f}" for step, held in points)
    return (f"<h{level}>Memory over steps {first} to {last}, at most {top / 2**20:,.0f} MiB</h{level}>"
            '<svg viewBox="0 0 600 112" width="100%" preserveAspectRatio="none" style="height:5em">'
            f'<polygon fill="#e3efe9" points="0,110 {line} 600,110"/>'
            f'<polyline fill="none" stroke="#2a7f62" points="{line}"/></svg>')


def to_tensorboard(found: dict, board: TensorBoard) -> None:
    """Scalars at the window's last step, and the verdict as text."""
    step = max(found["steps"], default=0)
    window = found["memory"]["window"] or {}
    board.scalars(step, {f"profile/share_{part}": share for part, share in (found["shares"] or {}).items()}
                  | {"profile/step_seconds": found["step_seconds"], "profile/mfu": found["mfu"],
                     "profile/model_flops_per_second": found["model_flops_per_second"],
                     "profile/memory_slope_bytes_per_step": found["memory"]["slope_bytes_per_step"],
                     "profile/fragmentation": window.get("fragmentation")})
    board.text(step, "profile/verdict", markdown(found))
