"""From a config's section `parallel` to a Plan."""
from dataclasses import replace

from parallel.config import ParallelConfig
from parallel.cost.balance import stage_layers
from parallel.cost.estimate import best_fusion
from parallel.cost.sizes import Plan, Sizes
from parallel.errors import UserError
from parallel.mesh import Mesh


def make_plan(sizes: Sizes, config: ParallelConfig, mesh: Mesh, micro_batch_size: int, num_micro_batches: int,
              **given) -> Plan:
    """The plan that a config describes, with `auto` resolved. Raises UserError where its blocks do not fit the model's.

    Args:
        given: fields of Plan that no section `parallel` has: number formats, the optimizer.
    """
    layers = stage_layers(sizes, config.pp, config.virtual_stages) if config.stage_layers == "auto" else config.stage_layers
    parts = config.pp * config.virtual_stages
    if len(layers) != parts or sum(layers) != sizes.layers:
        raise UserError(f"parallel.stage_layers={list(layers)} must be pp * virtual_stages = {parts} numbers that add up to "
                        f"model.num_layers={sizes.layers}: correct it or set auto")
    recomputed = None if config.recompute_layers == "all" else frozenset(config.recompute_layers)
    if recomputed and max(recomputed) >= sizes.layers:
        raise UserError(f"parallel.recompute_layers: block {max(recomputed)} does not exist, model.num_layers={sizes.layers} "
                        f"has 0 to {sizes.layers - 1}")
    plan = Plan(mesh, micro_batch_size, num_micro_batches, layers, config.virtual_stages, config.recompute, recomputed,
                config.optimizer_sharding, config.optimizer_sharding_threshold_kb, **given)
    return replace(plan, fusion_mb=best_fusion(sizes, plan, config.topology) if config.fusion_mb == "auto" else config.fusion_mb)
