"""Which pipeline stage each transformer block belongs to."""
from parallel.config import ParallelConfig


def stage_layers(config: ParallelConfig, pp: int, num_layers: int) -> tuple[int, ...]:
    """Layers of each part in order, pp * virtual_stages numbers."""
    if config.stage_layers != "auto":
        return config.stage_layers
    parts = pp * config.virtual_stages
    return tuple(num_layers * (i + 1) // parts - num_layers * i // parts for i in range(parts))


def block_stages(config: ParallelConfig, pp: int, num_layers: int) -> list[tuple[int, int | None]]:
    """(stage, segment) of each block: the parts go round the stages, virtual_stages times. No segments (None) if that is once."""
    interleaved = config.virtual_stages > 1
    return [(part % pp, part // pp if interleaved else None)
            for part, layers in enumerate(stage_layers(config, pp, num_layers)) for _ in range(layers)]
