"""What a person sees while tasks run: which, n of N, seconds, built or cached, and the outcome.

A doit reporter by duck type; it imports no doit. On a terminal the running tasks stand on one live
line; elsewhere there are plain lines only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ASCII_FRAMES = "|/-\\"
QUIET_SECONDS = 10.0  # without a terminal, news of a long task at most this often

_news: dict[str, str] = {}
_last_news: dict[str, float] = {}


def progress(task: str, text: str) -> None:
    """News of a running task, from its build."""
    _news[task] = text
    now = time.monotonic()
    if not sys.__stdout__ or sys.__stdout__.isatty():
        return
    if now - _last_news.setdefault(task, now) > QUIET_SECONDS:
        _last_news[task] = now
        print(f"        {task}: {text}", file=sys.__stdout__, flush=True)


class Reporter:
    """Progress and summary of one doit run."""

    desc = "progress, seconds, and what was built or up to date"

    def __init__(self, outstream: TextIO, options: Mapping[str, Any]) -> None:
        self.out = outstream
        self.start = time.monotonic()
        self.live = outstream.isatty() and os.environ.get("TERM") != "dumb"
        self.total = self.done = self.current = 0
        self.built: list[str] = []
        self.failed: list[str] = []
        self.selected: list[str] = []
        self.errors: list[str] = []
        self.silent = False
        self.summaries: dict[str, str] = {}
        self.running: dict[str, float] = {}
        self._lock = threading.RLock()
        self._ticker: threading.Thread | None = None
        self._stop = threading.Event()

    def initialize(self, tasks: Mapping[str, Any], selected: Iterable[str]) -> None:
        """Count what is to be looked at: the selected tasks and all that they depend on."""
        self.selected = list(selected)
        seen: set[str] = set()
        stack = list(self.selected)
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                stack += tasks[name].task_dep
        work = [tasks[name] for name in seen if tasks[name].actions]
        self.total = len(work)
        self.silent = all((task.meta or {}).get("command") for task in work)

    def get_status(self, task: Any) -> None:
        """Called before the task is looked at."""

    def execute_task(self, task: Any) -> None:
        if not task.actions or self.silent:
            return
        with self._lock:
            self.running[task.name] = time.monotonic()
            if self.live and self._ticker is None:
                self._ticker = threading.Thread(target=self._tick, daemon=True)
                self._ticker.start()

    def add_success(self, task: Any) -> None:
        seconds = self._finish(task)
        if seconds is None:
            return
        if task.values.get("summary"):
            self.summaries[task.name] = task.values["summary"]
        if task.values.get("built", True):
            self.built.append(task.name)
            self._line(f"{self._count()} {task.name}  built, {seconds:.1f} s")
        else:
            self.current += 1
            self._line(f"{self._count()} {task.name}  cached")

    def add_failure(self, task: Any, fail: Any) -> None:
        self._finish(task)
        self.failed.append(task.name)
        if type(fail).__name__ != "UnmetDependency":
            self._line(str(fail.get_msg()).rstrip())

    def skip_uptodate(self, task: Any) -> None:
        if task.actions:
            self.done += 1
            self.current += 1

    def skip_ignore(self, task: Any) -> None:
        self.done += 1
        self._line(f"{self._count()} {task.name}  ignored (doit forget undoes it)")

    def cleanup_error(self, exception: Any) -> None:
        self.errors.append(exception.get_msg())

    def runtime_error(self, msg: str) -> None:
        self.errors.append(msg)

    def teardown_task(self, task: Any) -> None:
        """No task has one."""

    def complete_run(self) -> None:
        """The closing lines; also called, by doit, when the run is cut short."""
        interrupted = sys.exc_info()[0] is not None
        self._stop.set()
        if self._ticker:
            self._ticker.join()
        for error in self.errors:
            self._line(error)
        if self.silent or interrupted:
            return
        seconds = f"{time.monotonic() - self.start:.1f} s"
        if self.failed:
            self._closing_failure(seconds)
        elif not self.built and not self.summaries and self.current == self.done:
            what = ", ".join(self.selected)
            verb = "is" if len(self.selected) == 1 else "are"
            tasks = "1 task" if self.current == 1 else f"{self.current} tasks"
            self._line(f"nothing to do: {what} {verb} current, {tasks} up to date")
        else:
            for name in self.selected:
                if name in self.summaries:
                    self._line("\n" + self.summaries[name].rstrip() + "\n")
            self._line(f"done: {len(self.built)} built, {self.current} up to date, {seconds}")

    def _closing_failure(self, seconds: str) -> None:
        more = f" and {len(self.failed) - 1} more" if len(self.failed) > 1 else ""
        counts = f"{len(self.built)} built, {self.current} up to date, {seconds}"
        self._line(f"failed: {self.failed[0]}{more}; {counts}")
        if "deploy" in self.selected:
            self._line("nothing was promoted; a bundle of before is as it was")

    def _finish(self, task: Any) -> float | None:
        """Seconds that the task took; None for groups and commands."""
        with self._lock:
            begun = self.running.pop(task.name, None)
        _news.pop(task.name, None)
        if begun is None:
            return None
        self.done += 1
        return time.monotonic() - begun

    def _count(self) -> str:
        width = len(str(self.total))
        return f"[{self.done:{width}}/{self.total}]"

    def _line(self, text: str) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):
            clear = "\r\x1b[K" if self.live else ""
            self.out.write(f"{clear}{text}\n")
            self.out.flush()

    def _tick(self) -> None:
        encoding = (getattr(self.out, "encoding", "") or "").lower()
        frames = FRAMES if "utf" in encoding else ASCII_FRAMES
        turn = 0
        while not self._stop.wait(0.1):
            with self._lock:
                if self.running:
                    self.out.write("\r\x1b[K" + self._status(frames[turn % len(frames)]))
                    self.out.flush()
            turn += 1
        self.out.write("\r\x1b[K")

    def _status(self, frame: str) -> str:
        name, begun = next(iter(self.running.items()))
        more = f" (+{len(self.running) - 1})" if len(self.running) > 1 else ""
        news = _news.get(name, "")
        text = f"{frame} {self._count()} {name}{more}  {time.monotonic() - begun:.0f} s  {news}"
        return text[: shutil.get_terminal_size().columns - 1]
