"""The model's parameters: names, shapes, and how tensor parallelism and optimizer sharding cut them."""
import math
from dataclasses import dataclass, replace
from functools import lru_cache

from parallel.cost.sizes import Plan, Sizes
from parallel.mesh import Mesh

TABLE, HEAD = "embedding.token", "head.token"
TABLES = (TABLE, HEAD)  # with a row for each token; a head that is tied has none of its own
ROWS, COLUMNS = "moment2_rows.", "moment2_columns."  # of a factored second moment


@dataclass(frozen=True)
class Parameter:
    """One parameter of the whole model; tp_axis is the axis that tensor parallelism cuts, None where each rank has it all."""

    name: str
    shape: tuple[int, ...]
    tp_axis: int | None = None

    def tp_shape(self, plan: Plan) -> tuple[int, ...]:
        """What one tensor-parallel rank computes with."""
        return tuple(n // plan.mesh.tp if axis == self.tp_axis else n for axis, n in enumerate(self.shape))

    def copies(self, plan: Plan) -> int:
        """Ranks of a stage that compute with the same slice: over dp, and over tp too where that does not cut it."""
        return plan.mesh.dp * (plan.mesh.tp if self.tp_axis is None else 1)

    def sharded(self, plan: Plan) -> bool:
        """Whether optimizer sharding cuts axis 0 over all copies: the axis divides, and the parameter reaches the threshold.

        Before tensor parallelism cuts it: so MindSpore 2.10 measures it.
        """
        return (plan.optimizer_sharding and self.copies(plan) > 1 and self.tp_shape(plan)[0] % self.copies(plan) == 0
                and math.prod(self.shape) * plan.weight_bytes >= plan.threshold_kb * 1024)

    def local_shape(self, plan: Plan) -> tuple[int, ...]:
        """What one rank keeps, with its moments."""
        first, *rest = self.tp_shape(plan)
        return (first // self.copies(plan), *rest) if self.sharded(plan) else (first, *rest)


def moments(p: Parameter, plan: Plan) -> dict[str, tuple[int, ...]]:
    """What the optimizer keeps for a parameter on one rank, by name; float32."""
    shape = p.local_shape(plan)
    if plan.optimizer == "adafactor" and len(shape) > 1:
        return {f"{ROWS}{p.name}": shape[:1], f"{COLUMNS}{p.name}": shape[1:]}
    first = {} if plan.optimizer == "adafactor" else {f"moment1.{p.name}": shape}
    return {**first, f"moment2.{p.name}": shape}


def _linear(name: str, fan_out: int, fan_in: int, column: bool, bias: bool) -> list[Parameter]:
    return [Parameter(f"{name}.weight", (fan_out, fan_in), 0 if column else 1)] \
        + [Parameter(f"{name}.bias", (fan_out,), 0 if column else None)] * bias


def _norm(name: str, hidden: int, bias: bool) -> list[Parameter]:
    return [Parameter(f"{name}.weight", (hidden,))] + [Parameter(f"{name}.bias", (hidden,))] * bias


def embedding(sizes: Sizes) -> list[Parameter]:
    """Token table and learned positions, on the first stage."""
    return [Parameter(TABLE, (sizes.vocab, sizes.hidden), 0)] \
        + [Parameter("embedding.position", (sizes.positions, sizes.hidden))] * (sizes.positions > 0)


@lru_cache
def block(sizes: Sizes) -> tuple[Parameter, ...]:
    """The parameters of one block, GPT-2's 16 or Llama's 9; * stands for its index."""
    h, kv, f, b, bias = sizes.hidden, sizes.kv_hidden, sizes.ffn, "blocks.*", sizes.bias
    return (*_norm(f"{b}.norm1", h, bias),
            *(p for n, width in (("query", h), ("key", kv), ("value", kv))
              for p in _linear(f"{b}.attention.{n}", width, h, column=True, bias=bias)),
            *_linear(f"{b}.attention.output", h, h, column=False, bias=bias), *_norm(f"{b}.norm2", h, bias),
            *(p for n in ("gate", "up")[not sizes.gated:] for p in _linear(f"{b}.mlp.{n}", f, h, column=True, bias=bias)),
            *_linear(f"{b}.mlp.down", h, f, column=False, bias=bias))


def head(sizes: Sizes) -> Parameter:
    """The table that gives the logits."""
    return Parameter(TABLE if sizes.tied else HEAD, (sizes.vocab, sizes.hidden), 0)


def stage_kinds(sizes: Sizes, plan: Plan, stage: int) -> list[tuple[Parameter, int]]:
    """What a stage computes with, and how many there are of each. A tied token table is on the first and the last stage."""
    last = stage == plan.mesh.pp - 1
    ends = (embedding(sizes) if stage == 0 else []) + (_norm("norm", sizes.hidden, sizes.bias) if last else []) \
        + ([head(sizes)] if last and not (sizes.tied and stage == 0) else [])
    return [(p, 1) for p in ends] + [(p, plan.num_blocks(stage)) for p in block(sizes)]


def stage_parameters(sizes: Sizes, plan: Plan, stage: int) -> list[Parameter]:
    """The same one by one, under the names that they have in the model."""
    return [replace(p, name=p.name.replace("*", str(i))) for p, _ in stage_kinds(sizes, plan, stage)
            for i in (plan.blocks(stage) if "*" in p.name else [0])]


def all_parameters(sizes: Sizes) -> list[Parameter]:
    """Of the whole model, one by one."""
    return stage_parameters(sizes, Plan(Mesh(1), 1, 1, (sizes.layers,)), 0)


def parameter_count(sizes: Sizes) -> int:
    """Elements of the whole model, a tied table once: of GPT-2 V h + P h + L (4 h^2 + 2 h f + 9 h + f) + 2 h."""
    return sum(math.prod(p.shape) * count for p, count in stage_kinds(sizes, Plan(Mesh(1), 1, 1, (sizes.layers,)), 0))
