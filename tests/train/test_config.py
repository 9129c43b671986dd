"""The config of a run: the rules across sections, the shipped files, the defaults, and the command line's refusals."""
import json
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest

from parallel import config_file
from parallel.errors import UserError
from train.__main__ import main
from train.checks import plan
from train.config import RunConfig, load_config

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "run_scripts" / "configs").glob("*.yaml"))
SMOKE = str(ROOT / "run_scripts" / "configs" / "smoke.yaml")
LEAST = "run: {dir: runs}\ndata: {path: text.txt, prepared_dir: prepared}\n"


@pytest.fixture
def load(tmp_path):
    """load(overrides, text) -> the config of a file with no more than it must have, and `text`."""
    def read(overrides: str = "", text: str = "") -> RunConfig:
        path = tmp_path / "c.yaml"
        path.write_text(LEAST + text, encoding="utf-8")
        return load_config(path, overrides.split())
    return read


@pytest.mark.parametrize(("overrides", "message"), [
    ("model.hidden_size=100 model.num_heads=12",
     "--set model.num_heads=12: model.num_heads=12 does not divide model.hidden_size=100: allowed are "
     "1, 2, 4, 5, 10, 20, 25, 50, 100"),
    ("model.hidden_size=6 model.num_heads=7",
     "--set model.num_heads=7: model.num_heads=7 does not divide model.hidden_size=6: allowed are 1, 2, 3, 6"),
    ("data.seq_length=129",
     "--set data.seq_length=129: data.seq_length=129 is longer than model.seq_length=128, the model's longest context: lower "
     "the one or raise the other"),
    ("train.total_steps=10 train.warmup_steps=11",
     "--set train.warmup_steps=11: train.warmup_steps=11 exceeds train.total_steps=10: lower the one or raise the other"),
    ("train.lr=1e-3 train.min_lr=2e-3",
     "--set train.min_lr=2e-3: train.min_lr=0.002 exceeds train.lr=0.001: lower the one or raise the other"),
    ("train.betas=[0.9,1.0]", "--set train.betas=[0.9,1.0]: train.betas=[0.9, 1.0]: each must be at least 0 and below 1"),
    ("train.betas=[-0.1,0.9]", "--set train.betas=[-0.1,0.9]: train.betas=[-0.1, 0.9]: each must be at least 0 and below 1"),
    ("precision.loss_scale.initial=0.5", "--set precision.loss_scale.initial=0.5: precision.loss_scale.initial=0.5 must lie "
     "between min=1.0 and max=16777216.0"),
    ("precision.loss_scale.initial=9 precision.loss_scale.max=8", "--set precision.loss_scale.initial=9: "
     "precision.loss_scale.initial=9.0 must lie between min=1.0 and max=8.0"),
    ("model.architecture=llama model.num_kv_heads=3", "--set model.num_kv_heads=3: model.num_kv_heads=3 does not divide "
     "model.num_heads=4: allowed are 1, 2, 4"),
    ("model.tie_embeddings=false", "--set model.tie_embeddings=false: model.tie_embeddings=false means nothing for "
     "model.architecture=gpt2: remove it, or set model.architecture=llama"),
    ("model.architecture=llama model.layer_norm_eps=1e-6", "--set model.layer_norm_eps=1e-6: model.layer_norm_eps=1e-06 means "
     "nothing for model.architecture=llama: remove it, or set model.architecture=gpt2"),
    ("model.architecture=llama model.hidden_size=20", "--set model.hidden_size=20: model.num_heads=4 leaves a head 5 of the "
     "model.hidden_size=20 elements, and rotary positions turn pairs of them: make that number even"),
    ("precision.white_list=[Gelu]", "--set precision.white_list=[Gelu]: precision.white_list and black_list need "
     "precision.level O1, O2 or O3: O0 is float32 everywhere"),
])
def test_a_rule_across_sections_says_both_numbers_and_what_is_allowed(load, overrides, message):
    with pytest.raises(UserError) as caught:
        load(overrides)
    assert str(caught.value) == message


@pytest.mark.parametrize("overrides", [
    "model.hidden_size=100 model.num_heads=100", "model.hidden_size=100 model.num_heads=1", "data.seq_length=128",
    "model.seq_length=64 data.seq_length=64", "data.seq_length=2", "train.total_steps=10 train.warmup_steps=10",
    "train.lr=1e-3 train.min_lr=1e-3", "train.betas=[0.0,0.999999]",
    "precision.loss_scale.initial=4 precision.loss_scale.min=4 precision.loss_scale.max=4",
])
def test_the_last_value_that_a_rule_allows(load, overrides):
    config = load(overrides)
    for key, value in (assignment.split("=") for assignment in overrides.split()):
        found = reduce(getattr, key.split("."), config)
        assert found == (tuple(json.loads(value)) if value[0] == "[" else float(value))


@pytest.mark.parametrize(("text", "line"), [
    ("model:\n  hidden_size: 64\n  num_heads: 5\n", 5), ("train:\n  warmup_steps: 3\n  total_steps: 2\n", 4),
    ("model: {hidden_size: 64}\ntrain:\n  min_lr: 1.0\n", 5), ("model:\n  seq_length: 8\n", 4),
    ("precision:\n  loss_scale:\n    initial: 0.1\n", 5),
])
def test_a_rule_names_the_line_of_the_file(load, tmp_path, text, line):
    with pytest.raises(UserError, match="^[^\n]*$") as caught:
        load(text=text)
    assert str(caught.value).startswith(f"{tmp_path / 'c.yaml'}:{line}: ")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_files_load(path):
    config = load_config(path)
    assert config.run.name == path.stem
    assert config.run.dir == ROOT / "runs" and config.data.prepared_dir.is_relative_to(ROOT)


