"""The README's pictures, from a real run, by headless Chromium.

    python tests/end_to_end/screenshots.py runs/smoke .github/images
"""
import html
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PAGE = """<meta charset="utf-8"><style>body{{margin:0;background:#1e1e2e}}pre{{margin:16px;color:#cdd6f4;
font:14px/1.35 "DejaVu Sans Mono","Noto Sans Mono CJK SC",monospace}}</style><pre>{}</pre>"""


def shoot(url: str, out: Path, size: tuple[int, int], wait_ms: int) -> None:
    """A PNG of a page."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                        "--disable-background-networking", "--disable-component-update",
                        "--disable-sync", "--hide-scrollbars",
                        f"--user-data-dir={profile}",
                        f"--window-size={size[0]},{size[1]}", f"--virtual-time-budget={wait_ms}", f"--screenshot={out}", url],
                       check=True, capture_output=True, timeout=180)


def console(run: Path, out: Path) -> None:
    """What rank 0 printed, its middle left out."""
    lines = (run / "logs" / "rank_0.log").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("[")]
    if len(lines) > 60:
        lines = lines[:22] + ["", " " * 8 + "...", ""] + lines[-22:]
    # Paths as they read when the command is given in the project's folder.
    lines = [re.sub(rf"'?(\S*/)?{re.escape(run.resolve().parents[1].name)}/([\w/]+)'?", r"\2", line) for line in lines]
    lines = ["$ bash run_scripts/run_distributed.sh", *lines]
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as page:
        page.write(PAGE.format(html.escape("\n".join(lines))))
        page.flush()
        shoot(f"file://{page.name}", out, (1000, 32 + 19 * len(lines)), 1000)


def tensorboard(run: Path, out: Path) -> None:
    """TensorBoard's time series of the run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--logdir", run.parent.name, "--port", str(port)],
                              cwd=run.parents[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).read()
                break
            except OSError:
                time.sleep(0.5)
        time.sleep(5)  # it reads the events in the background
        tags = "train%2F%28loss%24%7Cgrad%7Clearning%29%7Cvalid_all"
        shoot(f"http://127.0.0.1:{port}/#scalars&_smoothingWeight=0&tagFilter={tags}", out, (1440, 780), 20_000)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    run_folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    console(run_folder, target / "console.png")
    tensorboard(run_folder, target / "tensorboard.png")
