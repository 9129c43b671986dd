"""The README's pictures, from a real run, by headless Chromium; and whether the pages show what they should.

    python tests/end_to_end/screenshots.py runs/smoke .github/images
"""
import html
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.end_to_end.browser import Browser, installed  # noqa: E402
from train import report  # noqa: E402
from train.dashboards import LAYOUT  # noqa: E402

PAGE = """<meta charset="utf-8"><style>body{{margin:0;background:#1e1e2e}}pre{{margin:16px;color:#cdd6f4;
font:14px/1.35 "DejaVu Sans Mono","Noto Sans Mono CJK SC",monospace}}</style><pre>{}</pre>"""


class Missing(Exception):
    """What a page should show, and does not."""


def console(run: Path, out: Path) -> None:
    """What rank 0 printed, its middle left out."""
    lines = (run / "logs" / "rank_0.log").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("[")]
    if len(lines) > 60:
        lines = lines[:22] + ["", " " * 8 + "...", ""] + lines[-22:]
    # Paths as they read when the command is given in the project's folder.
    lines = [re.sub(rf"'?(\S*/)?{re.escape(run.resolve().parents[1].name)}/([\w/]+)'?", r"\2", line) for line in lines]
    lines = ["$ bash run_scripts/run_distributed.sh", *lines]
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file, \
            Browser(1000, 32 + 19 * len(lines)) as browser:
        file.write(PAGE.format(html.escape("\n".join(lines))))
        file.flush()
        browser.open(f"file://{file.name}")
        browser.wait_for("run_distributed.sh")
        browser.shoot(out)


@contextmanager
def server(run: Path):
    """TensorBoard over a run's folder of runs, as long as the block lasts: its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--logdir", run.parent.name, "--port", str(port)],
                               cwd=run.resolve().parents[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(120):
            try:
                runs = urllib.request.urlopen(f"{address}data/runs", timeout=1).read()
                if len(json.loads(runs)):  # it reads the events in the background
                    break
            except OSError:
                pass
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait()


def wait_for_curves(browser: Browser, selector: str, least: int, where: str) -> None:
    """Until so many are drawn. Raises Missing."""
    for _ in range(60):
        if (found := browser.count(selector)) >= least:
            return
        time.sleep(1)
    raise Missing(f"{where}: {found} curves are drawn, not {least}")


def tensorboard(run: Path, out: Path | None) -> None:
    """Check the pages of a run that has all tiers; a picture of its charts goes to `out`. Raises Missing, TimeoutError."""
    texts = [found["deep"]["samples"]["texts"] for path in sorted((run / "eval").glob("step_*.json"))
             if "deep" in (found := json.loads(path.read_text(encoding="utf-8")))]
    words = [max(one["prompt"].split(), key=len) for one in texts[-1]]  # as Markdown shows them: not what it takes for marks
    charts = [title for category in LAYOUT.values() for title in category]
    with server(run) as address, Browser(1440, 780) as browser:
        browser.open(f"{address}#timeseries")
        browser.wait_for("/loss_mean")
        wait_for_curves(browser, "scalar-card line-chart canvas, scalar-card line-chart svg", 6, "TIME SERIES")
        browser.open(f"{address}#text&tagFilter=samples")
        browser.wait_for("samples/text_summary", *dict.fromkeys(words))
        browser.open(f"{address}#text&tagFilter=about")
        browser.wait_for("Mean over the tokens of a step's batch")
        browser.open(f"{address}#custom_scalars&_smoothingWeight=0")
        browser.wait_for(*LAYOUT, *charts[:4])
        wait_for_curves(browser, "path.line", len(charts), "CUSTOM SCALARS")
        if out:
            browser.shoot(out)


def page(run: Path, out: Path | None) -> None:
    """The run's report.html: what it says, its curves, and that it fits paper; its beginning goes to `out`."""
    if report.main([str(run)]):
        raise Missing(f"{run}: no report")
    with Browser(1000, 1100) as browser:
        browser.open((run / report.FILE).resolve().as_uri())
        browser.wait_for(f"Run {run.resolve().name}", "Gradient norm", "Held-out text", "Texts at step", "Configuration")
        wait_for_curves(browser, "svg path.line", 5, report.FILE)
        if (wide := browser.value("document.documentElement.scrollWidth")) > 1000:
            raise Missing(f"{report.FILE} is {wide} pixels wide in a window of 1000")
        if not browser.ask("Page.printToPDF")["data"]:
            raise Missing(f"{report.FILE} cannot be printed")
        if out:
            browser.shoot(out)


if __name__ == "__main__":
    if not installed():
        sys.exit("no Chromium here: apt install chromium")
    run_folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    console(run_folder, target / "console.png")
    tensorboard(run_folder, target / "tensorboard.png")
    page(run_folder, target / "report.png")
