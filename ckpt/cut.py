"""What each rank of a mesh holds of a model's parameters, and which of it that rank writes into a checkpoint."""
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from parallel.cost.parameters import COLUMNS, ROWS, Parameter, stage_parameters
from parallel.cost.sizes import Plan, Sizes
from parallel.layout import region

MOMENTS = ("moment1.", "moment2.", ROWS, COLUMNS)


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
        return self._owner(name)[0].shape

    def region(self, name: str) -> tuple[slice, ...]:
        """The part of the whole tensor that this rank holds."""
        p, mesh = self._owner(name)[0], self.plan.mesh
        region = [slice(0, n) for n in p.shape]
        if p.tp_axis is not None:
            region[p.tp_axis] = _piece(region[p.tp_axis], mesh.tp_rank, mesh.tp)
        if p.sharded(self.plan):  # over the ranks that compute with the same slice, in their order
            copy = mesh.dp_rank if p.tp_axis is not None else mesh.dp_rank * mesh.tp + mesh.tp_rank
            region[0] = _piece(region[0], copy, p.copies(self.plan))
        return tuple(region)

    def part(self, name: str, whole: np.ndarray) -> np.ndarray:
        """What this rank holds of a tensor."""
        return whole[self.region(name)]

    def share(self, name: str) -> float:
        """1 / how many ranks hold the same values of a parameter; 0 for a copy that its owner's stage counts."""
        p, stage = self._owner(name)
        if stage != self.plan.mesh.stage:
            return 0.0
        return 1.0 if p.sharded(self.plan) else 1.0 / p.copies(self.plan)

    def writes(self, name: str) -> bool:
        """Whether this rank is the one that writes its part, of those that hold it."""
        (p, stage), mesh = self._owner(name), self.plan.mesh
        first = mesh.dp_rank == 0 and (p.tp_axis is not None or mesh.tp_rank == 0)
        return stage == mesh.stage and (first or p.sharded(self.plan))

    def problems(self, layouts: Mapping[str, Sequence]) -> list[str]:
        """What MindSpore cut in another way than is known here, by its `parameter_layout_dict` after compiling."""
        mesh, lines = self.plan.mesh, []
        for name, layout in layouts.items():
            if name.removeprefix(_prefix(name)) in self.owners:
                here, there = self.region(name), region(layout, self.shape(name), mesh.rank % (mesh.dp * mesh.tp))
                if here != there:
                    lines.append(f"{name}: {_shown(here)} here, {_shown(there)} in the compiled graph")
        return lines

    def _owner(self, name: str) -> tuple[Parameter, int]:
        prefix = _prefix(name)
        p, stage = self.owners[name.removeprefix(prefix)]
        if prefix in (ROWS, COLUMNS):  # one axis of the matrix
            axis = int(prefix == COLUMNS)
            p = replace(p, shape=(p.shape[axis],), tp_axis=0 if p.tp_axis == axis else None)
        return p, stage


def _prefix(name: str) -> str:
    return next((prefix for prefix in MOMENTS if name.startswith(prefix)), "")


def _shown(region: tuple[slice, ...]) -> str:
    return f"[{', '.join(f'{s.start}:{s.stop}' for s in region)}]"


def _piece(whole: slice, index: int, count: int) -> slice:
    size = (whole.stop - whole.start) // count
    return slice(whole.start + index * size, whole.start + (index + 1) * size)
