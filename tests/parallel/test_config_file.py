"""The strict config reader: what it takes, what it refuses, and in which words."""
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from parallel import config_file
from parallel.config import Section
from parallel.errors import UserError

AnyPath = Annotated[Path, Field(strict=False)]


class Loss(Section):
    dynamic: bool = False
    initial: float = Field(1.0, gt=0.0)


class Train(Section):
    total_steps: int = Field(400, ge=1)
    lr: float = Field(1e-3, gt=0.0)
    betas: tuple[float, float] = Field((0.9, 0.95), strict=False)
    clip_norm: float | None = Field(1.0, gt=0.0)
    schedule: Literal["cosine", "linear"] = "cosine"
    seed: int = 0
    workers: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    loss: Loss = Loss()


class Data(Section):
    path: AnyPath | dict[str, AnyPath]
    out: AnyPath = Path("out")
    shuffle: bool = True
    resume: Literal["auto", "none"] | AnyPath = "auto"


class Run(Section):
    name: str = "smoke"
    data: Data
    train: Train = Train()


HEAD = "data:\n  path: corpus.txt\n"


@pytest.fixture
def load(tmp_path):
    def read(text: str | bytes, *overrides: str, tree=Run):
        path = tmp_path / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return config_file.load(path, tree, list(overrides))
    return read


@pytest.fixture
def refuse(load, tmp_path):
    """The message, with the temporary folder left out."""
    def read(*given):
        with pytest.raises(UserError) as caught:
            load(*given)
        return str(caught.value).replace(f"{tmp_path}/", "")
    return read


def test_a_number_where_a_text_is_wanted_is_to_be_quoted(refuse, load):
    assert refuse(HEAD, "name=2024") == ("--set name=2024: name: got 2024 (integer), expected text; write it in quotes that the "
                                         "shell leaves: name='\"2024\"'")
    assert load(HEAD, 'name="2024"').name == "2024"


@pytest.mark.parametrize("text, value", [("1e-4", 1e-4), ("1E-4", 1e-4), ("1.e-4", 1e-4), ("+.5", 0.5), ("3", 3.0)])
def test_numbers(load, text, value):
    lr = load(f"{HEAD}train: {{lr: {text}}}").train.lr
    assert lr == value and type(lr) is float
    assert load(HEAD, f"train.lr={text}").train.lr == value


@pytest.mark.parametrize("key, text, message", [
    ("lr", '"3e-4"', 'got "3e-4" (text), expected a number > 0; remove the quotes: 3e-4'),
    ("lr", "3e-4x", 'got "3e-4x" (text), expected a number > 0; did you mean 3e-4?'),
    ("lr", "true", "got true (boolean), expected a number > 0"),
    ("lr", "0", "got 0 (integer), expected a number > 0"),
    ("lr", ".inf", 'got ".inf" (text), expected a number > 0; the number must be finite'),
    ("lr", "1e999", 'got "1e999" (text), expected a number > 0; the number must be finite'),
    ("lr", "[1]", "got a list of 1, expected a number > 0"),
    ("lr", "{a: 1}", "got a map with the keys a, expected a number > 0"),
    ("total_steps", "10.0", "got 10.0 (number), expected an integer >= 1; write 10"),
    ("total_steps", "1e3", "got 1e3 (number), expected an integer >= 1; write 1000"),
    ("seed", "null", "got null, expected an integer"),
    ("seed", "", "got null, expected an integer"),
    ("betas", "0.9", "got 0.9 (number), expected a list of 2, [a number, a number]"),
    ("betas", "[0.9]", "got a list of 1, expected a list of 2, [a number, a number]"),
    ("clip_norm", "NULL", 'got "NULL" (text), expected a number > 0 or null; did you mean null?'),
    ("schedule", "off", 'got "off" (text), expected "cosine" or "linear"'),
    ("schedule", "cosin", 'got "cosin" (text), expected "cosine" or "linear"; did you mean cosine?'),
    ("workers", "0", 'got 0 (integer), expected "auto" or an integer >= 1'),
])
def test_refused_values(refuse, key, text, message):
    assert refuse(f"{HEAD}train:\n  {key}: {text}\n") == f"c.yaml:4: train.{key}: {message}"


