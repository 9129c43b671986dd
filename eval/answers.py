"""What a model wrote, in the form that all checks of generated text take."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """One text that the model wrote.

    Args:
        item: names the prompt, unique among those of one set.
        language: "en" or "zh": the prompt's.
        prompt, text: what was given, and what the model went on with (without the prompt and without eos).
        tokens: number of tokens of `text`, eos not counted.
        ended: whether the model wrote eos, rather than being stopped at the limit.
        broken: whether it breaks off because the logits were not finite.
    """

    item: str
    language: str
    prompt: str
    text: str
    tokens: int
    ended: bool
    broken: bool = False
