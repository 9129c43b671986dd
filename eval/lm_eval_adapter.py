"""python -m eval.lm_eval_adapter: tasks of lm-evaluation-harness on a checkpoint's model; see train/harness.py."""
import sys
from importlib.util import find_spec

if __name__ == "__main__":
    if find_spec("lm_eval") is None:
        print("error: lm-evaluation-harness is not installed: pip install -e '.[harness]'", file=sys.stderr)
        sys.exit(2)
    from train import harness

    sys.exit(harness.main())
