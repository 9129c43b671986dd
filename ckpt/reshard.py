"""A checkpoint written again as the ranks of another mesh would write it.

Any checkpoint can be resumed on any mesh: each rank reads what it holds, wherever it lies. Written for its mesh, a rank finds all
of that in one file. MindSpore's own transformation (`ms.rank_list_for_transform`, `transform_checkpoint_by_rank`) wants the
strategy files of both sides, which a compilation of each rank writes; here the cut follows from the config, and each rehearsal
holds it against MindSpore's layout.
"""
import json
import os
import shutil
from pathlib import Path

import numpy as np
import yaml
from pydantic import ValidationError

from ckpt import store, writing
from ckpt.cut import Cut
from ckpt.tensors import Place, read, shapes
from parallel.config import ParallelConfig
from parallel.cost.plan import make_plan
from parallel.cost.sizes import model_sizes
from parallel.errors import UserError
from parallel.mesh import Mesh
from parallel.progress import Progress
from parallel.rules import check


def reshard(source: Path, target: Path, dp: int, tp: int, pp: int) -> Path:
    """Write `target`, which must not exist or be empty, with the content of `source`. Returns its folder. Raises UserError."""
    folder = store.given(source)
    checkpoint = store.load_given(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is in use: give a folder that does not exist or is empty")
    cuts = [cut_of(checkpoint, Mesh(dp, tp, pp, rank), folder) for rank in range(dp * tp * pp)]
    final = Path(os.path.abspath(target))
    temporary = final.with_name(f".tmp-{final.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    files = {}
    with Progress("reshard", len(cuts), "ranks") as progress:
        for cut in cuts:
            files |= writing.write_part(temporary, part_of(checkpoint, cut))
            progress.advance(1)
    if final.exists():
        final.rmdir()
    state = {**checkpoint.state, "mesh": {"dp": dp, "tp": tp, "pp": pp}}
    writing.finish(temporary, final, state, checkpoint.config, files)
    return final


def cut_of(checkpoint: store.Checkpoint, mesh: Mesh, where: Path) -> Cut:
    """How the model of a checkpoint is cut for a rank of a mesh. Raises UserError where the mesh does not fit it."""
    config = yaml.safe_load(checkpoint.config)
    try:
        model, kept = config["model"], ("optimizer_sharding", "optimizer_sharding_threshold_kb")
        parallel = ParallelConfig(dp=mesh.dp, tp=mesh.tp, pp=mesh.pp, **{key: config["parallel"][key] for key in kept})
        vocab = shapes(checkpoint.tensors[store.MODEL])["embedding.token"][0]
        sizes = model_sizes(model, -(-vocab // mesh.tp) * mesh.tp, model["seq_length"])
    except (KeyError, TypeError, ValidationError) as error:
        raise UserError(f"{where}: its {store.CONFIG} or tensors are not those of a run ({error})") from None
    plan = make_plan(sizes, parallel, mesh, 1, max(1, mesh.pp))
    check(sizes, plan)
    return Cut(sizes, plan)


def part_of(checkpoint: store.Checkpoint, cut: Cut) -> writing.Part:
    """What a rank writes."""
    tensors, places = {}, {}
    for part, stored in checkpoint.tensors.items():
        sizes = shapes(stored)
        tensors[part] = {}
        for name in filter(cut.writes, sizes):
            # The token table is stored without the rows that pad it for tp.
            region = tuple(slice(min(s.start, n), min(s.stop, n)) for s, n in zip(cut.region(name), sizes[name], strict=True))
            tensors[part][name] = read(stored, name, region)
            places[name] = Place(sizes[name], tuple(s.start for s in region))
    return writing.Part(tensors, places, cut.plan.mesh.rank)


def differences(a: Path, b: Path) -> list[str]:
    """What differs between two checkpoints: tensors by the norm of their difference, the state, the config; a line each."""
    first, second = (store.load_given(path) for path in (a, b))
    lines = []
    for part in store.PARTS:
        one, two = first.tensors.get(part, {}), second.tensors.get(part, {})
        lines += store.differences(shapes(one), shapes(two))
        for name in sorted(one.keys() & two.keys()):
            x, y = np.asarray(one[name], np.float64), np.asarray(two[name], np.float64)
            if x.shape == y.shape and not np.array_equal(x, y, equal_nan=True):
                norm, change = np.linalg.norm(x), np.linalg.norm(x - y)
                lines.append(f"{name}: differs by {change / norm if norm else np.inf:.2e} of its norm, "
                             f"{np.count_nonzero(x != y)} of {x.size} values")
    for kind, x, y in (("state", first.state, second.state), ("config", *(yaml.safe_load(c.config) for c in (first, second)))):
        flat = [_flat(tree) for tree in (x, y)]
        lines += [f"{kind}: {key} {json.dumps(flat[0].get(key))} -> {json.dumps(flat[1].get(key))}"
                  for key in sorted(flat[0].keys() | flat[1].keys()) if flat[0].get(key) != flat[1].get(key)]
    return lines


def _flat(tree: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in (tree or {}).items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + str(key): value}
    return flat
