"""The raters' sheet shows no model and runs nothing of what it shows; ratings come back right or are refused by line."""
import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from eval.answers import Answer
from eval.judges.human import agreement, export_human, import_human
from parallel.errors import UserError

HOSTILE = "\n</pre><script>alert('a')</script>\n<img src=x onerror=alert(1)> &amp; \"' \x00\x1b 你好，世界 🎉 $sections\u2028"


def answers(model: str, count: int = 5) -> list[Answer]:
    own = hashlib.sha1(model.encode()).hexdigest()
    return [Answer(f"item-{i}", "zh" if i % 2 else "en", f"Prompt {i} {HOSTILE}", f"{own} {i}{HOSTILE}", 4, True)
            for i in range(count)]


@pytest.fixture
def sheet(tmp_path):
    """The folder of a sheet with five texts each of two models, and its key."""
    export_human({"base-7b": answers("base-7b"), "tuned": answers("tuned")}, tmp_path / "sheet", seed=3)
    return tmp_path / "sheet", json.loads((tmp_path / "sheet" / "key.json").read_text(encoding="utf-8"))


def write(path, rater: str, ratings: dict) -> None:
    lines = [json.dumps({"id": name, "rater": rater, "rating": rating}) + "\n" for name, rating in ratings.items()]
    path.write_text("".join(lines), encoding="utf-8")


class Page(HTMLParser):
    """The texts in <pre>, all attributes, all scripts."""

    def __init__(self, source: str):
        super().__init__()
        self.shown, self.attributes, self.scripts, self.tags, self.inside = [], [], [], [], None
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.inside = tag
        {"pre": self.shown, "script": self.scripts}.get(tag, []).append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside in ("pre", "script"):
            {"pre": self.shown, "script": self.scripts}[self.inside][-1] += data


def test_the_sheet_hides_the_models_and_keeps_the_texts(sheet):
    folder, key = sheet
    text = (folder / "sheet.jsonl").read_text(encoding="utf-8")
    samples = [json.loads(line) for line in text.split("\n")[:-1]]
    assert len(samples) == len(key) == 10 and [s["id"] for s in samples] == sorted(key)
    assert all(set(sample) == {"id", "language", "prompt", "text"} for sample in samples)
    by_model = {model: {answer.item: answer for answer in answers(model)} for model in ("base-7b", "tuned")}
    for sample in samples:
        wanted = by_model[key[sample["id"]]["model"]][key[sample["id"]]["item"]]
        assert (sample["language"], sample["prompt"], sample["text"]) == (wanted.language, wanted.prompt, wanted.text)
    for shown in (text, (folder / "sheet.html").read_text(encoding="utf-8")):
        assert "base-7b" not in shown and "tuned" not in shown and "item-" not in shown and "你好，世界 🎉" in shown
    models = [key[sample["id"]]["model"] for sample in samples]
    assert models not in (sorted(models), sorted(models, reverse=True)) and models != ["base-7b", "tuned"] * 5


def test_the_order_follows_the_seed_and_not_the_order_of_the_models(tmp_path):
    both = {"a": answers("a"), "b": answers("b")}
    for name, models, seed in (("1", both, 1), ("again", dict(reversed(both.items())), 1), ("2", both, 2)):
        export_human(models, tmp_path / name, seed)
    first, again, other = ((tmp_path / name / "sheet.jsonl").read_bytes() for name in ("1", "again", "2"))
    assert first == again != other
    items = [[entry["item"] + entry["model"] for entry in json.loads((tmp_path / name / "key.json").read_text()).values()]
             for name in ("1", "2")]
    assert items[0] != items[1] and sorted(items[0]) == sorted(items[1])


def test_the_page_escapes_everything_and_loads_nothing(sheet):
    folder, key = sheet
    source = (folder / "sheet.html").read_text(encoding="utf-8")
    page = Page(source)
    assert len(page.shown) == 20 and sum("<script>alert('a')</script>" in text for text in page.shown) == 20
    assert all("<img src=x onerror=alert(1)> &amp; \"' ␀␛ 你好，世界 🎉 $sections" in text for text in page.shown)
    assert all(text.startswith("\n") for text in page.shown), "HTML drops the first line feed in <pre>: not one of the text's"
    assert page.tags.count("script") == 1 and "img" not in page.tags and page.tags.count("section") == 10
    assert not [name for name, _ in page.attributes if name in ("src", "href", "action") or name.startswith("on")]
    assert not re.search(r"https?:|url\(|@import", source)
    (policy,) = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy, "only the page's own script may run"
    radios = re.findall(r'<input type="radio" name="(\w+)" value="(\d)">', source)
    assert sorted(radios) == sorted((name, str(rating)) for name in key for rating in range(1, 6))
    assert '<meta charset="utf-8">' in source and "localStorage" in page.scripts[0]


