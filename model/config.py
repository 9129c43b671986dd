"""The section `model`: the sizes of a GPT-2 style model."""
from typing import Literal

from pydantic import Field, PositiveInt

from parallel.config import Section


class ModelConfig(Section):
    """GPT-2's architecture: pre-LayerNorm, learned positions, GELU (tanh), tied embedding."""

    vocab_size: Literal["auto"] | PositiveInt = Field("auto", description="tokens; auto: as many as the tokenizer has")
    vocab_multiple: int = Field(1, ge=1, description="the token table is padded to a multiple; the padding never counts")
    hidden_size: int = Field(192, ge=1, description="width of the residual stream")
    num_layers: int = Field(4, ge=1, description="transformer blocks")
    num_heads: int = Field(4, ge=1, description="attention heads; must divide hidden_size")
    ffn_hidden_size: Literal["auto"] | PositiveInt = Field("auto", description="width of the MLP; auto: 4 * hidden_size")
    seq_length: int = Field(128, ge=1, description="learned positions: the longest context")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="after the embedding, in attention, before each residual sum")
    init_std: float = Field(0.02, gt=0.0, description="standard deviation of the initial weights")
    layer_norm_eps: float = Field(1e-5, gt=0.0, description="added to the variance in LayerNorm")

    @property
    def ffn_size(self) -> int:
        """The MLP's width with `auto` resolved."""
        return 4 * self.hidden_size if self.ffn_hidden_size == "auto" else self.ffn_hidden_size

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads
