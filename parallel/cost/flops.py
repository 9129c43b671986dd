"""Floating-point operations of matrix products; a multiply-add is two. All the rest is taken into the efficiency."""
from parallel.cost.sizes import Plan, Sizes


def block_flops(sizes: Sizes) -> int:
    """Forward pass of one block, per token: 4 h^2 for query and output, 4 h kv for key and value (together 8 h^2 where these are
    as wide); 4 h f for the MLP, 6 h f where it is gated; 4 s h for attention.

    The whole square of scores counts, not the causal half, which the fused kernel makes do with. As Narayanan et al.,
    arXiv:2104.04473, appendix.
    """
    h = sizes.hidden
    return 4 * h * (h + sizes.kv_hidden) + (6 if sizes.gated else 4) * h * sizes.ffn + 4 * sizes.seq * h


def head_flops(sizes: Sizes) -> int:
    """Forward pass of the head, per token."""
    return 2 * sizes.hidden * sizes.vocab


def model_flops(sizes: Sizes) -> int:
    """Forward and backward (twice the forward) of the whole model, per token, without recomputing: what MFU counts."""
    return 3 * (sizes.layers * block_flops(sizes) + head_flops(sizes))


def recompute_flops(sizes: Sizes, recompute: str, tp: int) -> int:
    """What the backward pass of one block computes again, per token: those products whose results are not kept (see memory.py).

    Selective: queries by keys. Full: also the MLP's but its last, and the attention's output where tp = 1 (else the sum is
    kept). Of the fused kernel, whose backward pass does what selective asks for: nothing, or both of its products.
    """
    scores, up, output = 2 * sizes.seq * sizes.hidden, 2 * sizes.hidden * sizes.ffn * (1 + sizes.gated), 2 * sizes.hidden**2
    return {"none": 0, "selective": scores * (not sizes.flash),
            "full": scores * (1 + sizes.flash) + up + output * (tp == 1)}[recompute]


def stage_flops(sizes: Sizes, plan: Plan, stage: int) -> tuple[int, int]:
    """(forward, backward with recomputing) of one micro-batch on one rank of a stage."""
    forward = plan.num_blocks(stage) * block_flops(sizes) + head_flops(sizes) * (stage == plan.mesh.pp - 1)
    again = sum(n * recompute_flops(sizes, recompute, plan.mesh.tp) for recompute, n in plan.recompute_of(stage).items())
    rows = plan.rows(sizes)
    return rows * forward // plan.mesh.tp, rows * (2 * forward + again) // plan.mesh.tp
