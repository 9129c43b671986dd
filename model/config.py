"""The sections `model`, the sizes of a GPT-2 style model, and `precision`, the number formats that it computes in."""
import json
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from parallel.config import Section
from parallel.cost.sizes import ffn_size
from parallel.errors import UserError
from parallel.patterns import first_match


class InitRule(Section):
    """Initial values of parameters by name. Fans: a matrix is [out, in], the token table [tokens, hidden]."""

    pattern: str = Field(min_length=1, description="glob on parameter names, such as blocks.*.mlp.*; * goes over dots")
    kind: Literal["normal", "residual", "truncated_normal", "xavier_uniform", "xavier_normal", "he_normal", "zeros", "ones"] = \
        Field(description="residual: normal with std / sqrt(2 * num_layers); truncated_normal: none beyond two std")
    std: float | None = Field(None, gt=0.0, description="of normal, residual, truncated_normal (before the cut); null: init_std")

    @model_validator(mode="after")
    def _std_means_something(self):
        if self.std is not None and self.kind not in ("normal", "truncated_normal", "residual"):
            raise ValueError(f"std={self.std:g} means nothing for {self.kind}: remove it; normal, residual and truncated_normal "
                             "have one")
        return self


# Keys that mean something for one architecture alone.
ONLY = {"gpt2": ("layer_norm_eps",), "llama": ("num_kv_heads", "rms_norm_eps", "rope_theta", "tie_embeddings")}


