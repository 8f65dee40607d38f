"""Words of a shell come in; the command they name runs, and its exit code goes out."""

import sys
from importlib import import_module

import click

from dragoman import __version__

PROGRAM = "dragoman"

# The short help stands here, so that `--help` loads none of the commands.
COMMANDS = {
    "serve": "Start the gateway.",
    "chat": "Ask a model and see its answer as it comes.",
    "models": "List the models that clients may ask for.",
    "connect": "Show or write a client's settings for this gateway.",
    "login": "Sign in with a provider.",
    "keys": "Create, list and revoke client keys.",
    "usage": "Show what was used: requests, tokens and cost.",
    "doctor": "Check everything and say what to do.",
    "capture": "List, show and export captured exchanges.",
    "replay": "Run a captured exchange through today's code.",
    "config": "Check or show the configuration.",
    "completion": "Print a shell's completion script.",
}


class Program(click.Group):
    """Loads a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module(f"dragoman.cli.{cmd_name}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def program() -> None:
    """An LLM protocol gateway: every client's language, every provider's."""


def main() -> None:
    sys.exit(run())


def run() -> int:
    """Exit codes: 0 done, 1 failed, 2 wrong usage. Whatever goes wrong is one short text on stderr."""
    try:
        code = program.main(prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as wrong:
        wrong.show()
        return wrong.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        return 1
    except Exception as fault:
        from dragoman.cli.faults import explain

        click.echo(f"Error: {explain(fault)}", err=True)
        return 1
    return code if isinstance(code, int) else 0
