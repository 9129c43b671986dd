"""All ranks of a small plan in lockstep, and the same steps on one card: do they agree?"""
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor

from ckpt.cut import Cut
from data.tokenizer import PAD_ID
from eval.step import EvalStep
from model.config import PrecisionConfig
from parallel.cost.parameters import TABLE, TABLES
from parallel.layout import slice_of
from parallel.lockstep.errors import LockstepError
from parallel.lockstep.rank import Rank
from parallel.lockstep.schedule import run
from parallel.mesh import Mesh, micro_batches
from train import dry_compile, scaled
from train.build import build_gpt, build_train_step
from train.config import RunConfig
from train.plans import plan_of

# Of figures and of a parameter's norm, relative. Half precision rounds each sum over tp anew, and Adam's first steps have the
# size of the learning rate, however small a gradient is.
TOLERANCES = {"float32": (1e-5, 1e-4), "half": (5e-3, 0.1)}
FIGURES = ("loss", "grad_norm", "loss_scale", "overflow", "lr", "tokens")


@dataclass
class Step:
    """One optimizer step: the figures of one card, and the largest differences of any rank."""

    figures: dict[str, float]
    differences: dict[str, float]              # of the figures, relative
    parameter: str = ""                        # the one that differs most
    parameter_difference: float = 0.0          # norm of the difference / norm of the part
    skipped: bool = False
    precision: str = "float32"

    @property
    def ok(self) -> bool:
        """Whether all differences are within tolerance."""
        figures, parameters = TOLERANCES[self.precision]
        return max(self.differences.values()) <= figures and self.parameter_difference <= parameters


@dataclass
class Rehearsal:
    """The outcome of all steps."""

    mesh: Mesh
    steps: list[Step] = field(default_factory=list)
    evaluation_difference: float = 0.0  # of the loss sums on a batch, relative; infinite where tokens or, in float32, hits differ
    precision: str = "float32"

    @property
    def ok(self) -> bool:
        """Whether every step, and the evaluation after them, agrees."""
        return all(step.ok for step in self.steps) and self.evaluation_difference <= TOLERANCES[self.precision][0]


class OneCard:
    """The reference: the same model on one card, by MindSpore's own CPU kernels; for bfloat16, which they lack, in float32."""

    def __init__(self, config: RunConfig):
        ms.set_context(mode=ms.GRAPH_MODE)
        # Recomputed or kept, the numbers are the same.
        config = config.model_copy(update={"parallel": config.parallel.model_copy(update={"recompute": "none"})})
        self.exact = config.precision.level == "O0"
        if config.precision.dtype == "bfloat16":
            in_float32 = PrecisionConfig(loss_scale=config.precision.loss_scale)
            config = config.model_copy(update={"precision": in_float32})
        self.gpt = build_gpt(config, Mesh(1))
        self.step = build_train_step(self.gpt, config, Mesh(1), 1).set_train()
        self.weights = {p.name: p for p in self.step.weights}

    def set(self, values: dict[str, np.ndarray]) -> None:
        """Give the parameters their values."""
        for name, p in self.weights.items():
            p.set_data(Tensor(values[name]))

    def values(self) -> dict[str, np.ndarray]:
        """The parameters now."""
        return {name: p.asnumpy().copy() for name, p in self.weights.items()}

    def run(self, tokens: np.ndarray, positions: np.ndarray, overflow: bool) -> dict[str, float]:
        """One step. To overflow, it is given a loss scale that no gradient survives, and then the scale that should follow."""
        scaler = self.step.scaler
        before = scaler.scale.asnumpy().item(), scaler.good_steps.asnumpy().item()
        if overflow:
            scaler.scale.set_data(Tensor(3e38, ms.float32))
        figures = dict(zip(FIGURES, (x.asnumpy().item() for x in self.step(Tensor(tokens), Tensor(positions))), strict=True))
        if overflow:
            figures["loss_scale"] = before[0]
            halved = max(before[0] * 0.5, scaler.lowest.asnumpy().item()) if scaler.dynamic else before[0]
            scaler.scale.set_data(Tensor(halved, ms.float32))
        return figures


