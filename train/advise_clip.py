"""Where a run's gradient norms lie, to choose train.clip_norm by."""
import json
import math

import numpy as np

from parallel.errors import UserError
from train.config import RunConfig
from train.console import shown

PERCENTILES = (50, 75, 90, 95, 99, 99.9)
FEWEST = 50  # norms that percentiles are told from


def advise(config: RunConfig) -> str:
    """The percentiles of grad_norm after the warm-up, and what they mean for the threshold. Raises UserError."""
    path, norms, skipped = config.run.folder / "metrics.jsonl", [], 0
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): clipping is advised from a run that has trained") from None
    rows = [row for row in rows if row["step"] > config.train.warmup_steps]
    for row in rows:
        if row["overflow"] or row["grad_norm"] is None or not math.isfinite(row["grad_norm"]):
            skipped += 1
        else:
            norms.append(row["grad_norm"])
    if len(norms) < FEWEST:
        raise UserError(f"{path} has {len(norms)} gradient norms after the warm-up ({config.train.warmup_steps} steps); it takes "
                        f"{FEWEST}: train longer")
    limits = np.percentile(norms, PERCENTILES)
    lines = [f"gradient norm before clipping, steps {rows[0]['step']} to {rows[-1]['step']} of {shown(config.run.folder)} "
             f"({len(norms)} steps, {skipped} skipped):",
             *(f"  {f'p{p:g}':>6}  {limit:.4g}" for p, limit in zip(PERCENTILES, limits, strict=True)),
             f"  {'max':>6}  {max(norms):.4g}"]
    now, by = config.train.clip_norm, config.train.clip_by
    if now is not None and by != "global_norm":
        return "\n".join([*lines, f"These are norms of all gradients together; train.clip_by={by} limits others, of which a run "
                                  "keeps no figures"])
    if now is not None:
        lines.append(f"train.clip_norm={now:g} clips {np.mean(np.array(norms) > now):.1%} of the steps")
    else:
        lines.append("train.clip_norm=null: nothing is clipped")
    return "\n".join([*lines, f"To clip what is rare alone: train.clip_norm={limits[-2]:.2g} (p99). Near the median or below, "
                      "every gradient is scaled to one length, and Adam hardly notices"])
