"""python -m eval: see train/evaluate.py."""
import sys

from train.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
