"""Mixed precision: which cell computes in half, by level, by type and by name.

A cell is given its number format by `Cell.to_float`: MindSpore then casts what goes into the cell, parameters among it, and the
weights and gradients stay float32. That is what `mindspore.amp.auto_mixed_precision` does at O2 and O3; it is done here cell by
cell, since amp's lists know no names, its O2 puts wrappers without a `shard` around cells, and its O1 replaces every cell by one
of generated source.
"""
from collections.abc import Iterator
from dataclasses import dataclass

import mindspore as ms
from mindspore import nn

from model.config import PrecisionConfig, matches
from parallel.errors import UserError

# Cells that compute. The others are made of these, and of operators that take what they are given.
PRODUCTS = ("Linear", "Scores", "Weigh", "FlashAttention", "Head")
# A sum over a row, or an exponential, leaves half precision's digits or its range.
KEPT = ("LayerNorm", "RMSNorm", "MaskedSoftmax")
LOSS = ("TokenLoss",)
OTHERS = ("Embedding", "TokenEmbedding", "Gelu", "Gate", "Rotary", "Repeat", "Dropout", "Residual")
TYPES = (*PRODUCTS, *KEPT, *LOSS, *OTHERS)
REASONS = {"O1": "O1: only matrix products in half", "O2": "O2: all but norms, softmax and loss in half",
           "O3": "O3: all but the loss in half"}


@dataclass(frozen=True)
class Cast:
    """One cell's number format, and why."""

    name: str
    kind: str
    dtype: str
    reason: str


class Precision:
    """The rules of the section `precision`.

    A pattern of a list names a type of TYPES, or is a glob on a cell's name; a name stands for all that is inside the cell. The
    black list goes before the white list, and both before the level.
    """

    def __init__(self, config: PrecisionConfig | None = None):
        self.config = config or PrecisionConfig()

    @property
    def in_half(self) -> bool:
        """Whether anything may be computed in half precision."""
        return self.config.level != "O0"

    def apply(self, network: nn.Cell, prefix: str = "") -> list[Cast]:
        """Give every cell of `network` its number format; O0 leaves them alone."""
        casts = []
        for name, cell in computing(network, prefix):
            cast = self.of(name, type(cell).__name__)
            if self.in_half:
                cell.to_float(getattr(ms, cast.dtype))
            casts.append(cast)
        return casts

    def of(self, name: str, kind: str) -> Cast:
        """The format of one cell."""
        c = self.config
        if not self.in_half:
            return Cast(name, kind, "float32", "O0: float32 everywhere")
        for key, dtype in (("black_list", "float32"), ("white_list", c.dtype)):
            found = [pattern for pattern in getattr(c, key) if matches(pattern, name, kind)]
            if found:
                return Cast(name, kind, dtype, f"{key}: {found[0]}")
        kept = LOSS if c.level == "O3" else (*LOSS, *KEPT)
        half = kind in PRODUCTS if c.level == "O1" else kind not in kept
        return Cast(name, kind, c.dtype if half else "float32", REASONS[c.level])

    def check(self, casts: list[Cast]) -> None:
        """Raise UserError for a pattern that fits no cell."""
        for key in ("black_list", "white_list"):
            for pattern in getattr(self.config, key):
                if not any(matches(pattern, cast.name, cast.kind) for cast in casts):
                    raise UserError(f"precision.{key}: {pattern} is no type and fits no name of a cell: types are "
                                    f"{', '.join(TYPES)}; names are shown by python -m train --list-casts")


def computing(network: nn.Cell, prefix: str = "") -> Iterator[tuple[str, nn.Cell]]:
    """The cells that are given a number format, with their names, in the order in which they were made."""
    for name, cell in network.name_cells().items():
        if type(cell).__name__ in TYPES:
            yield prefix + name, cell
        else:
            yield from computing(cell, f"{prefix}{name}.")
