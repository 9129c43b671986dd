"""The mesh: which rank does what."""
from dataclasses import dataclass

from parallel.config import ParallelConfig
from parallel.errors import UserError


@dataclass(frozen=True)
class Mesh:
    """world_size = dp * tp * pp ranks. tp is innermost, so that its ranks are neighbours; then dp; pp is outermost.

    rank = (stage * dp + dp_rank) * tp + tp_rank
    """

    dp: int
    tp: int = 1
    pp: int = 1
    rank: int = 0
    sequence_parallel: bool = False

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp

    @property
    def dp_rank(self) -> int:
        """This rank's place among those that hold the same part of the model."""
        return self.rank // self.tp % self.dp

    @property
    def tp_rank(self) -> int:
        """This rank's place among those that share one layer's matrices."""
        return self.rank % self.tp

    @property
    def stage(self) -> int:
        """The pipeline stage of this rank."""
        return self.rank // (self.dp * self.tp)

    @property
    def rows(self) -> int:
        """Parts into which the rows of the residual stream are cut: the batch over dp, with sequence parallelism also over tp."""
        return self.dp * self.tp if self.sequence_parallel else self.dp

    def __str__(self) -> str:
        return f"dp {self.dp} x tp {self.tp} x pp {self.pp}"


def make_mesh(config: ParallelConfig, world_size: int, rank: int) -> Mesh:
    """The mesh of a config on `world_size` ranks. Raises UserError where the product does not fit."""
    tp, pp = config.tp, config.pp
    if world_size % (tp * pp):
        raise UserError(f"parallel: tp={tp} x pp={pp} = {tp * pp} does not divide the {world_size} rank(s): "
                        f"start a multiple of {tp * pp} ranks, or lower tp or pp")
    dp = world_size // (tp * pp) if config.dp == "auto" else config.dp
    if dp * tp * pp != world_size:
        raise UserError(f"parallel: dp={dp} x tp={tp} x pp={pp} = {dp * tp * pp}, but {world_size} rank(s) are asked for: "
                        f"set parallel.dp to {world_size // (tp * pp)} or auto, or start {dp * tp * pp} ranks")
    return Mesh(dp, tp, pp, rank, config.sequence_parallel)


def micro_batches(config: ParallelConfig, global_batch_size: int, micro_batch_size: int | str, dp: int) -> int:
    """Micro-batches in one step of one rank: global_batch_size = dp * micro_batch_size * num_micro_batches, or UserError.

    Either factor may be "auto"; if both are, the rank computes its whole share at once.
    """
    share, rest = divmod(global_batch_size, dp)
    if rest:
        raise UserError(f"train.global_batch_size={global_batch_size} must be a multiple of {dp}, the data-parallel ranks")
    if micro_batch_size == "auto":
        count = 1 if config.num_micro_batches == "auto" else config.num_micro_batches
        if share % count:
            raise UserError(f"parallel.num_micro_batches={count} does not divide the {share} samples of a rank (train."
                            f"global_batch_size={global_batch_size} over dp={dp}): allowed are {_divisors(share)}")
        return count
    count, rest = divmod(share, micro_batch_size)
    if rest:
        raise UserError(f"train.micro_batch_size={micro_batch_size} does not divide the {share} samples of a rank (train."
                        f"global_batch_size={global_batch_size} over dp={dp}): allowed are {_divisors(share)}, or auto")
    if config.num_micro_batches not in ("auto", count):
        raise UserError(f"parallel.num_micro_batches={config.num_micro_batches}, but train.global_batch_size="
                        f"{global_batch_size} over dp={dp} x train.micro_batch_size={micro_batch_size} makes {count}: "
                        f"set it to {count} or auto, or change the batch sizes")
    return count


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)
