"""Between a running training step and a checkpoint: everything that the next step depends on."""
import mindspore as ms
import numpy as np
import yaml
from mindspore import Parameter, Tensor

from ckpt.store import MODEL, OPTIMIZER, Checkpoint, differences
from parallel import config_file
from parallel.errors import UserError
from train.config import RunConfig
from train.cut import MOMENTS, Cut
from train.step import TrainStep

# Every random number of a run (initial weights, sample order, dropout, generated samples) is a function of the seed and of the
# counters here, so these are the whole state of the random number generators.
TABLE = "embedding.token"  # without the rows that pad it: their number depends on the mesh
SCALARS = ("step", "updates", "loss_scale", "good_steps")


def scalars_of(step: TrainStep) -> dict[str, Parameter]:
    """The scalar state by its name in a checkpoint."""
    return dict(zip(SCALARS, (step.steps, step.optimizer.updates, step.scaler.scale, step.scaler.good_steps), strict=True))


def tensors_of(step: TrainStep) -> dict[str, dict[str, Parameter]]:
    """Weights and moments by their names."""
    return {MODEL: {p.name: p for p in step.weights},
            OPTIMIZER: {p.name: p for p in (*step.optimizer.moment1, *step.optimizer.moment2)}}


def capture(step: TrainStep, consumed_samples: int, config: RunConfig, identity: dict, cut: Cut | None = None) -> Checkpoint:
    """The state after the last step, copied to the host; of a cut model whole, and on rank 0 alone."""
    state = {name: p.asnumpy().item() for name, p in scalars_of(step).items()}
    state |= {"consumed_samples": consumed_samples, "identity": identity,
              "versions": {"mindspore": ms.__version__, "numpy": np.__version__}}
    rows, held = config.model.vocab_size, tensors_of(step)
    whole = {name: p.asnumpy() for ps in held.values() for name, p in ps.items()}
    if cut:
        whole = cut.gather(whole)
    tensors = {part: {name: value[:rows] if name.endswith(TABLE) else value for name, value in whole.items()
                      if name.startswith(MOMENTS) == (part == OPTIMIZER)} for part in held}
    return Checkpoint(tensors, state, config_file.dump(config))


def identity_of(config: RunConfig, tokenizer_sha256: str, samples_sha256: str) -> dict:
    """What must be equal for a checkpoint to be gone on with: the model, the tokenizer, the samples and their order."""
    # These may change in mid-run, and it is said if they do.
    model = config.model.model_dump(exclude={"vocab_multiple", "dropout", "init_std"})
    return {"model": {**model, "ffn_hidden_size": config.model.ffn_size}, "tokenizer": tokenizer_sha256,
            "samples": samples_sha256, "seed": config.run.seed}


def restore(step: TrainStep, checkpoint: Checkpoint, identity: dict, where: str, cut: Cut | None = None) -> None:
    """Put a checkpoint's whole state into a training step. Raises UserError with the list of what differs or is missing."""
    problems = identity_problems(identity, checkpoint)
    problems += [f"missing: {name}" for name in (*SCALARS, "consumed_samples") if name not in checkpoint.state]
    wanted = tensors_of(step)
    problems += shape_problems(wanted, checkpoint, identity, cut)
    if problems:
        raise UserError(f"{where} cannot be resumed by this run:\n  " + "\n  ".join(problems) +
                        "\nTo start a new run from its weights alone: ckpt.resume=none ckpt.init_from=<checkpoint>")
    set_tensors(wanted, checkpoint, cut)
    for name, p in scalars_of(step).items():
        p.set_data(Tensor(checkpoint.state[name], p.dtype))


def restore_weights(step: TrainStep, checkpoint: Checkpoint, identity: dict, where: str, cut: Cut | None = None) -> None:
    """Put the weights alone into a training step. Raises UserError with the list of what does not fit."""
    wanted = {MODEL: tensors_of(step)[MODEL]}
    # Heads and epsilon show in no shape, and would make another function of the same weights.
    problems = identity_problems({"model": identity["model"]}, checkpoint)
    if problems := problems + shape_problems(wanted, checkpoint, identity, cut):
        raise UserError(f"{where} does not fit this model:\n  " + "\n  ".join(problems))
    set_tensors(wanted, checkpoint, cut)


def identity_problems(identity: dict, checkpoint: Checkpoint) -> list[str]:
    """What of the identity is another in the checkpoint."""
    saved = _flat(checkpoint.state.get("identity", {}))
    return [f"{name}: {saved.get(name)} in the checkpoint, {value} here"
            for name, value in _flat(identity).items() if saved.get(name) != value]


def shape_problems(wanted: dict[str, dict[str, Parameter]], checkpoint: Checkpoint, identity: dict, cut: Cut | None = None) \
        -> list[str]:
    """Missing, unexpected and wrongly shaped tensors of the wanted parts. Of a cut model only this rank's are looked at."""
    rows = identity["model"]["vocab_size"]

    def shape(name: str, p: Parameter) -> tuple[int, ...]:
        whole = cut.shape(name) if cut else p.shape
        return (rows, *whole[1:]) if name.endswith(TABLE) else whole

    return [line for part, parameters in wanted.items() for line in differences(
        {name: shape(name, p) for name, p in parameters.items()},
        {name: a.shape for name, a in checkpoint.tensors.get(part, {}).items() if not cut or name in parameters})]


def set_tensors(wanted: dict[str, dict[str, Parameter]], checkpoint: Checkpoint, cut: Cut | None = None) -> None:
    """Copy the wanted parts' tensors by name; the token table is padded with zeros."""
    for part, parameters in wanted.items():
        for name, p in parameters.items():
            value = checkpoint.tensors[part][name]
            if name.endswith(TABLE):
                rows = cut.shape(name)[0] if cut else p.shape[0]
                value = np.pad(value, ((0, rows - len(value)), (0, 0)))
            put(p, value, cut)


def put(p: Parameter, whole: np.ndarray, cut: Cut | None) -> None:
    """Give a parameter its value, or of a cut model this rank's part of it."""
    if cut:
        p.set_data(Tensor(np.ascontiguousarray(cut.part(p.name, whole)), p.dtype), slice_shape=True)
    else:
        p.set_data(Tensor(whole, p.dtype))


def changed_settings(config: RunConfig, checkpoint: Checkpoint) -> list[str]:
    """Settings that a resumed run has other than its checkpoint, `train.lr 0.001 -> 0.002`; paths and the run's name apart."""
    before, now = _flat(yaml.safe_load(checkpoint.config)), _flat(yaml.safe_load(config_file.dump(config)))
    skipped = ("run.", "ckpt.", "data.path", "data.valid_path", "data.prepared_dir", "train.stop_at_step")
    return [f"{key} {before.get(key)} -> {now.get(key)}" for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key) and not key.startswith(skipped)]


def _flat(tree: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
