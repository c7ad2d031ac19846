"""The command line. Each command is a thin layer over the module of its name, imported when it is called."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainer.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from launcher.submit import Settings
    from trainer.record import SweepPaths

app = typer.Typer(
    help="How stale and how fast may asynchronous GRPO train before it collapses? Run the grid and see.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class ExecutorName(StrEnum):
    LOCAL = "local"
    INLINE = "inline"


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDES]...",
        help="sweep=PRESET and field=value; several values (sync_interval=1,4,16) make an axis.",
    ),
]
Name = Annotated[str | None, typer.Option(help="Name of the sweep folder; the preset's name if not given.")]
ConfigDir = Annotated[Path | None, typer.Option(help="Folder with your own sweep presets and configs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]
Wait = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Local jobs are always waited for. --wait also copies the results to MLflow at the end.",
        show_default=False,
    ),
]
Executor = Annotated[
    ExecutorName | None,
    typer.Option(help="local: several runs at once; inline: one at a time.", show_default=False),
]
Site = Annotated[
    str | None,
    typer.Option(
        help="Submit to Slurm as this site profile says: its name in slurm/sites, or a file.",
        show_default=False,
    ),
]
MaxGpuHours = Annotated[
    float | None,
    typer.Option(min=0, help="Refuse to submit what may take more GPU hours.", show_default=False),
]
Selectors = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SELECTORS]...", help="Which runs: eta=1e-6, state=failed, 3-7, an id's beginning, !not."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Most runs at once; as many as cores if not given.", show_default=False),
]
Outputs = Annotated[Path, typer.Option(help="Folder that holds the sweep folders.")]
SweepName = Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep's name, or the path of its folder.")]


@app.command()
def submit(
    overrides: Overrides = None,
    name: Name = None,
    config_dir: ConfigDir = None,
    site: Site = None,
    yes: Yes = False,
    wait: Wait = None,
    executor: Executor = None,
    jobs: Jobs = None,
    max_gpu_hours: MaxGpuHours = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="With --site: write scripts and configs, print what would be sent."),
    ] = False,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Run a grid: what never ran, was interrupted or was killed. Repeat it to continue."""
    from launcher.submit import load_grid
    from launcher.submit import submit as run

    grid = load_grid(overrides or [], config_dir)
    if dry_run:
        from launcher.slurm.dry_run import dry_run as write

        settings = _settings(executor, jobs, wait, site, yes, max_gpu_hours)
        raise typer.Exit(write(grid, name, outputs, settings, _console()))
    raise typer.Exit(
        run(grid, name, outputs, _settings(executor, jobs, wait, site, yes, max_gpu_hours), _console())
    )


