"""The kept levers as edits of source: many shapes of calls, with the lines that a diff removes and adds."""

import ast
import re
import subprocess
import textwrap

import pytest

from lightning_perf.tune.levers.lever import Setting
from lightning_perf.tune.messages import Site
from lightning_perf.tune.patches.patch import make_patch

PRECISION = Setting("Trainer", {"precision": '"bf16-mixed"'})
WORKERS = Setting("DataLoader", {"num_workers": "2", "persistent_workers": "True"})
FUSED = Setting("optimizer", {"fused": "True"})
LAYOUT = Setting("module", code="{}.to(memory_format=torch.channels_last)")
COMPILED = Setting("module", code="torch.compile({})")
TF32 = Setting("statement", code='torch.set_float32_matmul_precision("high")')
PARAMETERS = {"DataLoader": ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")}
NAMES = {"Trainer": "Trainer", "DataLoader": "DataLoader", "optimizer": "Adam", "module": "fit", "statement": "fit"}


def sites_in(path, source, *, columns=True, **options):
    """The first call that makes each object, as a run of the script would note it."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else None
        for place, wanted in NAMES.items():
            if name == wanted and place not in found:
                columns_ = (node.end_lineno, node.col_offset, node.end_col_offset) if columns else ()
                found[place] = Site(str(path), node.lineno, wanted, PARAMETERS.get(wanted, ()), False, *columns_)
    return {place: (site,) for place, site in found.items()}


def patched(tmp_path, source, *settings, **options):
    """The diff's lines, and the reasons of what it does not hold; git and Python both take the diff."""
    path = tmp_path / "train.py"
    path.write_bytes(source.encode())
    kept = {f"lever {number}": (setting,) for number, setting in enumerate(settings)}
    patch = make_patch(kept, sites_in(path, source, **options), {str(path): path.read_bytes()}, tmp_path)
    if patch.diff:
        git = ["git", "apply", "-"]
        done = subprocess.run(git, cwd=tmp_path, input=patch.diff.encode(), capture_output=True, check=False)
        assert done.returncode == 0, (patch.diff, done.stderr)
        compile(path.read_bytes(), path, "exec")
    lines = [line for line in patch.diff.split("\n") if re.match(r"[-+](?![-+]{2})", line)]
    return lines, [place.reason for place in patch.places if place.reason]


@pytest.mark.parametrize(
    ("source", "settings", "changed"),
    [
        ("t = Trainer()\n", [PRECISION], ["-t = Trainer()", '+t = Trainer(precision="bf16-mixed")']),
        (
            "t = pl.Trainer(max_epochs=3)  # short\n",
            [PRECISION],
            [
                "-t = pl.Trainer(max_epochs=3)  # short",
                '+t = pl.Trainer(max_epochs=3, precision="bf16-mixed")  # short',
            ],
        ),
        (
            "t = Trainer(precision='32-true', devices=1,)\n",
            [PRECISION, Setting("Trainer", {"benchmark": "True"})],
            [
                "-t = Trainer(precision='32-true', devices=1,)",
                '+t = Trainer(precision="bf16-mixed", devices=1, benchmark=True,)',
            ],
        ),
        (
            "t = Trainer(\n    devices=1,  # one, (all) we have\n)\n",
            [PRECISION, Setting("Trainer", {"benchmark": "True"})],
            ['+    precision="bf16-mixed",', "+    benchmark=True,"],
        ),
        (
            "t = Trainer(\n    devices=1  # é\n)\n",
            [PRECISION],
            ["-    devices=1  # é", "+    devices=1,  # é", '+    precision="bf16-mixed"'],
        ),
        ("t = Trainer(\r\n\tdevices=1,\r\n)\r\n", [PRECISION], ['+\tprecision="bf16-mixed",\r']),
        (
            "é = Trainer(devices=1); u = Other(devices=1)",
            [PRECISION],
            [
                "-é = Trainer(devices=1); u = Other(devices=1)",
                '+é = Trainer(devices=1, precision="bf16-mixed"); u = Other(devices=1)',
            ],
        ),
        (
            "class Mine(Trainer):\n    def __init__(self):\n        super().Trainer(devices=(1))\n",
            [PRECISION],
            ["-        super().Trainer(devices=(1))", '+        super().Trainer(devices=(1), precision="bf16-mixed")'],
        ),
        (
            "d = DataLoader(data, 32, True, num_workers=0)\n",
            [WORKERS],
            [
                "-d = DataLoader(data, 32, True, num_workers=0)",
                "+d = DataLoader(data, 32, True, num_workers=2, persistent_workers=True)",
            ],
        ),
        (
            "d = DataLoader(data, 32, True, None, None, 0)\n",
            [WORKERS, Setting("DataLoader", {"batch_size": "64"})],
            [
                "-d = DataLoader(data, 32, True, None, None, 0)",
                "+d = DataLoader(data, 64, True, None, None, 2, persistent_workers=True)",
            ],
        ),
        (
            "def f(self):\n    return [torch.optim.Adam(self.parameters(), lr=self.lr)], []\n",
            [FUSED],
            [
                "-    return [torch.optim.Adam(self.parameters(), lr=self.lr)], []",
                "+    return [torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)], []",
            ],
        ),
        (
            "import torch.nn\ntrainer.fit(model, data)\n",
            [LAYOUT, COMPILED],
            [
                "-trainer.fit(model, data)",
                "+trainer.fit(torch.compile(model.to(memory_format=torch.channels_last)), data)",
            ],
        ),
        (
            '"""Doc."""\nfrom __future__ import annotations\nimport os\n\ntrainer.fit(model=a or b)\n',
            [LAYOUT],
            [
                "+import torch",
                "-trainer.fit(model=a or b)",
                "+trainer.fit(model=(a or b).to(memory_format=torch.channels_last))",
            ],
        ),
        (
            "import torch\nif __name__ == '__main__':\n    with x:\n        r = trainer.fit(m)\n",
            [TF32],
            ['+        torch.set_float32_matmul_precision("high")'],
        ),
    ],
)
def test_only_the_setting_changes(source, settings, changed, tmp_path):
    lines, reasons = patched(tmp_path, source, *settings)
    assert (lines, reasons) == (changed, [])


@pytest.mark.parametrize(
    ("source", "setting", "reason"),
    [
        ("Trainer(**cfg)\n", PRECISION, "the call takes arguments by * or **, which may hold precision"),
        ("Trainer(precision=args.precision)\n", PRECISION, "precision is the expression args.precision: change its"),
        ("DataLoader(d, num_workers=n if n else 0)\n", WORKERS, "num_workers is the expression n if n else 0"),
        ("DataLoader(*parts)\n", WORKERS, "may hold num_workers and persistent_workers"),
        ("Adam(p, foreach=True)\n", FUSED, "remove foreach=True, which excludes fused=True"),
        ("trainer.fit(*parts)\n", LAYOUT, "the module is not an argument of this call"),
        ("trainer.fit(m)\n", LAYOUT, "no import to write 'import torch' next to"),
        ("import torch\nx = 1; trainer.fit(m)\n", TF32, "its line has other statements, too"),
        ("x = sorted(Trainer(a for a in b))\n", PRECISION, "an edit of this line would change more than that"),
        ("x = 1\n", PRECISION, "the call that takes it was not found"),
        ("x = 1\n", Setting("", line="export A=1"), "no Python file holds it"),
    ],
)
def test_an_uncertain_place_gives_its_reason_and_no_edit(source, setting, reason, tmp_path):
    lines, (said,) = patched(tmp_path, source, setting)
    assert lines == []
    assert reason in said


def test_calls_without_columns_are_found_by_name_and_only_if_they_are_alone(tmp_path):
    lines, _ = patched(tmp_path, "t = Trainer(a=f(1))\n", PRECISION, columns=False)
    assert lines[1] == '+t = Trainer(a=f(1), precision="bf16-mixed")'
    lines, (reason,) = patched(tmp_path, "t = Trainer(), Trainer()\n", PRECISION, columns=False)
    assert (lines, reason) == ([], "the call cannot be told apart from others on this line")


def test_one_file_may_hold_what_another_cannot(tmp_path):
    sources = {"a.py": "Trainer(**cfg)\n", "b.py": "DataLoader(data)\n"}
    sites = {}
    for name, source in sources.items():
        (tmp_path / name).write_text(source)
        sites |= sites_in(tmp_path / name, source)
    sites["optimizer"] = ("library.make",)
    texts = {str(tmp_path / name): source.encode() for name, source in sources.items()}
    patch = make_patch({"bf16": [PRECISION], "workers": [WORKERS], "fused": [FUSED]}, sites, texts, tmp_path)
    assert (
        textwrap.dedent(
            """\
        --- a/b.py
        +++ b/b.py
        @@ -1 +1 @@
        -DataLoader(data)
        +DataLoader(data, num_workers=2, persistent_workers=True)
        """
        )
        == patch.diff
    )
    assert [(place.lever, place.file, place.line_number) for place in patch.places] == [
        ("bf16", "a.py", 1), ("workers", "b.py", 1), ("fused", None, None),
    ]  # fmt: skip
    assert patch.places[2].reason == "library.make makes this call, which is not in your files"


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        (PRECISION, 'give --trainer.precision="bf16-mixed", or set it in your configuration file'),
        (COMPILED, "give it run=False, and call cli.trainer.fit with the changed cli.model"),
        (TF32, "LightningCLI calls fit: write it before"),
    ],
)
def test_calls_of_lightning_cli_give_advice_instead(setting, advice, tmp_path):
    sites = {setting.place: ("lightning.pytorch.cli.LightningCLI._run_subcommand",)}
    (place,) = make_patch({"lever": [setting]}, sites, {}, tmp_path).places
    assert advice in place.reason


def test_a_lever_is_edited_as_a_whole_or_not_at_all(tmp_path):
    source = "Trainer(accumulate_grad_batches=2)\nDataLoader(data, batch_size=size)\n"
    (tmp_path / "train.py").write_text(source)
    settings = Setting("Trainer", {"accumulate_grad_batches": "1"}), Setting("DataLoader", {"batch_size": "8"})
    path = tmp_path / "train.py"
    patch = make_patch({"fewer": settings}, sites_in(path, source), {str(path): source.encode()}, tmp_path)
    assert patch.diff == ""
    assert [place.reason for place in patch.places] == [
        "it changes the training unless the other lines of the lever are written, too",
        "batch_size is the expression size: change its value",
    ]