class ModelConfig(Section):
    """GPT-2's architecture (pre-LayerNorm, learned positions, GELU in tanh form, biases, tied embedding) or Llama's (RMSNorm,
    rotary positions, SwiGLU, grouped-query attention, no biases)."""

    architecture: Literal["gpt2", "llama"] = Field("gpt2", description="what the blocks are made of")
    vocab_size: Literal["auto"] | PositiveInt = Field("auto", description="tokens; auto: as many as the tokenizer has")
    vocab_multiple: int = Field(1, ge=1, description="the token table is padded to a multiple; the padding never counts")
    hidden_size: int = Field(192, ge=1, description="width of the residual stream")
    num_layers: int = Field(4, ge=1, description="transformer blocks")
    num_heads: int = Field(4, ge=1, description="attention heads; must divide hidden_size")
    num_kv_heads: Literal["auto"] | PositiveInt = Field(
        "auto", description="llama: heads of keys and values, each for num_heads / num_kv_heads queries; auto: num_heads")
    ffn_hidden_size: Literal["auto"] | PositiveInt = Field(
        "auto", description="width of the MLP; auto: 4 * hidden_size, of llama 8/3 of it, up to a multiple of 256")
    seq_length: int = Field(128, ge=1, description="the longest context; of gpt2 the learned positions")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="after the embedding, in attention, before each residual sum")
    init_std: float = Field(0.02, gt=0.0, description="standard deviation of the initial weights")
    init: Annotated[tuple[InitRule, ...], Field(strict=False)] = Field(
        (), description="initial values by name; the first pattern that matches counts, and GPT-2's values elsewhere")
    layer_norm_eps: float = Field(1e-5, gt=0.0, description="gpt2: added to the variance in LayerNorm")
    rms_norm_eps: float = Field(1e-5, gt=0.0, description="llama: added to the mean square in RMSNorm")
    rope_theta: float = Field(10000.0, gt=1.0, description="llama: base of the rotary positions' wavelengths")
    tie_embeddings: bool = Field(True, description="the token table is the head too; llama may have a head of its own")
    flash_attention: bool = Field(
        True, description="Ascend's fused kernel where it fits: half precision, no dropout, heads of 16, 32 ... 512 elements")

    def check_architecture(self) -> None:
        """Raise ValueError for a key of another architecture, and for heads that cannot share keys or be turned."""
        for architecture, keys in ONLY.items():
            for key in keys:
                value, default = getattr(self, key), type(self).model_fields[key].default
                if architecture != self.architecture and value != default:
                    raise ValueError(f"model.{key}={json.dumps(value)} means nothing for model.architecture={self.architecture}: "
                                     f"remove it, or set model.architecture={architecture}")
        if self.num_heads % self.kv_heads:
            allowed = ", ".join(str(n) for n in range(1, self.num_heads + 1) if self.num_heads % n == 0)
            raise ValueError(f"model.num_kv_heads={self.num_kv_heads} does not divide model.num_heads={self.num_heads}: allowed "
                             f"are {allowed}")
        if self.architecture == "llama" and self.head_size % 2:
            raise ValueError(f"model.num_heads={self.num_heads} leaves a head {self.head_size} of the model.hidden_size="
                             f"{self.hidden_size} elements, and rotary positions turn pairs of them: make that number even")

    @property
    def ffn_size(self) -> int:
        """The MLP's width with `auto` resolved."""
        return ffn_size(self.model_dump(include={"architecture", "hidden_size", "ffn_hidden_size"}))

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values with `auto` resolved."""
        return self.num_heads if self.num_kv_heads == "auto" else self.num_kv_heads

    @property
    def norm_eps(self) -> float:
        """Of the architecture's norms."""
        return self.rms_norm_eps if self.architecture == "llama" else self.layer_norm_eps

    def function(self) -> dict:
        """The keys that say what is computed of the weights, `auto` resolved: those that this architecture has. Of GPT-2 they
        are what they were when there was no other, so that its checkpoints stay what they are."""
        absent = {key for architecture, keys in ONLY.items() if architecture != self.architecture for key in keys}
        absent.add("flash_attention")  # the same function by another kernel
        resolved = {"ffn_hidden_size": self.ffn_size, "num_kv_heads": self.kv_heads}
        return {key: resolved.get(key, value) for key, value in self.model_dump().items()
                if key not in absent and (key, value) != ("architecture", "gpt2")}

    def init_rule(self, name: str) -> InitRule | None:
        """What `init` says of a parameter; None: nothing."""
        found = first_match([rule.pattern for rule in self.init], name)
        return None if found is None else self.init[found]

    def check_init(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise UserError where `init` asks for values by fan-in and fan-out of a vector, which has neither."""
        rule = self.init_rule(name)
        if rule and len(shape) < 2 and rule.kind.startswith(("xavier", "he_")):
            raise UserError(f"model.init: {rule.kind} is for matrices, but its pattern {rule.pattern} is also the first to match "
                            f"the vector {name}: make it narrower, such as blocks.*.mlp.*.weight")

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


class LossScaleConfig(Section):
    """Loss scale: dynamic with growth and backoff, or fixed."""

    dynamic: bool = Field(False, description="halve at overflow, double after growth_interval good steps")
    initial: float = Field(1.0, gt=0.0, description="scale of the first step; the scale itself where not dynamic")
    growth_interval: int = Field(1000, ge=1, description="good steps in a row before the scale doubles")
    min: float = Field(1.0, gt=0.0, description="the scale never falls below")
    max: float = Field(2.0**24, gt=0.0, description="the scale never rises above")


class PrecisionConfig(Section):
    """Number formats; weights, gradients and the optimizer are float32 in every level."""

    level: Literal["O0", "O1", "O2", "O3"] = Field(
        "O0", description="O0: float32; O1: matrix products in half; O2: all but norms, softmax and loss; O3: all but the loss")
    dtype: Literal["float16", "bfloat16"] = Field("float16", description="what half is; float16 wants a dynamic loss scale")
    white_list: tuple[str, ...] = Field((), strict=False, description="cells in half whatever the level: types or globs on names")
    black_list: tuple[str, ...] = Field((), strict=False, description="cells in float32, likewise; goes before white_list")
    loss_scale: LossScaleConfig = LossScaleConfig()


def matches(pattern: str, name: str, kind: str) -> bool:
    """Whether a pattern means this cell: by its type, its name, or the name of a cell that it is inside of."""
    parts = name.split(".")
    return pattern == kind or any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))


def fuses_attention(model: ModelConfig, precision: PrecisionConfig) -> bool:
    """Whether Ascend computes attention by FlashAttentionScore. It takes half precision alone, and could not drop by our masks.

    One form for all blocks: a black list that means the products of one attention means the plain form.
    """
    products = [(f"blocks.{i}.attention.core.{name}", kind) for i in range(model.num_layers)
                for name, kind in (("scores", "Scores"), ("weigh", "Weigh"), ("flash", "FlashAttention"))]
    return model.flash_attention and precision.level != "O0" and model.dropout == 0 and model.head_size in range(16, 513, 16) \
        and not any(matches(pattern, *cell) for pattern in precision.black_list for cell in products)
