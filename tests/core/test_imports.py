"""What must answer at once does not import torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vflash

HEAVY = ("torch", "numpy", "transformers", "diffusers", "safetensors", "triton", "av", "PIL", "dependency_injector")
DOMAIN = sorted(path.stem for path in (Path(vflash.__file__).parent / "domain").glob("*.py") if path.stem != "__init__")


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_domain_settings_and_cli_import_no_heavy_package():
    """One fresh interpreter imports them all; none of the heavy packages is loaded by then."""
    modules = ["vflash", *(f"vflash.domain.{name}" for name in DOMAIN), "vflash.settings", "vflash.cli"]
    program = f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\n"
    loaded = run(program + f"print([name for name in {HEAVY} if name in sys.modules])")
    assert loaded.strip() == "[]"
    assert "request" in DOMAIN


def test_help_imports_no_heavy_package():
    """`vflash --help` and the help of a command answer without torch."""
    program = f"""
import sys
from vflash.cli import main
for arguments in (["--help"], ["generate", "--help"]):
    sys.argv = ["vflash", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code
print([name for name in {HEAVY} if name in sys.modules])
"""
    lines = run(program).splitlines()
    assert "Usage: vflash [OPTIONS] COMMAND" in " ".join(lines)
    assert any("--first-frame" in line for line in lines)
    assert lines[-1] == "[]"


def test_the_pipeline_is_offered_lazily():
    """`vflash.H3Pipeline` is there without `import vflash` paying for it; another name is an AttributeError."""
    program = """
import sys, vflash
assert "torch" not in sys.modules
try:
    vflash.H3Pipline
except AttributeError as error:
    print(error)
"""
    assert run(program).strip() == "module 'vflash' has no attribute 'H3Pipline'"
