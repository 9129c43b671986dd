"""A step of a run once more, from a checkpoint before it (see train/locate_nan.py for the command)."""
import json
from pathlib import Path

from mindspore import Tensor

from ckpt.store import Checkpoint
from data.dataset import train_dataset
from data.manifest import load_manifest
from data.order import SampleOrder
from parallel import context
from parallel.mesh import Mesh, micro_batches
from train import reports, state
from train.build import build_gpt, build_train_step
from train.config import RunConfig
from train.console import header, say, shown
from train.locating.findings import lines_of, listed
from train.locating.locate import Batch, locate
from train.run import resolve_vocab_size


def rerun_step(config: RunConfig, checkpoint: Checkpoint, folder: Path, step: int, ranks: int, target: Path | None) -> None:
    """Do the steps after a checkpoint again, and look into the last of them; say what is found, and write it to `target`, if any.

    Args:
        ranks: data-parallel ones that had a part of the micro-batches.
    """
    context.start()
    manifest = load_manifest(config.data)
    config = resolve_vocab_size(config, manifest)
    t = config.train
    count = micro_batches(config.parallel, t.global_batch_size, t.micro_batch_size, 1)
    train_step = build_train_step(build_gpt(config, Mesh(1)), config, Mesh(1), count).set_train()
    identity = state.identity_of(config, manifest.tokenizer.sha256, manifest.sets["train"].sha256)
    state.restore(train_step, checkpoint, identity, str(folder))
    header([("checkpoint", f"{shown(folder)}, step {checkpoint.step}"),
            ("steps", f"{step - checkpoint.step - 1} to do again before step {step}"),
            ("micro-batches", f"{count}" + (f", of {ranks} ranks" if ranks > 1 else ""))])
    passed_over = checkpoint.state.get("passed_over", [])
    order = SampleOrder(manifest.sets["train"].samples, config.run.seed)
    dataset = train_dataset(manifest, config.data, order, checkpoint.state["consumed_samples"], step - checkpoint.step,
                            t.global_batch_size, 0, 1, passed_over=[(one["first"], one["stop"]) for one in passed_over])
    skipped = []
    for at, (tokens, positions) in enumerate(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True), checkpoint.step + 1):
        if at < step and train_step(Tensor(tokens), Tensor(positions))[3].asnumpy():
            skipped.append(at)
    scale = train_step.scaler.scale.asnumpy().item()
    found = locate(config, {p.name: p.asnumpy() for p in train_step.weights}, Batch(tokens, positions, scale, count))
    bad = sorted({i // (count // ranks) for i in found["nonfinite_micro_batches"]}) if count % ranks == 0 else None
    found = {"step": step, "checkpoint": str(folder), "skipped_before": skipped, "loss_scale": scale, "ranks": bad, **found}
    if found["verdict"] == "finite" and skipped_by_run(folder, step):
        found |= {"verdict": "transient", "message": "the run skipped it, but it is finite: a transient fault, of the hardware"}
    if skipped:
        say(f"skipped       step {listed(map(str, skipped))}: gradients not finite")
    for line in lines_of(found):
        say(line)
    if target:
        reports.write(target, found)


def skipped_by_run(checkpoint: Path, step: int) -> bool:
    """Whether the run that wrote the checkpoint skipped a step, by its metrics.jsonl if that is there."""
    try:
        lines = (checkpoint.parent.parent / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return any(row["step"] == step and row["overflow"] for row in map(json.loads, lines))
    except (OSError, ValueError, KeyError, TypeError):
        return False
