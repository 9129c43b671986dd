"""A model that is cut over a mesh: between whole tensors, as checkpoints have them, and what this rank holds."""
import numpy as np

from parallel import collectives
from parallel.cost.parameters import Parameter, stage_parameters
from parallel.cost.sizes import Plan, Sizes

MOMENTS = ("moment1.", "moment2.")


class Cut:
    """Parameters and moments by name, of all stages; a tied one belongs to the first stage that has it."""

    def __init__(self, sizes: Sizes, plan: Plan):
        self.plan = plan
        self.owners: dict[str, tuple[Parameter, int]] = {}
        for stage in range(plan.mesh.pp):
            for p in stage_parameters(sizes, plan, stage):
                self.owners.setdefault(p.name, (p, stage))

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self._parameter(name).shape

    def share(self, name: str) -> float:
        """1 / how many ranks hold the same values of a parameter; 0 for a copy that its owner's stage counts."""
        p, stage = self.owners[_plain(name)]
        if stage != self.plan.mesh.stage:
            return 0.0
        return 1.0 if p.sharded(self.plan) else 1.0 / p.copies(self.plan)

    def part(self, name: str, whole: np.ndarray) -> np.ndarray:
        """What this rank holds of a tensor."""
        p, plan = self._parameter(name), self.plan
        mesh = plan.mesh
        if p.tp_axis is not None:
            whole = np.split(whole, mesh.tp, p.tp_axis)[mesh.tp_rank]
        if p.sharded(plan):  # over the ranks that compute with the same slice, in their order
            copy = mesh.dp_rank if p.tp_axis is not None else mesh.dp_rank * mesh.tp + mesh.tp_rank
            whole = np.split(whole, p.copies(plan))[copy]
        return whole

    def whole(self, name: str, parts: np.ndarray) -> np.ndarray:
        """A tensor from the parts of all ranks, [world_size, *part]."""
        p, stage = self.owners[_plain(name)]
        plan, mesh = self.plan, self.plan.mesh
        here = parts.reshape(mesh.pp, mesh.dp, mesh.tp, *parts.shape[1:])[stage]
        if p.tp_axis is None:
            return np.concatenate(here.reshape(-1, *parts.shape[1:])) if p.sharded(plan) else here[0, 0]
        columns = [np.concatenate(here[:, t]) if p.sharded(plan) else here[0, t] for t in range(mesh.tp)]
        return np.concatenate(columns, p.tp_axis)

    def gather(self, held: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Whole tensors on rank 0, from what each rank holds; all ranks have to call it. Elsewhere an empty dict."""
        found = {}
        for name, (p, stage) in self.owners.items():
            for key in (name, *(m + name for m in MOMENTS)):
                mine = held[key] if stage == self.plan.mesh.stage else np.zeros(p.local_shape(self.plan), np.float32)
                parts = collectives.gather_arrays(mine)
                if self.plan.mesh.rank == 0:
                    found[key] = self.whole(key, parts)
        return found

    def _parameter(self, name: str) -> Parameter:
        return self.owners[_plain(name)][0]


def _plain(name: str) -> str:
    for prefix in MOMENTS:
        name = name.removeprefix(prefix)
    return name
