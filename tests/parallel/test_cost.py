"""The closed forms against the real model, against the papers that they come from, and against cases worked by hand."""
import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest

from model.config import ModelConfig
from model.gpt import GPT
from parallel.config import ParallelConfig, TopologyConfig
from parallel.cost.balance import stage_layers
from parallel.cost.communication import Traffic, communication, members
from parallel.cost.estimate import EQUAL, Overlap, best_fusion, estimate, fused, overlap, ranks_in_node, transfer_seconds
from parallel.cost.flops import block_flops, head_flops, model_flops, stage_flops
from parallel.cost.memory import alive_micro_batches, block_activations, memory
from parallel.cost.parameters import Parameter, parameter_count, stage_parameters
from parallel.cost.plan import make_plan
from parallel.cost.sizes import Plan, Sizes, model_sizes
from parallel.errors import UserError
from parallel.mesh import Mesh

SMALL = Sizes(hidden=16, layers=3, heads=4, ffn=64, vocab=72, seq=8, positions=10)
GPT3 = Sizes(hidden=12288, layers=96, heads=96, ffn=4 * 12288, vocab=50304, seq=2048, positions=2048)
# No latency, endless bandwidth: what is left is computation and the pipeline's schedule.
FREE = TopologyConfig(node_bandwidth_gbs=1e12, network_bandwidth_gbs=1e12, node_latency_us=0, network_latency_us=0)


def plan_of(sizes, dp=1, tp=1, pp=1, micro=1, sequence=False, **rest) -> Plan:
    layers = stage_layers(sizes, pp, rest.get("virtual_stages", 1))
    return Plan(**{"mesh": Mesh(dp, tp, pp, 0, sequence), "micro_batch_size": 1, "num_micro_batches": micro,
                   "stage_layers": layers, **rest})


def test_parameters_are_those_of_the_model():
    gpt = GPT(ModelConfig(vocab_size=70, hidden_size=16, num_layers=3, num_heads=4, seq_length=10, vocab_multiple=8), tp=2)
    real = {name: tuple(p.shape) for name, p in gpt.parameters_and_names()}
    listed = stage_parameters(SMALL, plan_of(SMALL), 0)
    assert {p.name: p.shape for p in listed} == real and len(listed) == len(real)
    assert parameter_count(SMALL) == sum(map(math.prod, real.values()))


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_a_llama(tied):
    config = ModelConfig(architecture="llama", vocab_size=70, hidden_size=16, num_layers=3, num_heads=4, num_kv_heads=2,
                         seq_length=10, vocab_multiple=8, tie_embeddings=tied)
    real = {name: tuple(p.shape) for name, p in GPT(config, tp=2).parameters_and_names()}
    sizes = model_sizes(config.model_dump(), 72, 8)
    assert sizes.ffn == 256 and sizes.kv_hidden == 8
    assert {p.name: p.shape for p in stage_parameters(sizes, plan_of(sizes), 0)} == real
    assert parameter_count(sizes) == sum(map(math.prod, real.values()))
    last = {p.name for p in stage_parameters(sizes, plan_of(sizes, pp=3), 2)}
    assert ("embedding.token" in last, "head.token" in last) == (tied, not tied)
    sends = [t for t in communication(sizes, plan_of(sizes, pp=3, micro=4), 2) if t.what == "token table"]
    assert len(sends) == tied


def test_llama_has_its_sizes():
    """TinyLlama's as its checkpoint has it; Llama 2's widths of the MLP."""
    model = {"architecture": "llama", "hidden_size": 2048, "num_layers": 22, "num_heads": 32, "num_kv_heads": 4,
             "ffn_hidden_size": 5632, "seq_length": 2048, "tie_embeddings": False}
    sizes = model_sizes(model, 32000, 2048)
    assert parameter_count(sizes) == 1_100_048_384
    matrices = (parameter_count(sizes) - 32000 * 2048 - 2048 * (2 * 22 + 1)) * 2  # a look-up and norms are no products
    assert model_flops(sizes) == 3 * (matrices + 22 * 4 * 2048 * 2048)
    for hidden, width in ((4096, 11008), (5120, 13824)):
        assert model_sizes({**model, "hidden_size": hidden, "ffn_hidden_size": "auto"}, 32000, 2048).ffn == width


