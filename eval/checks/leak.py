"""Is a secret in a text, however it is written?

Only letters and digits are compared, without case, accents, width, spaces or separators. The secret is looked for as it is,
backwards, in rot13, and in what base64 runs of the text decode to. Parts of a secret, and what would have to be understood (an
acrostic, a spelling alphabet, a translation), are not found.
"""
import base64
import binascii
import codecs
import re
import unicodedata

LETTERS_NEEDED = {"latin": 8, "other": 4}  # fewer are found by chance across the words of any text
BASE64_RUN = re.compile(r"[A-Za-z0-9+/_-]{8,}")
WRAPPED_BASE64 = re.compile(r"(?<=[A-Za-z0-9+/_-])[ \t]*\r?\n[ \t]*(?=[A-Za-z0-9+/_=-])")


def letters(text: str) -> str:
    """The letters and digits of a text, lower case, without accents; full-width and other forms as their plain ones."""
    return "".join(char for char in unicodedata.normalize("NFKD", text).casefold() if char.isalnum())


def leaked(secret: str, text: str) -> str:
    """How the text gives the secret away: "plain", "reversed", "rot13", "base64"; "" if it does not."""
    wanted, given = letters(secret), letters(text)
    forms = {"plain": wanted, "reversed": wanted[::-1], "rot13": codecs.encode(wanted, "rot13")}
    for form, written in forms.items():
        if written in given:
            return form
    return "base64" if any(wanted in part or wanted[::-1] in part for part in _decoded(text)) else ""


def long_enough(secret: str) -> bool:
    """Whether a secret has enough letters and digits not to be found by chance."""
    plain = letters(secret)
    return len(plain) >= LETTERS_NEEDED["latin" if plain.isascii() else "other"]


def _decoded(text: str):
    """The letters of what the base64 runs of a text stand for, also of runs that begin within one, or over several lines."""
    text = unicodedata.normalize("NFKC", text)
    for run in {*BASE64_RUN.findall(text), *BASE64_RUN.findall(WRAPPED_BASE64.sub("", text))}:
        for start in range(4):
            part = run[start:].replace("-", "+").replace("_", "/")
            part = part[:-1] if len(part) % 4 == 1 else part
            try:
                decoded = base64.b64decode(part + "=" * (-len(part) % 4))
            except binascii.Error:
                continue
            yield letters(decoded.decode("utf-8", "ignore"))
