"""The advice keeps its rules, and says why."""
from dataclasses import replace

import pytest

from parallel.config import TopologyConfig
from parallel.cost.advice import TIE, advise
from parallel.cost.estimate import best_fusion
from parallel.cost.memory import budget, memory
from parallel.cost.sizes import Sizes
from parallel.errors import UserError

GPT2 = Sizes(768, 12, 12, 3072, 50304, 1024, 1024)
GPT13B = Sizes(5120, 40, 40, 20480, 50304, 2048, 2048)
TOPOLOGY = TopologyConfig()


@pytest.fixture(scope="module")
def thirteen():
    return advise(GPT13B, 64, 256, TOPOLOGY, activation_bytes=2)


def test_a_model_that_fits_one_device_is_data_parallel():
    best = advise(GPT2, 8, 64, TOPOLOGY)[0].plan
    assert (best.mesh.dp, best.mesh.tp, best.mesh.pp) == (8, 1, 1)
    assert best.recompute == "none" and not best.optimizer_sharding


def test_every_plan_keeps_the_rules(thirteen):
    assert len(thirteen) > 20
    for c in thirteen:
        mesh = c.plan.mesh
        assert mesh.world_size == 64 and 8 % mesh.tp == 0 and GPT13B.heads % mesh.tp == 0
        assert mesh.dp * c.plan.micro_batch_size * c.plan.num_micro_batches == 256 and c.plan.num_micro_batches >= mesh.pp
        assert sum(c.plan.stage_layers) == 40 and len(c.plan.stage_layers) == mesh.pp
        assert c.memory_bytes == max(m.total for m in memory(GPT13B, c.plan)) <= budget(TOPOLOGY)


def test_order_is_by_speed_then_by_simplicity(thirteen):
    rates = [c.estimate.tokens_per_second for c in thirteen]
    assert rates[0] >= max(rates) * (1 - TIE)
    assert all(later <= earlier / (1 - TIE) for i, earlier in enumerate(rates) for later in rates[i:])
    equal = [c.plan.mesh.pp for c in thirteen if c.estimate.tokens_per_second >= max(rates) * (1 - TIE)]
    assert thirteen[0].plan.mesh.pp == min(equal)


def test_the_best_says_why(thirteen):
    best, *rest = thirteen
    mesh, why = best.plan.mesh, "\n".join(best.why)
    assert mesh.tp * mesh.pp > 1, "13B in 64 GB: 16 bytes a parameter alone are over 200 GB"
    assert ("without tensor parallelism: " in why) == (mesh.tp > 1) and ("without pipeline: " in why) == (mesh.pp > 1)
    assert f"micro-batch {2 * best.plan.micro_batch_size}: " in why
    assert not any(c.why for c in rest)


def test_why_names_what_does_not_fit():
    best = advise(GPT13B, 16, 32, TOPOLOGY)[0]
    assert best.plan.recompute != "none" or best.plan.mesh.sequence_parallel or best.plan.optimizer_sharding
    assert any("does not fit, at least" in line and f"of {budget(TOPOLOGY) / 1e9:.1f} GB" in line for line in best.why)


def test_small_memory_is_refused_with_the_least_that_is_needed():
    with pytest.raises(UserError, match=r"8 devices have 7\.2 GB each to use, the least .* is \d+\.\d GB \(dp .*recompute full"):
        advise(GPT13B, 8, 8, TopologyConfig(device_memory_gb=8))


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(UserError, match="no plan for 13 devices.*train.global_batch_size=16"):
        advise(GPT2, 13, 16, TOPOLOGY)


def test_slow_links_between_nodes_keep_tensor_parallelism_inside():
    two = TopologyConfig(ranks_per_node=2, network_bandwidth_gbs=1)
    assert all(c.plan.mesh.tp <= 2 for c in advise(GPT2, 8, 64, two))


def test_adafactor_keeps_matrices_whole_and_needs_less():
    plans = advise(GPT2, 8, 64, TOPOLOGY, optimizer="adafactor")
    assert all(c.plan.mesh.tp == 1 and not c.plan.optimizer_sharding for c in plans)
    alike = {(c.plan.mesh, c.plan.micro_batch_size, c.plan.recompute): c.memory_bytes
             for c in advise(GPT2, 8, 64, TOPOLOGY) if not c.plan.optimizer_sharding}
    assert all(c.memory_bytes < alike[c.plan.mesh, c.plan.micro_batch_size, c.plan.recompute] for c in plans
               if (c.plan.mesh, c.plan.micro_batch_size, c.plan.recompute) in alike)


def test_plans_are_ranked_by_the_parcels_that_they_would_have():
    """At 256 cards 82 parcels of 32 MB pay latency enough to make another plan look better."""
    sizes = Sizes(2048, 24, 16, 8192, 50304, 2048, 2048, flash=True)
    best = advise(sizes, 256, 512, TOPOLOGY, activation_bytes=2)
    assert all(c.plan.fusion_mb == best_fusion(sizes, c.plan, TOPOLOGY) for c in best[::50])
    fixed = advise(sizes, 256, 512, TOPOLOGY, 32, activation_bytes=2)
    assert all(c.plan.fusion_mb == 32 for c in fixed) and len(fixed) == len(best)
    assert best[0].estimate.tokens_per_second > 1.2 * fixed[0].estimate.tokens_per_second
    assert best[0].plan.mesh.dp == 256 and fixed[0].plan.mesh.dp == 64


def test_the_fused_kernel_leaves_nothing_to_selective_recompute():
    assert {c.plan.recompute for c in advise(replace(GPT2, flash=True), 8, 64, TOPOLOGY)} == {"none", "full"}
