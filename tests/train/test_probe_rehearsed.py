"""The probe on all ranks of a mesh, executed without a device, against one card's."""
import numpy as np
import pytest
from mindspore import Tensor

from eval.health.probe import ProbeStep
from parallel.lockstep.rank import Rank
from parallel.lockstep.schedule import run
from train import dry_compile, scaled
from train.config import load_config
from train.plans import planned
from train.rehearsal import OneCard, initial


@pytest.mark.parametrize("sequence_parallel", ["false", "true"])
def test_dp_2_tp_2_sees_what_one_card_sees(cache, plan_yaml, sequence_parallel):
    overrides = ["parallel.pp=1", "parallel.stage_layers=auto", f"parallel.sequence_parallel={sequence_parallel}"]
    config, mesh, count = planned(load_config(plan_yaml, overrides), None)
    config = scaled.scaled(config, mesh, count, set())
    folder = dry_compile.compile_plan(config, mesh.world_size, range(mesh.world_size), ["probe"])
    card = OneCard(config)
    weights = scaled.initial_weights({name: p.shape for name, p in card.weights.items()}, 1)
    card.set(weights)
    ids = np.random.RandomState(2).randint(4, config.model.vocab_size, (mesh.dp, config.data.seq_length)).astype(np.int32)
    expected = [x.asnumpy() for x in ProbeStep(card.gpt.set_train(False), *ids.shape)(Tensor(ids))]

    compiled = {r: dry_compile.load(folder, r, "probe") for r in range(mesh.world_size)}
    ranks = {r: Rank(c.program, initial(c, weights, mesh, card), r) for r, c in compiled.items()}
    outputs, _ = run(ranks, {r: (np.split(ids, mesh.dp)[r // mesh.tp],) for r in ranks})
    assert len(outputs) == 4
    for found in outputs.values():
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
