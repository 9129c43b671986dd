"""What ships in run_scripts/configs: the schema equals the models, and every preset passes it and its plan's proof."""
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from parallel.config_docs import json_schema
from parallel.cost.memory import budget, stage_memory
from parallel.cost.parameters import parameter_count
from parallel.yaml_tree import scalar
from train import preflight
from train.__main__ import main
from train.config import RunConfig, load_config
from train.plans import plan_of, planned

CONFIGS = Path(__file__).parents[2] / "run_scripts" / "configs"
PRESETS = {  # name: ranks, parameters
    "smoke": (2, 1.1e6), "smoke_llama": (2, 0.99e6), "llama_1b1": (8, 1.1e9), "gpt2_124m": (8, 124e6), "gpt_1b3": (8, 1.3e9),
    "gpt_13b": (128, 13e9),
    "gpt3_175b": (1024, 175e9)}
SCHEMA = json.loads((CONFIGS / "schema.json").read_text(encoding="utf-8"))
each_preset = pytest.mark.parametrize("name", PRESETS)


def test_all_presets_are_listed_here():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(PRESETS)


def test_the_shipped_schema_is_what_the_command_prints(capsys):
    """To renew it: python -m train --json-schema > run_scripts/configs/schema.json"""
    with pytest.raises(SystemExit) as end:
        main(["--json-schema"])
    printed = capsys.readouterr().out
    assert end.value.code == 0 and printed == json_schema(RunConfig)
    assert (CONFIGS / "schema.json").read_text(encoding="utf-8") == printed


@each_preset
def test_the_schema_takes_each_preset(name):
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    jsonschema.validate(read(text), SCHEMA)


@pytest.mark.parametrize(("text", "key"), [
    ("trian: {}", "trian"), ("train: {lrr: 1}", "lrr"), ("train: {lr: fast}", "fast"), ("train: {lr: 0}", "0"),
    ("data: {tokenizer: {vocab_size: 12}}", "12"), ("train: {groups: [{lr_factor: 2}]}", "pattern"),
    ("train: {betas: [0.9]}", "0.9"), ("eval: {deep: {judge: {urll: x}}}", "urll"), ("base: [a]", "a"),
    ("health: {rules: {loss_spike: {level: panic}}}", "panic"), ("run: {seed: null}", "None"),
])
def test_the_schema_refuses_what_the_reader_refuses(text, key):
    with pytest.raises(jsonschema.ValidationError, match=key):
        jsonschema.validate(read(text), SCHEMA)


def test_the_schema_takes_parts_of_sections_as_a_file_with_a_base_has_them():
    jsonschema.validate(read("base: smoke.yaml\ntrain: {lr: 1.0e-3, betas: [0.9, 0.95]}\nparallel: {dp: auto}\n"
                             "data: {path: {en: a.txt}}\neval: {deep: {judge: {model: m}}}\nckpt: {resume: none}\n"), SCHEMA)


def read(text: str) -> dict:
    """The file's own values as YAML 1.2, and so an editor, reads them; its base left alone."""
    def typed(value):
        if isinstance(value, dict):
            return {key: typed(item) for key, item in value.items()}
        return [typed(item) for item in value] if isinstance(value, list) else scalar(value)
    return typed(yaml.load(text, yaml.BaseLoader))


@each_preset
@pytest.mark.parametrize("precision", [[], ["precision.level=O0"], ["precision.level=O2"]], ids=["own", "O0", "O2"])
def test_the_plan_of_each_preset_can_be_and_fits(name, precision):
    """Preflight without compiling: every rule of the plan, every stage's memory by the closed form, the model's size."""
    world_size, parameters = PRESETS[name]
    config, mesh, count = planned(load_config(CONFIGS / f"{name}.yaml", precision), world_size)
    sizes, plan = plan_of(config, mesh, count)
    assert mesh.world_size == world_size
    assert parameter_count(sizes) == pytest.approx(parameters, rel=0.05)
    limit = budget(config.parallel.topology)
    assert max(stage_memory(sizes, plan, stage).total for stage in range(mesh.pp)) <= limit


@pytest.mark.long
@each_preset
def test_the_compiled_plan_of_each_preset_passes(name, capsys):
    """Preflight as it is, of one rank of each kind of stage."""
    world = ["--world-size", str(PRESETS[name][0])]
    assert preflight.main(["--config", str(CONFIGS / f"{name}.yaml"), "--ranks", "kinds", *world]) == 0
    assert "cut as planned" in capsys.readouterr().out
