"""The tiers on the weights of a checkpoint (see train/evaluate.py for the command)."""
from pathlib import Path

import numpy as np
from mindspore import Tensor

from ckpt.store import MODEL, Checkpoint, differences
from data.manifest import Manifest, load_manifest
from model.gpt import GPT
from parallel import context
from parallel.errors import UserError
from parallel.mesh import make_mesh, micro_batches
from train import reports, state
from train.build import build_gpt
from train.config import RunConfig
from train.console import header, say, shown
from train.run import resolve_vocab_size
from train.tiers import build_tiers


def evaluate_checkpoint(config: RunConfig, checkpoint: Checkpoint, folder: Path, tiers: list[str],
                        shares: tuple[float, float]) -> dict:
    """Run the tiers by all ranks together; rank 0 shows the report. Raises UserError where data and checkpoint do not fit."""
    rank, world_size = context.start()
    mesh = make_mesh(config.parallel, world_size, rank)
    count = micro_batches(config.parallel, config.train.global_batch_size, config.train.micro_batch_size, mesh.dp)
    manifest = load_manifest(config.data)
    config = resolve_vocab_size(config, manifest)
    gpt = build_gpt(config, mesh)
    set_weights(gpt, config, checkpoint, manifest, folder)
    on = {name: getattr(config.eval, name).model_copy(update={"enabled": name in tiers}) for name in ("stage", "deep")}
    found = build_tiers(gpt, config.model_copy(update={"eval": config.eval.model_copy(update=on)}), mesh, count, manifest)
    if rank == 0:
        header([("checkpoint", f"{shown(folder)}, step {checkpoint.step}"), ("mesh", f"{mesh}")])
    report = {"step": checkpoint.step}
    if found.stage:
        report["stage"] = found.stage.run(*shares)
    if found.deep:
        report["deep"] = found.deep.run()
    if rank == 0:
        reports.show(report, say)
    return report


def set_weights(gpt: GPT, config: RunConfig, checkpoint: Checkpoint, manifest: Manifest, folder: Path) -> None:
    """Give the GPT a checkpoint's weights. Raises UserError with the list of what does not fit."""
    identity = state.identity_of(config, manifest.tokenizer.sha256, manifest.sets["train"].sha256)
    weights, rows = checkpoint.tensors[MODEL], config.model.vocab_size
    wanted = {p.name: (rows, *p.shape[1:]) if p.name == state.TABLE else p.shape for p in gpt.trainable_params()}
    problems = state.identity_problems({name: identity[name] for name in ("model", "tokenizer")}, checkpoint)
    if problems := problems + differences(wanted, {name: value.shape for name, value in weights.items()}):
        raise UserError(f"{folder} does not fit the prepared data and the config:\n  " + "\n  ".join(problems))
    for p in gpt.trainable_params():
        missing = p.shape[0] - len(weights[p.name])
        p.set_data(Tensor(np.pad(weights[p.name], ((0, missing), *((0, 0),) * (p.ndim - 1))), p.dtype))
