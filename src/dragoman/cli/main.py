"""The entry point: run the command that the arguments name, and return its exit code."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from dragoman import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM = "dragoman"

# The short help is here, so that `--help` and completion load none of the commands.
COMMANDS = {
    "serve": "Start the gateway.",
    "launch": "Start a client that uses the gateway.",
    "stop": "Stop the running gateway.",
    "status": "Show the running gateway, its providers and what was spent today.",
    "chat": "Send a prompt to a model and show the reply as it streams.",
    "models": "List the models that clients can use.",
    "console": "Open the web console in a browser, signed in.",
    "connect": "Show or write the settings that point a client at this gateway.",
    "login": "Sign in to a provider.",
    "accounts": "Share credentials of upstream accounts between gateways.",
    "keys": "Create, change, list, rotate and revoke client keys.",
    "teams": "Create, change, list and remove teams.",
    "limits": "Show and set limits of keys, users, teams and providers.",
    "audit": "Show who changed what, and check that the log is intact.",
    "usage": "Show what was used: requests, tokens and cost.",
    "responses": "List, show and delete stored responses.",
    "doctor": "Check everything and show what to do.",
    "quirks": "Show and forget what was learned from rejections.",
    "cache": "Say why a prompt cache missed.",
    "capture": "List, show and export captured exchanges.",
    "replay": "Run a captured exchange through the current code.",
    "providers": "List, add and remove providers.",
    "config": "Create, check or show the configuration.",
    "import": "Make dragoman.toml from another gateway's configuration.",
    "service": "Run the gateway as a systemd service of your user.",
    "completion": "Print a completion script for a shell.",
}
MODULES = {"import": "importing"}  # of commands whose name cannot be that of a module


class Program(click.Group):
    """Imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        command: click.Command = import_module(f"dragoman.cli.{MODULES.get(cmd_name, cmd_name)}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is an error that names the nearest."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from dragoman.config.problems import find_similar  # not for `--help`, and not for completion

            nearest = find_similar(args[0], COMMANDS)
            hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
            ctx.fail(f"There is no command `{args[0]}`.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem  # `serve` does without it

        commands = [CompletionItem(name, help=help) for name, help in COMMANDS.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)  # its options


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def program() -> None:
    """An LLM protocol gateway: any client, any provider."""


@program.command("completion")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def print_completion(shell: str) -> None:
    """Print a completion script. For bash: eval "$(dragoman completion bash)"."""
    from click.shell_completion import get_completion_class  # `serve` does without it

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(program, {}, PROGRAM, "_DRAGOMAN_COMPLETE").source())


def main() -> None:
    sys.exit(run())


def run() -> int:
    """Return the exit code: 0 success, 1 failure, 2 wrong usage. Errors are one short text on stderr."""
    try:
        code = program.main(prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        return 1
    except Exception as error:
        from dragoman.cli.errors import explain_error  # not for `--help`, and not for completion

        click.echo(f"Error: {explain_error(error)}", err=True)
        return 1
    return code if isinstance(code, int) else 0
