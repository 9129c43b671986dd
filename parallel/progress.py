"""A progress bar of one line on a terminal, and a few plain lines elsewhere (a log is no place for redrawing)."""
import shutil
import sys
import time

_drawn: "Progress | None" = None  # whose bar stands in the terminal's last line


def clear() -> None:
    """Remove the bar that stands in the terminal's last line, if any, before something else is printed there."""
    global _drawn
    if _drawn:
        _drawn = None
        print("\r\033[K", end="", file=sys.stderr, flush=True)


class Progress:
    """Counts work done against a total.

    Args:
        label: what is done, e.g. "encode".
        total: amount of work in `unit`s; may be an estimate.
        unit: what is counted, e.g. "MB"; of seconds, "s", no rate is shown.
        scale: how many of what `advance` is given make one `unit`.
    """

    def __init__(self, label: str, total: float, unit: str, scale: float = 1.0):
        self._label, self._total, self._unit, self._scale = label, max(total, 1), unit, scale
        self._done = 0.0
        self._start = time.monotonic()
        self._next_share = 0.0
        self.terminal = sys.stderr.isatty()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, error_type, *_) -> None:
        global _drawn
        self._show(last=error_type is None)
        if self.terminal:
            print(file=sys.stderr, flush=True)
        _drawn = None

    def advance(self, amount: float) -> None:
        """Count `amount` more; draws at most 200 times, or 4 lines where there is no terminal."""
        self._done += amount
        share = self._done / self._total
        if share >= self._next_share:
            self._next_share = share + (0.005 if self.terminal else 0.25)
            if self.terminal or share < 1:
                self._show()

    def _show(self, last: bool = False) -> None:
        seconds = time.monotonic() - self._start
        share = 1.0 if last else min(self._done / self._total, 1.0)
        done, rate = self._done / self._scale, self._done / self._scale / max(seconds, 1e-3)
        text = f"{self._label:10} {share:4.0%}  {done:,.1f} {self._unit}"
        if self._unit != "s":
            text += f"  {rate:,.1f} {self._unit}/s"
        if self.terminal:
            global _drawn
            # A line that the terminal breaks could not be drawn over.
            columns = shutil.get_terminal_size().columns - 1
            width = max(0, min(30, columns - len(text) - 3))
            _drawn, bar = self, "#" * round(width * share)
            print(f"\r{f'[{bar:{width}}] {text}'[:columns]}\033[K", end="", file=sys.stderr, flush=True)
        elif last or seconds > 5:  # what is quick needs only its last line
            print(text, file=sys.stderr, flush=True)
