"""Tier `deep`: texts that the model writes, and what is to be said of them."""
import time
from dataclasses import asdict

import numpy as np

from data.tokenizer import EOS_ID, PAD_ID, Tokenizer
from eval.answers import Answer
from eval.checks import instructions, safety
from eval.config import DeepConfig
from eval.judges.http import judge
from eval.metrics import perplexity
from eval.rows import RowScorer
from eval.text import diversity
from model.gpt import GPT
from model.sampling import Sampling
from model.writer import Writer
from parallel import collectives

SAMPLES, INSTRUCTIONS, SAFETY = "samples", "instructions", "safety"


class Deep:
    """Writes and judges the same prompts each time; each data-parallel rank writes its part of them.

    A text depends on the weights, the seed and its prompt's place in the list, not on the ranks or on other prompts.
    """

    def __init__(self, gpt: GPT, scorer: RowScorer, tokenizer: Tokenizer, config: DeepConfig, seq_length: int, seed: int):
        self.scorer, self.tokenizer, self.config, self.seq_length, self.seed = scorer, tokenizer, config, seq_length, seed
        self.sampling = Sampling(config.temperature, config.top_k, config.top_p, config.repetition_penalty)
        self.items = {INSTRUCTIONS: instructions.load() if config.instructions else [],
                      SAFETY: safety.load() if config.safety else []}
        # (set, item, language, prompt)
        self.prompts = [(SAMPLES, f"{i}.{n}", _language(prompt), prompt)
                        for i, prompt in enumerate(config.prompts) for n in range(config.samples)]
        self.prompts += [(INSTRUCTIONS, item.id, item.language, item.prompt) for item in self.items[INSTRUCTIONS]]
        self.prompts += [(SAFETY, item.id, item.language, item.given) for item in self.items[SAFETY]]
        self.ids = [tokenizer.encode(prompt) or [EOS_ID] for *_, prompt in self.prompts]
        self.writer = Writer(gpt, config.batch_size, seq_length, EOS_ID)

    def warm_up(self) -> None:
        """Compile."""
        self.writer.write(self.ids[:1], 2, self.sampling, self.seed)

    def run(self) -> dict:
        """{"samples": scores and texts, "instructions", "safety" and "judge": scores, "prompts": number, "truncated": how many of
        them the model saw the end of only, "not_computed": {what: why}, "seconds"}; see the modules of each.
        """
        began = time.perf_counter()
        answers = self.write()
        of = {name: [a for (kind, *_), a in zip(self.prompts, answers, strict=True) if kind == name]
              for name in (SAMPLES, INSTRUCTIONS, SAFETY)}
        report = {"prompts": len(answers), "truncated": sum(len(prompt) > self.seq_length for prompt in self.ids),
                  "not_computed": {}}
        if broken := sum(answer.broken for answer in answers):
            report["not_computed"]["texts"] = f"{broken} of {len(answers)} break off: the model's logits are not finite there"
        samples = diversity.scores(of[SAMPLES])
        own = self.own_perplexity()
        if own is None:
            samples["not_computed"]["own_perplexity"] = "no text has a token, or their loss is not finite"
        report |= {SAMPLES: {**samples, "own_perplexity": own,
                            "languages": {lang: diversity.scores([a for a in of[SAMPLES] if a.language == lang])
                                           for lang in sorted({a.language for a in of[SAMPLES]})},
                             "texts": [asdict(a) for a in of[SAMPLES]]}}
        if self.items[INSTRUCTIONS]:
            report[INSTRUCTIONS] = instructions.scores(instructions.check_answers(self.items[INSTRUCTIONS], of[INSTRUCTIONS]))
        if self.items[SAFETY]:
            report[SAFETY] = safety.scores([safety.check(item, a.text)
                                            for item, a in zip(self.items[SAFETY], of[SAFETY], strict=True)])
        if self.config.judge and self.scorer.mesh.rank == 0:  # the others' reports are not written
            report["judge"] = judge(of[SAMPLES], self.config.judge)
        return {**report, "seconds": time.perf_counter() - began}

    def write(self) -> list[Answer]:
        """All answers, in the order of the prompts, on every rank."""
        mesh, limit = self.scorer.mesh, self.config.max_new_tokens
        each = -(-len(self.ids) // mesh.dp)
        first = min(mesh.dp_rank * each, len(self.ids))
        texts = []
        for at in range(first, first + each, self.config.batch_size):  # as many rounds on each rank
            self.scorer.pulse()
            prompts = self.ids[at:min(at + self.config.batch_size, first + each)]
            texts += self.writer.write(prompts, limit, self.sampling, self.seed, at)
        # Ids are below 2^24, so float32, which MindSpore gathers, holds them.
        mine = np.full((each, limit + 3), -1, np.float32)
        for row, text in zip(mine, texts, strict=False):
            row[0], row[1:len(text.tokens) + 1], row[-2:] = len(text.tokens), text.tokens, (text.ended, text.broken)
        rows = np.concatenate(collectives.gather_arrays(mine))[:len(self.ids)].astype(np.int64)
        self.tokens = [row[1:row[0] + 1].tolist() for row in rows]
        return [Answer(item, language, prompt, self.tokenizer.decode(tokens), len(tokens), bool(row[-2]), bool(row[-1]))
                for (_, item, language, prompt), tokens, row in zip(self.prompts, self.tokens, rows, strict=True)]

    def own_perplexity(self) -> float | None:
        """Perplexity of the samples under the model itself, prompts not counted: low where it goes round in circles."""
        texts = [prompt + new for (kind, *_), prompt, new in zip(self.prompts, self.ids, self.tokens, strict=True)
                 if kind == SAMPLES]
        lengths = [len(new) for (kind, *_), new in zip(self.prompts, self.tokens, strict=True) if kind == SAMPLES]
        if not any(lengths):
            return None
        rows = np.full((len(texts), self.seq_length + 1), PAD_ID, np.int32)
        first = np.zeros(len(texts), np.int32)
        for i, (text, new) in enumerate(zip(texts, lengths, strict=True)):
            text = text[-self.seq_length - 1:]
            rows[i, :len(text)] = text
            first[i] = max(0, len(text) - new - 1)
        loss, tokens, _ = self.scorer.score_rows(rows, first).sum(0)
        return perplexity(loss / tokens) if np.isfinite(loss) else None


def _language(prompt: str) -> str:
    """zh if a prompt has a Chinese character."""
    return "zh" if any("\u4e00" <= c <= "\u9fff" for c in prompt) else "en"
