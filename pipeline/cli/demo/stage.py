"""Where the demo happens: one folder, the ordinary commands as processes, each shown before it runs, and one worker."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
import yaml

from pipeline.errors import PipelineError

#: Seconds a worker may take to start, and to leave.
_START_S = 60.0
_LEAVE_S = 30.0


class DemoFailed(PipelineError):
    """A command of the demo did not succeed."""

    code = "demo_failed"


class Stage:
    """Runs ``pipeline ...`` with a settings file of its own in ``folder``, whatever the user's settings are."""

    def __init__(self, folder: Path, models: Mapping[str, str]) -> None:
        self.folder = folder
        self.config = folder / "pipeline.yaml"
        self.home = (folder / "home").absolute()
        self.worker_log = folder / "worker.log"
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"home": str(self.home), "models": dict(models), "part_s": 2.0}
        self.config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PIPELINE_")}
        self._environ = {**inherited, "PIPELINE_CONFIG": str(self.config.absolute())}

    def say(self, text: str = "") -> None:
        click.echo(text)
        sys.stdout.flush()

    def title(self, text: str) -> None:
        self.say(f"\n--- {text}")

    def run(self, *arguments: str, into: Path | None = None) -> str:
        """Show and run one command; gives its stdout, which goes to the file ``into`` where there is one.

        Raises:
            DemoFailed: it exited with another code than 0; what it said stands above.
        """
        target = f" > {into}" if into else ""
        self.say(f"$ pipeline {shlex.join(arguments)}{target}")
        done = subprocess.run(_command(*arguments), env=self._environ, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            hint = f"the worker's log is {self.worker_log}" if self.worker_log.exists() else None
            raise DemoFailed(f"`pipeline {arguments[0]}` ended with {done.returncode}", hint=hint)
        if into is None:
            self.say(done.stdout.rstrip("\n"))
        else:
            into.write_text(done.stdout, encoding="utf-8")
        return done.stdout.strip()

    @contextmanager
    def worker(self) -> Iterator[None]:
        """One worker for all queues, for as long as the block lasts, however it ends."""
        self.say(f"$ pipeline up > {self.worker_log} 2>&1 &")
        with self.worker_log.open("wb") as log:
            process = subprocess.Popen(
                _command("up"),
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_until_live(process)
            yield
        finally:
            process.terminate()
            try:
                process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _wait_until_live(self, process: subprocess.Popen[bytes]) -> None:
        from pipeline.config import load_settings
        from pipeline.jobs.deployment import Deployment
        from pipeline.jobs.status import live_workers

        deployment = Deployment.open(load_settings(self.config, {}).settings)
        try:
            deadline = time.monotonic() + _START_S
            while not any(worker.pid == process.pid for worker in live_workers(deployment)):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise DemoFailed("the worker did not start", hint=f"its log is {self.worker_log}")
                time.sleep(0.2)
        finally:
            deployment.close()


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.cli", *arguments]
