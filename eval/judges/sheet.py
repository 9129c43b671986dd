"""The page on which people rate texts: one file that works without a network."""
import base64
import hashlib
import html
from string import Template

RATINGS = range(1, 6)
MEANINGS = ("bad", "poor", "fair", "good", "very good")
# C0 controls but tab and line feed, which HTML drops or changes: as Unicode's pictures of them.
CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421}

SCRIPT = """
"use strict";
const sections = Array.from(document.querySelectorAll("section"));
const rater = document.getElementById("rater");
const status = document.getElementById("status");
const place = "mindgpt-ratings-" + document.body.dataset.sheet;
let ratings = {}, current = 0;

function keep() {
  const done = Object.keys(ratings).length;
  let note = "";
  try {
    localStorage.setItem(place, JSON.stringify({rater: rater.value, ratings: ratings}));
  } catch (error) {
    note = "; this browser keeps no progress, so save before you close the page";
  }
  status.textContent = done + " of " + sections.length + " rated" + note;
}

function show(index) {
  sections[current].classList.remove("current");
  current = Math.max(0, Math.min(sections.length - 1, index));
  sections[current].classList.add("current");
}

function go(index) {
  show(index);
  sections[current].focus({preventScroll: true});
  sections[current].scrollIntoView({block: "nearest"});
}

function rate(index, value) {
  ratings[sections[index].dataset.id] = value;
  sections[index].querySelectorAll("input").forEach(input => { input.checked = Number(input.value) === value; });
}

function save() {
  const name = rater.value.trim();
  if (!name) {
    status.textContent = "Give your name or a short sign first";
    rater.focus();
    return;
  }
  const rated = sections.map(section => section.dataset.id).filter(id => id in ratings);
  const lines = rated.map(id => JSON.stringify({id: id, rater: name, rating: ratings[id]}) + "\\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, {type: "application/x-ndjson"}));
  link.download = "ratings_" + name.replace(/[^\\p{L}\\p{N}-]+/gu, "_") + ".jsonl";
  link.click();
  keep();
  status.textContent += rated.length < sections.length ? ", saved; rate the others before you hand it in" : ", saved";
}

sections.forEach((section, index) => {
  section.addEventListener("focusin", () => show(index));
  section.addEventListener("click", () => show(index));
  section.addEventListener("change", event => { rate(index, Number(event.target.value)); keep(); });
});
rater.addEventListener("input", keep);
document.getElementById("save").addEventListener("click", save);
document.addEventListener("keydown", event => {
  if (event.target === rater || event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^[1-5]$/.test(event.key)) { rate(current, Number(event.key)); keep(); go(current + 1); }
  else if (event.key === "j") go(current + 1);
  else if (event.key === "k") go(current - 1);
  else return;
  event.preventDefault();
});
try {
  const kept = JSON.parse(localStorage.getItem(place)) || {rater: "", ratings: {}};
  rater.value = kept.rater;
  sections.forEach((section, index) => { if (kept.ratings[section.dataset.id]) rate(index, kept.ratings[section.dataset.id]); });
} catch (error) { /* nothing kept: keep() says so */ }
keep();
show(Math.max(0, sections.findIndex(section => !(section.dataset.id in ratings))));
"""

STYLE = """
body { font: 1rem/1.5 sans-serif; max-width: 50rem; margin: 1rem auto 6rem; padding: 0 1rem; }
section { border: 1px solid #bbb; border-radius: 4px; padding: 0 1rem 1rem; margin: 1rem 0; scroll-margin: 1rem 0 5rem; }
section.current { border-color: #06c; box-shadow: 0 0 0 2px #06c; }
h2, h3 { font-size: 0.9rem; margin: 0.6rem 0 0.2rem; color: #555; }
pre { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
.prompt { color: #555; }
label { padding-right: 1.5rem; }
footer { position: fixed; bottom: 0; left: 0; right: 0; padding: 0.7rem 1rem; background: #eee; border-top: 1px solid #bbb; }
"""

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-$digest'">
<meta name="viewport" content="width=device-width">
<title>Rate these texts</title>
<style>$style</style>
</head>
<body data-sheet="$sheet">
<h1>Rate these texts</h1>
<p>A language model went on from each prompt. Rate how good its text is as an answer to, or continuation of, the prompt
($meanings). Rate all of them. Keys: 1 to 5 rate and go on, j and k go to the next and the previous text.</p>
<noscript><p>Rating needs JavaScript.</p></noscript>
<main>
$sections</main>
<footer>
<label>Your name <input id="rater" autocomplete="off"></label>
<button id="save" type="button">Save ratings</button>
<span id="status" role="status"></span>
</footer>
<script>$script</script>
</body>
</html>
""")


def page(samples: list[dict[str, str]], sheet: str) -> str:
    """HTML of samples [{"id", "language", "prompt", "text"}] in their order.

    All that is in them is shown as text; only the page's own script may run, and nothing is loaded from anywhere.

    Args:
        sheet: names the sheet, so that a browser keeps its progress apart from that of others.
    """
    return PAGE.substitute(
        digest=base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode(), style=STYLE, script=SCRIPT,
        sheet=html.escape(sheet),
        meanings=", ".join(f"{rating}: {meaning}" for rating, meaning in zip(RATINGS, MEANINGS, strict=True)),
        sections="".join(_section(number, sample, len(samples)) for number, sample in enumerate(samples, 1)))


def _section(number: int, sample: dict[str, str], total: int) -> str:
    name, language = html.escape(sample["id"]), html.escape(sample["language"])
    choices = "".join(f'<label><input type="radio" name="{name}" value="{rating}"> {rating}</label>' for rating in RATINGS)
    return (f'<section data-id="{name}" tabindex="-1">\n<h2>{number} / {total}</h2>\n'
            f'<h3>Prompt</h3>\n<pre class="prompt" lang="{language}">\n{_shown(sample["prompt"])}</pre>\n'
            f'<h3>Text</h3>\n<pre lang="{language}">\n{_shown(sample["text"])}</pre>\n<h3>Rating</h3>\n{choices}\n</section>\n')


def _shown(text: str) -> str:
    return html.escape(text.translate(CONTROLS))
