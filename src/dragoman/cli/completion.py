"""`dragoman completion`: print a completion script for a shell."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a completion script. For bash: eval "$(dragoman completion bash)"."""
    from dragoman.cli.main import PROGRAM, program

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(program, {}, PROGRAM, "_DRAGOMAN_COMPLETE").source())
