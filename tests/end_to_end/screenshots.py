"""The README's pictures, from real runs, by headless Chromium; and whether the pages show what they should.

    bash run_scripts/run_distributed.sh
    bash run_scripts/run_standalone.sh --set run.name=profiled profile.enabled=true
    python tests/end_to_end/screenshots.py runs/smoke runs/profiled .github/images

One line and exit code 1 where a page lacks something: which page, and what. The plan of 128 cards is compiled for its picture,
which takes minutes.
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
from urllib.parse import quote

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.end_to_end.browser import Browser, installed  # noqa: E402
from train import profile_report, report  # noqa: E402
from train.console import fitted  # noqa: E402
from train.dashboards import LAYOUT  # noqa: E402

WIDTH, COLUMNS, SHADES = 1200, 80, 128  # pixels of a picture, characters of a terminal, colours that a picture needs
SCALARS = "train/(loss$|grad|learning)|valid_all/(loss|perp|acc)"
PREFLIGHT = "python -m train.preflight --config run_scripts/configs/gpt_13b.yaml"
PAGE = """<meta charset="utf-8"><style>body{{margin:0;background:#1e1e2e}}
pre{{margin:0;padding:16px;width:max-content;color:#cdd6f4;
font:14px/1.35 "DejaVu Sans Mono","Noto Sans Mono CJK SC",monospace}}</style><pre>{}</pre>"""


class Missing(Exception):
    """What a page should show, and does not."""


def smaller(out: Path) -> None:
    """As few bytes as the colours of a page need."""
    from PIL import Image  # TensorBoard brings it
    Image.open(out).convert("RGB").quantize(SHADES, dither=Image.Dither.NONE).save(out, optimize=True)


def terminal(lines: list[str], out: Path, columns: int = COLUMNS) -> None:
    """Lines as a terminal of so many columns shows them."""
    text = "\n".join(fitted(line, columns, 16) for line in lines)
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file, \
            Browser(WIDTH, 900, scale=1.25) as browser:
        file.write(PAGE.format(html.escape(text)))
        file.flush()
        browser.open(f"file://{file.name}")
        browser.wait_for(lines[-1].split()[-1])
        browser.shoot(out, "pre")
    smaller(out)


def ends(lines: list[str], first: int, last: int) -> list[str]:
    """Without the middle, if there are many more."""
    return lines if len(lines) < first + last + 4 else [*lines[:first], "", " " * 8 + "...", "", *lines[-last:]]


def console(run: Path, out: Path) -> None:
    """What rank 0 printed."""
    lines = (run / "logs" / "rank_0.log").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("[")]
    # Paths as they read when the command is given in the project's folder.
    lines = [re.sub(rf"'?(\S*/)?{re.escape(run.resolve().parents[1].name)}/([\w/]+)'?", r"\2", line) for line in lines]
    terminal(["$ bash run_scripts/run_distributed.sh", *ends(lines, 17, 23)], out)


def preflight(out: Path) -> None:
    """A plan for a cluster, compiled and audited; without the lines that tell of each compiled rank, and what the others send."""
    done = subprocess.run([sys.executable, *PREFLIGHT.split()[1:]], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"{PREFLIGHT}: exit code {done.returncode}: {done.stderr}")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("compiled ")]
    terminal([f"$ {PREFLIGHT}", *ends(lines, 22, 4)], out, 100)


@contextmanager
def server(run: Path):
    """TensorBoard over a run, alone in a folder `runs`, as long as the block lasts: its address. Raises Missing."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.TemporaryDirectory()
    (Path(folder.name) / "runs").mkdir()
    (Path(folder.name) / "runs" / run.name).symlink_to(run.resolve())
    process = subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--logdir", "runs", "--port", str(port)],
                               cwd=folder.name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/"
    try:
        wanted = f"{run.name}/tensorboard"
        for _ in range(120):
            try:
                runs = json.loads(urllib.request.urlopen(f"{address}data/runs", timeout=1).read())
                if wanted in runs:  # it reads the events in the background
                    break
            except OSError:
                runs = []
            time.sleep(0.5)
        else:
            raise Missing(f"TensorBoard: {wanted} is not among its runs after 60 s; there are {', '.join(runs) or 'none'}")
        yield address
    finally:
        process.terminate()
        process.wait()
        folder.cleanup()


def wait_for_curves(browser: Browser, selector: str, least: int, where: str) -> None:
    """Until so many are drawn. Raises Missing."""
    for _ in range(60):
        if (found := browser.count(selector)) >= least:
            return
        time.sleep(1)
    raise Missing(f"{where}: {found} curves are drawn, not {least}")


def tags(address: str, run: Path) -> set[str]:
    """Of the scalars that TensorBoard has of a run."""
    found = json.loads(urllib.request.urlopen(f"{address}data/plugin/scalars/tags", timeout=60).read())
    return set(found.get(f"{run.name}/tensorboard", {}))


def tensorboard(run: Path, scalars: Path, layout: Path) -> None:
    """Check the pages of a run that has all tiers, with pictures of SCALARS and CUSTOM SCALARS. Raises Missing, TimeoutError."""
    texts = [found["deep"]["samples"]["texts"] for path in sorted((run / "eval").glob("step_*.json"))
             if "deep" in (found := json.loads(path.read_text(encoding="utf-8")))]
    words = [max(one["prompt"].split(), key=len) for one in texts[-1]]  # as Markdown shows them: not what it takes for marks
    with server(run) as address, Browser(1440, 770) as wide, Browser(1150, 765) as browser:
        known = tags(address, run)
        charts = [title for category in LAYOUT.values() for title, patterns in category.items()
                  if any(re.match(pattern, tag) for pattern in patterns for tag in known)]
        cards = sum(bool(re.search(SCALARS, tag)) for tag in known)
        wide.open(f"{address}?tagFilter={quote(SCALARS, safe='')}#timeseries")  # it draws the cards that are in view
        wide.wait_for("Tags matching filter", f"{cards} cards", "grad_norm")
        wait_for_curves(wide, "scalar-card line-chart canvas, scalar-card line-chart svg", 4, "TIME SERIES")
        browser.open(f"{address}#text&tagFilter=samples")
        browser.wait_for("samples/text_summary", *dict.fromkeys(words))
        browser.open(f"{address}#text&tagFilter=about")
        browser.wait_for("Mean over the tokens of a step's batch")
        wide.open(f"{address}#scalars&_smoothingWeight=0&tagFilter={quote(SCALARS, safe='')}")
        wide.wait_for("valid_all/perplexity", "train/grad_norm")
        wait_for_curves(wide, "path.line", cards, "SCALARS")
        wide.shoot(scalars)
        browser.open(f"{address}#custom_scalars&_smoothingWeight=0")
        browser.wait_for(*LAYOUT, *charts[:4])
        wait_for_curves(browser, "path.line", len(charts), "CUSTOM SCALARS")
        browser.shoot(layout)
    smaller(scalars)
    smaller(layout)


def page(run: Path, beginning: Path, evaluation: Path) -> None:
    """The run's report.html: what it says, its curves, and that it fits paper; pictures of its beginning and its evaluation."""
    if report.main([str(run)]):
        raise Missing(f"{run}: no report")
    with Browser(1000, 1100, scale=1.25) as browser:
        browser.open((run / report.FILE).resolve().as_uri())
        browser.wait_for(f"Run {run.resolve().name}", "Gradient norm", "Held-out text", "Texts at step", "Configuration")
        wait_for_curves(browser, "svg path.line", 5, report.FILE)
        if (wide := browser.value("document.documentElement.scrollWidth")) > 1000:
            raise Missing(f"{report.FILE} is {wide} pixels wide in a window of 1000")
        if not browser.ask("Page.printToPDF")["data"]:
            raise Missing(f"{report.FILE} cannot be printed")
        browser.shoot(beginning, "h1, #curves figure:nth-of-type(-n+2)", 20)
        browser.shoot(evaluation, "#evaluation > h2, #evaluation > .side", 20)
    smaller(beginning)
    smaller(evaluation)


def verdict(run: Path, out: Path) -> None:
    """The verdict on a run's profile: what it says, without the curve of memory."""
    if profile_report.main([str(run)]):
        raise Missing(f"{run}: no verdict")
    newest = max(run.glob("profile/step_*/verdict.html"), key=lambda path: path.stat().st_mtime)
    with Browser(960, 1000, scale=1.25) as browser:
        browser.open(newest.resolve().as_uri())
        browser.wait_for(f"Profile of {run.resolve().name}", "computation", "Bottleneck", "Operators that cost most")
        browser.shoot(out, "body > *", 20)
    smaller(out)


def main(run: Path, profiled: Path, target: Path) -> int:
    """All of them. Returns the exit code."""
    try:
        console(run, target / "console.png")
        tensorboard(run, target / "scalars.png", target / "tensorboard.png")
        page(run, target / "report.png", target / "evaluation.png")
        verdict(profiled, target / "profile.png")
        preflight(target / "preflight.png")
        return 0
    except (Missing, LookupError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    if not installed():
        sys.exit("no Chromium here: apt install chromium")
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*map(Path, sys.argv[1:])))
