"""What a dry run calls for each rank: build the cells as a training process would, compile them, keep what the compiler made.

Files in job["out"], <kind> being train, eval or probe:
    rank_<r>.<kind>.mindir   the compiled graph of this rank, with its communication
    rank_<r>.<kind>.json     "parameters": name -> how MindSpore cut it; "strategies": operator -> its strategy
"""
import json
import os
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, communication
from mindspore.graph.api import _cell_graph_executor as executor
from mindspore.nn.utils import no_init_parameters

from eval.health.probe import MAX_LENGTH
from parallel.files import replace_text
from parallel.layout import plain
from parallel.mesh import Mesh, make_mesh, micro_batches
from train.build import build_eval_step, build_gpt, build_probe_step, build_train_step, compiled
from train.config import RunConfig, load_config


def main(job: dict) -> None:
    """Compile one rank. job: "rank", "world_size", "config" (a YAML file), "kinds" (see CELLS), folders "out" and "scratch"."""
    os.chdir(job["scratch"])  # where MindSpore leaves its reports of failures
    ms.set_context(mode=ms.GRAPH_MODE)
    communication.init()
    config, out = load_config(job["config"]), Path(job["out"])
    mesh = make_mesh(config.parallel, job["world_size"], job["rank"])
    for kind in job["kinds"]:
        with no_init_parameters():  # a dry run needs no values, and those of a large model would not fit here
            cell, inputs = CELLS[kind](config, mesh)
        phase, _ = executor.compile(cell, *inputs, phase=kind)
        graph = executor._graph_executor.get_func_graph_proto(phase, "mind_ir", False)
        (out / f"rank_{job['rank']}.{kind}.mindir").write_bytes(graph)
        found = {"parameters": plain(cell.parameter_layout_dict), "strategies": executor._get_shard_strategy(cell)}
        # Last, and at once: the file says that this rank is done.
        replace_text(out / f"rank_{job['rank']}.{kind}.json", json.dumps(found))


def train_cell(config: RunConfig, mesh: Mesh):
    """The training step, and inputs of the right shapes."""
    count = micro_batches(config.parallel, config.train.global_batch_size, config.train.micro_batch_size, mesh.dp)
    step = build_train_step(build_gpt(config, mesh), config, mesh, count).set_train()
    samples = config.train.global_batch_size // mesh.dp
    tokens = Tensor(np.zeros((samples, config.data.seq_length + 1), np.int32))
    return compiled(step, config, mesh), (tokens, Tensor(np.arange(samples), ms.int32))


def eval_cell(config: RunConfig, mesh: Mesh):
    """The evaluation step, which is given one micro-batch at a time, and inputs of the right shapes."""
    count = micro_batches(config.parallel, config.train.global_batch_size, config.train.micro_batch_size, mesh.dp)
    step = build_eval_step(build_gpt(config, mesh), config, mesh, count).set_train(False)
    samples = config.train.global_batch_size // mesh.dp // count
    tokens = Tensor(np.zeros((samples, config.data.seq_length + 1), np.int32))
    return compiled(step, config, mesh), (tokens, Tensor(np.zeros(samples, np.int32)))


def probe_cell(config: RunConfig, mesh: Mesh):
    """The probe, on one sample for each data-parallel rank."""
    gpt, seq = build_gpt(config, mesh).set_train(False), min(config.data.seq_length, MAX_LENGTH)
    return build_probe_step(gpt, config, mesh, mesh.dp, seq), (Tensor(np.zeros((1, seq), np.int32)),)


CELLS = {"train": train_cell, "eval": eval_cell, "probe": probe_cell}
