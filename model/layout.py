"""How each parameter is cut over tensor-parallel ranks, as the cells' `shard` makes MindSpore cut it."""

_AXIS = {"embedding.token": 0, "query.weight": 0, "query.bias": 0, "key.weight": 0, "key.bias": 0, "value.weight": 0,
         "value.bias": 0, "output.weight": 1, "up.weight": 0, "up.bias": 0, "down.weight": 1}


def tp_axis(name: str) -> int | None:
    """The axis of the parameter `name` that is cut over tp; None: every rank holds it whole."""
    return next((axis for end, axis in _AXIS.items() if name.endswith(end)), None)
