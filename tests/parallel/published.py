"""Published figures of training (published.yaml) beside the estimate for the same plan on the same machines.

    python -m tests.parallel.published

prints all of them; parallel/README.md shows some.

Each system has one unknown, the share of the peak that matrix products reach; it is solved for from one row, `calibrated`, and
all others are predicted. What the model does not have, and what stands for it:

- FSDP, and Megatron's distributed optimizer: optimizer sharding, with as many bytes for each parameter.
- Llama's grouped queries and gated MLP: an MLP so wide that a block has the same FLOPs and parameters.
- Flash attention, and torchtitan's selective recomputing of half of the products: `selective`. Megatron's and torchtitan's full
  recomputing repeats the whole forward pass with its communication, ours less (see cost/flops.py).
- Communication of tensor parallelism that hides behind products (Megatron, H100): here it shows.
- The size of gradient parcels: the model's own choice. Micro-batch and virtual stages where a source is silent: what is fastest
  in the model, out of micro-batches of 1, 2 and 4 and all numbers of equal virtual stages.
"""
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from parallel.config import TopologyConfig
from parallel.cost.balance import stage_layers
from parallel.cost.estimate import Estimate, best_fusion, estimate
from parallel.cost.sizes import Plan, Sizes
from parallel.mesh import Mesh

SYSTEMS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
FIELDS = ("gpus", "tp", "pp", "hidden", "layers", "heads", "batch", "micro", "virtual", "published")


@dataclass(frozen=True)
class Row:
    """One published figure and what the model says; MFU, 0 to 1, or tokens/s of a GPU."""

    system: str
    name: str
    gpus: int
    published: float
    predicted: float
    calibrated: bool
    miss: bool  # said in published.yaml to be one

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.published - 1

    def __str__(self) -> str:
        figures = [f"{x:.1%}" if x < 1 else f"{x:,.0f}" for x in (self.published, self.predicted)]
        error = "calibrated" if self.calibrated else f"{self.error:+.0%}"
        return f"| {self.system}, {self.name.split(' on ')[0]} | {self.gpus:,d} | {' | '.join(figures)} | {error} |"


def compare(system: dict) -> tuple[float, list[Row]]:
    """(share of the peak, all rows)."""
    cases = {name: (fields(system, name), *candidates(system, name)) for name in system["rows"]}
    row, sizes, plans = cases[system["calibrated"]]
    target, low, high = figure(system, row), 0.05, 1.0
    while high - low > 1e-5:
        share = (low + high) / 2
        low, high = (share, high) if predicted(system, sizes, plans, share) < target else (low, share)
    rows = [Row(system["name"], name, row["gpus"], figure(system, row), predicted(system, sizes, plans, low),
                name == system["calibrated"], name in system["misses"]) for name, (row, sizes, plans) in cases.items()]
    return low, rows


def fields(system: dict, name: str) -> dict:
    """A row of the file, by FIELDS."""
    return dict(zip(FIELDS, system["rows"][name], strict=True))


def figure(system: dict, row: dict) -> float:
    """What was published, as MFU where it was FLOP/s."""
    if "counts" in system:
        return row["published"] * system["counts"] / system["topology"]["device_tflops"]
    return row["published"]


def predicted(system: dict, sizes: Sizes, plans: list[Plan], share: float) -> float:
    """The fastest plan's MFU, or tokens/s of a GPU."""
    topology = TopologyConfig(**system["topology"], compute_efficiency=share)
    best = max((estimate(sizes, plan, topology) for plan in plans), key=lambda e: e.mfu)
    return best.mfu if "counts" in system else rate(best, plans[0])


def rate(e: Estimate, plan: Plan) -> float:
    """Tokens/s of one GPU."""
    return e.tokens_per_second / plan.mesh.world_size


def candidates(system: dict, name: str) -> tuple[Sizes, list[Plan]]:
    """The model, and the plans that the source may mean: one, if it states all."""
    row = fields(system, name)
    sizes = Sizes(row["hidden"], row["layers"], row["heads"], width(system, row), system["vocab"], system["seq"], system["seq"])
    topology = TopologyConfig(**system["topology"])  # its share of the peak is our default, near enough for the parcels
    return sizes, [replace(plan, fusion_mb=best_fusion(sizes, plan, topology)) for plan in _plans(system, row, sizes, name)]


def width(system: dict, row: dict) -> int:
    """Of an MLP of two matrices with which a block has as many FLOPs and parameters."""
    h = row["hidden"]
    if "gated_ffn" not in system:
        return 4 * h
    keys_and_values = 2 * h * h * system["kv_heads"] // row["heads"]
    return (2 * h * h + keys_and_values + 3 * h * system["gated_ffn"][h] - 4 * h * h) // (2 * h)


def _plans(system: dict, row: dict, sizes: Sizes, name: str) -> Iterator[Plan]:
    tp, pp, sharded = row["tp"], row["pp"], system["sharded"]
    dp = row["gpus"] // (tp * pp)
    recompute = "full" if name in system.get("full_recompute", ()) else system["recompute"]
    for micro in [row["micro"]] if row["micro"] else (1, 2, 4):
        count, rest = divmod(row["batch"], dp * micro)
        if rest or count < pp:
            continue
        stages = [v for v in range(1, sizes.layers // pp + 1) if v == 1 or count % pp == sizes.layers % (pp * v) == 0]
        for virtual in [row["virtual"]] if row["virtual"] else stages:
            yield Plan(Mesh(dp, tp, pp, 0, sharded and tp > 1), micro, count, stage_layers(sizes, pp, virtual), virtual,
                       recompute, optimizer_sharding=sharded, activation_bytes=2, weight_bytes=system["weight_bytes"],
                       always_parcels=True)


def main() -> None:
    """Print the table."""
    print("| system, model | GPUs | published | predicted | error |\n|---|---|---|---|---|")
    for system in SYSTEMS:
        share, rows = compare(system)
        print(*rows, sep="\n")
        print(f"{system['name']}: matrix products reach {share:.2f} of the peak")


if __name__ == "__main__":
    main()
