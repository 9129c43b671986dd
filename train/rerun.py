"""A step once more: from a checkpoint, or from what a training left in a folder (see train/locate_nan.py for the command)."""
import json
from pathlib import Path

import numpy as np
from mindspore import Tensor

from ckpt.store import Checkpoint
from ckpt.tensors import Tensors, pieces_of, write_pieces
from data.dataset import train_dataset
from data.manifest import load_manifest
from data.order import SampleOrder
from parallel import config_file, context
from parallel.files import replace_text
from parallel.mesh import Mesh, micro_batches
from train import reports, state
from train.build import build_gpt, build_train_step
from train.config import RunConfig, load_config
from train.console import header, say, shown
from train.locate import Batch, listed, locate
from train.metrics_log import finite
from train.run import resolve_vocab_size

CONFIG, STEP, RESULT = "config.yaml", "step.safetensors", "result.json"
WEIGHT = "weight."


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
    order = SampleOrder(manifest.sets["train"].samples, config.run.seed)
    dataset = train_dataset(manifest, config.data, order, checkpoint.state["consumed_samples"], step - checkpoint.step,
                            t.global_batch_size, 0, 1)
    skipped = []
    for at, (tokens, positions) in enumerate(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True), checkpoint.step + 1):
        if at < step and train_step(Tensor(tokens), Tensor(positions))[3].asnumpy():
            skipped.append(at)
    scale = train_step.scaler.scale.asnumpy().item()
    found = locate(config, {p.name: p.asnumpy() for p in train_step.weights}, Batch(tokens, positions, scale, count))
    bad = sorted({i // (count // ranks) for i in found["nonfinite_micro_batches"]}) if count % ranks == 0 else None
    found = {"step": step, "checkpoint": str(folder), "skipped_before": skipped, "loss_scale": scale, "ranks": bad, **found}
    if skipped:
        say(f"skipped       step {listed(map(str, skipped))}: gradients not finite")
    for line in lines_of(found):
        say(line)
    if target:
        reports.write(target, found)


def lines_of(found: dict) -> list[str]:
    """What was found, for a person."""
    lines = [f"step {found['step']}: {found['message']}"]
    if bad := found["nonfinite_micro_batches"]:
        lines.append(f"micro-batches that are not finite: {listed(map(str, bad))}")
    if found.get("ranks"):
        lines.append(f"on rank {listed(map(str, found['ranks']))}")
    if bad := [name for name, f in found["gradients"].items() if f["nonfinite"]]:
        lines.append(f"gradients that are not finite, first in the backward pass first: {listed(bad)}")
    return [*lines, f"largest activations: {activations(found['layers'])}"]


def activations(layers: dict[str, dict]) -> str:
    """The largest absolute value of each layer's output."""
    return ", ".join(f"{name} {'-' if f['abs_max'] is None else format(f['abs_max'], '.3g')}"
                     f"{' (not all finite)' if f['nonfinite'] else ''}" for name, f in layers.items())


def dump(folder: Path, config: RunConfig, weights: dict[str, np.ndarray], batch: Batch) -> None:
    """Leave a step for `rerun_dump`."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / CONFIG, config_file.dump(config))
    arrays = {WEIGHT + name: value for name, value in weights.items()}
    numbers = {"loss_scale": np.float64([batch.loss_scale]), "num_micro_batches": np.int64([batch.num_micro_batches])}
    write_pieces(folder / STEP, pieces_of({**arrays, "tokens": batch.tokens, "positions": batch.positions, **numbers}))


def rerun_dump(folder: Path) -> None:
    """Look into the step that a training left in a folder; what is found is written there. Raises UserError."""
    config = load_config(folder / CONFIG)
    context.start()
    arrays = Tensors([folder / STEP])
    batch = Batch(arrays["tokens"], arrays["positions"], arrays["loss_scale"].item(), arrays["num_micro_batches"].item())
    found = locate(config, {name.removeprefix(WEIGHT): arrays[name] for name in arrays if name.startswith(WEIGHT)}, batch)
    replace_text(folder / RESULT, json.dumps(finite(found), allow_nan=False))
