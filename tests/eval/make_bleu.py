"""Run where sacrebleu 2 is installed, from the repository: python tests/eval/make_bleu.py

What sacrebleu computes for real sentences of the shipped corpus and for such as a model might make of them: bleu.json, for the
tests that have no sacrebleu. Nothing of MindGPT is used here.

    version    of sacrebleu
    sentences  [{"tokenize", "text", "tokens"}]: sacrebleu's "13a" for English, "zh" for Chinese
    bleu       [{"hypothesis", "references", "max_order", "bleu"}]: numbers are places in `sentences`, lists are tokens;
               smooth_method "none", effective order, tokenize "none", in [0, 1]
    self_bleu  [{"tokenize", "max_order", "bleu"}]: mean over all sentences of that kind of the BLEU of each against the others
"""
import json
import re
from pathlib import Path

import sacrebleu
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

HERE = Path(__file__).parent
CORPUS = HERE.parents[1] / "data" / "corpus"
TOKENIZERS = {"13a": Tokenizer13a(), "zh": TokenizerZh()}
PER_LANGUAGE = 15
# Sentences that begin alike, so that they share n-grams. Without apostrophes, dashes and digits, for which 13a has its own rules.
ENGLISH = re.compile(r'(?:It|She|He) (?:is|was|had|could) [A-Za-z,; ]{20,90}\.')
CHINESE = re.compile(r"子曰：“[\u4e00-\u9fff，。；？！]{8,40}”")


def sentences() -> list[dict]:
    found = []
    for file, pattern, tokenize in (("train_en.txt", ENGLISH, "13a"), ("train_zh.txt", CHINESE, "zh")):
        text = (CORPUS / file).read_text(encoding="utf-8").replace("\n", " ")
        texts = list(dict.fromkeys(match.group() for match in pattern.finditer(text)))[:PER_LANGUAGE]
        found += [{"tokenize": tokenize, "text": t, "tokens": TOKENIZERS[tokenize](t).split()} for t in texts]
    return found


def spoilt(tokens: list[str]) -> list[list[str]]:
    """A word lost, two in the wrong order, cut short, one phrase again and again, too long, nearly nothing, nothing."""
    third = len(tokens) // 3
    return [tokens[:third] + tokens[third + 1:], tokens[:third] + tokens[third:third + 2][::-1] + tokens[third + 2:],
            tokens[:2 * third], tokens[:4] * 4, tokens + tokens[:third], tokens[:2], tokens[:1], tokens[:3], []]


def bleu(hypothesis: list[str], references: list[list[str]], max_order: int) -> float:
    metric = BLEU(tokenize="none", smooth_method="none", effective_order=True, max_ngram_order=max_order)
    return metric.sentence_score(" ".join(hypothesis), [" ".join(r) for r in references]).score / 100


def cases(kept: list[dict]) -> list[dict]:
    """Each sentence against its neighbours, and what became of it against itself and those."""
    found = []
    for i, sentence in enumerate(kept):
        near = [j for j in (i - 1, i + 1, i + 2) if 0 <= j < len(kept) and kept[j]["tokenize"] == sentence["tokenize"]]
        form = spoilt(sentence["tokens"])[i % 9]
        for hypothesis, references, max_order in ((i, near, 4), (i, near, 2), (form, [i], 4), (form, [*near, i], 4)):
            units = sentence["tokens"] if isinstance(hypothesis, int) else hypothesis
            found.append({"hypothesis": hypothesis, "references": references, "max_order": max_order,
                          "bleu": bleu(units, [kept[j]["tokens"] for j in references], max_order)})
    return found


def self_bleu(kept: list[dict], tokenize: str, max_order: int) -> dict:
    texts = [s["tokens"] for s in kept if s["tokenize"] == tokenize]
    each = [bleu(text, texts[:i] + texts[i + 1:], max_order) for i, text in enumerate(texts)]
    return {"tokenize": tokenize, "max_order": max_order, "bleu": sum(each) / len(each)}


def main() -> None:
    kept = sentences()
    golden = {"version": sacrebleu.__version__, "sentences": kept, "bleu": cases(kept),
              "self_bleu": [self_bleu(kept, t, n) for t in TOKENIZERS for n in (1, 2, 4)]}
    parts = [f'"version": {json.dumps(golden["version"])}']
    for name in ("sentences", "bleu", "self_bleu"):
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in golden[name])
        parts.append(f'"{name}": [\n{rows}\n]')
    (HERE / "bleu.json").write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
