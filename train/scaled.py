"""A plan made small enough to be executed here: the same mesh, the same code, few and narrow layers, short sequences."""
from dataclasses import replace

import numpy as np

from parallel.cost.parameters import all_parameters
from parallel.errors import UserError
from parallel.mesh import Mesh
from parallel.patterns import first_match
from train.config import ParameterGroup, RunConfig
from train.plans import plan_of, sizes_of

VOCAB = 61  # prime, so that the table is padded under any tp


def scaled(config: RunConfig, mesh: Mesh, num_micro_batches: int, overrides: set[str]) -> RunConfig:
    """The config with small sizes, and a learning rate at which parameters move.

    Stages keep their relation: the longest have two layers, the others one; all have two where they are equal, or one each where
    there are four parts or more. The optimizer's epsilon is raised, or it would magnify the rounding of gradients whose true
    value is 0.

    Args:
        overrides: keys that the user set by hand; they stay.
    """
    sizes, plan = plan_of(config, mesh, num_micro_batches)
    parts, width = plan.stage_layers, 16 if sizes.flash else 8  # the fused kernel takes no narrower heads
    most = 2 if len(parts) < 4 else 1
    small = tuple(2 if n == max(parts) else 1 for n in parts) if len(set(parts)) > 1 else (most,) * len(parts)
    shared = config.model.kv_heads < config.model.num_heads
    heads = mesh.tp * (2 if mesh.tp < 4 or shared else 1)
    seq = max(16, mesh.tp)
    micro = config.train.micro_batch_size if "train.micro_batch_size" in overrides else 2
    if micro == "auto":
        raise UserError("train.micro_batch_size=auto: a rehearsal wants a number, or leave the key alone")
    values = {
        "model": {"vocab_size": VOCAB, "vocab_multiple": 1, "hidden_size": width * heads, "num_heads": heads,
                  "num_kv_heads": mesh.tp if shared else "auto",
                  "num_layers": sum(small), "ffn_hidden_size": "auto", "seq_length": seq},
        "data": {"seq_length": seq},
        "parallel": {"dp": mesh.dp, "num_micro_batches": "auto", "stage_layers": small,
                     "optimizer_sharding_threshold_kb": 0, "recompute_layers": "all"},
        "train": {"micro_batch_size": micro, "global_batch_size": micro * mesh.dp * num_micro_batches, "lr": 1e-2, "min_lr": 0.0,
                  "eps": 1e-5, "schedule": "constant", "warmup_steps": 0, "total_steps": 100, "stop_at_step": None},
    }
    values["train"]["groups"], values["model"]["init"] = groups_within(config, sum(small)), ()
    updated = {}
    for name, section in values.items():
        kept = {key: value for key, value in section.items() if f"{name}.{key}" not in overrides}
        updated[name] = getattr(config, name).model_copy(update=kept)
    return RunConfig.model_validate(config.model_copy(update=updated).model_dump())


def groups_within(config: RunConfig, num_layers: int) -> tuple[ParameterGroup, ...]:
    """The parameter groups that have a parameter in a model of so many layers."""
    names, groups = [p.name for p in all_parameters(replace(sizes_of(config, 1), layers=num_layers))], config.train.groups
    counting = {first_match([group.pattern for group in groups], name) for name in names}
    return tuple(group for i, group in enumerate(groups) if i in counting)


def initial_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Random values for every parameter, biases too: float32, norms' weights around 1. By name, whatever the mesh."""
    weights = {}
    for i, (name, shape) in enumerate(sorted(shapes.items())):
        value = np.random.RandomState([seed, i]).standard_normal(shape) * 0.1
        weights[name] = (value + (1.0 if "norm" in name and name.endswith("weight") else 0.0)).astype(np.float32)
    return weights


def batches(config: RunConfig, steps: int, pad_id: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(tokens, positions) of global batches. Samples end at random places, so ranks and micro-batches count different tokens."""
    rng, batch, seq = np.random.RandomState(seed), config.train.global_batch_size, config.data.seq_length
    made = []
    for step in range(steps):
        tokens = rng.randint(4, config.model.vocab_size, (batch, seq + 1)).astype(np.int32)
        tokens[np.arange(seq + 1) > rng.randint(2, seq + 1, (batch, 1))] = pad_id
        made.append((tokens, (np.arange(batch) + step * batch).astype(np.int32)))
    return made
