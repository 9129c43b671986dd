"""What the instruction rules count and compare: words, Han characters, sentences, lines, paragraphs, list items.

The text itself is counted as it stands. Where two texts are compared both are folded first: see `fold`.
"""
import re
import unicodedata
from collections.abc import Iterator

HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
CJK = HAN + "\u3040-\u30ff"  # and kana: scripts without spaces between words
LETTER = rf"[^\W\d_{CJK}]"
ALNUM = rf"[^\W_{CJK}]"

_QUOTES = str.maketrans({**dict.fromkeys("‘’‚‛ʼ′`", "'"), **dict.fromkeys("“”„‟″", '"'), **dict.fromkeys("‐‑−", "-")})
_INVISIBLE = {"Zs", "Zl", "Zp", "Cc", "Cf", "Cs"}
_WORD = re.compile(rf"(?:{LETTER}\.){{2,}}|\d+(?:[.,:]\d+)+|{ALNUM}+(?:['’‐‑-]{ALNUM}+)*")
_NUMBER = re.compile(rf"(?<![\w.-])-?\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?(?!\d)|(?:(?<!{ALNUM})-)?\d+(?:\.\d+)?")
_HEADING = re.compile(r"\s*(#{1,6})\s+\S")
_BULLET = re.compile(r"\s*(?:[-*+]\s+|[•●○▪◦‣·]\s*)(?=\S)")
_NUMBERED = re.compile(r"\s*(?:[(（]?(\d{1,3})[.．)）、:：](?!\d)|([一二三四五六七八九十]{1,3})、|([①-⑳]))\s*(?=\S)")

_END = re.compile(r"""([.!?…。！？｡]+)([”’」』）】》"')\]*_]*)""")
# Followed by a name or an example, never the end of a sentence.
_ABBREVIATIONS = {"mr", "mrs", "ms", "dr", "prof", "st", "vs", "fig", "e.g", "i.e", "cf"}


def clean(text: str) -> str:
    """The text in Unicode's NFC, with LF line ends, without blanks, control and format characters at either end."""
    text = re.sub(r"\r\n?|[\v\f\x85\u2028\u2029]", "\n", unicodedata.normalize("NFC", text))
    visible = [i for i, c in enumerate(text) if unicodedata.category(c) not in _INVISIBLE]
    return text[visible[0]:visible[-1] + 1] if visible else ""


def width(text: str) -> str:
    """Unicode's NFKC, in which full-width digits, letters and commas are the plain ones, and straight quotes and hyphens."""
    return unicodedata.normalize("NFKC", text).translate(_QUOTES)


def fold(text: str) -> str:
    """How texts are compared: `width`, no difference of case, runs of blanks as one space, no format characters."""
    text = unicodedata.normalize("NFKC", width(text).casefold())
    return " ".join("".join(c for c in text if unicodedata.category(c) != "Cf").split())


def occurrences(word: str, answer: str) -> list[re.Match]:
    """Where a word or phrase occurs, both folded: whole words (not cat in category); in Chinese, anywhere.

    An inflected form is another word (river, rivers); river's holds river. A number is not found inside a longer one.
    """
    return list(_whole(fold(word)).finditer(fold(answer)))


def begins(answer: str, text: str) -> bool:
    """Whether the answer begins with the text, both folded; a word at its end is a whole one."""
    return bool(_whole(fold(text)).match(fold(answer)))


def ends(answer: str, text: str) -> bool:
    """Whether the answer ends with the text, both folded; a word at its start is a whole one."""
    answer, text = fold(answer), fold(text)
    return bool(_whole(text).match(answer, max(0, len(answer) - len(text)))) and answer.endswith(text)


def _whole(text: str) -> re.Pattern:
    before = rf"(?<!{ALNUM})" + r"(?<!\d[.,])" * text[0].isdigit() if re.match(ALNUM, text) else ""
    after = rf"(?!{ALNUM})" + r"(?![.,]\d)" * text[-1].isdigit() if re.match(ALNUM, text[-1]) else ""
    return re.compile(before + re.escape(text) + after)


def words(text: str) -> list[str]:
    """Words as a word processor counts them: don't, well-known, 3.14 and a.m. are one each. Han and kana are none."""
    return _WORD.findall(text)


