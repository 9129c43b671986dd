"""python -m model.generate --checkpoint D: see train/generate.py, which knows checkpoints and tokenizers; this room does not."""
import sys

from train.generate import main

if __name__ == "__main__":
    sys.exit(main())
