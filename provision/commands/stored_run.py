"""Lookup of the stored validate run that a user names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from provision.errors import RunFolderError

if TYPE_CHECKING:
    from provision.checks.health import FleetHealth
    from provision.runs.store import RunFolder


def find_run(name: str | None, runs: Path | None) -> RunFolder:
    """The run a user means: a folder, a name below `runs`, or the newest validate run.

    Raises RunFolderError when there is none, or it is not a validate run.
    """
    from provision.nearest import did_you_mean
    from provision.runs import store

    if name is None:
        return store.latest("validate", runs)
    home = runs or store.runs_home()
    here = Path(name).parent if Path(name).name == "report.json" else Path(name)
    path = next((path for path in (here, home / name) if (path / "run.json").is_file()), None)
    if path is None:
        known = sorted((folder.name for folder in home.glob("*Z-validate")), reverse=True)
        raise RunFolderError(
            f"there is no run {name}: it is not a run folder, and no run in {home} has this name",
            did_you_mean(
                name, known, f"there are: {', '.join(known[:3])}" if known else "gpuprov validate creates one"
            ),
        )
    folder = store.RunFolder.open(path)
    verb = folder.meta().get("verb")
    if verb != "validate":
        raise RunFolderError(f"{path} is a run of `{verb}`, which measures no health", "name a validate run")
    return folder


def stored(folder: RunFolder) -> FleetHealth:
    """The report a run wrote. Raises RunFolderError when it has none, or none that can be read."""
    from provision.runs import stored_health

    path = folder.path / "report.json"
    try:
        return stored_health.read(path)
    except FileNotFoundError:
        raise RunFolderError(
            f"{folder.path} has no report.json: the run was interrupted, or wrote other formats only",
            "add --rejudge to judge the raw output in the run folder",
        ) from None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}", "add --rejudge to create it again") from error
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error.what}", error.fix) from error
