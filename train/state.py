"""Between a running training step and a checkpoint: everything that the next step depends on."""
from collections.abc import Mapping

import numpy as np
import yaml
from mindspore import Parameter, Tensor

from ckpt.cut import Cut
from ckpt.store import MODEL, OPTIMIZER, Checkpoint, differences
from ckpt.tensors import Place, read, shapes
from ckpt.writing import Part
from parallel import config_file
from parallel.cost.parameters import COLUMNS, TABLES
from parallel.errors import UserError
from train.config import RunConfig
from train.step import TrainStep

# Every random number of a run (initial weights, sample order, dropout, generated samples) is a function of the seed and of the
# counters here, so these are the whole state of the random number generators.
SCALARS = ("step", "updates", "loss_scale", "good_steps")


def scalars_of(step: TrainStep) -> dict[str, Parameter]:
    """The scalar state by its name in a checkpoint."""
    return dict(zip(SCALARS, (step.steps, step.optimizer.updates, step.scaler.scale, step.scaler.good_steps), strict=True))


def tensors_of(step: TrainStep) -> dict[str, dict[str, Parameter]]:
    """Weights and moments by their names."""
    return {MODEL: {p.name: p for p in step.weights},
            OPTIMIZER: {p.name: p for p in step.optimizer.state}}


def optimizer_of(step: TrainStep) -> str:
    """As train.optimizer names it."""
    return type(step.optimizer).__name__.lower()


def has_rows(name: str) -> bool:
    """Whether a tensor has a row for each token. Those that pad the table are not saved: their number depends on the mesh."""
    return name.endswith(TABLES) and not name.startswith(COLUMNS)


class HostCopies:
    """Copies of the state on the host, in memory that is used again each time: fresh memory costs several times the copying."""

    def __init__(self):
        self.buffers: dict[str, np.ndarray] = {}

    def take(self, p: Parameter) -> np.ndarray:
        """A parameter's values now, until the next `take` of it. MindSpore's own array would change with the next step."""
        values = p.asnumpy()
        if p.name not in self.buffers:
            self.buffers[p.name] = np.empty_like(values)
        np.copyto(self.buffers[p.name], values)
        return self.buffers[p.name]


def capture(step: TrainStep, copies: HostCopies, vocab_size: int, rank: int, cut: Cut | None = None,
            layouts: Mapping[str, list] | None = None) -> tuple[Part, dict]:
    """Copy the state after the last step: what this rank writes of the tensors, and the scalars.

    Args:
        layouts: of a cut model, see `Part`.
    """
    tensors, places = {}, {}
    for part, parameters in tensors_of(step).items():
        tensors[part] = {}
        for name, p in parameters.items():
            if cut and not cut.writes(name):
                continue
            values, rows = copies.take(p), vocab_size
            if cut:
                region, shape = cut.region(name), cut.shape(name)
                rows = max(0, vocab_size - region[0].start)
                shape = (vocab_size, *shape[1:]) if has_rows(name) else shape
                places[name] = Place(shape, tuple(s.start for s in region))
            tensors[part][name] = values[:rows] if has_rows(name) else values
    part = Part(tensors, places, rank if cut else None, layouts)
    return part, {name: p.asnumpy().item() for name, p in scalars_of(step).items()}


def identity_of(config: RunConfig, tokenizer_sha256: str, samples_sha256: str) -> dict:
    """What must be equal for a checkpoint to be gone on with: the model, the tokenizer, the samples and their order."""
    # These may change in mid-run, and it is said if they do.
    model = {key: value for key, value in config.model.function().items()
             if key not in ("vocab_multiple", "dropout", "init_std", "init")}
    return {"model": model, "tokenizer": tokenizer_sha256,
            "samples": samples_sha256, "seed": config.run.seed}


def restore(step: TrainStep, checkpoint: Checkpoint, identity: dict, where: str, cut: Cut | None = None) -> None:
    """Put a checkpoint's whole state into a training step. Raises UserError with the list of what differs or is missing."""
    problems = identity_problems(identity, checkpoint)
    problems += [f"missing: {name}" for name in (*SCALARS, "consumed_samples") if name not in checkpoint.state]
    wanted = tensors_of(step)
    saved = yaml.safe_load(checkpoint.config or "{}").get("train", {}).get("optimizer", "adamw")
    if saved != optimizer_of(step):
        problems.append(f"train.optimizer: {saved} in the checkpoint, {optimizer_of(step)} here, whose state it does not have")
    else:
        # Weights first: where they do not fit, their moments do not either.
        problems += (shape_problems({MODEL: wanted[MODEL]}, checkpoint, identity, cut)
                     or shape_problems(wanted, checkpoint, identity, cut))
    if problems:
        raise UserError(f"{where} cannot be resumed by this run:\n  " + "\n  ".join(problems) +
                        f"\nAnother run.name begins a new run, with ckpt.init_from={where} from these weights")
    set_tensors(wanted, checkpoint, cut)
    for name, p in scalars_of(step).items():
        p.set_data(Tensor(checkpoint.state[name], p.dtype))


