"""The tokenizer: a sentencepiece BPE with byte fallback that gives back every text exactly.

Normalisation is the identity: no blank is added or removed, full-width forms stay, and what has no piece is spelt in bytes, as
line breaks are. So a line break is always a token of its own, and text may be cut there without changing its tokens.
The ids of the special tokens are fixed: pad 0, bos 1, eos 2, unk 3 (never produced, thanks to the bytes).
"""
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import sentencepiece

from data.config import TokenizerConfig
from parallel.errors import UserError

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
SPECIAL_TOKENS = {"pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID}
# Sentencepiece writes a blank as this character, and so takes a real one for a blank.
BLANK = "\u2581"
# Sentencepiece uses this character for its own ends in training, and leaves out each line that holds it.
RESERVED = "\u2585"
# Longer lines are cut before training; sentencepiece would leave them out.
MAX_TRAINING_LINE = 4096
# A larger corpus is sampled evenly down to this for training, which bounds memory and time.
TRAINING_BYTES = 128 << 20


class Tokenizer:
    """Text to ids and back. Ids are in [0, vocab_size)."""

    def __init__(self, model: bytes):
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._blank_ids = np.array([self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in BLANK.encode()], np.int32)
        self.vocab_size: int = self._processor.get_piece_size()
        self.sha256: str = hashlib.sha256(model).hexdigest()

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a sentencepiece model.

        Raises:
            UserError: there is no such file, or it is no sentencepiece model.
        """
        try:
            return cls(path.read_bytes())
        except (OSError, RuntimeError) as error:
            raise UserError(f"tokenizer {path}: not a readable sentencepiece model ({error})") from error

    def encode(self, text: str) -> list[int]:
        """The ids of a text; no special token is added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """The ids of several texts, by sentencepiece's own threads."""
        return [ids.tolist() for ids in self.encode_arrays(texts, num_threads)]

    def encode_arrays(self, texts: Sequence[str], num_threads: int = 1) -> list[np.ndarray]:
        """The same as int32 [ids of this text] each, without a Python object for an id and, while it works, without the GIL."""
        encoded = self._processor.encode(list(texts), return_type="numpy", num_threads=num_threads)
        for i, text in enumerate(texts):
            if BLANK in text:
                encoded[i] = self._encode_around_blank_signs(text)
        return encoded

    def _encode_around_blank_signs(self, text: str) -> np.ndarray:
        first, *parts = self._processor.encode(text.split(BLANK), return_type="numpy")
        return np.concatenate([first, *(ids for part in parts for ids in (self._blank_ids, part))])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; pad, bos and eos give no text, bytes that are no UTF-8 give U+FFFD."""
        return self._processor.decode([int(i) for i in ids])

    def piece(self, token: int) -> str:
        """The piece of one id as sentencepiece writes it, e.g. for showing where a text is cut."""
        return self._processor.id_to_piece(int(token))

    def is_control(self, token: int) -> bool:
        """Whether an id is a special token, which gives no text."""
        return self._processor.is_control(int(token))

    def byte_lengths(self) -> np.ndarray:
        """Bytes of text that each id stands for, 0 for special tokens: int64 [vocab_size]."""
        processor = self._processor
        return np.array([1 if processor.is_byte(i) else 0 if processor.is_control(i) or processor.is_unknown(i)
                         else len(processor.id_to_piece(i).replace(BLANK, " ").encode()) for i in range(self.vocab_size)])

    def lossy_share(self, samples: Sequence[str]) -> float:
        """Share of sample texts that encoding and decoding changes; cutting at line breaks must not matter either."""
        if not samples:
            return 0.0
        whole = self.encode_batch([f"{text}\n{text}" for text in samples])
        cut = self.encode_batch([part for text in samples for part in (f"{text}\n", text)])
        lossy = sum(self.decode(ids) != f"{text}\n{text}" or ids != cut[2 * i] + cut[2 * i + 1]
                    for i, (text, ids) in enumerate(zip(samples, whole, strict=True)))
        return lossy / len(samples)

    def check_given(self, path: Path) -> None:
        """Refuse a model of the user's that cannot stand in for ours.

        Raises:
            UserError: the special tokens have other ids, or there is no byte fallback.
        """
        processor = self._processor
        found = {"pad": processor.pad_id(), "bos": processor.bos_id(), "eos": processor.eos_id()}
        if found["pad"] < 0 and processor.unk_id() == PAD_ID:
            found["pad"] = PAD_ID  # with byte fallback unk is never produced, so it may serve as padding
        if found != SPECIAL_TOKENS:
            raise UserError(f"data.tokenizer.model {path}: special tokens have the ids {found}, needed are "
                            f"{SPECIAL_TOKENS}; train it with pad_id=0, bos_id=1, eos_id=2, unk_id=3")
        if not all(processor.is_byte(int(id_)) for id_ in self._blank_ids):
            raise UserError(f"data.tokenizer.model {path}: it has no byte fallback, so it cannot spell every text; "
                            "train it with byte_fallback=true")


def train(texts: Iterable[str], total_bytes: int, config: TokenizerConfig) -> bytes:
    """Train a tokenizer; equal texts give an equal model (so the number of threads, which the model records, is left alone).

    Args:
        texts: pieces of the training text, cut anywhere, best at line ends.
        total_bytes: about how much text that is; more than TRAINING_BYTES is sampled.

    Returns:
        the bytes of a sentencepiece model.

    Raises:
        UserError: vocab_size is larger or smaller than this text allows.
    """
    model = io.BytesIO()
    reading_errors: list[Exception] = []

    def lines() -> Iterator[str]:
        try:
            yield from training_lines(texts, min(1.0, TRAINING_BYTES / max(total_bytes, 1)))
        except Exception as error:
            reading_errors.append(error)  # sentencepiece would pass on no more than its text
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(), model_writer=model,
            model_type="bpe", vocab_size=config.vocab_size, character_coverage=config.character_coverage,
            byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False,
            split_digits=True, allow_whitespace_only_pieces=True, max_sentence_length=2 * MAX_TRAINING_LINE,
            pad_id=PAD_ID, bos_id=BOS_ID, eos_id=EOS_ID, unk_id=UNK_ID, minloglevel=2)
    except RuntimeError as error:
        if reading_errors:
            raise reading_errors[0] from None
        raise _vocabulary_error(str(error), config) or error from error
    return model.getvalue()


def training_lines(texts: Iterable[str], share: float = 1.0) -> Iterator[str]:
    """Lines of at most MAX_TRAINING_LINE bytes, none left out but by sampling.

    A long line is cut at a blank, where merges stop anyway, or else between characters; a line is also cut at RESERVED.

    Args:
        share: which part of the lines to take; spread evenly, the same in every run.
    """
    number = taken = 0
    for text in texts:
        for line in text.replace(RESERVED, "\n").split("\n"):
            if not line or line.isspace():
                continue
            for part in (line,) if len(line) * 4 <= MAX_TRAINING_LINE else _cut_line(line):
                number += 1
                if share >= 1.0:
                    yield part
                elif int(number * share) > taken:
                    taken += 1
                    yield part


def _cut_line(line: str) -> Iterator[str]:
    if len(line.encode()) <= MAX_TRAINING_LINE:
        yield line
        return
    while line:
        sizes = accumulate(len(char.encode()) for char in line[:MAX_TRAINING_LINE])
        end = sum(1 for size in sizes if size <= MAX_TRAINING_LINE)
        if end < len(line) and (blank := line.rfind(" ", 1, end)) > 0:
            end = blank
        yield line[:end]
        line = line[end:]


def _vocabulary_error(message: str, config: TokenizerConfig) -> UserError | None:
    wanted = f"data.tokenizer.vocab_size={config.vocab_size}"
    if found := re.search(r"Vocabulary size too high .*<= (\d+)", message):
        return UserError(f"{wanted} is too large for this text: it has enough repetition for {found[1]} pieces at most; "
                         f"set vocab_size to {found[1]} or less, or give more text")
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        lower = "" if config.character_coverage <= 0.98 else " or lower data.tokenizer.character_coverage (least: 0.98; " \
            "the rarer characters are then spelt in bytes)"
        return UserError(f"{wanted} is too small for this text: its characters need {found[1]} pieces at "
                         f"character_coverage={config.character_coverage:g}; set vocab_size to {found[1]} or more{lower}")
    if "sentences_.empty()" in message:
        return UserError("data.path: the text holds nothing to train a tokenizer on; give more text, or data.tokenizer.model")
    return None
