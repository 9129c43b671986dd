"""Tokens to text while they come."""
from collections.abc import Callable

# What decoders write for bytes that are no UTF-8, one for each byte or for several.
REPLACEMENT = "\ufffd"
# A character of UTF-8 has at most 4 bytes, so 3 may wait for the last one.
LONGEST_CUT = 3


class Detokenizer:
    """Shows the text of tokens as they come, but never a part of a character, which the next tokens may complete.

    What it gives, joined, is decode(all tokens).

    Args:
        decode: the text of a list of token ids. More tokens may change no more than the last LONGEST_CUT characters of it, and
            those only where they are U+FFFD.
    """

    def __init__(self, decode: Callable[[list[int]], str]):
        self.decode, self.tokens, self.shown = decode, [], 0

    def push(self, token: int) -> str:
        """Take one more token; what can be shown now, perhaps nothing."""
        self.tokens.append(token)
        text = self.decode(self.tokens)
        cut = len(text) - len(text.rstrip(REPLACEMENT))
        return self._show(text[:len(text) - min(cut, LONGEST_CUT)])

    def finish(self) -> str:
        """The rest: bytes that no token completed, as U+FFFD."""
        return self._show(self.decode(self.tokens))

    def _show(self, text: str) -> str:
        new = text[self.shown:]
        self.shown = max(self.shown, len(text))
        return new
