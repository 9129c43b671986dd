"""What the closed forms are told: the model's sizes and the parallel plan."""
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from parallel.mesh import Mesh


@dataclass(frozen=True)
class Sizes:
    """The model and the length of its samples. What has a default here is so in GPT-2."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int  # rows of the token table, padding included
    seq: int  # tokens of a sample
    positions: int  # learned positions, at least seq; 0: none, as with rotary ones
    dropout: bool = False
    kv_heads: int | None = None  # heads of keys and values; None: as many as heads
    bias: bool = True  # of linear layers and norms
    gated: bool = False  # the MLP has a third matrix, whose product goes through SiLU and multiplies the first's
    tied: bool = True  # the head is the token table
    flash: bool = False  # attention in one kernel, which keeps no scores

    @property
    def kv_hidden(self) -> int:
        """Width of keys, and of values."""
        return self.hidden // self.heads * (self.kv_heads or self.heads)


def model_sizes(model: Mapping, vocab: int, seq: int) -> Sizes:
    """Of a section `model` as a mapping, also of an older checkpoint's, whose missing keys mean GPT-2.

    Args:
        vocab: rows of the token table.
        seq: tokens of a sample.
    """
    llama = model.get("architecture", "gpt2") == "llama"
    kv_heads = model.get("num_kv_heads", "auto")
    return Sizes(model["hidden_size"], model["num_layers"], model["num_heads"], ffn_size(model), vocab, seq,
                 0 if llama else model["seq_length"], dropout=model.get("dropout", 0.0) > 0,
                 kv_heads=None if kv_heads == "auto" else kv_heads, bias=not llama, gated=llama,
                 tied=model.get("tie_embeddings", True))


def ffn_size(model: Mapping) -> int:
    """The MLP's width of a section `model`, `auto` resolved.

    GPT-2: 4 hidden. Llama: 8/3 hidden, so that three matrices weigh as much as two, up to the next multiple of 256 (Touvron et
    al., arXiv:2302.13971, and the sizes of its models).
    """
    hidden, ffn = model["hidden_size"], model["ffn_hidden_size"]
    if ffn != "auto":
        return ffn
    return 4 * hidden if model.get("architecture", "gpt2") == "gpt2" else -(-8 * hidden // 3 // 256) * 256


@dataclass(frozen=True)
class Plan:
    """How one step is laid out. The mesh's own rank plays no part: what differs between ranks is asked for by stage."""

    mesh: Mesh
    micro_batch_size: int  # samples of one data-parallel rank in one micro-batch
    num_micro_batches: int
    stage_layers: tuple[int, ...]  # blocks of each part, in order: pp * virtual_stages numbers
    virtual_stages: int = 1
    recompute: str = "none"  # none, selective or full
    recompute_layers: frozenset[int] | None = None  # the blocks that recompute; None: all
    optimizer_sharding: bool = False
    threshold_kb: int = 64  # smaller parameters are not split over dp
    fusion_mb: int = 32  # gradients and gathered weights travel in parcels of this size; 0: one by one
    activation_bytes: int = 4  # of one element
    optimizer: str = "adamw"  # or adafactor, whose moments of matrices are one row and one column
    clips_each: bool = False  # each gradient by its own norm, which all ranks add up
    weight_bytes: int = 4  # of one element of the weights and gradients; below 4 the optimizer keeps a float32 master as well
    product_bytes: int | None = None  # of one element that a linear layer takes or gives; None: activation_bytes
    always_parcels: bool = False  # fusion_mb counts with micro-batches too: not in MindSpore 2.10, see estimate.fused

    def blocks(self, stage: int) -> list[int]:
        """The blocks that a stage holds: of parts stage, stage + pp, ..."""
        starts = [sum(self.stage_layers[:part]) for part in range(len(self.stage_layers))]
        return [starts[part] + i for part in range(stage, len(self.stage_layers), self.mesh.pp)
                for i in range(self.stage_layers[part])]

    def num_blocks(self, stage: int) -> int:
        """How many."""
        return sum(self.stage_layers[stage::self.mesh.pp])

    def block_stages(self) -> list[tuple[int, int | None]]:
        """(stage, segment) of each block: the parts go round the stages, virtual_stages times; segment None if that is once."""
        pp, interleaved = self.mesh.pp, self.virtual_stages > 1
        return [(part % pp, part // pp if interleaved else None)
                for part, layers in enumerate(self.stage_layers) for _ in range(layers)]

    def recompute_of(self, stage: int) -> Counter[str]:
        """How many of a stage's blocks recompute none, selective and full."""
        if self.recompute_layers is None:
            return Counter({self.recompute: self.num_blocks(stage)})
        return Counter(self.recompute if i in self.recompute_layers else "none" for i in self.blocks(stage))

    def kinds(self) -> dict[tuple, list[int]]:
        """Stages that hold and do the same, in order; the earlier ones keep more micro-batches alive."""
        found: dict[tuple, list[int]] = {}
        for stage in range(self.mesh.pp):
            kind = stage == 0, stage == self.mesh.pp - 1, tuple(sorted(self.recompute_of(stage).items()))
            found.setdefault(kind, []).append(stage)
        return found

    def for_weights(self) -> "Plan":
        """The same without what parameters do not depend on: a key under which plans share what is worked out for it."""
        return replace(self, mesh=replace(self.mesh, sequence_parallel=False), micro_batch_size=0, num_micro_batches=0,
                       recompute="none", recompute_layers=None)

    @property
    def linear_bytes(self) -> int:
        """Of one element that a linear layer computes with: at O1 these are half alone."""
        return self.product_bytes or self.activation_bytes

    def rows(self, sizes: Sizes) -> int:
        """Tokens of one micro-batch on one data-parallel rank."""
        return self.micro_batch_size * sizes.seq

    def stream_rows(self, sizes: Sizes) -> int:
        """Rows of the residual stream that one rank holds: sequence parallelism splits them over tp."""
        return self.rows(sizes) // (self.mesh.tp if self.mesh.sequence_parallel else 1)

    def __str__(self) -> str:
        extras = [f"recompute {self.recompute}"] * (self.recompute != "none") \
            + ["sequence parallel"] * self.mesh.sequence_parallel + ["optimizer sharding"] * self.optimizer_sharding
        return ", ".join([str(self.mesh), f"{self.num_micro_batches} micro-batch{'es' * (self.num_micro_batches > 1)} of "
                         f"{self.micro_batch_size}", *extras])
