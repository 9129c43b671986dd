"""Blocks over pipeline stages."""
from parallel.cost.flops import block_flops, head_flops
from parallel.cost.sizes import Sizes
from parallel.errors import UserError


def stage_layers(sizes: Sizes, pp: int, virtual_stages: int = 1) -> tuple[int, ...]:
    """Blocks of each of the pp * virtual_stages parts: each at least 1, with the smallest possible cost of the dearest part.

    The head counts on the last part as many blocks as it has FLOPs; the embedding is a look-up and counts nothing. Of equally
    cheap parts the later one gets the next block: earlier stages keep more micro-batches alive. Raises UserError.
    """
    parts = pp * virtual_stages
    if parts > sizes.layers:
        raise UserError(f"parallel: pp={pp} x virtual_stages={virtual_stages} = {parts} parts need a block each, but "
                        f"model.num_layers={sizes.layers}: lower pp or virtual_stages")
    layers = [1] * parts
    head = head_flops(sizes) / block_flops(sizes)
    for _ in range(sizes.layers - parts):
        lightest = min(range(parts), key=lambda part: (layers[part] + head * (part == parts - 1), -part))
        layers[lightest] += 1
    return tuple(layers)
