"""What can be refused before any worker is started. No MindSpore here, so that a refusal takes no time."""
from parallel.errors import UserError
from parallel.mesh import Mesh, make_mesh, micro_batches
from train.config import RunConfig


def plan(config: RunConfig, world_size: int, rank: int) -> tuple[Mesh, int]:
    """The mesh and the number of micro-batches. Raises UserError where sizes do not fit, or the run's folder is in use."""
    mesh = make_mesh(config.parallel, world_size, rank)
    if mesh.tp * mesh.pp > 1:
        raise UserError(f"parallel: tp={mesh.tp} pp={mesh.pp}: this version trains data-parallel only; set both to 1")
    count = micro_batches(config.parallel, config.train.global_batch_size, config.train.micro_batch_size, mesh.dp)
    if config.ckpt.resume == "none" and (config.run.folder / "metrics.jsonl").exists():
        raise UserError(f"ckpt.resume=none, but {config.run.folder} holds a run: choose another run.name, remove the folder, "
                        "or go on with ckpt.resume=auto")
    return mesh, count