@app.command()
def plan(
    overrides: Overrides = None,
    name: Name = None,
    config_dir: ConfigDir = None,
    site: Site = None,
    yes: Yes = False,
    wait: Wait = None,
    executor: Executor = None,
    jobs: Jobs = None,
    max_gpu_hours: MaxGpuHours = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Show what `submit` with the same arguments would do and cost. Writes nothing."""
    from launcher.plan import plan as show
    from launcher.submit import load_grid

    grid = load_grid(overrides or [], config_dir)
    raise typer.Exit(
        show(grid, name, outputs, _settings(executor, jobs, wait, site, yes, max_gpu_hours), _console())
    )


@app.command()
def extend(
    sweep: SweepName,
    horizon: Annotated[int | None, typer.Option(min=1, help="Learner updates of every run.")] = None,
    kappa: Annotated[
        float | None, typer.Option(help="Horizon of each run as a multiple of the collapse clock, κ·c2/η.")
    ] = None,
    site: Site = None,
    yes: Yes = False,
    wait: Wait = None,
    executor: Executor = None,
    jobs: Jobs = None,
    max_gpu_hours: MaxGpuHours = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Give the runs of a sweep larger horizons and continue those that did not collapse."""
    from launcher.extend import extend as run

    paths = _find(sweep, outputs)
    settings = _settings(executor, jobs, wait, site, yes, max_gpu_hours, last=paths)
    raise typer.Exit(run(paths, horizon, kappa, settings, _console()))


@app.command()
def prefetch(
    words: Annotated[
        list[str],
        typer.Argument(metavar="SWEEP|OVERRIDES...", help="A sweep on disk, or what submit takes."),
    ],
    name: Name = None,
    config_dir: ConfigDir = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Fetch models and prepare prompts; runs then work without a network. `submit` does it by itself."""
    from launcher import prefetch as fetch
    from launcher.submit import load_grid

    if len(words) == 1 and "=" not in words[0]:
        raise typer.Exit(fetch.prefetch_sweep(_find(words[0], outputs), _console()))
    raise typer.Exit(fetch.prefetch_grid(load_grid(words, config_dir), name, outputs, _console()))


@app.command()
def pilot(
    words: Annotated[
        list[str],
        typer.Argument(metavar="SWEEP|OVERRIDES...", help="A sweep on disk, or what submit takes."),
    ],
    name: Name = None,
    config_dir: ConfigDir = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Measure speed, memory and cost ratio on one short run here, and tell what the whole grid costs."""
    from launcher.pilot import pilot_grid, pilot_sweep
    from launcher.submit import load_grid

    if len(words) == 1 and "=" not in words[0]:
        raise typer.Exit(pilot_sweep(_find(words[0], outputs), _console()))
    raise typer.Exit(pilot_grid(load_grid(words, config_dir), name, outputs, _console()))


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id or its beginning, or its folder.")],
    step: Annotated[str, typer.Option(help="best, last, or the learner updates of a checkpoint.")] = "last",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write; RUN/export-STEP if not given.", show_default=False),
    ] = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Write a run's policy in Hugging Face format: weights, configuration and tokenizer."""
    from launcher.export import export as write

    raise typer.Exit(write(run, step, out, outputs))


@app.command()
def resume(
    sweep: SweepName,
    words: Selectors = None,
    retry: Annotated[
        str | None,
        typer.Option(
            help="Classes of failure to retry besides those that a resume retries by itself: "
            "oom,exception,config, or failed for all.",
            show_default=False,
        ),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Begin the selected unfinished runs anew; records are put aside."),
    ] = False,
    site: Site = None,
    yes: Yes = False,
    wait: Wait = None,
    executor: Executor = None,
    jobs: Jobs = None,
    max_gpu_hours: MaxGpuHours = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Run what a sweep has left, from checkpoints, on the site of its last submission if none is given."""
    from launcher.resume import resume as run

    paths = _find(sweep, outputs)
    settings = _settings(executor, jobs, wait, site, yes, max_gpu_hours, last=paths)
    raise typer.Exit(run(paths, settings, _console(), retry=retry, restart=restart, words=words or ()))


@app.command()
def status(
    sweep: SweepName,
    words: Selectors = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again until nothing runs or waits.")
    ] = False,
    format: Annotated[Format, typer.Option("--format", "-f", help="Form of the answer.")] = Format.TABLE,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Show the job state and the outcome of every run, how fast it goes, what is left. Writes nothing."""
    from launcher.status import print_status, status_json
    from launcher.watch import watch as show

    paths = _find(sweep, outputs)
    if watch and format == Format.JSON:
        raise UserError(
            "--watch and --format=json exclude each other: JSON is one answer, repeat the command"
        )
    if watch:
        raise typer.Exit(show(paths, _console(), words or ()))
    if format == Format.JSON:
        print(status_json(paths, words or ()))
    else:
        print_status(paths, _console(), words or ())


@app.command()
def cancel(
    sweep: SweepName,
    words: Selectors = None,
    yes: Yes = False,
    outputs: Outputs = Path("outputs"),
) -> None:
    """End running and queued jobs, which write checkpoints; `resume` continues them."""
    from launcher.cancel import cancel as run
    from launcher.slurm.commands import Slurm

    def cancel_jobs(jobs: Sequence[str]) -> None:
        Slurm().cancel(jobs)

    paths = _find(sweep, outputs)
    raise typer.Exit(run(paths, words or (), _console(), yes=yes, cancel_jobs=cancel_jobs))


@app.command()
def gc(
    sweep: SweepName,
    words: Selectors = None,
    stable: Annotated[
        bool, typer.Option("--stable", help="Stable runs too; they cannot be extended any more.")
    ] = False,
    yes: Yes = False,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Free the space of optimizer states and checkpoints that finished runs need no more."""
    from launcher.gc import collect

    raise typer.Exit(collect(_find(sweep, outputs), words or (), _console(), stable=stable, yes=yes))


@app.command()
def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id or its beginning, or its folder.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, over later attempts, to its end.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(help="Which attempt; the newest if not given.", show_default=False)
    ] = None,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", help="The last lines alone.", show_default=False)
    ] = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Print what an attempt at a run printed, and how it ended. Writes nothing."""
    from launcher.locate import find_run
    from launcher.logs import batch_output
    from launcher.logs import logs as show

    found = find_run(run, outputs)
    try:
        code = show(found, follow=follow, attempt=attempt, lines=lines, output=batch_output(found))
    except BrokenPipeError:  # `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


@app.command()
def report(
    sweeps: Annotated[list[str], typer.Argument(metavar="SWEEP...", help="Sweeps to report on together.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the report; the first sweep's report/ if not given.", show_default=False
        ),
    ] = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Turn run records into tables, brackets, clocks and figures."""
    from analysis.report import write_report
    from analysis.terminal import print_report

    paths = [_find(sweep, outputs) for sweep in sweeps]
    print_report(write_report(paths, out or paths[0].report), _console())


@app.command()
def sync(
    sweep: SweepName,
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="MLflow store; MLFLOW_TRACKING_URI or <outputs>/mlflow.db if not given."),
    ] = None,
    outputs: Outputs = Path("outputs"),
) -> None:
    """Copy the run records of a sweep to MLflow; only what is new is written."""
    from launcher.mlflow_sync import sync as copy
    from launcher.mlflow_sync import ui_command

    result = copy(_find(sweep, outputs), tracking_uri)
    print(f"MLflow experiment {result.experiment!r}: {result.runs} runs, {result.points} new points")
    print(f"MLflow UI:  {ui_command(result.uri)}")
    for problem in result.problems:
        print(problem, file=sys.stderr)


def main() -> None:
    """Entry point: a fault of the user's is a message and exit code 2, never a traceback."""
    try:
        app()
    except UserError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EPERM):
            raise
        where = f" {error.filename}" if error.filename else ""
        print(f"error: cannot write{where}: {os.strerror(error.errno)}", file=sys.stderr)
        sys.exit(1)


def _find(sweep: str, outputs: Path) -> SweepPaths:
    from launcher.locate import find_sweep

    return find_sweep(sweep, outputs)


def _settings(
    executor: ExecutorName | None,
    jobs: int | None,
    wait: bool | None,
    site: str | None,
    yes: bool,
    max_gpu_hours: float | None,
    last: SweepPaths | None = None,
) -> Settings:
    """`last`: a sweep that goes on where it was last submitted to, unless this is said."""
    from launcher.submit import Settings

    if site is not None and executor is not None:
        raise UserError(f"--site={site} and --executor={executor} exclude each other: give one")
    if site is None and executor is None and last is not None:
        from launcher.ledger import read_ledger

        site = read_ledger(last).site
    if site is None:
        if wait is False:
            print("--no-wait has no effect: local jobs are waited for", file=sys.stderr)
        if max_gpu_hours is not None:
            raise UserError(f"--max-gpu-hours={max_gpu_hours} needs --site: local runs are not counted")
    return Settings(
        (executor or ExecutorName.LOCAL).value,
        jobs,
        sync=bool(wait),
        site=site,
        wait=bool(wait),
        yes=yes,
        max_gpu_hours=max_gpu_hours,
    )


def _console() -> Console:
    from rich.console import Console

    return Console()


if __name__ == "__main__":
    main()
