"""The manifest of prepared data: what is there, what it was made from, and whether it still fits the config."""
import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from data.config import DataConfig, corpora
from data.sources import Source, find_sources
from parallel.errors import UserError
from parallel.files import sha256

FILE_NAME = "manifest.json"
PREPARE = "run `python -m data prepare --config ...`"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Entry):
    """A written file, `name` relative to the prepared folder."""

    name: str
    size: int
    sha256: str


class InputEntry(_Entry):
    """A text file that was read, and what was changed in it."""

    split: str
    corpus: str
    name: str
    size: int
    mtime_ns: int
    sha256: str
    documents: int
    text_bytes: int
    changes: dict[str, int]


class SetEntry(_Entry):
    """A set of samples. Tokens, documents and text bytes count what the samples predict, each token once, without padding."""

    samples: int
    tokens: int
    documents: int
    text_bytes: int
    sha256: str  # of all samples in their order as little-endian int32, whatever the number of shards
    files: tuple[FileEntry, ...]

    def record_files(self, prepared_dir: Path) -> list[str]:
        """The MindRecord files, in the order of their samples."""
        return [str(prepared_dir / file.name) for file in self.files if file.name.endswith(".mindrecord")]


class TokenizerEntry(_Entry):
    sha256: str
    vocab_size: int
    lossy_share: float  # share of sample lines that encoding and decoding changes


class Manifest(_Entry):
    """What `prepare` wrote into a folder. The sets are `train` and one `valid_<corpus>` for each corpus."""

    format: Literal[1]  # raised when the layout changes
    settings: dict[str, str | int | float | list[str] | None]
    inputs: tuple[InputEntry, ...]
    tokenizer: TokenizerEntry
    sets: dict[str, SetEntry]
    other_files: tuple[FileEntry, ...]
    versions: dict[str, str]

    @property
    def fingerprint(self) -> str:
        """A hash of the tokenizer and of all samples: equal fingerprints, equal batches."""
        content = [self.tokenizer.sha256, *(f"{name}:{entry.sha256}" for name, entry in sorted(self.sets.items()))]
        return hashlib.sha256("\n".join(content).encode()).hexdigest()

    @property
    def valid_sets(self) -> list[str]:
        """Names of the validation sets, sorted; some may be empty."""
        return sorted(name for name in self.sets if name != "train")

    def write(self, folder: Path) -> None:
        (folder / FILE_NAME).write_text(json.dumps(self.model_dump(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def settings_of(config: DataConfig) -> dict[str, str | int | float | list[str] | None]:
    """The part of the config that decides the prepared data; where files lie and how they are read does not."""
    given = config.tokenizer.model
    if given is not None and not given.is_file():
        raise UserError(f"data.tokenizer.model: {given} does not exist")
    return {
        "corpora": sorted(corpora(config.path)),
        "valid_fraction": config.valid_fraction if config.valid_path is None else None,
        "document": config.document,
        "on_bad_text": config.on_bad_text,
        "seq_length": config.seq_length,
        "num_shards": config.num_shards,
        "tokenizer.vocab_size": None if given else config.tokenizer.vocab_size,
        "tokenizer.character_coverage": None if given else config.tokenizer.character_coverage,
        "tokenizer.model": sha256(given) if given else None,
    }


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest in a folder; None where there is none.

    Raises:
        UserError: there is one that this version cannot read.
    """
    file = folder / FILE_NAME
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        raise UserError(f"{file}: not a manifest of this version; delete {folder} and prepare again") from error


def load_manifest(config: DataConfig) -> Manifest:
    """The manifest of `config.prepared_dir`, if the data there is whole and fits the config.

    Text that is there is compared by name and size; text that is not there is not missed: a cluster needs only the prepared data.

    Raises:
        UserError: not prepared, made with other settings or other text, or a file is missing or has another size.
    """
    folder = config.prepared_dir
    manifest = read_manifest(folder)
    if manifest is None:
        raise UserError(f"data.prepared_dir: {folder} holds no prepared data; {PREPARE}")
    if problem := changed(manifest, config) or _damage(manifest, folder):
        raise UserError(f"{folder}: {problem}; {PREPARE} again")
    return manifest


def is_current(manifest: Manifest, config: DataConfig, sources: list[Source]) -> bool:
    """Whether preparing again would give the same: a file of the same size but another time is compared by its hash."""
    if changed_settings(manifest, config) or _damage(manifest, config.prepared_dir):
        return False
    if _identities(manifest) != [source.identity for source in sources]:
        return False
    return all(entry.mtime_ns == source.mtime_ns or entry.sha256 == sha256(source.path)
               for entry, source in zip(manifest.inputs, sources, strict=True))


def changed(manifest: Manifest, config: DataConfig) -> str | None:
    """What differs from the settings and the text that the data was prepared with, in words; None: nothing."""
    return changed_settings(manifest, config) or _changed_text(manifest, config)


def changed_settings(manifest: Manifest, config: DataConfig) -> str | None:
    """Which settings differ from those the data was prepared with, in words; None: none."""
    now = settings_of(config)
    changed = [f"data.{key} {manifest.settings.get(key)} (now {value})" for key, value in now.items()
               if manifest.settings.get(key) != value]
    return f"prepared with {', '.join(changed)}" if changed else None


def _damage(manifest: Manifest, folder: Path) -> str | None:
    for file in [*manifest.other_files, *(file for entry in manifest.sets.values() for file in entry.files)]:
        path = folder / file.name
        if not path.is_file():
            return f"{file.name} is missing"
        if path.stat().st_size != file.size:
            return f"{file.name} has {path.stat().st_size} bytes, not {file.size}"
    for file in manifest.other_files:  # small ones, on which the meaning of all samples depends
        if sha256(folder / file.name) != file.sha256:
            return f"{file.name} was altered: its SHA-256 is not the manifest's"
    return None


def _changed_text(manifest: Manifest, config: DataConfig) -> str | None:
    roots = [*corpora(config.path).values(), *(corpora(config.valid_path).values() if config.valid_path else ())]
    if not all(root.exists() for root in roots):
        return None
    return None if _identities(manifest) == [source.identity for source in find_sources(config)] else \
        "the text has changed since it was prepared"


def _identities(manifest: Manifest) -> list[tuple[str, str, str, int]]:
    return [(entry.split, entry.corpus, entry.name, entry.size) for entry in manifest.inputs]