def test_there_are_shipped_files():
    assert Path(SMOKE) in CONFIGS


@pytest.mark.parametrize(("document", "sentence", "key", "value"), [
    ("README.md", "every 5 % of the run a validation", "eval.stage.every", 0.05),
    ("README.md", "in the middle and at the end texts that the model wrote", "eval.deep.at", (0.5, 1.0)),
    ("README.md", "| O0 (default) | nothing | all |", "precision.level", "O0"),
    ("README.md", "on CPU data-parallel, on Ascend with", "parallel.tp", 1),
    ("README.md", "on CPU data-parallel, on Ascend with", "parallel.pp", 1),
    ("README.md", "goes on from the newest whole checkpoint (`ckpt.resume=auto`)", "ckpt.resume", "auto"),
    ("data/README.md", "each line of a .txt is a document (default: each file)", "data.document", "file"),
    ("data/README.md", "`on_bad_text: error` (default)", "data.on_bad_text", "error"),
])
def test_the_defaults_are_what_the_documents_say(load, document, sentence, key, value):
    assert sentence in " ".join((ROOT / document).read_text(encoding="utf-8").split())
    assert reduce(getattr, key.split("."), load()) == value


def test_the_other_defaults(load):
    """A model and a schedule that work without being named: GPT-2's initialisation and epsilon, GPT-3's betas, no dropout."""
    c = load()
    assert (c.model.init_std, c.model.layer_norm_eps, c.model.dropout, c.model.ffn_size) == (0.02, 1e-5, 0.0, 4 * 192)
    assert (c.train.betas, c.train.weight_decay, c.train.clip_norm, c.train.stop_at_step) == ((0.9, 0.95), 0.1, 1.0, None)
    assert (c.train.micro_batch_size, c.parallel.dp, c.parallel.num_micro_batches) == ("auto",) * 3
    assert not c.precision.loss_scale.dynamic and c.precision.loss_scale.initial == 1.0
    assert c.model.seq_length == c.data.seq_length and c.run.seed == 1234 and c.ckpt.keep_last == 2


@pytest.mark.parametrize("overrides", [
    [], ["train.clip_norm=null", "train.lr=1e-4", "train.betas=[0,0.5]", "data.valid_path=null", "run.dir=here"],
    ["run.name='1e5'", "data.path=text", "data.valid_path=text", "train.micro_batch_size=2", "ckpt.init_from=~/x: #y"],
    ["run.name='null'", 'eval.deep.prompts=["", "null", "0100", "a: b # c", "- x", "子曰：“学\\n", " \\t\'\\""]'],
])
def test_the_printed_config_loads_back(overrides, tmp_path, capsys):
    arguments = ["--config", SMOKE, *(["--set", *overrides] if overrides else [])]
    assert main([*arguments, "--print-config"]) == 0
    printed, errors = capsys.readouterr()
    (tmp_path / "printed.yaml").write_text(printed, encoding="utf-8")
    config = load_config(SMOKE, overrides)
    assert load_config(tmp_path / "printed.yaml") == config and not errors
    assert printed == config_file.dump(config)


@pytest.mark.parametrize(("override", "says"), [
    ("train.lrr=1e-3", "train.lrr: unknown key; did you mean train.lr"),
    ("optimizer.lr=1e-3", "optimizer: unknown key"),
    ("train.lr=fast", 'train.lr: got "fast" (text), expected a number > 0'),
    ("train.warmup_steps=1000", "train.warmup_steps=1000 exceeds train.total_steps=760"),
    ("eval.deep.prompts=[]", "eval.deep.prompts: got a list of 0, expected"),
])
def test_a_mistake_is_one_line_and_exit_code_2(override, says, tmp_path, capsys):
    assert main(["--config", SMOKE, "--set", f"run.dir={tmp_path / 'runs'}", override]) == 2
    printed, errors = capsys.readouterr()
    assert errors.startswith(f"error: --set {override}: ") and errors.count("\n") == 1 and errors.endswith("\n")
    assert says in errors and not printed
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert main(["--config", str(tmp_path / "none.yaml")]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: {tmp_path / 'none.yaml'}: ") and errors.count("\n") == 1


COUNTING = """
import sys
from train.__main__ import main
from train.checks import plan
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("LOADED", code, *sorted({name.split(".")[0] for name in sys.modules} & {"mindspore", "train"}))
"""


@pytest.mark.parametrize(("arguments", "code"), [
    (["--config", SMOKE, "--set", "train.lrr=1"], 2), (["--config", SMOKE, "--print-config"], 0), (["--help"], 0), ([], 2)],
    ids=["refused", "printed", "help", "no arguments"])
def test_mindspore_is_not_loaded_before_it_is_needed(arguments, code):
    result = subprocess.run([sys.executable, "-c", COUNTING, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[-1] == f"LOADED {code} train", result.stderr


@pytest.mark.parametrize(("key", "ranks"), [("tp", 1), ("tp", 2), ("pp", 1), ("pp", 4)])
def test_without_cards_a_cut_model_is_refused_and_shown_the_way(tiny, monkeypatch, key, ranks):
    """Whatever the number of ranks, which is not what is wrong."""
    monkeypatch.setattr("train.checks.glob.glob", lambda pattern: [])
    with pytest.raises(UserError, match=f"{key}=2 .*on CPU.*train.preflight.*train.rehearse"):
        plan(tiny(f"parallel.{key}=2"), ranks, 0)