@pytest.mark.parametrize("text", ["0100", "1_000", "1:30", "0x1F", "0o17", "1,000"])
def test_integers_are_decimal_digits(refuse, text):
    assert refuse(f"{HEAD}train:\n  total_steps: {text}\n") == (
        f'c.yaml:4: train.total_steps: got "{text}" (text), expected an integer >= 1; '
        "numbers are plain decimal digits: no leading 0, no _ or : or 0x")


@pytest.mark.parametrize("text, hint", [('"false"', "remove the quotes: false"), ("off", "write false"),
                                        ("Yes", "write true"), ("TRUE", "write true")])
def test_only_true_and_false_are_booleans(refuse, text, hint):
    message = refuse(f"data:\n  path: a\n  shuffle: {text}\n")
    assert message.startswith("c.yaml:3: data.shuffle: got ")
    assert message.endswith(f"(text), expected true or false; {hint}")


@pytest.mark.parametrize("name", ["off", "1_0", "'1e-4'", "'null'", "a b", "'#'", "'- x'", '"é\\n\\x85\U0001F600"'])
def test_dump_reads_back_equal(load, name):
    config = load(f"name: {name}\ndata: {{path: {{en: a.txt, '1e5': /b}}}}\ntrain: {{lr: 1e-5, clip_norm: null}}")
    assert load(config_file.dump(config)) == config


def test_unknown_keys_are_all_listed_with_the_nearest_names(refuse):
    text = f"max_steps: 3\nlr: 1\n{HEAD}train:\n  learning_rte: 0.1\n  num-epochs: 3\n  total-steps: 5\n"
    assert refuse(text, "train.lrr=1").splitlines() == [
        "c.yaml:1: max_steps: unknown key; did you mean train.total_steps?",
        "c.yaml:2: lr: unknown key; did you mean train.lr?",
        "c.yaml:6: train.learning_rte: unknown key; did you mean train.lr?",
        "c.yaml:7: train.num-epochs: unknown key; train has the keys total_steps, lr, betas, clip_norm, schedule, "
        "seed, workers, loss",
        "c.yaml:8: train.total-steps: unknown key; did you mean train.total_steps?",
        "--set train.lrr=1: train.lrr: unknown key; did you mean train.lr?",
    ]


def test_missing_keys(refuse):
    assert refuse("name: a\n") == "c.yaml: data: missing; expected a section of `key: value` lines with path"
    assert refuse("name: a\ndata:\n  shuffle: true\n") == (
        "c.yaml:2: data.path: missing; expected a path or a map of names, each with a path")
    assert refuse(f"{HEAD}train:\n").startswith("c.yaml:3: train: got null, expected a section")


@pytest.mark.parametrize("text, message", [
    (b"", "c.yaml: the file holds nothing"), (b"# only a comment\n", "c.yaml: the file holds nothing"),
    (b"- a\n- b\n", "c.yaml: the file holds a list"), (b"hello", "c.yaml: the file holds a single value"),
    (b"a: 1\nb: caf\xe9\n", "c.yaml:2: byte 0xe9 is not UTF-8"), (b"a: 1\nb: \x00", "c.yaml:2: the character U+0000"),
    (b"train:\n\tlr: 1\n", "c.yaml:2: column 1: not valid YAML"), (b"a: [1\n", "c.yaml:2: column 1: not valid YAML"),
    (b"a: 1\n---\nb: 2\n", "c.yaml:2: column 1: not valid YAML"), (b"{" * 5000, "c.yaml: nested too deeply"),
    (b"a: &x 1\nb: *x\n", "c.yaml:1: column 4: not valid YAML: anchors"),
    (b"a: !!float 1\n", "c.yaml:1: column 4: not valid YAML: anchors"),
    (b"name: a\n<<: {b: 1}\n", "c.yaml:2: top level: a key must be plain text"),
    (b"? [a]\n: 1\n", "c.yaml:1: top level: a key must be plain text"),
    (b'name: "\\ud800"\n', "c.yaml:1: name: the text is not valid Unicode"),
])
def test_refused_files(refuse, text, message):
    assert refuse(text).startswith(message)


