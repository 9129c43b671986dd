"""Worker of test_sick_data.py: rank 1 reads its data slowly."""
import os
import sys
import time

from data.dataset import _Source
from train.__main__ import main

if os.environ["RANK_ID"] == "1":
    iterate = _Source.__iter__

    def planted(self):
        for element in iterate(self):
            time.sleep(0.4)
            yield element
    _Source.__iter__ = planted
sys.exit(main())
