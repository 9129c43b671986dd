"""The section `data`: which text, which tokenizer, how samples are cut and read."""
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from parallel.config import Section

# A path in a YAML file is relative to that file's folder; the reader makes it absolute (see parallel.config_file).
TextPath = Annotated[Path, Field(strict=False)]
# The name of a corpus becomes the name of a folder.
CorpusName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]


class TokenizerConfig(Section):
    """A sentencepiece BPE with byte fallback: trained on the training text, or given."""

    vocab_size: int = Field(8000, ge=261, lt=2**24, description="pieces, with bos, eos, pad, unk and 256 bytes among them")
    character_coverage: float = Field(0.9995, ge=0.98, le=1.0,
                                      description="share of the characters with a piece of their own; the rest: bytes")
    model: TextPath | None = Field(None, description="an existing sentencepiece .model to use instead of training one")


class DataConfig(Section):
    """Text to samples: see data/README.md."""

    path: TextPath | dict[CorpusName, TextPath] = Field(
        description="training text: a .txt or .jsonl file (also gzip) or a folder of them; or corpus name -> such a path")
    valid_path: TextPath | dict[CorpusName, TextPath] | None = Field(
        None, description="validation text, with the corpus names of `path`; null: the end of each corpus is held out")
    valid_fraction: float = Field(0.02, gt=0.0, lt=0.5, description="share held out where valid_path is null")
    document: Literal["file", "line"] = Field("file", description="what one document is in a .txt file")
    on_bad_text: Literal["error", "replace", "skip"] = Field(
        "error", description="invalid UTF-8 or NUL: stop; put U+FFFD (NUL: nothing) in its place; or leave the document out")
    seq_length: int = Field(128, ge=2, le=2**20, description="tokens that a sample predicts (it holds one more)")
    tokenizer: TokenizerConfig = TokenizerConfig()
    prepared_dir: TextPath = Field(description="where the tokenizer, the MindRecord files and the manifest go")
    num_shards: int = Field(4, ge=1, le=1000, description="MindRecord files of the training set")
    num_workers: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description="threads and processes, at most as many as cores; auto: 60 % to read, all to prepare, at most 8")
    prefetch: int = Field(8, ge=1, le=128, description="batches read ahead")
    log_samples: bool = Field(False, description="write which samples each step read to <run>/samples/rank_N.jsonl")
    cache: Literal["none", "memory"] = Field("none", description="memory: all samples are read once and kept")

    @model_validator(mode="after")
    def _same_corpora(self) -> "DataConfig":
        if not corpora(self.path):
            raise ValueError("data.path names no corpus: give a path, or a map of corpus names to paths")
        if self.valid_path is not None and set(corpora(self.path)) != set(corpora(self.valid_path)):
            raise ValueError(f"valid_path names the corpora {sorted(corpora(self.valid_path))}, path names "
                             f"{sorted(corpora(self.path))}; use the same names, or set data.valid_path=null to hold out "
                             f"the last {self.valid_fraction:.0%} of each corpus")
        return self

    def workers(self, auto_percent: int = 60) -> int:
        """`num_workers` as a number, never above this process's share of the cores, of which "auto" takes so much."""
        cores = max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("MINDGPT_LOCAL_WORKERS", "1")))
        return min(8, max(1, cores * auto_percent // 100)) if self.num_workers == "auto" else min(self.num_workers, cores)


def corpora(path: Path | dict[str, Path]) -> dict[str, Path]:
    """Corpus name -> path; a single path is the corpus "text"."""
    return path if isinstance(path, dict) else {"text": path}
