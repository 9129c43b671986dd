"""Cases C1 and C2 of the reported faults, run against the command: types that YAML guesses wrong, keys that nobody has."""
import pytest

from train.__main__ import main
from train.config import load_config

HEAD = "run: {dir: runs}\ndata: {path: text.txt, prepared_dir: prepared}\n"


@pytest.fixture
def refused(tmp_path, capsys):
    """refused(text of a file, overrides) -> the message, without the folder; exit code 2, and nothing was written."""
    def run(text: str, *overrides: str) -> str:
        (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
        assert main(["--config", str(tmp_path / "c.yaml"), *(["--set", *overrides] if overrides else [])]) == 2
        out, errors = capsys.readouterr()
        assert not out and [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
        return errors.removeprefix("error: ").replace(f"{tmp_path}/", "").rstrip("\n")
    return run


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "0.0001", ".0001"])
def test_c1_floats_in_every_form(tmp_path, text):
    (tmp_path / "c.yaml").write_text(f"{HEAD}train: {{lr: {text}}}\n", encoding="utf-8")
    for lr in (load_config(tmp_path / "c.yaml").train.lr, load_config(tmp_path / "c.yaml", [f"train.lr={text}"]).train.lr):
        assert lr == 1e-4 and isinstance(lr, float)


DECIMAL = "numbers are plain decimal digits: no leading 0, no _ or : or 0x"


@pytest.mark.parametrize(("key", "text", "message"), [
    ("train.lr", '"3e-4"', 'got "3e-4" (text), expected a number > 0; remove the quotes: 3e-4'),
    ("train.total_steps", "0100", f'got "0100" (text), expected an integer >= 1 and < 2147483648; {DECIMAL}'),
    ("train.total_steps", "1_000", f'got "1_000" (text), expected an integer >= 1 and < 2147483648; {DECIMAL}'),
    ("train.total_steps", "1:30", f'got "1:30" (text), expected an integer >= 1 and < 2147483648; {DECIMAL}'),
    ("train.total_steps", "10.0", "got 10.0 (number), expected an integer >= 1 and < 2147483648; write 10"),
    ("data.log_samples", '"false"', 'got "false" (text), expected true or false; remove the quotes: false'),
    ("data.log_samples", "off", 'got "off" (text), expected true or false; write false'),
    ("data.log_samples", "0", "got 0 (integer), expected true or false"),
    ("precision.level", "off", 'got "off" (text), expected "O0", "O1", "O2" or "O3"'),
    ("precision.level", "O4", 'got "O4" (text), expected "O0", "O1", "O2" or "O3"'),
    ("run.seed", "null", "got null, expected an integer >= 0 and < 2147483648"),
    ("run.name", "on: 1", "not valid YAML"),
    ("run.name", "1234", "got 1234 (integer), expected text matching"),
    ("train.betas", "0.9", "got 0.9 (number), expected a list of 2, [a number, a number]"),
    ("train.betas", "[0.9, '0.95']", 'got "0.95" (text), expected a list of 2, [a number, a number]; remove the quotes: 0.95'),
])
def test_c1_wrong_types_stop_with_key_value_type_and_line(refused, key, text, message):
    section, name = key.split(".")
    lines = {"run": ["dir: runs"], "data": ["path: a.txt", "prepared_dir: p"], **({section: []} if section not in HEAD else {})}
    lines[section].append(f"{name}: {text}")
    found = refused("".join(f"{name}:\n" + "".join(f"  {line}\n" for line in of) for name, of in lines.items()))
    line = {"run": 3, "data": 6}.get(section, 7)
    assert found.startswith(f"c.yaml:{line}: ") and message in found and "\n" not in found
    if "YAML" not in message:
        assert f" {key}" in found


def test_c1_yes_no_on_off_stay_text(tmp_path):
    (tmp_path / "c.yaml").write_text("run: {dir: runs, name: off}\ndata: {path: {no: a.txt, yes: b.txt}, prepared_dir: 0100}\n")
    config = load_config(tmp_path / "c.yaml")
    assert config.run.name == "off" and set(config.data.path) == {"no", "yes"} and config.data.prepared_dir.name == "0100"


