"""The weights of a checkpoint to work with, and the tiers on them (see train/evaluate.py for the command)."""
from pathlib import Path

from ckpt import store
from ckpt.store import MODEL, Checkpoint
from data.manifest import Manifest, load_manifest
from data.tokenizer import Tokenizer
from model.gpt import GPT
from parallel import context
from parallel.errors import UserError
from parallel.mesh import Mesh, make_mesh, micro_batches
from train import messages, reports, state
from train.build import build_gpt
from train.checks import refuse_bfloat16
from train.config import ONE_CARD, RunConfig, load_config
from train.console import header, say, shown
from train.run import resolve_vocab_size
from train.tiers import build_tiers


def evaluate_checkpoint(config: RunConfig, checkpoint: Checkpoint, folder: Path, tiers: list[str],
                        shares: tuple[float, float], target: Path | None) -> None:
    """Run the tiers by all ranks together; rank 0 shows the report and writes it to `target`, if any.

    Raises UserError where data and checkpoint do not fit.
    """
    messages.use(config.run.language)
    refuse_bfloat16(config)
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
    elif "deep" in tiers:
        report["not_computed"] = {"deep": "a model that is cut over tp or pp writes no texts in this version"}
    if rank == 0:
        reports.show(report, say)
        if target:
            reports.write(target, report)


def open_model(path: Path, overrides: list[str]) -> tuple[RunConfig, GPT, Tokenizer]:
    """A checkpoint's config, model and tokenizer on one card. Raises UserError."""
    folder = store.given(path)
    checkpoint = store.load_given(folder)
    config = load_config(folder / store.CONFIG, ONE_CARD + overrides)
    refuse_bfloat16(config)
    context.start()
    manifest = load_manifest(config.data)
    config = resolve_vocab_size(config, manifest)
    gpt = build_gpt(config, Mesh(1)).set_train(False)
    set_weights(gpt, config, checkpoint, manifest, folder)
    return config, gpt, Tokenizer.load(config.data.prepared_dir / "tokenizer.model")


def set_weights(gpt: GPT, config: RunConfig, checkpoint: Checkpoint, manifest: Manifest, folder: Path) -> None:
    """Give the GPT a checkpoint's weights. Raises UserError with the list of what does not fit."""
    identity = state.identity_of(config, manifest.tokenizer.sha256, manifest.sets["train"].sha256)
    wanted = {MODEL: {p.name: p for p in gpt.trainable_params()}}
    problems = state.identity_problems({name: identity[name] for name in ("model", "tokenizer")}, checkpoint)
    if problems := problems + state.shape_problems(wanted, checkpoint, identity):
        raise UserError(f"{folder} does not fit the prepared data and the config:\n  " + "\n  ".join(problems))
    state.set_tensors(wanted, checkpoint)