def test_gpt3_has_its_size():
    assert parameter_count(replace(GPT3, vocab=50257)) == pytest.approx(174.6e9, rel=1e-3)


def test_stages_hold_every_parameter_once_and_the_table_twice():
    plan = plan_of(SMALL, pp=3)
    names = [p.name for stage in range(3) for p in stage_parameters(SMALL, plan, stage)]
    whole = [p.name for p in stage_parameters(SMALL, plan_of(SMALL), 0)]
    assert sorted(names) == sorted([*whole, "embedding.token"])
    assert {p.name for p in stage_parameters(SMALL, plan, 1)} == {n for n in whole if n.startswith("blocks.1.")}


def test_interleaved_stages_hold_every_other_part():
    plan = replace(plan_of(GPT3, pp=2), stage_layers=(1, 2, 3, 90), virtual_stages=2)
    assert plan.blocks(0) == [0, 3, 4, 5] and plan.blocks(1) == [1, 2, *range(6, 96)]
    assert (plan.num_blocks(0), plan.num_blocks(1)) == (4, 92)


@pytest.mark.parametrize(("shape", "tp_axis", "threshold_kb", "local"), [
    ((64, 256), 1, 64, (16, 128)),  # 64 x 256 float32 = 64 KB, before tp cuts it: not smaller than the threshold
    ((64, 256), 1, 65, (64, 128)),
    ((6, 4096), 1, 1, (6, 2048)),  # dp 4 does not divide 6
    ((64, 256), None, 64, (8, 256)),  # tp does not cut it: 8 ranks hold it
    ((12, 4096), None, 1, (12, 4096)),  # 8 does not divide 12, though 4 would
])
def test_optimizer_sharding_cuts_what_divides_and_is_large(shape, tp_axis, threshold_kb, local):
    plan = plan_of(SMALL, dp=4, tp=2, optimizer_sharding=True, threshold_kb=threshold_kb)
    assert Parameter("w", shape, tp_axis).local_shape(plan) == local


def test_flops_are_those_of_narayanan():
    # arXiv:2104.04473, section 5.1: 96 B s l h^2 (1 + s / 6h + V / 16 l h) with everything recomputed: a fourth less without.
    h, s, l, v = GPT3.hidden, GPT3.seq, GPT3.layers, GPT3.vocab
    forward, backward = stage_flops(GPT3, plan_of(GPT3), 0)
    assert forward + backward == pytest.approx(72 * s * l * h**2 * (1 + s / (6 * h) + v / (12 * l * h)), rel=1e-12)
    # 6 N a token; attention's square and the head, whose table N counts once, are the rest.
    assert model_flops(GPT3) == pytest.approx(6 * parameter_count(GPT3), rel=0.03)


def test_recompute_repeats_less_than_a_forward_pass():
    forward, backward = stage_flops(GPT3, plan_of(GPT3), 0)
    s, h, l = GPT3.seq, GPT3.hidden, GPT3.layers
    extra = {(mode, tp): tp * stage_flops(GPT3, plan_of(GPT3, tp=tp, recompute=mode), 0)[1] - backward
             for mode in ("selective", "full") for tp in (1, 8)}
    assert extra["selective", 1] == extra["selective", 8] == l * s * 2 * s * h
    assert extra["full", 8] == l * s * (2 * s * h + 8 * h * h)  # queries by keys, MLP's first product
    assert extra["full", 1] == l * s * (2 * s * h + 10 * h * h) < forward  # and the attention's output


def test_stages_and_ranks_share_the_flops():
    whole = sum(stage_flops(GPT3, plan_of(GPT3), 0))
    plan = plan_of(GPT3, tp=8, pp=8)
    assert 8 * sum(sum(stage_flops(GPT3, plan, s)) for s in range(8)) == whole == GPT3.seq * model_flops(GPT3)


