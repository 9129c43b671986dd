"""python -m train --config C --list-casts: the number format that each cell computes in, and why."""
from mindspore.nn.utils import no_init_parameters

from parallel.mesh import Mesh
from train.build import build_gpt, casts_of
from train.config import RunConfig
from train.plans import resolved


def table(config: RunConfig) -> str:
    """A line for each cell that computes, in the order of the model. Raises UserError for a pattern that fits none."""
    with no_init_parameters():  # of a large model their values would not fit here
        casts = casts_of(build_gpt(resolved(config), Mesh(1)))
    widths = [max(len(getattr(cast, key)) for cast in casts) for key in ("name", "kind", "dtype")]
    lines = [f"{c.name:{widths[0]}}  {c.kind:{widths[1]}}  {c.dtype:{widths[2]}}  {c.reason}" for c in casts]
    return "\n".join([*lines, "parameters, gradients, their norm and the optimizer: float32"])
