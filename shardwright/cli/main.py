"""The `deploy` command: grouped help, lazily imported verbs, errors as one line, exit codes as documented."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Any

import click

from shardwright import __version__
from shardwright.errors import DeployError, ExitCode

# name: (section, module, attribute, one line of help). The line stands here so that --help imports no verb;
# a test holds it equal to the verb's own.
COMMANDS: dict[str, tuple[str, str, str, str]] = {
    "layouts": ("Look", "look", "layouts", "List the layouts that can be named."),
    "cmd": ("Look", "look", "cmd", "Print the exact command line of a layout."),
    "import": ("Look", "import_launch", "import_", "Read a launch from a shell text into a layout."),
    "status": ("Look", "status", "status", "Show what runs, in which state."),
    "logs": ("Look", "run", "logs", "Print the engine's log."),
    "check": ("Check", "check", "check", "Run every gate on a layout."),
    "plan": ("Check", "plan", "plan", "Predict the KV pool and search partitions."),
    "defaultcheck": ("Check", "check", "defaultcheck", "Compare argv and env with the golden file."),
    "drift": ("Check", "drift", "drift", "Compare the running engine with what would be started."),
    "patch": ("Check", "patch", "patch", "List, check and build the engine patches."),
    "doctor": ("Check", "run", "doctor", "Explain why an engine died, from its log."),
    "vtp": ("Check", "vtp", "vtp", "Plan and qualify odd tensor parallelism."),
    "up": ("Run", "up", "up", "Start a layout and accept it."),
    "rollback": ("Run", "up", "rollback", "Return to the accepted deployment before this one."),
    "rebalance": ("Run", "rebalance", "rebalance", "Try another layer split against the one that runs."),
    "start": ("Run", "run", "start", "Start the engine of a layout."),
    "wait": ("Run", "run", "wait", "Wait until the engine answers, naming its phase."),
    "stop": ("Run", "run", "stop", "Stop the engine of a layout."),
    "verify": ("Probe", "up", "verify", "Ask a running server everything that decides, cheapest first."),
    "boots": ("Probe", "up", "boots", "Ask the same prompts on two boots of one deployment."),
    "smoke": ("Probe", "probe_smoke", "smoke", "Ask the running server a few certain things."),
    "degen": ("Probe", "probe_degen", "degen", "Count looping answers over many trials."),
    "quality": ("Probe", "probe_quality", "quality", "Check answers that have one right form."),
    "speed": ("Probe", "probe_speed", "speed", "Measure step time, acceptance, tok/s, TTFT and prefill."),
    "needle": ("Probe", "probe_needle", "needle", "Find one fact in texts of exact lengths."),
    "parity": ("Probe", "probe_parity", "parity", "Compare two deployments token by token."),
    "repeat": ("Probe", "probe_repeat", "repeat", "Ask the same again with other traffic between."),
    "probe": ("Probe", "probe_selftest", "probe", "Test the probes themselves."),
    "evidence": ("Evidence", "evidence", "evidence", "Check the evidence of a run."),
    "report": ("Evidence", "report", "report", "Make one page of a run or a comparison."),
    "audit": ("Evidence", "evidence", "audit", "List who started, stopped, accepted and waived what, and when."),
}

_EPILOG = (
    "LAYOUT is a name from `deploy layouts` or a YAML file; without it the default of configs/deploy.yaml. "
    "Exit codes: 0 ok, 1 refused or failed, 2 drift or a failed probe, 3 inconclusive, 4 the harness failed, "
    "64 usage, 124 timeout, 130 interrupted."
)


class LazyGroup(click.Group):
    """A group that imports a verb's module only when that verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        _, module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(import_module(f"shardwright.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in COMMANDS)
        for section in dict.fromkeys(entry[0] for entry in COMMANDS.values()):
            with formatter.section(section):
                rows = [(name.ljust(width), entry[3]) for name, entry in COMMANDS.items() if entry[0] == section]
                formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="deploy", message="%(prog)s %(version)s")
def cli() -> None:
    """Deploy vLLM on topologies that stock vLLM does not serve correctly.

    One YAML layout becomes a container command line with patched engine files, refused before it starts where it would
    be silently wrong, and probed after it has started.
    """


def main(argv: list[str] | None = None) -> None:
    """Console entry: run and exit with a documented status."""
    # A start makes many small objects that all live on; collecting among them is a fifteenth of `deploy cmd`.
    gc.set_threshold(50_000)
    sys.exit(run(argv))


def run(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status; errors are printed, one clear line first."""
    try:
        result: Any = cli.main(args=argv, prog_name="deploy", standalone_mode=False)
        return int(result) if isinstance(result, int) else ExitCode.OK
    except DeployError as error:
        show_error(error)
        return int(error.code)
    except click.ClickException as error:
        error.show()
        return int(ExitCode.USAGE if isinstance(error, click.UsageError) else ExitCode.REFUSED)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return int(ExitCode.INTERRUPTED)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        click.echo(f"error: {error.strerror or error}{where}", err=True)
        return int(ExitCode.REFUSED)


def show_error(error: DeployError) -> None:
    """What is wrong, why it matters, and the next command, on stderr."""
    click.echo(f"error: {error.what}", err=True)
    if error.why:
        click.echo(f"  why: {error.why}", err=True)
    if error.fix:
        click.echo(f"  fix: {error.fix}", err=True)
