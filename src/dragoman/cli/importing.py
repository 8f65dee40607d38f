"""`dragoman import`: make a dragoman.toml from the configuration of another gateway."""

from pathlib import Path

import click

from dragoman.cli.screen import count, print_note, show_json, show_table
from dragoman.cli.settings import json_option
from dragoman.operate.importing.draft import Export
from dragoman.operate.importing.plan import plan_import, target_of, write_import

HEADINGS = ("FIELD", "BECAME", "NOTE")


@click.command("import", short_help="Make dragoman.toml from another gateway's configuration.")
@click.argument("source", metavar="FILE|DIR", type=click.Path(path_type=Path))
@json_option
def command(source: Path, as_json: bool) -> None:
    """Make ./dragoman.toml from the configuration of LiteLLM, claude-code-router, CLIProxyAPI, Bifrost or kiro-gateway.

    A file that is there is never overwritten. Secrets become variables, whose names are printed: set them where the
    gateway starts.
    """
    plan = plan_import(source.expanduser(), target_of(Path.cwd()))
    write_import(plan)
    if as_json:
        shown = {"gateway": plan.gateway, "source": plan.source, "file": plan.file, "fields": plan.fields}
        show_json({**shown, "exports": plan.exports})
        return
    show_table(HEADINGS, [(field.path, field.setting or "-", field.reason) for field in plan.fields])
    left_out = sum(not field.setting for field in plan.fields)
    print_note(
        f"\nWrote {plan.file} from {plan.gateway}'s {plan.source}; {count(left_out, 'field')} left out, see above."
    )
    if plan.exports:
        print_note("Set where the gateway starts:")
    for export in plan.exports:
        print_note(f"  export {export.name}=…{_describe(export)}")
    print_note("Next: `dragoman config check`, then `dragoman serve`.")


def _describe(export: Export) -> str:
    return f"   # the value of {export.field}" if export.field else "   # as before"