def test_the_script_is_javascript(sheet, tmp_path):
    if not (node := shutil.which("node")):
        pytest.skip("node is not installed")
    (tmp_path / "page.js").write_text(Page((sheet[0] / "sheet.html").read_text(encoding="utf-8")).scripts[0], encoding="utf-8")
    result = subprocess.run([node, "--check", tmp_path / "page.js"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_half_a_surrogate_pair_can_be_written(tmp_path):
    export_human({"m": [Answer("a", "en", "p", "x\ud83dy", 1, True)]}, tmp_path, seed=0)
    assert json.loads((tmp_path / "sheet.jsonl").read_text(encoding="utf-8"))["text"] == "x\ud83dy"
    assert "x\\ud83dy" in (tmp_path / "sheet.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("given", [{}, {"m": []}])
def test_nothing_to_export(tmp_path, given):
    with pytest.raises(UserError, match="no answers to rate"):
        export_human(given, tmp_path / "new", seed=0)
    assert not (tmp_path / "new").exists()


def test_an_export_over_a_key_in_use_or_of_an_item_twice_is_refused(sheet, tmp_path):
    folder, key = sheet
    with pytest.raises(UserError, match="key.json exists"):
        export_human({"m": answers("m")}, folder, seed=0)
    assert json.loads((folder / "key.json").read_text(encoding="utf-8")) == key
    with pytest.raises(UserError, match="the answers of m have an item twice"):
        export_human({"m": [*answers("m"), answers("m")[0]]}, tmp_path / "new", seed=0)


def test_ratings_come_back_by_model(sheet, tmp_path):
    folder, key = sheet
    ids = list(key)
    first = {i: 4 if key[i]["model"] == "tuned" else 2 for i in ids}
    second = {**first, ids[0]: 5}
    write(tmp_path / "a.jsonl", "Ann", dict(list(first.items())[:6]))
    write(tmp_path / "b.jsonl", "Ann", dict(list(first.items())[6:]))
    write(tmp_path / "c.jsonl", "李", second)
    (tmp_path / "c.jsonl").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "c.jsonl").read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    report = import_human(folder, [tmp_path / f"{name}.jsonl" for name in "abc"])
    means = {"tuned": 4.0, "base-7b": 2.0}
    means[key[ids[0]]["model"]] += (5 - first[ids[0]]) / 10
    assert {model: part["rating"] for model, part in report["models"].items()} == pytest.approx(means)
    assert {part["count"] for part in report["models"].values()} == {10} and (report["samples"], report["raters"]) == (10, 2)
    assert report["agreement"]["exact"] == 0.9 and report["agreement"]["level"] == "ordinal"
    assert 0.5 < report["agreement"]["alpha"] < 1 and report["not_computed"] == {}


def test_one_rater_has_nobody_to_agree_with(sheet, tmp_path):
    folder, key = sheet
    write(tmp_path / "a.jsonl", "Ann", dict.fromkeys(key, 3))
    report = import_human(folder, [tmp_path / "a.jsonl"])
    assert report["models"]["tuned"] == {"rating": 3.0, "count": 5} and report["agreement"]["alpha"] is None
    assert report["not_computed"] == dict.fromkeys(("alpha", "exact"), "it takes two raters, there is one")


@pytest.mark.parametrize(("line", "says"), [
    ('{"id": ID, "rater": "Ann", "rating": 0}', "the rating is 0; give a whole number from 1 to 5"),
    ('{"id": ID, "rater": "Ann", "rating": 6}', "the rating is 6"),
    ('{"id": ID, "rater": "Ann", "rating": 3.5}', "the rating is 3.5"),
    ('{"id": ID, "rater": "Ann", "rating": true}', "the rating is true"), ('{"id": ID, "rater": "Ann", "rating": "4"}', 'is "4"'),
    ('{"id": ID, "rater": "Ann"}', "the rating is missing"), ('{"id": ID, "rater": " ", "rating": 3}', "the rater is missing"),
    ('{"id": "0000", "rater": "Ann", "rating": 3}', '"0000" is no id of this sheet'),
    ('{"rater": "Ann", "rating": 3}', "null is no id"),
    ('{"id": ID, "rater": "Ann", "rating": 3', "not a rating"), ("[1, 2]", "not a rating"), ("[" * 100_000, "not a rating"),
])
def test_a_wrong_line_is_named(sheet, tmp_path, line, says):
    folder, key = sheet
    ids, path = list(key), tmp_path / "a.jsonl"
    write(path, "Ann", dict.fromkeys(ids[1:3], 3))
    path.write_text(path.read_text() + "\n" + line.replace("ID", json.dumps(ids[0])) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(f"{path}:4: ")) as error:
        import_human(folder, [path])
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_duplicate_is_named_with_both_places(sheet, tmp_path):
    folder, key = sheet
    write(tmp_path / "a.jsonl", "Ann", dict.fromkeys(key, 3))
    write(tmp_path / "b.jsonl", "Ann", dict.fromkeys(list(key)[4:5], 3))
    with pytest.raises(UserError) as error:
        import_human(folder, [tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert str(error.value).startswith(f"{tmp_path}/b.jsonl:1: Ann has rated") and f"at {tmp_path}/a.jsonl:5" in str(error.value)


def test_missing_ratings_are_named(sheet, tmp_path):
    folder, key = sheet
    write(tmp_path / "a.jsonl", "Ann", dict.fromkeys(key, 3))
    write(tmp_path / "b.jsonl", "Bo", dict.fromkeys(list(key)[:8], 3))
    with pytest.raises(UserError) as error:
        import_human(folder, [tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    assert str(error.value).startswith(f"{tmp_path}/b.jsonl:8: the ratings of Bo end here, 2 of 10 texts have none: ")
    assert list(key)[8] in str(error.value) and list(key)[9] in str(error.value)


def test_files_that_are_no_ratings(sheet, tmp_path):
    folder, _ = sheet
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "latin.jsonl").write_bytes(b"caf\xe9")
    for paths, says in (([], "no ratings to import"), ([tmp_path / "empty.jsonl"], "hold no rating"),
                        ([tmp_path / "latin.jsonl"], "cannot be read"), ([tmp_path / "none.jsonl"], "cannot be read")):
        with pytest.raises(UserError, match=says):
            import_human(folder, paths)
    with pytest.raises(UserError, match="there is no key.json here"):
        import_human(tmp_path, [tmp_path / "empty.jsonl"])
    (folder / "key.json").write_text("{")
    with pytest.raises(UserError, match="key.json: is broken"):
        import_human(folder, [tmp_path / "empty.jsonl"])


def test_alpha_of_krippendorffs_example():
    """Computing Krippendorff's Alpha-Reliability (2011): four observers, twelve units, values missing; ordinal 0.815."""
    observers = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]
    alpha, _, why = agreement([[int(v) for v in unit if v != "."] for unit in zip(*observers, strict=True)])
    assert alpha == pytest.approx(0.815, abs=5e-4) and why == ""


def test_alpha_by_hand():
    """Two raters, four texts: 1 1, 2 2, 3 3, 1 3.

    Coincidences: o11 = 2, o22 = 2, o33 = 2, o13 = o31 = 1; totals 3, 2, 3 of n = 8. Middle ranks 1.5, 4, 6.5, so the
    distances are 2.5^2 = 6.25 between neighbours and 5^2 = 25 between 1 and 3. Observed: 2 * 25 = 50. Expected: 2 * (3 * 2 * 6.25
    + 2 * 3 * 6.25 + 3 * 3 * 25) / 7 = 600 / 7. alpha = 1 - 350 / 600 = 5 / 12. Equal pairs: 3 of 4.
    """
    alpha, exact, _ = agreement([[1, 1], [2, 2], [3, 3], [1, 3]])
    assert alpha == pytest.approx(5 / 12, rel=1e-12) and exact == 0.75


def test_alpha_at_its_limits():
    assert agreement([[1, 1, 1], [5, 5, 5], [2, 2]])[:2] == (1.0, 1.0)
    alpha, exact, why = agreement([[3, 3], [3, 3]])
    assert alpha is None and exact == 1.0 and "told from chance" in why
    assert agreement([[3], []]) == (None, None, "no text has two ratings")
    assert agreement([[1, 5], [5, 1]])[0] < 0, "worse than chance"