def test_duplicate_keys_name_both_lines(refuse):
    text = f"{HEAD}train:\n  lr: 1\n  seed: 1\n  lr: 2\ntrain: {{}}\n"
    assert refuse(text).splitlines() == ["c.yaml:6: train.lr: written twice, first in line 4; remove one",
                                         "c.yaml:7: train: written twice, first in line 3; remove one"]


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match="no such config file"):
        config_file.load(tmp_path / "none.yaml", Run, [])
    with pytest.raises(UserError, match=r"is it a setting\? --set train\.lr=1$"):
        config_file.load("train.lr=1", Run, [])
    with pytest.raises(UserError, match="is a folder"):
        config_file.load(tmp_path, Run, [])


def test_overrides(load):
    config = load(f"{HEAD}train: {{lr: 1}}", "train.loss.dynamic=true", "train.seed=1", "train.seed=2",
                  "train.betas=[0.8, 0.9]", "name=a: b # c", "train.clip_norm=null")
    assert config.train == Train(lr=1.0, loss=Loss(dynamic=True), seed=2, betas=(0.8, 0.9), clip_norm=None)
    assert config.name == "a: b # c"


@pytest.mark.parametrize("assignment, message", [
    ("foo", "--set foo: expected key=value"), ("=3", "--set =3: expected key=value"),
    ("train.=3", "--set train.=3: expected key=value"), ("train..lr=3", "--set train..lr=3: expected key=value"),
    ("lr=3", "--set lr=3: lr: unknown key; did you mean train.lr?"),
    ("train={lr: 1}", "--set train={lr: 1}: train is a section: set its keys one at a time"),
    ("train=3", "--set train=3: train: got 3 (integer), expected a section"),
    ("name.x=3", '--set name.x=3: name is "a" (text) in c.yaml:3, not a section'),
    ("train.betas=[0.8", "--set train.betas=[0.8: not valid YAML"),
    ('train.lr="3"', '--set train.lr="3": train.lr: got "3" (text), expected a number > 0; remove the quotes: 3'),
    ("train.loss={a: 1, a: 2}", "--set train.loss={a: 1, a: 2}: train.loss is a section"),
    ("data.path={a: x, a: y}", "--set data.path={a: x, a: y}: data.path.a: written twice; remove one"),
    ("name=\udcff", "--set 'name=\\udcff': not valid text"),
])
def test_refused_overrides(refuse, assignment, message):
    assert refuse(f"{HEAD}name: a\n", assignment).startswith(message)