def restore_weights(step: TrainStep, checkpoint: Checkpoint, identity: dict, where: str, cut: Cut | None = None,
                    partial: bool = False) -> list[str]:
    """Put the weights alone into a training step. Returns what is to be said of them.

    Args:
        partial: take those that fit by name and shape, and leave the others.

    Raises UserError with the list of what does not fit, or if nothing does.
    """
    wanted = tensors_of(step)[MODEL]
    # Heads and epsilon show in no shape, and would make another function of the same weights.
    problems = identity_problems({"model": identity["model"]}, checkpoint)
    problems += shape_problems({MODEL: wanted}, checkpoint, identity, cut)
    if problems and not partial:
        raise UserError(f"{where} does not fit this model:\n  " + "\n  ".join(problems) +
                        "\nTo take what fits by name and shape: ckpt.init_partial=true")
    fitting = {name: p for name, p in wanted.items() if not shape_problems({MODEL: {name: p}}, checkpoint, identity, cut, True)}
    if not fitting:
        raise UserError(f"{where} has no tensor that fits this model:\n  " + "\n  ".join(problems))
    set_tensors({MODEL: fitting}, checkpoint, cut)
    notes = [f"weights from {where}: {len(fitting)} of {len(wanted)} tensors loaded"]
    if left := sorted(wanted.keys() - fitting.keys()):
        notes.append(f"keep their initial values: {', '.join(left)}")
    return notes + [f"does not fit: {line}" for line in problems if not line.startswith("missing: ")]


def identity_problems(identity: dict, checkpoint: Checkpoint) -> list[str]:
    """What of the identity is another in the checkpoint."""
    saved = _flat(checkpoint.state.get("identity", {}))
    return [f"{name}: {saved.get(name)} in the checkpoint, {value} here"
            for name, value in _flat(identity).items() if saved.get(name) != value]


def shape_problems(wanted: dict[str, dict[str, Parameter]], checkpoint: Checkpoint, identity: dict, cut: Cut | None = None,
                   only: bool = False) -> list[str]:
    """Missing, unexpected and wrongly shaped tensors of the wanted parts; `only`: unexpected ones do not matter.

    Of a cut model only this rank's are looked at.
    """
    rows = identity["model"]["vocab_size"]

    def shape(name: str, p: Parameter) -> tuple[int, ...]:
        whole = cut.shape(name) if cut else p.shape
        return (rows, *whole[1:]) if has_rows(name) else whole

    return [line for part, parameters in wanted.items() for line in differences(
        {name: shape(name, p) for name, p in parameters.items()},
        {name: size for name, size in shapes(checkpoint.tensors.get(part, {})).items()
         if name in parameters or not (cut or only)})]


def set_tensors(wanted: dict[str, dict[str, Parameter]], checkpoint: Checkpoint, cut: Cut | None = None) -> None:
    """Copy the wanted parts' tensors by name, of a cut model what this rank holds; the token table is padded with zeros."""
    for part, parameters in wanted.items():
        stored = checkpoint.tensors[part]
        sizes = shapes(stored)
        for name, p in parameters.items():
            region = cut.region(name) if cut else tuple(slice(0, n) for n in p.shape)
            there = tuple(slice(min(s.start, n), min(s.stop, n)) for s, n in zip(region, sizes[name], strict=True))
            value = read(stored, name, there)
            missing = [(0, s.stop - s.start - n) for s, n in zip(region, value.shape, strict=True)]
            put(p, np.pad(value, missing) if np.any(missing) else value, cut)


def put(p: Parameter, value: np.ndarray, cut: Cut | None) -> None:
    """Give a parameter its value; of a cut model that is this rank's part of it.

    Before the first step alone: once a graph has run, MindSpore 2.10 does not look again at what only a branch of it reads, the
    optimizer's moments for one.
    """
    tensor = Tensor(np.ascontiguousarray(value), p.dtype)
    if cut:
        p.set_data(tensor, slice_shape=True)
    else:
        p.set_data(tensor)


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
