"""Text as a list of units: what diversity, repetition and overlap are counted in.

Splitting at white space makes a Chinese text one word, so the unit follows the script:

- a run of letters and digits is a word, with its apostrophes inside (don't);
- in scripts written without spaces between words (Han, Kana, Hangul, Thai ...) each character is a unit;
- a punctuation mark or symbol is a unit, so that a model stuck in "！！！！" is seen to repeat itself;
- white space, control characters and what Unicode calls ignorable (joiners, variation selectors ...) are never part of a unit;
- combining marks belong to the character before them; the text is brought to NFC, as one character may be spelt in two ways;
- letters keep their case, and full-width forms stay what they are: the texts are compared as they are written.
"""
import re
import unicodedata
from functools import cache

UNIT = "words; single characters in Han, Kana, Hangul and other scripts without spaces; punctuation marks; case kept"

# Blocks of such scripts with their punctuation: Thai to Myanmar, Jamo, Khmer, CJK to Yi, Jamo A, Hangul, CJK compatibility,
# half-width Kana and Jamo, Tangut to Nushu, planes 2 and 3.
UNSPACED = re.compile("[\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
                      "\uff66-\uffdc\U00016fe0-\U0001b2ff\U00020000-\U0003ffff]")
# Default_Ignorable_Code_Point (Unicode's DerivedCoreProperties.txt) outside of category Cf.
IGNORABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
ZERO_WIDTH_SPACE = "\u200b"  # of category Cf, but it divides words

KINDS = re.compile("w[wm]*(?:'w[wm]*)*|[om']m*")  # over the kinds of the characters: what makes one unit


def units(text: str) -> list[str]:
    """The units of a text in their order; none where nothing is visible (the text counts as empty)."""
    visible = unicodedata.normalize("NFC", "".join(char for char in text if _kind(char) != "ignored"))
    kinds = "".join(map(_kind, visible))
    return [visible[slice(*match.span())] for match in KINDS.finditer(kinds)]


@cache
def _kind(char: str) -> str:
    """w: part of a word; o: one unit alone; m: a mark on what is before it; ': an apostrophe; a space: a gap; or "ignored"."""
    category = unicodedata.category(char)
    if char == ZERO_WIDTH_SPACE or category[0] == "Z" or category in ("Cc", "Cs"):
        return " "
    if category == "Cf" or IGNORABLE.match(char):
        return "ignored"
    if char in "'’":
        return "'"
    if category[0] == "M":
        return "m"
    return "w" if category[0] in "LN" and not UNSPACED.match(char) else "o"
