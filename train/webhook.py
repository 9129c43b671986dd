"""Posts what it is given as JSON to an address, behind the training."""
import json
import queue
import threading
import time
import urllib.request
from collections.abc import Callable

SECONDS = 5.0  # for one post, and for those that are left at the end


class Webhook:
    """One post after the other, in a thread; nobody waits for them but `close`. A failure is told once."""

    def __init__(self, url: str, say: Callable[[str], None]):
        self.url, self.say, self.failed = url, say, False
        self.queue: queue.Queue[dict] = queue.Queue()
        threading.Thread(target=self._run, name="webhook", daemon=True).start()

    def post(self, content: dict) -> None:
        """Have it posted soon."""
        self.queue.put(content)

    def _run(self) -> None:
        while True:
            content = self.queue.get()
            try:
                request = urllib.request.Request(self.url, json.dumps(content).encode(), {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=SECONDS):
                    pass
            except (OSError, ValueError) as error:  # urllib's errors are OSError; what cannot be told must not end the training
                if not self.failed:
                    self.failed = True
                    self.say(f"health.webhook: {self.url} could not be told ({error}); later failures are not said")
            self.queue.task_done()

    def close(self) -> None:
        """Give what is left a little time."""
        end = time.monotonic() + SECONDS
        while self.queue.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.05)