def test_paths(load, refuse, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", "/home/me")
    data = load("data: {path: {en: ../en.txt, zh: /zh.txt}}", "data.path.fr=fr.txt", "data.resume=~/x").data
    assert data.path == {"en": tmp_path.parent / "en.txt", "zh": Path("/zh.txt"), "fr": tmp_path / "here/fr.txt"}
    assert data.resume == Path("/home/me/x")
    assert data.out == tmp_path / "here/out"  # a default
    assert load(HEAD).data.path == tmp_path / "corpus.txt"
    assert load(f"{HEAD}  resume: none\n").data.resume == "none"
    assert load(HEAD, "data.path=b").data.path == tmp_path / "here/b"
    assert refuse("data: {path: ''}").startswith("c.yaml:1: data.path: got an empty path")


def test_section_alone(load, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(f"{HEAD}train: {{lr: what this command need not know}}\n")
    assert config_file.load_section(path, ["data.shuffle=false"], "data", Data).shuffle is False
    for assignment, message in [("train.lr=1", "this command knows the section data only"),
                                ("data.pth=1", "data.pth: unknown key; did you mean data.path?"),
                                ("foo", "expected key=value")]:
        with pytest.raises(UserError, match=message):
            config_file.load_section(path, [assignment], "data", Data)
    path.write_text("train: {}\n")
    with pytest.raises(UserError, match="data: missing"):
        config_file.load_section(path, [], "data", Data)


@pytest.fixture
def files(tmp_path):
    """files(name=text, ...) writes name.yaml files, those with a / in sub-folders."""
    def write(**texts: str) -> None:
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return write


def test_a_file_builds_on_another_one(files, load, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    files(sub__a="data: {path: a.txt, out: /o}\ntrain: {lr: 1, betas: [0.5, 0.6], loss: {dynamic: true}}\n",
          b="base: sub/a.yaml\ntrain:\n  total_steps: 7\n  lr: 2\n")
    config = load("base: b.yaml\ndata: {shuffle: false}\ntrain:\n  betas: [0.1, 0.2]\n  loss: {initial: 4}\n", "train.seed=3")
    assert config.train == Train(total_steps=7, lr=2.0, betas=(0.1, 0.2), seed=3, loss=Loss(dynamic=True, initial=4.0))
    assert config.data.path == tmp_path / "sub" / "a.txt" and config.data.out == Path("/o")  # relative to the file that says it
    assert load(config_file.dump(config)) == config and "base" not in config_file.dump(config)
    assert load("base: b.yaml").train.lr == 2.0  # nothing of its own
    assert load(f"base: {tmp_path}/b.yaml\n", "data.path=x").data.path == Path.cwd() / "x"
    assert load("base: b.yaml\ndata: {path: {en: e}}").data.path == {"en": tmp_path / "e"}  # a map in place of a value
    assert load("base: ~/b.yaml").train.lr == 2.0
    section = config_file.load_section(tmp_path / "b.yaml", [], "data", Data)
    assert section.path == tmp_path / "sub" / "a.txt"


def test_a_mistake_in_a_base_names_the_file_and_line_where_it_stands(files, refuse, load):
    files(sub__a="data:\n  path: a\n\ntrain:\n  lr: fast\n  tootal_steps: 3\n", b="base: sub/a.yaml\nname: 3\n")
    assert refuse("train: {seed: x}\nbase: b.yaml\n", "train.lrr=1").splitlines() == [
        'c.yaml:1: train.seed: got "x" (text), expected an integer',
        "b.yaml:2: name: got 3 (integer), expected text",
        'sub/a.yaml:5: train.lr: got "fast" (text), expected a number > 0',
        "sub/a.yaml:6: train.tootal_steps: unknown key; did you mean train.total_steps?",
        "--set train.lrr=1: train.lrr: unknown key; did you mean train.lr?",
    ]
    files(b="data: {path: p}\ntrain:\n  seed: 1\n  seed: 2\n")
    assert refuse("base: b.yaml").startswith("b.yaml:4: train.seed: written twice, first in line 3")
    files(b="data: {path: p}\ntrain: {lr: fast}\n")
    assert load("base: b.yaml\ntrain: {lr: 3}").train.lr == 3.0  # the base's value does not count, right or wrong


@pytest.mark.parametrize("text, message", [
    ("base: 3", "c.yaml:1: base: got 3 (integer), expected the path of another config file, relative to this one"),
    ("name: a\nbase: [a.yaml]", "c.yaml:2: base: got a list of 1, expected the path"),
    ("base:", "c.yaml:1: base: got null, expected the path"), ("base: ''", 'c.yaml:1: base: got "" (text), expected the path'),
    ("base: none.yaml", "c.yaml:1: base: there is no file none.yaml; a base is named relative to the file that names it"),
    ("base: .", "c.yaml:1: base: "), ("base: c.yaml", "c.yaml:1: base: c.yaml leads in a circle (c.yaml -> c.yaml): remove"),
    ("base: sub/x.yaml", "y.yaml:1: base: sub/x.yaml leads in a circle (x.yaml -> y.yaml -> x.yaml): remove"),
    ("base: y.yaml", "sub/x.yaml:1: base: ../y.yaml leads in a circle (y.yaml -> x.yaml -> y.yaml): remove"),
    ("base: list.yaml", "list.yaml: the file holds a list"), ("base: far.yaml", "far.yaml:2: base: there is no file gone.yaml"),
    ('base: "a\\0"', "c.yaml:1: base: got "), ("base: ~nobody/a.yaml", "c.yaml:1: base: there is no file ~nobody/a.yaml"),
    ("base: a.yaml\nbase: b.yaml", "c.yaml:2: base: written twice, first in line 1; remove one"),
])
def test_refused_bases(files, refuse, text, message):
    files(sub__x="base: ../y.yaml", y="base: sub/x.yaml", list="- a", far="name: a\nbase: gone.yaml", a=HEAD, b=HEAD)
    found = refuse(text)
    assert message in found and found.count("\n") == 0


def test_base_is_no_key_of_the_command_line(refuse):
    assert refuse(HEAD, "base=other.yaml").startswith("--set base=other.yaml: base stands at the top of a config file")