@pytest.mark.parametrize(("text", "overrides", "message"), [
    (f"{HEAD}learning_rte: 0.1\n", [], "c.yaml:3: learning_rte: unknown key; did you mean train.lr"),
    (f"{HEAD}train:\n  learning_rte: 0.1\n", [], "c.yaml:4: train.learning_rte: unknown key; did you mean train.lr"),
    (f"{HEAD}train: {{num-epochs: 3}}\n", [], "c.yaml:3: train.num-epochs: unknown key; train has the keys total_steps, "),
    (f"{HEAD}max_steps: 3\n", [], "c.yaml:3: max_steps: unknown key; did you mean train.total_steps"),
    (f"{HEAD}total_steps: 3\n", [], "c.yaml:3: total_steps: unknown key; did you mean train.total_steps"),
    (f"{HEAD}trian: {{lr: 1}}\n", [], "c.yaml:3: trian: unknown key; did you mean train?"),
    (f"{HEAD}model: {{lr: 1}}\n", [], "c.yaml:3: model.lr: unknown key; did you mean train.lr"),
    (f"{HEAD}precision: {{loss_scale: {{dynamc: true}}}}\n", [],
     "c.yaml:3: precision.loss_scale.dynamc: unknown key; did you mean precision.loss_scale.dynamic?"),
    (f"{HEAD}train: {{groups: [{{pattern: '*', lr_facto: 1}}]}}\n", [],
     "c.yaml:3: train.groups.0.lr_facto: unknown key"),
    (HEAD, ["train.lrr=1"], "--set train.lrr=1: train.lrr: unknown key; did you mean train.lr"),
    (HEAD, ["trian.lr=1"], "--set trian.lr=1: trian: unknown key; did you mean train?"),
    (HEAD, ["lr=1"], "--set lr=1: lr: unknown key; did you mean train.lr"),
    (HEAD, ["train.lr.peak=1"], "--set train.lr.peak=1: train.lr: got a map with the keys peak, expected a number > 0"),
    (HEAD, ["health.rules.loss_spke.level=off"],
     "--set health.rules.loss_spke.level=off: health.rules.loss_spke: unknown key; did you mean health.rules.loss_spike"),
    ("", [], "c.yaml: the file holds nothing; expected sections"), ("# nothing\n", [], "c.yaml: the file holds nothing"),
    ("- train\n- model\n", [], "c.yaml: the file holds a list; expected sections"),
    ("train\n", [], "c.yaml: the file holds a single value"),
])
def test_c2_unknown_keys_stop_with_section_and_nearest_name(refused, text, overrides, message):
    found = refused(text, *overrides)
    assert found.startswith(message) and "\n" not in found


def test_c2_several_mistakes_are_all_told(refused):
    found = refused(f"{HEAD}train:\n  lrr: 1\n  lr: fast\nmodle: {{}}\n", "ckpt.keep_lst=3").splitlines()
    assert [line.partition(": unknown")[0].partition(": got")[0] for line in found] == [
        "c.yaml:4: train.lrr", "c.yaml:5: train.lr", "c.yaml:6: modle", "--set ckpt.keep_lst=3: ckpt.keep_lst"]


def test_a_rule_across_sections_names_the_line_that_was_written_last(refused, tmp_path):
    base = tmp_path.parent / f"{tmp_path.name}.yaml"
    base.write_text(f"{HEAD}model: {{num_heads: 4, hidden_size: 64}}\ntrain: {{warmup_steps: 9, total_steps: 9}}\n")
    text = f"base: ../{base.name}\nmodel:\n  hidden_size: 30\n"
    assert refused(text).startswith("c.yaml:3: model.num_heads=4 does not divide model.hidden_size=30: ")
    assert refused(f"base: ../{base.name}\n", "train.total_steps=8") == (
        "--set train.total_steps=8: train.warmup_steps=9 exceeds train.total_steps=8: lower the one or raise the "
        "other")
    base.write_text(f"{HEAD}model:\n  num_heads: 4\n  hidden_size: 30\n", encoding="utf-8")
    assert refused(f"base: ../{base.name}\n").startswith(f"{base}:4: model.num_heads=4 does not divide")