def rehearse(config: RunConfig, mesh: Mesh, folder: Path, steps: int, overflow_at: int | None,
             change: Callable[[dict[int, dry_compile.Compiled]], None] | None = None) -> Rehearsal:
    """Execute `steps` training steps on all ranks and on one card.

    Args:
        config: small (see `scaled.scaled`).
        folder: the compiled graphs of all ranks.
        overflow_at: the step (from 1) in which one rank's gradient becomes infinite.
        change: is given the compiled ranks before they are executed; for tests, which break something.
    """
    seed = config.run.seed
    card = OneCard(config)
    first = scaled.initial_weights({name: p.shape for name, p in card.weights.items()}, seed)
    card.set(first)
    compiled = {r: dry_compile.load(folder, r, "train") for r in range(mesh.world_size)}
    check_cut(config, mesh, compiled)
    if change:
        change(compiled)
    ranks = {r: Rank(c.program, initial(c, first, mesh, card), r) for r, c in compiled.items()}
    victim = Disturbance(ranks[mesh.world_size - 1])
    result = Rehearsal(mesh, precision="float32" if card.exact else "half")
    for number, (tokens, positions) in enumerate(scaled.batches(config, steps, PAD_ID, seed), 1):
        victim.active = number == overflow_at
        inputs = {r: tuple(np.split(x, mesh.dp)[r // mesh.tp % mesh.dp] for x in (tokens, positions)) for r in ranks}
        outputs, _ = run(ranks, inputs)
        figures = card.run(tokens, positions, overflow=victim.active)
        result.steps.append(replace(compare(figures, outputs, card.values(), compiled, ranks, mesh), precision=result.precision))
    if config.eval.stage.enabled:
        result.evaluation_difference = evaluate(config, mesh, folder, card)
    return result


def evaluate(config: RunConfig, mesh: Mesh, folder: Path, card: OneCard) -> float:
    """The evaluation's forward pass under the mesh with one card's weights: the largest relative difference of a sample's loss.

    What counts is what train.run counts: the outputs of the last stage, of its first tensor-parallel rank.
    """
    compiled = {r: dry_compile.load(folder, r, "eval") for r in range(mesh.world_size)}
    weights = card.values()
    ranks = {r: Rank(c.program, initial(c, weights, mesh, card), r) for r, c in compiled.items()}
    (tokens, _), = scaled.batches(config, 1, PAD_ID, config.run.seed + 1)
    tokens = tokens[:len(tokens) // num_micro_batches(config, mesh)]
    first = np.arange(len(tokens), dtype=np.int32) % tokens.shape[1]  # another number of labels that do not count in each
    outputs, _ = run(ranks, {r: tuple(np.split(x, mesh.dp)[r // mesh.tp % mesh.dp] for x in (tokens, first)) for r in ranks})
    counting = [r for r in ranks if EvalStep.counts(Mesh(mesh.dp, mesh.tp, mesh.pp, r))]
    found = [np.concatenate([np.ravel(outputs[r][i]) for r in counting]) for i in range(3)]
    expected = [x.asnumpy() for x in EvalStep(card.gpt, PAD_ID).set_train(False)(Tensor(tokens), Tensor(first))]
    card.step.set_train()
    hits = 3 if card.exact else 2  # in half precision the likeliest two tokens may change places
    if any(a.shape != b.shape or (a != b).any() for a, b in zip(found[1:hits], expected[1:hits], strict=True)):
        return np.inf
    counted = expected[1] > 0
    if found[0][~counted].any():
        return np.inf
    return float(np.max(np.abs(found[0] - expected[0])[counted] / np.abs(expected[0][counted])))


def num_micro_batches(config: RunConfig, mesh: Mesh) -> int:
    """Of one rank in a step."""
    return micro_batches(config.parallel, config.train.global_batch_size, config.train.micro_batch_size, mesh.dp)


class Disturbance:
    """Makes one gradient of a rank infinite when active: the result of its first matrix product in the backward pass."""

    def __init__(self, rank: Rank):
        self.active = False
        found = rank.intercept(lambda node: node.op == "MatMul" and node.scope.startswith("Gradients"), self.change, limit=1)
        if not found:
            raise RuntimeError(f"rank {rank.rank}: there is no matrix product in its backward pass")

    def change(self, x: np.ndarray) -> np.ndarray:
        """The result, or an infinite one."""
        return np.full_like(x, np.inf) if self.active else x


def initial(compiled: dry_compile.Compiled, whole: dict[str, np.ndarray], mesh: Mesh, card: OneCard) -> dict[str, np.ndarray]:
    """This rank's part of every parameter of its graph: weights from `whole`, scalars from one card, the rest zero."""
    scalars = {p.name: p for p in card.step.get_parameters() if p.ndim == 0}
    values = {}
    for name, kind in compiled.program.main.parameters.items():
        if name in whole and name in compiled.parameters:  # the graph lists some that its stage does not use
            values[name] = part(whole[name], name, compiled, mesh)
        else:
            values[name] = np.full(kind.shape, scalars[name].asnumpy() if name in scalars else 0, kind.dtype)
    return values


def part(whole: np.ndarray, name: str, compiled: dry_compile.Compiled, mesh: Mesh) -> np.ndarray:
    """What a rank holds of a parameter, by MindSpore's layout. Tables of tokens are padded with zeros for tp."""
    if name in TABLES:
        whole = np.pad(whole, ((0, -len(whole) % mesh.tp), (0, 0)))
    return slice_of(whole, compiled.parameters[name], compiled.rank % (mesh.dp * mesh.tp))


def check_cut(config: RunConfig, mesh: Mesh, compiled: dict[int, dry_compile.Compiled]) -> None:
    """What training gives a rank of each parameter (ckpt.cut) is what MindSpore's layout says. Raises LockstepError."""
    for r, c in compiled.items():
        of_rank = Mesh(mesh.dp, mesh.tp, mesh.pp, r, mesh.sequence_parallel)
        if problems := Cut(*plan_of(config, of_rank, num_micro_batches(config, mesh))).problems(c.parameters):
            raise LockstepError(f"rank {r} would be given other parts of parameters than MindSpore has: {'; '.join(problems)}")


def compare(figures: dict[str, float], outputs: dict[int, tuple], weights: dict[str, np.ndarray],
            compiled: dict[int, dry_compile.Compiled], ranks: dict[int, Rank], mesh: Mesh) -> Step:
    """Hold all ranks' outputs and parameters against one card's."""
    differences = {name: max(_relative(float(np.ravel(outputs[r][i])[0]), figures[name]) for r in ranks)
                   for i, name in enumerate(FIGURES)}
    step = Step(figures, differences, skipped=bool(figures["overflow"]))
    for r, rank in ranks.items():
        for name, value in rank.parameters.items():
            if name not in weights or (name == TABLE and r >= mesh.dp * mesh.tp):  # which later stages are sent in each step
                continue
            expected = part(weights[name], name, compiled[r], mesh)
            norm = float(np.linalg.norm(expected))
            difference = float(np.linalg.norm(value - expected)) / (norm or 1.0)
            if not difference <= step.parameter_difference:
                step.parameter = f"{name} (rank {r})"
                step.parameter_difference = difference if np.isfinite(difference) else np.inf
    return step


def _relative(found: float, expected: float) -> float:
    """|found - expected| / |expected|; 0 if both are not finite, infinite if one is."""
    if not (np.isfinite(found) and np.isfinite(expected)):
        return 0.0 if np.isfinite(found) == np.isfinite(expected) else np.inf
    return abs(found - expected) / (abs(expected) or 1.0)
