"""Worker of test_nan_step.py: `python -m train`, whose last rank computes the fifth step with an infinite weight."""
import os
import sys

from tests.train.sick_ranks import planted
from train.__main__ import main
from train.clock import Clock

if int(os.environ["RANK_ID"]) == int(os.environ["RANK_SIZE"]) - 1:
    Clock.on_train_step_begin, Clock.on_train_step_end = planted(transient=(5,))
sys.exit(main())
