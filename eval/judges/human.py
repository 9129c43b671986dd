"""People as judges: a sheet of texts without the models' names, and their ratings read back.

To raters go sheet.html (or sheet.jsonl), never key.json, which says what model wrote which text.
"""
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from eval.answers import Answer
from eval.judges.sheet import RATINGS, page
from parallel.errors import UserError
from parallel.files import replace_text

KEY = "key.json"


def export_human(answers_by_model: dict[str, list[Answer]], folder: Path, seed: int) -> None:
    """Write sheet.jsonl, sheet.html and key.json into a folder.

    The order is random, and so is each text's id: both follow from the seed and the texts, not from the models' order.

    UserError: there is no answer, a model has two to one item, or the folder has a key already, which ratings may still need.
    """
    key, samples = {}, []
    for model, answers in answers_by_model.items():
        if len({answer.item for answer in answers}) < len(answers):
            raise UserError(f"the answers of {model} have an item twice; give one answer to each item")
        for answer in answers:
            what = json.dumps([seed, model, answer.item, answer.prompt, answer.text])
            name = hashlib.sha256(what.encode()).hexdigest()[:12]
            key[name] = {"model": model, "item": answer.item}
            samples.append({"id": name, "language": answer.language, "prompt": answer.prompt, "text": answer.text})
    if not samples:
        raise UserError("there are no answers to rate; generate some first")
    if (folder / KEY).exists():
        raise UserError(f"{folder / KEY} exists: ratings of that sheet are read with it; export to another folder, or delete it")
    samples.sort(key=lambda sample: sample["id"])
    sheet = hashlib.sha256("".join(sorted(key)).encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / "sheet.jsonl", _encodable("".join(json.dumps(s, ensure_ascii=False) + "\n" for s in samples)))
    replace_text(folder / "sheet.html", _encodable(page(samples, sheet)))
    replace_text(folder / KEY, json.dumps(dict(sorted(key.items())), indent=1) + "\n")


def _encodable(text: str) -> str:
    r"""Half a surrogate pair, which UTF-8 does not have, as \udXXX: in JSON the same character, on the page visible."""
    return text.encode("utf-8", "backslashreplace").decode()


def import_human(folder: Path, ratings: Sequence[Path]) -> dict:
    """The ratings of a sheet, [{"id", "rater", "rating": 1 to 5}] in JSON Lines, a file or more.

    Returns:
        {"models": {model: {"rating": mean, "count": ratings}}, "samples", "raters", "agreement": {"alpha": Krippendorff's,
        "level": "ordinal", "exact": share of pairs of ratings of one text that are equal}, "not_computed": {name: why}}.

    Raises:
        UserError: "file:line: ..." for a line that is no rating of this sheet, is out of range, or repeats one; and for a rater
        who has not rated every text, at the last line with that rater's ratings.
    """
    key, found = _read_key(folder), {}
    if not ratings:
        raise UserError("there are no ratings to import; give the files that raters saved from sheet.html")
    for path in ratings:
        for where, line in _lines(path):
            rater, name, rating = _rating(where, line, key)
            if (rater, name) in found:
                raise UserError(f"{where}: {rater} has rated {name} already, at {found[rater, name][0]}; delete one of the two")
            found[rater, name] = where, rating
    raters = _complete(found, key)
    by_text = [[found[rater, name][1] for rater in raters] for name in key]
    models = {}
    for (_, name), (_, rating) in found.items():
        models.setdefault(key[name]["model"], []).append(rating)
    alpha, exact, why = agreement(by_text) if len(raters) > 1 else (None, None, "it takes two raters, there is one")
    return {"models": {model: {"rating": fmean(given), "count": len(given)} for model, given in sorted(models.items())},
            "samples": len(key), "raters": len(raters), "agreement": {"alpha": alpha, "level": "ordinal", "exact": exact},
            "not_computed": {name: why for name, figure in (("alpha", alpha), ("exact", exact)) if figure is None}}


def agreement(by_text: Iterable[Sequence[int]]) -> tuple[float | None, float | None, str]:
    """(Krippendorff's alpha for ordinal ratings, share of equal pairs, "" or why one of them is None).

    Klaus Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), section E with the ordinal metric. 1: all agree; 0: as
    much as by chance.

    Args:
        by_text: the ratings that each text got; texts with fewer than two say nothing.
    """
    by_text = [ratings for ratings in by_text if len(ratings) > 1]
    if not by_text:
        return None, None, "no text has two ratings"
    values = sorted({rating for ratings in by_text for rating in ratings})
    counts = np.array([[list(ratings).count(value) for value in values] for ratings in by_text], np.float64)
    per_text = counts.sum(1, keepdims=True)
    same = counts * (counts - 1)
    exact = float(same.sum() / (per_text * (per_text - 1)).sum())
    coincidences = np.einsum("uc,uk->ck", counts / (per_text - 1), counts) - np.diag((counts / (per_text - 1)).sum(0))
    totals = coincidences.sum(0)
    ranks = totals.cumsum() - totals / 2
    distance = (ranks[:, None] - ranks) ** 2
    expected = (np.outer(totals, totals) * distance).sum() / (totals.sum() - 1)
    if not expected:
        return None, exact, "all ratings are the same, so agreement cannot be told from chance"
    return float(1 - (coincidences * distance).sum() / expected), exact, ""


def _read_key(folder: Path) -> dict[str, dict[str, str]]:
    try:
        return json.loads((folder / KEY).read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"{folder}: there is no {KEY} here; give the folder that export-human wrote") from None
    except ValueError as error:
        raise UserError(f"{folder / KEY}: is broken ({error}); ratings cannot be read without it, export again") from None


def _lines(path: Path) -> Iterable[tuple[str, str]]:
    """("file:line", line) of a file's lines, blank ones left out."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the ratings cannot be read ({error})") from None
    return [(f"{path}:{number}", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _rating(where: str, line: str, key: dict) -> tuple[str, str, int]:
    """(rater, id, rating) of a line."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UserError(f'{where}: not a rating; a line is {{"id": ..., "rater": ..., "rating": 1 to 5}}')
    name, rater, rating = (values.get(field) for field in ("id", "rater", "rating"))
    if not isinstance(rater, str) or not rater.strip():
        raise UserError(f"{where}: the rater is missing; give a name or sign as \"rater\"")
    if not isinstance(name, str) or name not in key:
        raise UserError(f"{where}: {json.dumps(name)} is no id of this sheet; was it saved from another sheet.html?")
    if type(rating) is not int or rating not in RATINGS:
        given = "is missing" if rating is None else f"is {json.dumps(rating)}"
        raise UserError(f"{where}: the rating {given}; give a whole number from {RATINGS[0]} to {RATINGS[-1]}")
    return rater.strip(), name, rating


def _complete(found: dict, key: dict) -> list[str]:
    """The raters; UserError where one has left texts out."""
    last = {rater: where for (rater, _), (where, _) in found.items()}
    if not last:
        raise UserError("the files hold no rating; give the files that raters saved from sheet.html")
    for rater, where in last.items():
        if missing := [name for name in key if (rater, name) not in found]:
            some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise UserError(f"{where}: the ratings of {rater} end here, {len(missing)} of {len(key)} texts have none: {some}; "
                            "rate them, or leave this rater out")
    return sorted(last)
