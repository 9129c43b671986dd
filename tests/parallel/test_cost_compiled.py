"""Communication and activations equal what MindSpore's compiler made of the same plans (compiled.json, by make_compiled.py)."""
import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from parallel.cost.communication import communication, members
from parallel.cost.estimate import fused
from parallel.cost.memory import alive_micro_batches, stage_memory
from parallel.cost.sizes import Plan, Sizes
from parallel.mesh import make_mesh
from tests.parallel.make_compiled import BASE
from train.config import load_config
from train.plans import plan_of

CASES = json.loads(Path(__file__).with_name("compiled.json").read_text(encoding="utf-8"))
RANKS = [(case, rank) for case in CASES for rank in CASES[case]["ranks"]]


def planned(case: str, rank: int, folder: Path) -> tuple[Sizes, Plan]:
    """What the closed forms are told of a case."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(BASE), encoding="utf-8")
    config = load_config(path, CASES[case]["overrides"])
    mesh = make_mesh(config.parallel, CASES[case]["world_size"], rank)
    return plan_of(config, mesh, config.parallel.num_micro_batches)


@pytest.mark.parametrize(("case", "rank"), RANKS)
def test_communication_is_what_was_compiled(case, rank, tmp_path):
    sizes, plan = planned(case, int(rank), tmp_path)
    mesh = plan.mesh
    expected = Counter()
    for t in communication(sizes, plan, mesh.stage):
        expected[t.kind, None if t.group == "pp" else members(mesh, t.group), t.bytes] += t.count
    compiled = CASES[case]["ranks"][rank]["traffic"]
    assert expected == Counter({(kind, group and tuple(group), size): n for kind, group, size, n in compiled})


@pytest.mark.parametrize(("case", "rank"), [(c, r) for c, r in RANKS if CASES[c]["ranks"][r]["kept"]])
def test_activations_are_what_was_compiled(case, rank, tmp_path):
    sizes, plan = planned(case, int(rank), tmp_path)
    found = stage_memory(sizes, plan, plan.mesh.stage)
    # Of the loss's five buffers three live from forward to backward.
    expected = found.activations / alive_micro_batches(plan, plan.mesh.stage) + found.logits * 3 / 5
    assert expected == CASES[case]["ranks"][rank]["kept"]


@pytest.mark.parametrize(("case", "rank"), [(c, r) for c, r in RANKS if "parcels" in CASES[c]["ranks"][r]])
def test_parcels_are_what_was_compiled(case, rank, tmp_path):
    sizes, plan = planned(case, int(rank), tmp_path)
    compiled = CASES[case]["ranks"][rank]["parcels"]
    expected = Counter()
    for t in fused(communication(sizes, plan, plan.mesh.stage), plan):
        if t.when in ("gradients", "weights"):
            expected[t.kind] += t.count
    assert expected == Counter(kind for kind, _, _ in compiled)


def test_the_cases_reach_both_checks():
    assert len(RANKS) > 30 and sum(f["kept"] is not None for c in CASES.values() for f in c["ranks"].values()) > 15
