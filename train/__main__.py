"""python -m train --config C [--set key=value ...] [--print-config | --list-casts | --advise-clip]: train as one rank here.

--help tells of every key of a config file, --json-schema tells it to editors.
"""
import argparse
import errno
import os
import signal
import sys

from ckpt.writing import SaveError
from parallel import config_file
from parallel.config_docs import describe, json_schema
from parallel.errors import UserError
from train import rank_log
from train.advise_clip import advise
from train.checks import plan, refuse_to_replace_data
from train.config import RunConfig, load_config
from train.workers import ROLLED_BACK

# A disk that is full or broken, a folder that became read-only or went away: no fault of the program, so no traceback.
REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENOTCONN}


class PrintSchema(argparse.Action):
    """As --help does: print, and end."""

    def __call__(self, parser, *_):
        print(json_schema(RunConfig), end="")
        parser.exit()


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 failed, 2 wrong input, 3 a health rule, 4 interrupted and saved, 5 to be rolled back."""
    parser = argparse.ArgumentParser(prog="python -m train", description="Train in this process, as one rank.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=f"keys of a config file, and of --set:\n\n{describe(RunConfig)}")
    config_file.add_arguments(parser)
    parser.add_argument("--print-config", action="store_true", help="show the whole config with all defaults, and end")
    parser.add_argument("--advise-clip", action="store_true", help="show where this run's gradient norms lie, and end")
    parser.add_argument("--list-casts", action="store_true", help="show the number format of each cell and why, and end")
    parser.add_argument("--json-schema", action=PrintSchema, nargs=0, help="print the JSON schema of config files, and end")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config, options.overrides)
        if options.print_config:
            print(config_file.dump(config), end="")
            return 0
        if options.advise_clip:
            print(advise(config))
            return 0
        if options.list_casts:
            from train.list_casts import table
            print(table(config))
            return 0
        if "RANK_SIZE" not in os.environ:  # train.launch has done it for its workers
            plan(config, 1, 0)
            refuse_to_replace_data(config)
        # Late, so that a refusal does not wait seconds for MindSpore to load.
        from data.prepare import prepare
        from parallel.context import is_distributed
        from train.run import run
        from train.triggers import Halted, RolledBack
        if is_distributed():
            rank_log.watch()
        else:  # several ranks find it done: train.launch does it before it starts them
            prepare(config.data)
        try:
            return 0 if run(config) else 4
        except Halted as reason:
            print(f"stopped: {reason}", file=sys.stderr)
            return 3
        except RolledBack as reason:
            print(f"rolled back: {reason}", file=sys.stderr)
            return ROLLED_BACK
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except SaveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        print(f"error: the system refuses to go on with {config.run.folder}: {error}. Checkpoints are as they were",
              file=sys.stderr)
        return 1


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until there is something to save
    code = main()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that comes late, as another node's may, must not take the code's place
    sys.exit(code)
