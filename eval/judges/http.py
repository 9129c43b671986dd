"""A judge of generated text behind an OpenAI-compatible chat-completions endpoint.

Nothing it does stops the caller: what could not be scored is None, with the reason under "not_computed". Standard library only.
"""
import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from statistics import fmean
from typing import Annotated

from pydantic import Field, model_validator

from eval.answers import Answer
from eval.judges.prompt import LOWEST, UnreadableReplyError, messages, read_scores
from eval.text.units import units
from parallel.config import Section

LONGEST_PAUSE = 60.0  # seconds between two tries, unless the endpoint asks for more
LONGEST_BODY = 2**20  # bytes of a reply
# After so many texts in a row that failed in all their tries the endpoint counts as down.
FAILURES_IN_A_ROW = 3

Criterion = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
CRITERIA = {
    "fluency": "whether the text reads as correct and natural language, without broken words or repetition",
    "relevance": "whether the text fits what the prompt says or asks for",
}


class HttpJudgeConfig(Section):
    """An endpoint that scores texts from 1 to 10; a limit that is reached ends its work, never the run."""

    url: str = Field(pattern=r"^https?://[^\s/@]+/[^\s@]*$",
                     description="of chat completions, such as http://localhost:8000/v1/chat/completions; no password in it")
    model: str = Field(min_length=1, description="the judge's name at the endpoint")
    api_key_env: str | None = Field(None, pattern=r"^[A-Z_][A-Z0-9_]*$",
                                    description="NAME of the environment variable that holds the key; null: no key is sent")
    criteria: dict[Criterion, str] = Field(CRITERIA, min_length=1, description="what is scored: name -> what it means")
    timeout_s: float = Field(30.0, gt=0, le=3600, description="seconds to wait for an answer")
    retries: int = Field(3, ge=0, le=10, description="further tries after a time-out, a broken connection, HTTP 429 or 5xx")
    pause_s: float = Field(1.0, gt=0, le=LONGEST_PAUSE, description="seconds before the first retry; doubled with each")
    concurrency: int = Field(4, ge=1, le=16, description="requests at once")
    max_reply_tokens: int = Field(300, ge=16, description="tokens of one reply")
    max_requests: int = Field(500, ge=1, description="requests of one evaluation, retries among them")
    max_seconds: float = Field(300.0, gt=0, le=86_400, description="time of one evaluation; requests under way may add timeout_s")
    max_cost: float | None = Field(None, gt=0, description="cost of one evaluation in the currency of the prices; null: no limit")
    price_in: float = Field(0.0, ge=0, description="price of 1,000 tokens sent")
    price_out: float = Field(0.0, ge=0, description="price of 1,000 tokens received")

    @model_validator(mode="after")
    def _limit_needs_prices(self) -> "HttpJudgeConfig":
        if self.max_cost is not None and self.price_in == self.price_out == 0:
            raise ValueError("max_cost limits nothing without prices; set price_in and price_out")
        return self

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        """Price of a request, in the currency of the prices."""
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1000


def judge(answers: Sequence[Answer], settings: HttpJudgeConfig) -> dict:
    """Scores of each answer, and their means.

    An empty answer gets the lowest score without a request, so that leaving it out improves no mean. "cost" is an upper bound: a
    request that got no usage back counts as if each byte sent were a token and the reply had the most tokens allowed.

    Returns:
        {"scores": {criterion: mean or None, "items": [{"id", "language", criterion: score or None}]}, "count": texts scored,
        "empty": those of them without text, "not_computed": {item, or "all": why}, "model", "requests", "tokens_in",
        "tokens_out", "cost", "seconds"}
    """
    start = time.monotonic()
    key = os.environ.get(settings.api_key_env, "").strip() if settings.api_key_env else ""
    ledger = _Ledger(settings)
    if settings.api_key_env and not (key.isascii() and key.isprintable() and key):
        ledger.stop(f"the environment variable {settings.api_key_env} (api_key_env) " +
                    ("holds characters that a key cannot have" if key else "is not set"))
    endpoint = _Endpoint(settings, key, ledger)
    with ThreadPoolExecutor(settings.concurrency, "judge") as pool:
        try:
            results = list(pool.map(endpoint.scores_or_why, answers))
        except BaseException:
            ledger.stop("interrupted")
            raise
    return {**_report(answers, results, settings.criteria), "model": settings.model, **ledger.spent(),
            "seconds": time.monotonic() - start}


