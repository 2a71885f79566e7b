# SPDX-License-Identifier: Apache-2.0
"""Programs to be bound: they start threads and children when told."""

from __future__ import annotations

import gc
import os
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest
from drom.agent.daemon.task_processes import EnvironmentTags, TaskProcesses
from drom.agent.system import proc as processes
from drom.agent.system.proc import Identity

from dromlib.cpulist import mask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

NOW = mask_of(os.sched_getaffinity(0))
ONE = NOW & -NOW
UID = os.getuid()

needs_two_cpus = pytest.mark.skipif(NOW.bit_count() < 2, reason="needs two CPUs in our affinity")


def open_descriptors() -> int:
    """Return how many descriptors this process has open, without those of garbage."""
    gc.collect()
    gc.freeze()  # what is in use now need not be looked through again, by the next call
    return psutil.Process().num_fds()


def task_processes(first: Identity, uid: int, others: Iterable[Identity] = (), proc: str = "/proc") -> set[int]:
    """Return the pids of the task whose first process is `first`, in a census taken for it and the `others`."""
    tasks = {first: uid, **dict.fromkeys(others, uid)}
    return TaskProcesses(tasks, processes.scan(proc), EnvironmentTags(proc)).processes(first)


# Each program answers one line on stdout for each word on stdin, and ends at the end of its input.
PROGRAM = r"""
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_t leader;

static void *idle(void *arg) { pause(); return arg; }

static void serve(void) {
    char word[32];
    while (scanf("%31s", word) == 1) {
        if (!strcmp(word, "thread")) {
            pthread_t id;
            pthread_create(&id, NULL, idle, NULL);
            puts("started");
        } else if (!strcmp(word, "fork") || !strcmp(word, "orphan")) {
            int answer[2];
            pid_t child, found;
            if (pipe(answer)) exit(3);
            child = fork();
            if (child == 0) {
                struct pollfd input = {.fd = 0};
                if (!strcmp(word, "orphan") && fork() > 0) _exit(0);
                found = getpid();
                if (write(answer[1], &found, sizeof found) != sizeof found) _exit(3);
                _exit(poll(&input, 1, -1) != 1); /* until the input ends, whoever reads it */
            }
            if (!strcmp(word, "orphan")) waitpid(child, NULL, 0);
            if (read(answer[0], &found, sizeof found) != sizeof found) exit(3);
            printf("%d\n", (int)found);
        }
        fflush(stdout);
    }
    exit(0);
}

static void *heir(void *arg) {
    pthread_join(leader, NULL);
    puts("heir");
    fflush(stdout);
    serve();
    return arg;
}

int main(int argc, char **argv) {
    pthread_t id;
    if (argc > 1 && !strcmp(argv[1], "leave")) {
        leader = pthread_self();
        pthread_create(&id, NULL, heir, NULL);
        pthread_exit(NULL);
    }
    serve();
}
"""


def build(folder: Path) -> str:
    """Compile the program into `folder`; return its path."""
    source, binary = folder / "program.c", folder / "pro gram) 1 2"
    source.write_text(PROGRAM)
    subprocess.run(["gcc", "-O1", "-pthread", "-o", binary, source], check=True)
    return str(binary)


class Child:
    """A running program and its task's identity."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        start = processes.start_time(popen.pid)
        assert start is not None
        self.popen = popen
        self.pid = popen.pid
        self.identity = Identity(popen.pid, start)

    def ask(self, word: str) -> str:
        """Have the program do something; return when it is done."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(f"{word}\n")
        self.popen.stdin.flush()
        return self.popen.stdout.readline().strip()

    def masks(self) -> set[int]:
        """Return the different masks of the task's threads."""
        return set(processes.thread_masks(task_processes(self.identity, UID)).values())


@contextmanager
def running(*command: str) -> Iterator[Child]:
    """Run a command as drom-run does: DROM_TASK names the process it becomes. Kills it at the end."""
    script = 'export DROM_TASK=$$:$(cut -d " " -f 22 /proc/$$/stat); echo ready; exec "$@"'
    popen = subprocess.Popen(
        ["sh", "-c", script, "sh", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with popen:
        try:
            assert popen.stdout is not None
            assert popen.stdout.readline() == "ready\n"
            yield Child(popen)
        finally:
            popen.kill()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what the kernel does on its own, for at most a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def our_masks() -> dict[int, int]:
    """Return the masks of this process's threads."""
    return processes.thread_masks([os.getpid()])
