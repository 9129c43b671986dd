"""What has to divide before a model can be cut as a plan says. Checked before anything starts."""
import math

from parallel.cost.sizes import Plan, Sizes
from parallel.errors import UserError


def check(sizes: Sizes, plan: Plan) -> None:
    """Raise UserError, with the values that are allowed, where sizes and plan do not fit."""
    mesh = plan.mesh
    kv_heads = sizes.kv_heads or sizes.heads
    for key, size in (("num_heads", sizes.heads), ("num_kv_heads", kv_heads), ("ffn_hidden_size", sizes.ffn)):
        if size % mesh.tp:
            raise UserError(f"parallel.tp={mesh.tp} does not divide model.{key}={size}: allowed are {_common(sizes)}")
    parts = mesh.pp * plan.virtual_stages
    if parts > sizes.layers:
        raise UserError(f"parallel.pp={mesh.pp} x virtual_stages={plan.virtual_stages} = {parts} stages need a layer each, but "
                        f"model.num_layers={sizes.layers}: lower pp or virtual_stages")
    if plan.virtual_stages > 1 and mesh.pp == 1:
        raise UserError(f"parallel.virtual_stages={plan.virtual_stages} interleaves pipeline stages, but parallel.pp=1: set it "
                        "to 1")
    if plan.num_micro_batches < mesh.pp:
        raise UserError(f"parallel.num_micro_batches={plan.num_micro_batches} is less than parallel.pp={mesh.pp}, so that stages "
                        f"would never all work: make train.global_batch_size / (dp * micro_batch_size) at least {mesh.pp}")
    if plan.virtual_stages > 1 and plan.num_micro_batches % mesh.pp:
        raise UserError(f"parallel.num_micro_batches={plan.num_micro_batches} must be a multiple of parallel.pp={mesh.pp} where "
                        f"virtual_stages={plan.virtual_stages}")
    if not compiles(plan):
        raise UserError(f"parallel.optimizer_sharding in half precision with {plan.num_micro_batches} micro-batches and no "
                        "pipeline: MindSpore 2.10 does not compile it; set train.micro_batch_size to the "
                        f"{plan.micro_batch_size * plan.num_micro_batches} samples of a rank, precision.level=O0, or "
                        "parallel.optimizer_sharding=false")
    if mesh.sequence_parallel and plan.rows(sizes) % mesh.tp:
        raise UserError(f"parallel.sequence_parallel: parallel.tp={mesh.tp} does not divide the {plan.rows(sizes)} tokens of a "
                        f"micro-batch ({plan.micro_batch_size} x data.seq_length={sizes.seq})")


def compiles(plan: Plan) -> bool:
    """Whether MindSpore 2.10 compiles it: behind a cast to half that all micro-batches share it does not know whose gather it is
    ("Cannot find micro info"). A pipeline's micro-batches have casts of their own.
    """
    mesh = plan.mesh
    split = plan.optimizer_sharding and mesh.dp * mesh.tp > 1
    return not (split and plan.linear_bytes < 4 and mesh.pp == 1 and plan.num_micro_batches > 1)


def _common(sizes: Sizes) -> str:
    common = math.gcd(sizes.heads, sizes.kv_heads or sizes.heads, sizes.ffn)
    return ", ".join(str(d) for d in range(1, common + 1) if common % d == 0)
