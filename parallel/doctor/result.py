"""What a check has found."""
from typing import NamedTuple

OK, WARNING, FAILED = "ok", "warning", "failed"


class Result(NamedTuple):
    """One line of the report.

    Args:
        check: what was looked at, a word.
        state: OK, WARNING (training starts, but look at it) or FAILED (it will not start, or will not go well).
        found: what there is.
        advice: what to do; "" if nothing.
    """

    check: str
    state: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.state:<7}  {self.check:<9}  {self.found}" + (f": {self.advice}" if self.advice else "")
