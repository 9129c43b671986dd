"""Samples as text, for the eye: what a model is really fed."""
import numpy as np

from data.config import DataConfig
from data.manifest import Manifest
from data.prepare import load_tokenizer
from data.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer
from parallel.errors import UserError

SIGNS = {PAD_ID: "<pad>", BOS_ID: "<bos>", EOS_ID: "<eos>"}


def show_samples(manifest: Manifest, config: DataConfig, set_name: str, start: int, count: int, pieces: bool) -> None:
    """Print samples of a set: their number, how many tokens are real, and the text with special tokens made visible.

    Args:
        set_name: "train" or "valid_<corpus>".
        start: the first sample's number, not shuffled.
        pieces: also mark where the text is cut into tokens.

    Raises:
        UserError: no such set, or no such sample.
    """
    from mindspore.dataset import MindDataset, SubsetSampler  # slow to import; mistakes of the user should not wait for it

    if set_name not in manifest.sets:
        raise UserError(f"--set-name {set_name}: there are {', '.join(manifest.sets)}")
    entry = manifest.sets[set_name]
    if not 0 <= start < entry.samples:
        raise UserError(f"--start {start}: {set_name} has {entry.samples} samples, numbered from 0")
    numbers = list(range(start, min(start + count, entry.samples)))
    reader = MindDataset(entry.record_files(config.prepared_dir), columns_list=["sample_id", "tokens"],
                         sampler=SubsetSampler(numbers), num_parallel_workers=1)
    tokenizer = load_tokenizer(config)
    for number, tokens in reader.create_tuple_iterator(num_epochs=1, output_numpy=True):
        real = np.count_nonzero(tokens != PAD_ID)
        print(f"--- {set_name} sample {number} of {entry.samples}: {real} of {len(tokens)} tokens real")
        print(as_text(tokens, tokenizer, pieces))


def as_text(tokens: np.ndarray, tokenizer: Tokenizer, pieces: bool = False) -> str:
    """The text of int [n] tokens, special tokens shown as <eos>, a run of n pads as <pad>*n, cuts between tokens as |."""
    parts, text = [], []
    for token in [*(int(t) for t in tokens), None]:
        if token is not None and token not in SIGNS:
            text.append(token)
            continue
        if text:
            parts.append("|".join(map(tokenizer.piece, text)) if pieces else tokenizer.decode(text))
            text = []
        if token is not None:
            parts.append(SIGNS[token])
    padding = sum(1 for part in parts if part == SIGNS[PAD_ID])
    if padding > 1:
        parts[-padding:] = [f"{SIGNS[PAD_ID]}*{padding}"]
    return "".join(parts)
