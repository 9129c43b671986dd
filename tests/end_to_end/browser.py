"""Headless Chromium by its own protocol over a pipe: pages as a person sees them, with scripts run."""
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# The browser reads its descriptor 3 and writes 4; both are first moved out of each other's way.
START = """import os, sys
from fcntl import F_DUPFD, fcntl
ends = [fcntl(int(end), F_DUPFD, 10) for end in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
os.execvp(sys.argv[3], sys.argv[3:])"""
NAMES = ("chromium", "chromium-browser", "google-chrome")
# All text of the page and of what its components hide in shadow roots, joined.
TEXT = """(() => { const parts = []; const walk = node => {
  if (node.nodeType === 3) parts.push(node.textContent);
  if (node.shadowRoot) walk(node.shadowRoot);
  if (!["SCRIPT", "STYLE"].includes(node.nodeName)) node.childNodes.forEach(walk);
}; walk(document.body); return parts.join(" "); })()"""
# How many elements a selector finds, also in shadow roots.
COUNT = """(selector => { let count = 0; const walk = root => { count += root.querySelectorAll(selector).length;
  root.querySelectorAll("*").forEach(node => { if (node.shadowRoot) walk(node.shadowRoot); }); };
  walk(document); return count; })"""
# [left, top, right, bottom] of all elements of a selector, in the page.
BOX = """(selector => { const boxes = [...document.querySelectorAll(selector)].map(node => node.getBoundingClientRect());
  return boxes.length ? [Math.min(...boxes.map(b => b.left)), Math.min(...boxes.map(b => b.top)) + scrollY,
                         Math.max(...boxes.map(b => b.right)), Math.max(...boxes.map(b => b.bottom)) + scrollY] : null; })"""
ANSWER = 60  # seconds that the browser may take for one command; counted, so that a machine that was halted meanwhile is no fault


def installed() -> str | None:
    """The browser's command, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page; to be used in a `with` block. Raises RuntimeError with what the browser says of a mistake.

    Args:
        width, height: of the window, in the page's pixels; a picture has `scale` times as many.
    """

    def __init__(self, width: int, height: int, scale: float = 1.0):
        self.size, self.scale, self.number, self.buffer, self.url = (width, height), scale, 0, b"", "about:blank"

    def __enter__(self) -> "Browser":
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (theirs, self.out), (self.source, back) = os.pipe(), os.pipe()
        command = [installed(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
                   f"--user-data-dir={self.profile.name}", f"--window-size={self.size[0]},{self.size[1]}",
                   "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen([sys.executable, "-c", START, str(theirs), str(back), *command], pass_fds=(theirs, back),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(back)
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Emulation.setDeviceMetricsOverride", width=self.size[0], height=self.size[1], deviceScaleFactor=self.scale,
                 mobile=False)
        return self

    def __exit__(self, *_) -> None:
        os.close(self.out)
        os.close(self.source)
        self.process.terminate()
        self.process.wait(20)
        self.profile.cleanup()

    def ask(self, method: str, **params) -> dict:
        """One command, and its answer. Raises TimeoutError where none comes, as of a page that has crashed."""
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if session := getattr(self, "session", None):
            request["sessionId"] = session
        os.write(self.out, json.dumps(request).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                if not any(select.select([self.source], [], [], 1.0)[0] for _ in range(ANSWER)):
                    raise TimeoutError(f"{self.url}: the browser does not answer {method} within {ANSWER} s")
                if not (more := os.read(self.source, 1 << 20)):
                    raise RuntimeError("the browser ended")
                self.buffer += more
            text, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, url: str) -> None:
        """Go there."""
        self.url = url
        self.ask("Page.navigate", url="about:blank")  # or a change of the part after # alone loads nothing
        self.ask("Page.navigate", url=url)

    def value(self, expression: str):
        """Of JavaScript in the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def text(self) -> str:
        """Everything that is written on the page."""
        return self.value(TEXT) or ""

    def count(self, selector: str) -> int:
        """Elements."""
        return self.value(f"{COUNT}({json.dumps(selector)})") or 0

    def wait_for(self, *texts: str, seconds: int = 120) -> str:
        """Until all of these stand on the page. Returns its text; raises TimeoutError that names the page and what is missing."""
        for _ in range(2 * seconds):
            found = self.text()
            if not (missing := [text for text in texts if text not in found]):
                return found
            time.sleep(0.5)
        raise TimeoutError(f"{self.url}: not on the page: {', '.join(missing)}; there is: {found[:2000]}")

    def shoot(self, out: Path, selector: str | None = None, margin: int = 0) -> None:
        """A PNG of the window, or of what all elements of a selector take, wherever in the page. Raises LookupError."""
        clip = {}
        if selector:
            if not (box := self.value(f"{BOX}({json.dumps(selector)})")):
                raise LookupError(f"{self.url}: no {selector} on the page")
            left, top, right, bottom = box
            clip = {"clip": {"x": max(0, left - margin), "y": max(0, top - margin), "width": right - left + 2 * margin,
                             "height": bottom - top + 2 * margin, "scale": 1}, "captureBeyondViewport": True}
        out.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png", **clip)["data"]))