def test_block_activations_are_those_of_korthikanti():
    # arXiv:2205.05198: s b h (10 + 24 / t + 5 a s / h t) with dropout's masks of one byte: 2 s b h and a s^2 b / t, and the
    # dropped probabilities, 2 a s^2 b / t. Without dropout there is none of the three. MindSpore keeps in float32 what norms read
    # and what the softmax gives, and its copy in half.
    s, h, a, b = GPT3.seq, GPT3.hidden, GPT3.heads, 3
    for t in (1, 8):
        plan = plan_of(GPT3, tp=t, micro_batch_size=b, activation_bytes=2)
        assert block_activations(GPT3, plan, "none") == pytest.approx(s * b * h * (14 - 2 + 24 / t) + 6 * a * s * s * b / t)
        assert block_activations(GPT3, plan, "selective") == pytest.approx(s * b * h * (14 - 2 + 24 / t))
        # The paper's 2 s b h, what MindSpore keeps beside it, and the attention's sum over tp.
        assert block_activations(GPT3, plan, "full") == 2 * s * b * h * (1 + 4 / t + (t > 1))
    dropped = block_activations(replace(GPT3, dropout=True), plan_of(GPT3, activation_bytes=2), "none")
    assert dropped == s * h * (38 + 2) + (7 + 1) * a * s * s  # our masks have two bytes: one more for each element


