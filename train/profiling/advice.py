"""What to try, in the order in which it pays: data, operators, then the parallel plan, which undoes work on the others.

The expected gain is Amdahl's bound: a part that takes the share s of the step, and took nothing, would make it 1 / (1 - s) times
as fast. It is what cannot be passed, not what will be reached.
"""
from train.profiling.matrix import is_product
from train.profiling.memory import fragmented
from train.profiling.verdict import Context

WORTH = 0.02  # a share below this is not worth a line


def bound(share: float) -> float:
    """Times as fast, at most, without a part that takes this share."""
    return 1.0 / max(1.0 - share, 1e-9)


def advice(found: dict, context: Context) -> list[dict]:
    """[{"area", "why", "try": [settings], "gain"}], in order; gain: at most so many times as fast, None where it is not speed."""
    shares, c = found["shares"], context.settings
    items = []
    if shares:
        items += [*_data(shares, c), *_host(shares, c), *_operators(found, shares, c), *_stragglers(found),
                  *_parallel(found, shares, c)]
    return items + _memory(found, context)


def _item(area: str, why: str, settings: list[str], gain: float | None) -> dict:
    return {"area": area, "why": why, "try": settings, "gain": gain}


def _larger(c: dict) -> str:
    """What makes an operator's work larger: where a micro-batch is a rank's whole share already, only another batch does."""
    if c["micro_batches"] > 1:
        return f"train.micro_batch_size={2 * c['micro_batch']} (now {c['micro_batch']})"
    return f"train.global_batch_size larger (a rank computes {c['micro_batch']} samples at once)"


def _data(shares: dict, c: dict) -> list[dict]:
    if shares["data"] < WORTH:
        return []
    settings = [f"data.num_workers and data.prefetch (now {c['num_workers']} and {c['prefetch']}) as python -m data tune "
                "--config C names them; workers for 50 to 75 % of the cores at most, more is slower"]
    if c["cache"] == "none":
        settings.append("data.cache=memory: if the samples fit into memory")
    if c["log_samples"]:
        settings.append("data.log_samples=false")
    return [_item("data", f"the step waits for its batch {shares['data']:.1%} of the time", settings, bound(shares["data"]))]


def _host(shares: dict, c: dict) -> list[dict]:
    if shares["host"] < WORTH:
        return []
    settings = [f"train.log_every_steps={10 * c['log_every_steps']} (now {c['log_every_steps']}): figures are fetched less often",
                f"health.every_steps={2 * c['health_every']} (now {c['health_every']})",
                f"{_larger(c)}: fewer, longer operators, if memory allows"]
    why = f"the device has nothing to do {shares['host']:.1%} of the time, while the host works"
    return [_item("host", why, settings, bound(shares["host"]))]


def _operators(found: dict, shares: dict, c: dict) -> list[dict]:
    if not found["operators"]:
        return []
    rest, products = [one for one in found["operators"] if not is_product(one["type"])], found["matrix_products"]
    settings, on_ascend = [], found["device"] == "Ascend"
    if c["level"] == "O0" and on_ascend:
        settings.append("precision.level=O2 precision.dtype=bfloat16: matrix products of 16 bits take a fraction of the time")
    if c["recompute"] != "none":
        settings.append(f"parallel.recompute=none, or selective, if memory allows (now {c['recompute']}): less is computed twice")
    if c["dropout"]:
        settings.append(f"model.dropout=0 (now {c['dropout']:g}), if the text is not read often: its masks cost operators")
    if not on_ascend and not any(one["type"].startswith("Custom") for one in found["operators"]):
        settings.append("a C++ compiler on this machine: slow CPU operators of MindSpore's are then replaced by compiled ones; a "
                        "run says at its beginning if they are not")
    settings.append(f"{_larger(c)}: matrix products reach more of the peak")
    if not rest:
        return [_item("operators", f"matrix products take {products:.1%} of the operators' time", settings, None)]
    worst = rest[0]
    why = (f"{worst['type']} takes {worst['share']:.1%} of the operators' time, the most of all that are no matrix product "
           f"(these take {products:.1%})")
    return [_item("operators", why, settings, bound(worst["share"] * shares["computation"]))]


def _stragglers(found: dict) -> list[dict]:
    settings = ["the machine and card of this rank (heat, other jobs, a bad link); python -m train.supervise --config C --status "
                "shows it while it runs", "parallel.stage_layers: stages of equal work, if a whole stage is slow"]
    return [_item("parallel", f"rank {one['rank']} takes {one['times']:.2f} times as long as the others, by its {one['part']}: "
                  "they wait for it", settings, one["times"]) for one in (found["stragglers"] or {}).get("slow", [])]


def _parallel(found: dict, shares: dict, c: dict) -> list[dict]:
    if shares["communication"] < WORTH:
        return []
    settings = []
    if c["pp"] > 1 and found["bubble"] and found["bubble"] > WORTH:
        settings.append(f"parallel.num_micro_batches (now {c['micro_batches']}) several times pp={c['pp']}: stages wait less "
                        f"({found['bubble']:.1%} of the step); or parallel.virtual_stages")
    if c["tp"] > 1:
        settings.append(f"parallel.tp={c['tp'] // 2} (now {c['tp']}), with parallel.sequence_parallel or recompute if memory is "
                        "short: sums of activations are hidden by nothing; never beyond the cards of a node")
    if c["optimizer_sharding"]:
        settings.append("parallel.optimizer_sharding=false, if memory allows: weights are not gathered")
    if found["world_size"] > c["tp"] * c["pp"]:
        if found["device"] == "Ascend":  # CPU workers send their gradients as one parcel
            settings.append(f"parallel.fusion_mb (now {c['fusion_mb']}): smaller parcels of gradients start earlier and hide "
                            "better, very small ones wait for their latency")
        settings.append("train.global_batch_size larger: one sum of the gradients for more computation")
    settings.append("python -m train.preflight --config C --world-size N --advise: other plans, by estimate")
    worst = found["communication"][0] if found["communication"] else None
    most = f"; most of it {worst['name']}" if worst else ""
    if worst and (worst["wait_share"] or 0) > 0.5:
        most += f", which waits for other ranks {worst['wait_share']:.0%} of its time: the ranks are uneven, it is not the link"
    return [_item("parallel", f"communication that nothing hides takes {shares['communication']:.1%} of the step{most}", settings,
                  bound(shares["communication"]))]


def _memory(found: dict, context: Context) -> list[dict]:
    items, held, window = [], found["memory"], found["memory"]["window"]
    if held["leak"]:
        slope = held["slope_bytes_per_step"]
        left = context.topology.device_memory_gb * 1e9 - held["held_bytes"]
        full = f"; {context.topology.device_memory_gb:g} GB are full in some {left / slope:,.0f} steps"
        why = (f"memory grows by {slope / 2**20:.3f} MiB a step, {held['growth']:.0%} over {held['steps']} steps: a leak"
               + (full if found["device"] == "Ascend" and left > 0 else ""))
        items.append(_item("memory", why, ["what your own code keeps from step to step: outputs without .asnumpy(), lists",
                                           "ckpt.every_minutes and python -m train.supervise bridge it, and mend nothing"], None))
    if window and fragmented(window):
        why = f"{window['fragmentation']:.0%} of the reserved memory is not allocated even at the peak: the pool is fragmented"
        items.append(_item("memory", why, ["MS_ALLOC_CONF=enable_vmm:True in the environment (Ascend)",
                                           "the same micro-batches and lengths in every step"], None))
    return items
