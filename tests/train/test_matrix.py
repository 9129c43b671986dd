"""The whole matrix: every mesh and every option of a plan against one card. 166 ranks to compile, so by its marker only:

    python -m pytest -m matrix

Graphs are kept in the user's cache, so that after a failure, or a change of a test, what has been compiled is there already.
"""
import pytest

from tests.train.conftest import PLAN
from tests.train.test_rehearse import check, run

# The same model and the same 16 samples a step in all cases, whatever the mesh.
MODEL, BATCH = ["model.hidden_size=32", "model.num_heads=4", "model.num_layers=4", "train.global_batch_size=16"], 16
SHARD, SEQUENCE = "parallel.optimizer_sharding=true", "parallel.sequence_parallel=true"
FULL, SELECTIVE = "parallel.recompute=full", "parallel.recompute=selective"
EACH, ADAFACTOR = "train.clip_by=norm", "train.optimizer=adafactor"
VIRTUAL, DROPOUT, UNCLIPPED = "parallel.virtual_stages=2", "model.dropout=0.1", "train.clip_norm=null"
LLAMA = ("model.architecture=llama", "model.num_kv_heads=2", "model.ffn_hidden_size=96")
OWN_HEAD = "model.tie_embeddings=false"
CASES = [  # dp, tp, pp, micro-batches, options
    (2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 4), (2, 2, 1, 1), (2, 1, 2, 4), (1, 2, 2, 4), (2, 2, 2, 4), (1, 1, 4, 4),
    (1, 1, 4, 8), (2, 2, 2, 8),
    # gradient accumulation without a pipeline
    (2, 1, 1, 8), (1, 2, 1, 4), (2, 2, 1, 4),
    (2, 1, 1, 1, SHARD), (2, 2, 1, 1, SHARD), (2, 2, 1, 4, SHARD), (2, 1, 2, 4, SHARD), (2, 2, 2, 4, SHARD),
    (2, 2, 2, 4, SHARD, "parallel.optimizer_sharding_threshold_kb=5"),
    (1, 2, 1, 1, SEQUENCE), (2, 2, 1, 4, SEQUENCE), (1, 2, 2, 4, SEQUENCE), (2, 2, 2, 4, SEQUENCE),
    (2, 2, 1, 1, FULL), (1, 1, 2, 4, SELECTIVE), (2, 2, 2, 4, SELECTIVE), (2, 2, 2, 4, FULL),
    (1, 2, 2, 4, FULL, "parallel.recompute_layers=[0,3]"),
    (1, 1, 2, 4, VIRTUAL), (2, 2, 2, 4, VIRTUAL),
    (1, 2, 2, 4, "parallel.stage_layers=[3,1]"), (1, 1, 2, 4, "parallel.stage_layers=[1,3]"),
    (2, 2, 2, 4, UNCLIPPED), (1, 2, 1, 1, SEQUENCE, DROPOUT), (2, 2, 2, 4, DROPOUT),
    (2, 2, 2, 4, EACH), (2, 2, 2, 4, EACH, SHARD), (1, 1, 2, 4, EACH, VIRTUAL), (2, 1, 2, 4, ADAFACTOR),
    (2, 1, 1, 1, ADAFACTOR, EACH),
    (2, 2, 2, 8, SHARD, SEQUENCE, FULL, VIRTUAL, DROPOUT),
    (2, 2, 2, 4, *LLAMA), (2, 2, 2, 4, *LLAMA, OWN_HEAD, SHARD, SEQUENCE, FULL), (1, 2, 2, 4, *LLAMA, OWN_HEAD, EACH, DROPOUT),
]


@pytest.fixture(scope="module")
def norms():
    """The norms of steps 1 and 3 of the first case, which hold for all of the same batches and seeds."""
    return []


@pytest.mark.matrix
@pytest.mark.parametrize(("dp", "tp", "pp", "micro", "options"), [(*c[:4], c[4:]) for c in CASES],
                         ids=["-".join(map(str, c)) for c in CASES])
def test_every_rank_equals_one_card(dp, tp, pp, micro, options, plan_yaml, tmp_path, norms):
    mesh = [f"parallel.dp={dp}", f"parallel.tp={tp}", f"parallel.pp={pp}", f"train.micro_batch_size={BATCH // dp // micro}"]
    if VIRTUAL in options:  # whose evaluation MindSpore does not compile
        options += ("eval.stage.enabled=false",)
    layers = [] if any("stage_layers" in o for o in options) else ["parallel.stage_layers=auto"]
    code, report = run(plan_yaml, tmp_path, *MODEL, *mesh, *layers, *options)
    assert code == 0 and report["mesh"] == {"dp": dp, "tp": tp, "pp": pp}
    check(report, 0 if UNCLIPPED in options else PLAN["train"]["clip_norm"])
    if not {UNCLIPPED, DROPOUT, EACH, ADAFACTOR, *LLAMA} & set(options):
        found = [report["steps"][i]["figures"]["grad_norm"] for i in (0, 2)]
        norms[:] = norms or found
        assert found == pytest.approx(norms, rel=1e-5)