def test_first_stage_keeps_as_much_as_all_layers_of_one_micro_batch():
    for virtual in (1, 2, 3):
        plan = plan_of(GPT3, pp=4, micro=32, virtual_stages=virtual, stage_layers=(24 // virtual,) * 4 * virtual)
        layers = memory(GPT3, plan)[0].activations / block_activations(GPT3, plan, "none")
        assert layers == pytest.approx(96 * (1 + 3 / (4 * virtual) * (virtual > 1)))  # arXiv:2205.05198, section 4.2.3
    assert [alive_micro_batches(plan_of(GPT3, pp=4, micro=2), s) for s in range(4)] == [2, 2, 2, 1]


def test_state_of_175b_on_64_ranks():
    # 16 bytes a parameter in both formats: 4 + 4 + 8, or 2 + 2 + 4 + 8; the last stage has a copy of the table.
    for size in (4, 2):
        stages = memory(GPT3, plan_of(GPT3, tp=8, pp=8, micro=8, weight_bytes=size))
        state = sum(m.weights + m.gradients + m.moments for m in stages)
        replicated = 96 * 6 * GPT3.hidden + 2048 * GPT3.hidden + 2 * GPT3.hidden
        elements = (parameter_count(GPT3) - replicated + GPT3.vocab * GPT3.hidden) / 8 + replicated
        assert state == pytest.approx(16 * elements)


def test_memory_falls_with_each_means_against_it():
    def peak(**change):
        return max(m.total for m in memory(GPT3, plan_of(GPT3, **{"dp": 2, "tp": 2, "pp": 4, "micro": 8, **change})))

    base = peak()
    for change in ({"tp": 4}, {"pp": 8}, {"sequence": True}, {"optimizer_sharding": True}, {"recompute": "selective"}):
        assert peak(**change) < base, change
    assert peak(recompute="full") < peak(recompute="selective") < peak(recompute="full", recompute_layers=frozenset({0})) < base
    assert peak(micro_batch_size=2) > base
    # Without recomputing, each micro-batch that is alive has the weights in half once more.
    assert peak(recompute="full", activation_bytes=2) < peak(recompute="full")


@pytest.mark.parametrize(("layers", "parts", "vocab"), [(10, 4, 16), (12, 4, 50304), (7, 3, 2000), (5, 5, 50304)])
def test_balance_is_the_best_there_is(layers, parts, vocab):
    sizes = Sizes(768, layers, 12, 3072, vocab, 1024, 1024)
    head = head_flops(sizes) / block_flops(sizes)
    found = stage_layers(sizes, parts)
    assert sum(found) == layers and min(found) >= 1

    def dearest(split):
        return max((*split[:-1], split[-1] + head))

    splits = (s for s in itertools.product(range(1, layers), repeat=parts) if sum(s) == layers)
    assert dearest(found) == min(map(dearest, splits))
    with pytest.raises(UserError, match=f"num_layers={layers}"):
        stage_layers(sizes, parts, layers)


def test_sends_and_receives_agree():
    for virtual in (1, 2):
        plan = plan_of(GPT3, dp=2, tp=2, pp=4, micro=8, virtual_stages=virtual)
        moved = [t for s in range(4) for t in communication(GPT3, plan, s) if t.group == "pp"]
        for what in {t.what for t in moved}:
            sent, received = (sum(t.total for t in moved if t.what == what and t.kind == k) for k in ("Send", "Receive"))
            assert sent == received > 0
        hops = sum(t.count for t in moved if t.kind == "Send" and t.what == "activations")
        assert hops == 8 * (4 * virtual - 1)


def test_one_rank_talks_to_nobody():
    assert communication(SMALL, plan_of(SMALL, micro=4), 0) == []


@pytest.mark.parametrize(("dp", "tp", "group", "seconds"), [
    (1, 8, "tp", 14 * (1e-5 + 1e9 / 8 / 100e9)),  # one node: a ring of 8
    (2, 8, "dp", 2 * (3e-5 + 1e9 / 2 / 10e9)),  # two nodes, one rank in each
    (16, 1, "dp", 14 * (1e-5 + 1e9 / 8 / 100e9) + 2 * (3e-5 + 1e9 / 8 / 2 / 10e9)),  # two nodes, 8 in each
])
def test_all_reduce_of_a_gigabyte(dp, tp, group, seconds):
    topology = TopologyConfig(ranks_per_node=8, node_bandwidth_gbs=100, node_latency_us=10, network_bandwidth_gbs=10,
                              network_latency_us=30)
    found = transfer_seconds(Traffic("AllReduce", group, 1, 10**9, ""), plan_of(GPT3, dp, tp), topology)
    assert found == pytest.approx(seconds)


def test_bubble_of_equal_stages():
    sizes = replace(GPT3, vocab=8)  # a head of no weight
    for virtual in (1, 4):
        plan = plan_of(sizes, pp=8, micro=16, virtual_stages=virtual)
        found = estimate(sizes, plan, FREE)
        assert found.waiting / found.computation == pytest.approx(7 / 16 / virtual, rel=1e-3)
        assert found.step_seconds == pytest.approx(found.computation + found.communication + found.waiting)


def test_time_of_one_device_by_hand():
    topology = TopologyConfig(device_tflops=100, compute_efficiency=0.4)
    half, single = (estimate(GPT3, plan_of(GPT3, micro=2, activation_bytes=b), topology) for b in (2, 4))
    assert half.step_seconds == pytest.approx(2 * 2048 * model_flops(GPT3) / 40e12)
    assert half.mfu == pytest.approx(0.4) and half.shares == pytest.approx((10, 0, 0))
    assert single.step_seconds == pytest.approx(4 * half.step_seconds)
    full = estimate(GPT3, plan_of(GPT3, micro=2, activation_bytes=2, recompute="full"), topology)
    assert 1.1 < full.step_seconds / half.step_seconds < 4 / 3 and full.mfu < 0.36


def test_more_data_parallel_ranks_are_worth_what_they_hide():
    one, two = (estimate(GPT3, plan_of(GPT3, dp=n, tp=8, micro=4), FREE) for n in (1, 2))
    assert two.tokens_per_second == pytest.approx(2 * one.tokens_per_second, rel=1e-6)
    slow = TopologyConfig(network_bandwidth_gbs=0.1)
    assert estimate(GPT3, plan_of(GPT3, dp=2, tp=8), slow).communication > estimate(GPT3, plan_of(GPT3, tp=8), slow).communication


def test_plan_from_a_config():
    config = ParallelConfig(pp=2, recompute="full", recompute_layers=(0, 2), optimizer_sharding=True)
    plan = make_plan(SMALL, config, Mesh(2, 1, 2), 1, 4)
    assert plan.stage_layers == (2, 1) and plan.recompute_of(0) == {"full": 1, "none": 1} and plan.optimizer_sharding
    for wrong, message in (({"stage_layers": (1, 1)}, "add up to model.num_layers=3"), ({"stage_layers": (3,)}, "2 numbers"),
                           ({"recompute_layers": (3,)}, "block 3 does not exist")):
        with pytest.raises(UserError, match=message):
            make_plan(SMALL, config.model_copy(update=wrong), Mesh(2, 1, 2), 1, 4)


def parcels(count: int, mb: int) -> list[Traffic]:
    return [Traffic("AllReduce", "dp", count, mb * 2**20, "fused gradients", "gradients")]


def test_the_last_parcel_is_never_hidden():
    topology, plan = TopologyConfig(node_bandwidth_gbs=100, node_latency_us=0), plan_of(GPT3, dp=8)
    one = 14 * 32 * 2**20 / 8 / 100e9
    assert overlap([], plan, topology, 1.0) == Overlap(0, 0.0, 0.0)
    hidden = overlap(parcels(10, 32), plan, topology, 100 * one)
    assert hidden.seconds == pytest.approx(10 * one) and hidden.shown == pytest.approx(one)
    # Ten parcels, one after the other, the first ready after a tenth of 5 * one: they end at 0.5 + 10, computation at 5.
    assert overlap(parcels(10, 32), plan, topology, 5 * one).shown == pytest.approx(5.5 * one)


def test_with_micro_batches_nothing_is_hidden():
    whole, cut = (estimate(GPT3, plan_of(GPT3, dp=8, tp=8, micro=m), TopologyConfig()).overlap for m in (1, 2))
    assert cut.shown == pytest.approx(cut.seconds) and whole.shown < 0.5 * whole.seconds
    always = estimate(GPT3, plan_of(GPT3, dp=8, tp=8, micro=2, always_parcels=True), TopologyConfig()).overlap
    assert always == whole and cut.parcels == 2 < whole.parcels  # over dp, and over dp x tp


def test_tensors_are_not_cut_by_fusion():
    plan = plan_of(SMALL, dp=2, fusion_mb=1)
    mixed = [Traffic("AllReduce", "dp", 3, 2**21, "large", "gradients"), Traffic("AllReduce", "tp", 7, 100, "a sum"),
             Traffic("AllReduce", "dp", 5, 2**19, "small", "gradients")]
    counts = {(t.count, t.bytes) for t in fused(mixed, plan)}
    assert counts == {(3, 2**21), (3, 5 * 2**19 // 3), (7, 100)}
    assert fused(mixed, replace(plan, fusion_mb=0)) == mixed


@pytest.mark.parametrize("dp", [8, 64, 1024])
def test_the_best_parcel_is_shown_by_trying_all(dp):
    sizes, topology = replace(GPT3, hidden=2048, layers=24, heads=16, ffn=8192), TopologyConfig()
    plan = plan_of(sizes, dp=dp)
    best = best_fusion(sizes, plan, topology)
    steps = {mb: estimate(sizes, replace(plan, fusion_mb=mb), topology).step_seconds for mb in (1, 4, 16, 64, 256, 1024, best)}
    assert steps[best] <= min(steps.values()) * (1 + EQUAL)
    assert make_plan(sizes, ParallelConfig(), Mesh(dp), 1, 1) == replace(plan, fusion_mb=best)
    assert make_plan(sizes, ParallelConfig(fusion_mb=7), Mesh(dp), 1, 1) == replace(plan, fusion_mb=7)


def test_slow_starts_want_larger_parcels():
    sizes = replace(GPT3, hidden=1024, layers=24, heads=16, ffn=4096)
    quick, slow = (best_fusion(sizes, plan_of(sizes, dp=64), TopologyConfig(node_latency_us=us, network_latency_us=us))
                   for us in (0.1, 100))
    assert 1 <= quick < slow


@pytest.mark.parametrize("per_node", [1, 4, 8])
def test_ranks_of_a_group_that_share_a_node(per_node):
    """By the groups' members themselves; unequal parts count as if each rank had a node to itself."""
    topology = TopologyConfig(ranks_per_node=per_node)
    for dp, tp, pp in itertools.product((1, 2, 3, 5, 6, 8), (1, 2, 4, 8), (1, 2, 3, 4)):
        if dp * tp * pp <= per_node or per_node % tp and tp % per_node:
            continue
        plan = replace(plan_of(SMALL), mesh=Mesh(dp, tp, pp))
        for group in ("tp", "dp", "dp x tp", "all"):
            parts = set()
            for rank in range(dp * tp * pp):
                nodes = Counter(member // per_node for member in members(Mesh(dp, tp, pp, rank), group))
                parts |= {min(nodes.values()), max(nodes.values())}
            assert ranks_in_node(plan, group, topology) == (parts.pop() if len(parts) == 1 else 1), (dp, tp, pp, group)


def test_at_o1_products_run_at_half_precisions_rate():
    topology = TopologyConfig()
    o0, o1, o2 = (estimate(GPT3, plan_of(GPT3, tp=8, pp=8, micro=8, activation_bytes=size, product_bytes=products), topology)
                  for size, products in ((4, 4), (4, 2), (2, 2)))
    assert o1.computation == o2.computation == pytest.approx(o0.computation / 4)
