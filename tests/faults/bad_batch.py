"""Worker of test_roll_back_ranks.py: of the batch at the positions 100 to 103 rank 1's half is one and the same token."""
import sys

import numpy as np

from data.dataset import _Source
from train.__main__ import main

iterate = _Source.__iter__


def planted(self):
    for tokens, *positions in iterate(self):
        bad = [(p >= 102) & (p < 104) for p in positions]
        yield np.where(bad[0][:, None], np.int32(7), tokens) if bad else tokens, *positions


_Source.__iter__ = planted
sys.exit(main())
