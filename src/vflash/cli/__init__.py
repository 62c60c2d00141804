"""The `vflash` program. Commands import what is heavy only when they run, so that help and mistakes answer at once."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vflash import __version__
from vflash.cli import (
    compile,
    decode,
    demo,
    denoise,
    doctor,
    encode,
    generate,
    inspect,
    judge,
    plan,
    quantize,
    sidecar,
    verify,
)
from vflash.cli.reporting import report_error, report_stop
from vflash_ports.errors import ContractError, VflashError


def _print_version(asked: bool) -> None:
    if asked:
        print(f"vflash {__version__}")
        raise typer.Exit


class Program(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """An interrupted command says what it kept, and exits as shells expect."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            report_stop(stop)
            raise typer.Exit(130) from stop


app = typer.Typer(
    cls=Program,
    name="vflash",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # "rich" would take [settings] and [default: 5] for styles and drop them
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run MiniMax-H3: a prompt and pictures in, an MP4 with sound out."""


app.command("generate")(generate.generate)
app.command("plan")(plan.plan)
app.command("encode")(encode.encode)
app.command("denoise")(denoise.denoise)
app.command("decode")(decode.decode)
app.command("inspect")(inspect.inspect)
app.command("judge")(judge.judge)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("verify")(verify.verify)
app.command("compile")(compile.compile_assets)
app.command("assets")(compile.assets)
app.command("quantize")(quantize.quantize)
app.add_typer(sidecar.app, name="sidecar")


def main() -> None:
    """Exit 0 done, 1 failed while running, 2 refused, 130 interrupted."""
    try:
        app()
    except VflashError as error:
        report_error(error)
        sys.exit(2 if isinstance(error, ContractError) else 1)