def han(text: str) -> list[str]:
    """Han characters; punctuation, digits and letters are none."""
    return re.findall(f"[{HAN}]", text)


def numbers(text: str) -> list[str]:
    """Numbers written in digits, full-width ones too, as plain decimals: 1,000 is "1000"."""
    return [number.replace(",", "") for number in _NUMBER.findall(width(text))]


def lines(text: str) -> list[str]:
    """Lines that are not blank, without blanks at either end."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def paragraphs(text: str) -> list[str]:
    """What blank lines part."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def headings(text: str) -> list[int]:
    """The levels, 1 to 6, of the Markdown headings (# to ######)."""
    return [len(m[1]) for m in map(_HEADING.match, lines(text)) if m]


def bullets(text: str) -> list[str]:
    """Lines of a bullet list, without their marks: - * + • and the like."""
    return [line[m.end():] for line in lines(text) if (m := _BULLET.match(line))]


def numbered(text: str) -> list[tuple[int, str]]:
    """(number, text) of the lines of a numbered list: 1. or 1) or (1) or 1、 or 一、 or ①."""
    return [(_value(m), line[m.end():]) for line in lines(text) if (m := _NUMBERED.match(line))]


def _value(mark: re.Match) -> int:
    digits, chinese, circled = mark.groups()
    if chinese:
        tens, ten, ones = chinese.rpartition("十")
        value = {c: i for i, c in enumerate("一二三四五六七八九", 1)}
        return (value.get(tens, 1) * 10 if ten else 0) + value.get(ones, 0)
    return int(unicodedata.numeric(circled) if circled else digits)


def unmarked(line: str) -> str:
    """A line without its mark of a list."""
    mark = _NUMBERED.match(line) or _BULLET.match(line)
    return line[mark.end():] if mark else line


def items(text: str, separator: str) -> list[str]:
    """A list's items: lines (without their marks), sentences, or what commas (, ， 、) part, without a last stop or "and"."""
    if separator == "lines":
        return [unmarked(line) for line in lines(text)]
    if separator == "sentences":
        return sentences(text)
    parts = [part.strip().rstrip(".。!！").strip() for part in re.split("[,，、]", text)]
    return [re.sub(r"^(?:and|or)\s+", "", part) for part in parts if part]


def sentences(text: str) -> list[str]:
    """Sentences: a full stop, question or exclamation mark ends one, and so do a blank line and the end of a list's item.

    Headings are none. No end: Mr., e.g., an initial (J. Austen), a dot in 3.14, a mark in quotes before a small letter
    ("Stop!" he said), an ellipsis before a small letter or a Han character. A full-width mark always is one.
    """
    found = []
    for block in _blocks(text):
        start = 0
        for mark in _END.finditer(block):
            if _ends_sentence(block, mark):
                found.append(block[start:mark.end()])
                start = mark.end()
        found.append(block[start:])
    return [s.strip() for s in found if re.search(r"[^\W_]", s)]


def _blocks(text: str) -> Iterator[str]:
    """Pieces that no sentence crosses, each in one line."""
    block = []
    for line in [*text.split("\n"), ""]:
        heading, plain = _HEADING.match(line), unmarked(line)
        if block and (not line.strip() or heading or plain != line):
            yield " ".join(block)
            block = []
        if line.strip() and not heading:
            block.append(plain)


def _ends_sentence(block: str, mark: re.Match) -> bool:
    (marks, closers), before, after = mark.groups(), block[max(0, mark.start() - 40):mark.start()], block[mark.end():]
    ellipsis = marks.strip("…") == "" or marks.strip(".") == "" and len(marks) > 1
    if not after.strip() or set(marks) & set("。！？｡"):
        return True
    if re.search(f"[{CJK}]$", before):  # no space need follow
        return not ellipsis
    if not after[0].isspace():
        return False
    small = after.lstrip(" \t“‘\"'(（")[:1].islower()
    word = re.search(r"[^\W_](?:[\w.]*\w)?$", before)
    word = word[0] if word and marks == "." else ""
    if word.lower() in _ABBREVIATIONS or re.fullmatch("[A-HJ-Z]", word):
        return False
    return not (small and (ellipsis or set(closers) & set("”’\"'") or "." in word or word.lower() == "etc"))
