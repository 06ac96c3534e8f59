"""``pipeline doctor``: check everything the pipeline stands on."""

from __future__ import annotations

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_json
from pipeline.errors import ExitCode


@click.command()
@json_option
@pass_context
def doctor(context: Context, as_json: bool) -> int:
    """Check everything the pipeline stands on. Exits with 4 when a check fails, with 0 when there are only warnings.

    \b
    Examples:
      pipeline doctor
      pipeline doctor --json | jq '.[] | select(.level != "ok")'
    """
    from pipeline.cli.checks import run_checks
    from pipeline.cli.finding import Level

    findings = []
    for finding in run_checks(context):
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.level:<4}  {finding.subject:<9} {finding.text}")
            if finding.hint:
                click.echo(f"{'':<16}{finding.hint}")
    if as_json:
        print_json(findings)
    return ExitCode.UNAVAILABLE if any(one.level is Level.FAIL for one in findings) else ExitCode.OK
