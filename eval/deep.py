"""Tier `deep`, first form: text that the model writes, for people to read."""
from data.tokenizer import EOS_ID, Tokenizer
from eval.config import DeepConfig
from eval.step import mode_kept
from model.generate import NextTokenLogits, generate
from model.gpt import GPT


class Samples:
    """Continues the fixed prompts of the config; each rank computes the same."""

    def __init__(self, gpt: GPT, tokenizer: Tokenizer, config: DeepConfig, seq_length: int, seed: int):
        self.network, self.tokenizer, self.config = NextTokenLogits(gpt), tokenizer, config
        self.seed = seed
        self.prompts = [tokenizer.encode(p) or [EOS_ID] for p in config.prompts]
        self.window = min(seq_length, max(map(len, self.prompts)) + config.max_new_tokens)

    def run(self, max_new_tokens: int | None = None) -> list[dict]:
        """[{"prompt", "text", "tokens"}], the same for the same weights and seed."""
        tokens = self.config.max_new_tokens if max_new_tokens is None else max_new_tokens
        with mode_kept(self.network.gpt):
            self.network.set_train(False)
            new = generate(self.network, self.prompts, self.window, tokens, EOS_ID,
                           self.config.temperature, self.config.top_k, self.seed)
        return [{"prompt": prompt, "text": self.tokenizer.decode(ids), "tokens": len(ids)}
                for prompt, ids in zip(self.config.prompts, new, strict=True)]
