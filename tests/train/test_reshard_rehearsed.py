"""Two steps on a (2, 2, 2) mesh, its checkpoint on other meshes, two more steps there: equal to four steps of one card."""
import numpy as np
import pytest
from mindspore import Tensor

from ckpt import store, writing
from ckpt.cut import Cut
from ckpt.reshard import reshard
from data.tokenizer import PAD_ID
from parallel import config_file
from parallel.cost.parameters import TABLE
from parallel.lockstep.rank import Rank
from parallel.lockstep.schedule import run
from parallel.mesh import Mesh
from train import dry_compile, scaled
from train.config import load_config
from train.plans import plan_of, planned
from train.rehearsal import TOLERANCES, OneCard, compare, initial, num_micro_batches
from train.state import scalars_of

MODEL = ["model.num_layers=4", "model.hidden_size=32", "model.num_heads=4", "train.micro_batch_size=2"]
START = [*MODEL, "parallel.stage_layers=[2,2]", "parallel.optimizer_sharding=true"]
LOSS_TOLERANCE, PARAMETER_TOLERANCE = TOLERANCES["float32"]
OTHERS = {(1, 1, 1): [], (4, 1, 1): [], (1, 2, 2): ["parallel.stage_layers=[2,2]"],
          (1, 1, 4): ["parallel.stage_layers=[1,1,1,1]"]}


def scaled_plan(plan_yaml, overrides):
    """A small config and its mesh; the samples of a step are the same under all of them."""
    config, mesh, count = planned(load_config(plan_yaml, overrides), None)
    config = scaled.scaled(config, mesh, count, {o.partition("=")[0] for o in overrides})
    train = config.train.model_copy(update={"global_batch_size": 16, "micro_batch_size": 16 // mesh.dp // count})
    return config.model_copy(update={"train": train}), mesh


def cut_of(config, mesh, rank):
    """As a rank of a run has it."""
    return Cut(*plan_of(config, Mesh(mesh.dp, mesh.tp, mesh.pp, rank), num_micro_batches(config, mesh)))


def ranks_of(config, mesh, card, whole):
    """All ranks of a mesh with their parts of whole tensors, moments too where they are given, and what was compiled for them."""
    folder = dry_compile.compile_plan(config, mesh.world_size, range(mesh.world_size), ["train"])
    compiled = {r: dry_compile.load(folder, r, "train") for r in range(mesh.world_size)}
    ranks = {}
    for r, c in compiled.items():
        values, cut = initial(c, whole, mesh, card), cut_of(config, mesh, r)
        for name in values.keys() & whole.keys():
            rows = cut.shape(name)[0] - len(whole[name])  # the token table's padding
            values[name] = cut.part(name, np.pad(whole[name], [(0, rows)] + [(0, 0)] * (whole[name].ndim - 1)))
        ranks[r] = Rank(c.program, values, r)
    return compiled, ranks


def step(ranks, mesh, tokens, positions):
    inputs = {r: tuple(np.split(x, mesh.dp)[r // mesh.tp % mesh.dp] for x in (tokens, positions)) for r in ranks}
    return run(ranks, inputs)[0]


@pytest.fixture
def first_half(cache, plan_yaml, tmp_path):
    """(checkpoint that the ranks of (2, 2, 2) wrote after two steps, one card after two steps, what is to come)."""
    config, mesh = scaled_plan(plan_yaml, START)
    card = OneCard(config)
    weights = scaled.initial_weights({name: p.shape for name, p in card.weights.items()}, 1)
    card.set(weights)
    compiled, ranks = ranks_of(config, mesh, card, weights)
    batches = scaled.batches(config, 4, PAD_ID, 1)
    for tokens, positions in batches[:2]:
        step(ranks, mesh, tokens, positions)
        card.run(tokens, positions, overflow=False)
    root = tmp_path / "checkpoints"
    temporary, files, sizes = writing.begin(root, 2, 0), {}, {}
    for r, rank in ranks.items():
        cut = cut_of(config, mesh, r)
        assert cut.problems(compiled[r].parameters) == []  # what is written as this rank's part is what MindSpore has there
        tensors = {store.MODEL: {}, store.OPTIMIZER: {}}
        for name in (m + n for n in cut.owners for m in ("", "moment1.", "moment2.")):
            if cut.writes(name):
                tensors[store.OPTIMIZER if name.startswith("moment") else store.MODEL][name] = rank.parameters[name]
                rows = config.model.vocab_size if name.endswith(TABLE) else cut.shape(name)[0]
                start = tuple(s.start for s in cut.region(name))
                part = tensors[store.OPTIMIZER if name.startswith("moment") else store.MODEL]
                part[name] = part[name][:max(0, rows - start[0])]
                sizes[r, name] = writing.Place((rows, *cut.shape(name)[1:]), start)
        places = {n: place for (owner, n), place in sizes.items() if owner == r}
        files |= writing.write_part(temporary, writing.Part(tensors, places, r, compiled[r].parameters))
    state = {"step": 2, **{name: p.asnumpy().item() for name, p in scalars_of(card.step).items()}}
    folder = writing.publish(root, temporary, state, config_file.dump(config), files, 1)
    return folder, card, batches[2:]


@pytest.mark.parametrize("others", [pytest.param(mesh, marks=[] if mesh == (1, 1, 1) else pytest.mark.matrix)
                                    for mesh in OTHERS])
def test_the_other_mesh_goes_on_as_one_card(first_half, plan_yaml, tmp_path, others):
    folder, card, batches = first_half
    dp, tp, pp = others
    checkpoint = store.load(reshard(folder, tmp_path / "other", dp, tp, pp))
    whole = {name: np.array(a) for tensors in checkpoint.tensors.values() for name, a in tensors.items()}
    held = {p.name: p for p in (*card.step.weights, *card.step.optimizer.moment1, *card.step.optimizer.moment2)}
    assert whole.keys() == held.keys()
    for name, value in whole.items():  # the gradient of a key's bias is 0, and what is there of it is rounding
        mine = held[name].asnumpy()
        assert np.linalg.norm(value - mine) < PARAMETER_TOLERANCE * np.linalg.norm(mine) + 1e-9, name

    overrides = [f"parallel.{axis}={n}" for axis, n in zip(("dp", "tp", "pp"), others, strict=True)]
    config, mesh = scaled_plan(plan_yaml, [*MODEL, "parallel.stage_layers=auto", *overrides, *OTHERS[others]])
    if mesh.world_size == 1:  # one card, from the checkpoint instead of its own two steps
        alone = OneCard(config)
        for p in (*alone.step.weights, *alone.step.optimizer.moment1, *alone.step.optimizer.moment2):
            p.set_data(Tensor(whole[p.name]))
        for name, p in scalars_of(alone.step).items():
            p.set_data(Tensor(checkpoint.state[name], p.dtype))
    else:
        compiled, ranks = ranks_of(config, mesh, card, whole)
    for tokens, positions in batches:
        figures = card.run(tokens, positions, overflow=False)
        if mesh.world_size == 1:
            assert alone.run(tokens, positions, overflow=False) == pytest.approx(figures, rel=LOSS_TOLERANCE)
            for name, value in alone.values().items():
                assert np.linalg.norm(value - card.values()[name]) <= PARAMETER_TOLERANCE * np.linalg.norm(value)
        else:
            result = compare(figures, step(ranks, mesh, tokens, positions), card.values(), compiled, ranks, mesh)
            assert result.ok, result