def _report(answers: Sequence[Answer], results: list[dict | str], criteria: dict[str, str]) -> dict:
    scored = [result for result in results if isinstance(result, dict)]
    why = {answer.item: result for answer, result in zip(answers, results, strict=True) if isinstance(result, str)}
    if not scored and len(set(why.values())) < 2:
        why = {"all": next(iter(why.values()), "there is no text to judge")}
    items = [{"id": answer.item, "language": answer.language, **(dict.fromkeys(criteria) if isinstance(result, str) else result)}
             for answer, result in zip(answers, results, strict=True)]
    means = {name: fmean(result[name] for result in scored) if scored else None for name in criteria}
    return {"scores": {**means, "items": items}, "count": len(scored), "empty": sum(_empty(answer) for answer in answers),
            "not_computed": why}


def _empty(answer: Answer) -> bool:
    return not units(answer.text)


class _FailedError(Exception):
    """Why a text has no score."""


class _TryAgainError(Exception):
    """A fault that may pass; `after`: seconds that the endpoint asks to wait."""

    def __init__(self, why: str, after: float = 0.0):
        super().__init__(why)
        self.after = after


class _Ledger:
    """What was spent, shared by the threads; says no before a limit is passed."""

    def __init__(self, settings: HttpJudgeConfig):
        self.settings, self.deadline = settings, time.monotonic() + settings.max_seconds
        self.changed, self.halted = threading.Condition(), threading.Event()
        self.stopped: str | None = None
        self.requests = self.under_way = self.tokens_in = self.tokens_out = self.failures = 0
        self.cost = self.reserved = 0.0

    def stop(self, why: str) -> None:
        """No further request; the first reason stands."""
        with self.changed:
            self.stopped = self.stopped or why
            self.halted.set()
            self.changed.notify_all()

    def reserve(self, tokens_in: int) -> None:
        """Count a request of at most so many tokens, after others have ended where their cost decides; _FailedError: stopped."""
        settings, most = self.settings, self.settings.cost(tokens_in, self.settings.max_reply_tokens)
        with self.changed:
            limit = float("inf") if settings.max_cost is None else settings.max_cost
            self.changed.wait_for(lambda: self.stopped or not self.under_way or self.cost + self.reserved + most <= limit)
            if self.requests >= settings.max_requests:
                self.stop(f"max_requests {settings.max_requests} is reached")
            elif self.cost + self.reserved + most > limit:
                self.stop(f"max_cost {limit:g} would be passed: {self.cost:.6g} is spent, another request may cost {most:.6g}")
            elif time.monotonic() >= self.deadline:
                self.stop(f"max_seconds {settings.max_seconds:g} is reached")
            if self.stopped:
                raise _FailedError(self.stopped)
            self.requests, self.under_way, self.reserved = self.requests + 1, self.under_way + 1, self.reserved + most

    def settle(self, reserved_in: int, tokens_in: int, tokens_out: int) -> None:
        """The tokens that a reserved request took."""
        with self.changed:
            self.under_way -= 1
            self.reserved -= self.settings.cost(reserved_in, self.settings.max_reply_tokens)
            self.tokens_in, self.tokens_out = self.tokens_in + tokens_in, self.tokens_out + tokens_out
            self.cost += self.settings.cost(tokens_in, tokens_out)
            self.changed.notify_all()

    def outcome(self, why: str | None) -> None:
        """Of a text: None if the endpoint answered, else why it did not in any try."""
        with self.changed:
            self.failures = self.failures + 1 if why else 0
            if self.failures >= FAILURES_IN_A_ROW:
                self.stop(f"the endpoint failed for {self.failures} texts in a row: {why}")

    def pause(self, seconds: float, why: str) -> None:
        """Wait before a retry; _FailedError where the time limit lies before its end."""
        if time.monotonic() + seconds > self.deadline:
            raise _FailedError(f"{why}; a retry in {seconds:.0f} s would pass max_seconds {self.settings.max_seconds:g}")
        self.halted.wait(seconds)

    def spent(self) -> dict:
        """For the report."""
        return {"requests": self.requests, "tokens_in": self.tokens_in, "tokens_out": self.tokens_out, "cost": self.cost}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: urllib would send the key along to wherever it leads."""

    def redirect_request(self, *args):
        return None


class _Endpoint:
    """Asks for the scores of one text; called by several threads."""

    def __init__(self, settings: HttpJudgeConfig, key: str, ledger: _Ledger):
        self.settings, self.key, self.ledger = settings, key, ledger
        self.opener = urllib.request.build_opener(_NoRedirect)

    def scores_or_why(self, answer: Answer) -> dict[str, float] | str:
        """The score of each criterion, or why there are none."""
        if _empty(answer):
            return dict.fromkeys(self.settings.criteria, float(LOWEST))
        try:
            return read_scores(self._reply(answer), self.settings.criteria)
        except (_FailedError, UnreadableReplyError) as why:
            return str(why).replace(self.key, "***") if self.key else str(why)

    def _reply(self, answer: Answer) -> str:
        """The judge's words, after as many tries as are allowed."""
        body = json.dumps({"model": self.settings.model, "temperature": 0, "max_tokens": self.settings.max_reply_tokens,
                           "messages": messages(answer, self.settings.criteria)}).encode()
        for attempt in range(self.settings.retries + 1):
            try:
                reply = self._request(body)
            except _TryAgainError as fault:
                why, after = str(fault), fault.after
            else:
                self.ledger.outcome(None)
                return reply
            if attempt < self.settings.retries:
                self.ledger.pause(max(after, min(LONGEST_PAUSE, self.settings.pause_s * 2**attempt)), why)
        self.ledger.outcome(why)
        raise _FailedError(f"{why}, in {self.settings.retries + 1} tries")

    def _request(self, body: bytes) -> str:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        request = urllib.request.Request(self.settings.url, body, headers)
        self.ledger.reserve(len(body))
        used = 0, 0
        try:
            with self.opener.open(request, timeout=self.settings.timeout_s) as reply:
                used = len(body), self.settings.max_reply_tokens
                content, used = _read_completion(self._read(reply), used)
                return content
        except urllib.error.HTTPError as error:
            raise self._fault(error) from None
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(cause, TimeoutError):
                used = len(body), self.settings.max_reply_tokens  # it may be billed all the same
                raise _TryAgainError(f"no answer within {self.settings.timeout_s:g} s") from None
            raise _TryAgainError(f"no connection ({cause or type(cause).__name__})") from None
        finally:
            self.ledger.settle(len(body), *used)

    def _read(self, reply: http.client.HTTPResponse) -> bytes:
        """The body; a timeout of sockets alone would wait for ever on one that drips."""
        deadline, parts, size = time.monotonic() + self.settings.timeout_s, [], 0
        while part := reply.read1(2**16):
            parts.append(part)
            size += len(part)
            if time.monotonic() > deadline:
                raise TimeoutError
            if size > LONGEST_BODY:
                raise _FailedError(f"the reply is longer than {LONGEST_BODY} bytes")
        return b"".join(parts)

    def _fault(self, error: urllib.error.HTTPError) -> Exception:
        """What an HTTP status means for this text and for the others."""
        with error:
            if error.code == 429 or error.code >= 500:
                return _TryAgainError(f"HTTP {error.code}", _retry_after(error.headers.get("Retry-After", "")))
            if error.code in (401, 403, 404) or error.code < 400:
                advice = {401: "check the key in api_key_env", 403: "check the key in api_key_env", 404: "check url and model"}
                self.ledger.stop(f"HTTP {error.code}: {advice.get(error.code, 'redirected; give the final address as url')}")
                return _FailedError(self.ledger.stopped)
            try:
                detail = " ".join(error.read(2000).decode(errors="replace").split())[:200]
            except (OSError, http.client.HTTPException):
                detail = "no details"
            return _FailedError(f"HTTP {error.code}: {detail}")


def _read_completion(body: bytes, most: tuple[int, int]) -> tuple[str, tuple[int, int]]:
    """(content, (tokens in, tokens out)) of a chat completion; `most` where it does not say what it used."""
    try:
        completion = json.loads(body)
        content = completion["choices"][0]["message"]["content"]
    except (ValueError, RecursionError, LookupError, TypeError):
        raise _FailedError("the reply is no chat completion; is url that of chat completions?") from None
    if not isinstance(content, str):
        raise _FailedError("the reply has no text")
    usage = completion.get("usage")
    used = tuple(usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens"))
    return content, used if all(type(count) is int and count >= 0 for count in used) else most


def _retry_after(header: str) -> float:
    """Seconds, of a number or an HTTP date (RFC 9110, 10.2.3); 0 for anything else."""
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
