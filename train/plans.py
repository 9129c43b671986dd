"""The plan of a config: what preflight, the rehearsal and the training step itself reckon with. No MindSpore here."""
import math
from dataclasses import replace

from model.config import fuses_attention
from parallel.cost.plan import make_plan
from parallel.cost.sizes import Plan, Sizes, model_sizes
from parallel.errors import UserError
from parallel.mesh import Mesh, make_mesh, micro_batches
from parallel.rules import check
from train.config import RunConfig


def sizes_of(config: RunConfig, tp: int) -> Sizes:
    """The model's sizes under tp; model.vocab_size is a number."""
    m = config.model
    multiple = math.lcm(m.vocab_multiple, tp)
    sizes = model_sizes(m.model_dump(), -(-m.vocab_size // multiple) * multiple, config.data.seq_length)
    return replace(sizes, flash=fuses_attention(m, config.precision))


def activation_bytes(config: RunConfig) -> int:
    """Of one element of the residual stream, which at O1 stays float32."""
    return 2 if config.precision.level in ("O2", "O3") else 4


def given(config: RunConfig) -> dict:
    """What a Plan says besides section `parallel` and the batch: number formats, and the optimizer."""
    return {"activation_bytes": activation_bytes(config), "product_bytes": 4 if config.precision.level == "O0" else 2,
            "optimizer": config.train.optimizer, "clips_each": config.train.clips_each}


def plan_of(config: RunConfig, mesh: Mesh, num_micro_batches: int) -> tuple[Sizes, Plan]:
    """Sizes and plan. Raises UserError where the model cannot be cut as the plan says."""
    sizes = sizes_of(config, mesh.tp)
    samples = config.train.global_batch_size // mesh.dp // num_micro_batches
    plan = make_plan(sizes, config.parallel, mesh, samples, num_micro_batches, **given(config))
    check(sizes, plan)
    return sizes, plan


def planned(config: RunConfig, world_size: int | None) -> tuple[RunConfig, Mesh, int]:
    """Config with model.vocab_size resolved, mesh and number of micro-batches of a job that is not started here, all checked.

    Args:
        world_size: needed where parallel.dp is auto, else it follows.

    Raises UserError where the plan cannot be.
    """
    p = config.parallel
    if p.dp == "auto" and world_size is None:
        raise UserError("parallel.dp=auto: say how many ranks the job has, --world-size N (a multiple of tp * pp = "
                        f"{p.tp * p.pp})")
    mesh = make_mesh(p, world_size or p.dp * p.tp * p.pp, 0)
    config = resolved(config)
    count = micro_batches(p, config.train.global_batch_size, config.train.micro_batch_size, mesh.dp)
    plan_of(config, mesh, count)
    if config.eval.stage.enabled and p.virtual_stages > 1:
        raise UserError(f"parallel.virtual_stages={p.virtual_stages}: MindSpore compiles no evaluation of them; set "
                        "eval.stage.enabled=false, or virtual_stages to 1")
    return config, mesh, count


def kinds(config: RunConfig) -> list[str]:
    """The graphs that a run of this config compiles."""
    return ["train", "eval"] if config.eval.stage.enabled else ["train"]


def resolved(config: RunConfig) -> RunConfig:
    """The config with model.vocab_size as a number: of pieces that the tokenizer will be trained to."""
    if config.model.vocab_size != "auto":
        return config
    model = config.model.model_copy(update={"vocab_size": config.data.tokenizer.vocab_size})
    return config.model_copy(update={"model": model})
