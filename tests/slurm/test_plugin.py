# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm with the SPANK plugin: their tasks are tasks of the agent, and unmodified programs follow."""

from __future__ import annotations

import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from dromlib import native
from tests.slurm.programs import Program, build_program, copy_package, is_touched, variables
from tests.slurm.rig import Slurm, header_folder
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEADER = header_folder() / "slurm" / "spank.h"
PLUGIN = "optional {folder}/build/spank_drom.so drom_run={folder}/package/bin/drom-run runtime_dir={folder}/agent/run"
PATH = "/usr/local/bin:/usr/bin:/bin"
SHOW = ("sh", "-c", "env | sort")
NUMBERS = "give two numbers of CPUs per task, from 1 on, such as --malleable=4:48."
REFUSED = [
    ("--malleable=3:2", "drom: --malleable=3:2: the minimum must not be above the maximum."),
    ("--drom=perhaps", "drom: --drom=perhaps: give on or off."),
    *(
        (f"--malleable={bad}", f"drom: --malleable={bad}: {NUMBERS}")
        for bad in ("0:2", "1", "1:", ":2", "1:x", "-1:2", "1:2:3", "1:99999999999999999999", "1 : 2")
    ),
]


@contextmanager
def slurm_with_plugin(
    *, groups: bool = True, settings: str = "", prepare: Callable[[Path], object] = Path.exists
) -> Iterator[Slurm]:
    """Return a Slurm with the plugin and more `settings`, and with a drom that every user may read.

    `prepare` is called with the folder, before Slurm starts.
    """
    if not HEADER.exists():
        pytest.skip(f"needs {HEADER}: apt-get install libslurm-dev.")
    with TemporaryDirectory(prefix="drom-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        plugin = folder / "build" / "spank_drom.so"
        flags = {"CFLAGS": f"-Werror -isystem {header_folder()}", "PATH": PATH}
        subprocess.run([ROOT / "contrib/slurm/build.sh", plugin], check=True, env=flags)
        copy_package(folder)
        build_program(folder)
        prepare(folder)
        with Slurm(folder, plugstack=f"{PLUGIN}\n", groups=groups, settings=settings) as cluster:
            (folder / "work").chmod(0o777)
            yield cluster


@pytest.fixture(scope="module")
def site() -> Iterator[Slurm]:
    """Return the Slurm of these tests."""
    with slurm_with_plugin() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_jobs(site: Slurm) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    site.cancel_all()


@contextmanager
def plugstack(site: Slurm, more: str) -> Iterator[None]:
    """Add words to the plugin's line. Slurm reads the file for each job."""
    file = site.folder / "plugstack.conf"
    usual = file.read_text(encoding="utf-8")
    file.write_text(f"{usual.strip()} {more}\n", encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(usual, encoding="utf-8")


def test_an_unmodified_program_is_resized_and_keeps_its_exit_code(site: Slurm) -> None:
    """A second job gets one of two CPUs, and the first has that back after it, each with as many threads as CPUs."""
    first, second = Program(site, "first"), Program(site, "second")
    malleable = ("-p", "malleable", "--oversubscribe", "-n1", "-c2", "--malleable=1:2")
    ran = site.launch("first", *malleable, *first.words)
    one = f"slurm-{site.number_of('first')}"
    site.await_true(lambda: site.ranks() == {one: ["0-1"]}, "both CPUs for the first job")
    first.await_threads(2)
    also_ran = site.launch("second", *malleable, *second.words)
    other = f"slurm-{site.number_of('second')}"
    site.await_true(lambda: site.ranks() == {one: ["0"], other: ["1"]}, "a CPU for each job")
    first.await_threads(1)
    second.await_threads(1)

    second.end()
    site.await_true(lambda: site.ranks() == {one: ["0-1"]}, "both CPUs for the first job again")
    first.await_threads(2)
    first.end()
    assert [site.await_end(ran), site.await_end(also_ran)] == [7, 7]


@pytest.mark.parametrize(
    ("option", "bounds"), [("--malleable=2:2", (2, 2)), ("--malleable=1:1", (1, 1)), ("--malleable", (1, 2))]
)
def test_a_task_has_the_bounds_of_the_option(site: Slurm, option: str, bounds: tuple[int, int]) -> None:
    """Without a value the task may have 1 to all of the CPUs that Slurm gave it."""
    site.launch("bounds", "-n1", "-c2", option, *Program(site, f"bounds{option}").words)
    site.await_true(site.rows, "the task")

    assert [(row["min"], row["max"], row["class"]) for row in site.rows()] == [(*bounds, "malleable")]


def test_tasks_of_a_step_are_tasks_of_one_job(site: Slurm) -> None:
    """Each has a CPU of its own, as the step has two."""
    done = site.srun("-n2", "-c1", "--malleable=1:2", *SHOW)
    found = [line for line in done.stdout.splitlines() if line.startswith("DROM_CPUS=")]

    assert (done.returncode, sorted(found)) == (0, ["DROM_CPUS=0", "DROM_CPUS=1"])


def test_another_user_runs_the_same(site: Slurm) -> None:
    """The task of an ordinary user is granted CPUs, and finds drom."""
    done = site.srun("-n1", "-c2", "--malleable=1:2", "sh", "-c", "id -un; env", user="games")
    found = variables(done.stdout)

    assert done.stdout.startswith("games\n")
    assert found["DROM_CPUS"] == "0-1"
    assert found["LD_PRELOAD"] == str(site.folder / "package" / "lib" / native.preload_path().name)


@pytest.mark.parametrize("words", [(), ("--malleable=1:2", "--drom=off")])
def test_a_job_that_does_not_ask_for_drom_is_left_alone(site: Slurm, words: tuple[str, ...]) -> None:
    """Its environment is as without the plugin, and the agent gets no registration."""
    before = site.log("agent").count(" event=arrived ")
    done = site.srun("-n1", "-c2", *words, *SHOW)

    assert (done.returncode, done.stderr, is_touched(variables(done.stdout))) == (0, "", False)
    assert site.log("agent").count(" event=arrived ") == before


@pytest.mark.parametrize(("option", "setting"), [("--drom=on", ""), ("", "default=on")])
def test_a_job_of_fixed_size_is_registered_where_user_or_site_says_so(site: Slurm, option: str, setting: str) -> None:
    """It is a rigid job with the CPUs that Slurm gave it, and nothing is loaded into it."""
    program = Program(site, f"rigid{option}")
    with plugstack(site, setting):
        site.launch("rigid", "-n1", "-c2", *option.split(), *program.words)
        job = f"slurm-{site.number_of('rigid')}"
        site.await_true(lambda: site.ranks() == {job: ["0-1"]}, "the CPUs of the rigid job")
        assert [row["class"] for row in site.rows()] == ["rigid"]
        step = site.srun("-n1", *option.split(), "--overlap", f"--jobid={job[6:]}", *SHOW)
        assert "LD_PRELOAD" not in variables(step.stdout)


@pytest.mark.parametrize(("option", "sentence"), REFUSED)
def test_a_bad_value_is_refused_at_submission(site: Slurm, option: str, sentence: str) -> None:
    """There is one sentence of drom's, and no job."""
    done = site.srun("-n1", option, "true")

    assert done.returncode
    assert [line for line in done.stderr.splitlines() if "drom:" in line] == [f"srun: error: {sentence}"]
    assert not site.ask_slurm("squeue", "-h")


def test_a_bad_setting_of_the_site_stops_no_job(site: Slurm) -> None:
    """Users are told what is wrong in plugstack.conf, and jobs run as without the plugin."""
    with plugstack(site, "deadline=soon"):
        done = site.srun("-n1", "-c2", "--malleable=1:2", *SHOW)

    assert (done.returncode, is_touched(variables(done.stdout))) == (0, False)
    assert "drom: 'deadline=soon' in plugstack.conf is not runtime_dir=DIR" in done.stderr


def test_a_job_runs_without_an_agent(site: Slurm) -> None:
    """It is told why it is not managed, and otherwise runs as without the plugin."""
    site.stop_agent()
    try:
        done = site.srun("-n1", "-c2", "--malleable=1:2", *SHOW)
    finally:
        site.start_agent()

    assert (done.returncode, is_touched(variables(done.stdout))) == (0, False)
    assert done.stderr.startswith(f"drom: this task runs unmanaged: no agent answers in {site.folder}/agent/run (")
    assert done.stderr.count("drom: ") == 1


def test_a_task_goes_on_when_the_agent_is_killed(site: Slurm) -> None:
    """The next agent knows it."""
    program = Program(site, "survivor")
    site.launch("survivor", "-n1", "-c2", "--malleable=1:2", *program.words)
    job = f"slurm-{site.number_of('survivor')}"
    site.await_true(lambda: site.ranks() == {job: ["0-1"]}, "the task")
    before = [(row["pid"], row["min"], row["max"]) for row in site.rows()]
    site.restart_agent()

    site.await_true(lambda: site.ranks() == {job: ["0-1"]}, "the task again")
    assert [(row["pid"], row["min"], row["max"]) for row in site.rows()] == before


def test_a_missing_plugin_stops_no_job_that_does_not_ask_for_it(site: Slurm) -> None:
    """The option is unknown then."""
    file = site.folder / "plugstack.conf"
    usual = file.read_text(encoding="utf-8")
    file.write_text("optional /nowhere/spank_drom.so\n", encoding="utf-8")
    try:
        done, refused = site.srun("-n1", "true"), site.srun("-n1", "--malleable=1:2", "true")
    finally:
        file.write_text(usual, encoding="utf-8")

    assert done.returncode == 0
    assert refused.returncode
    assert "unrecognized option '--malleable=1:2'" in refused.stderr


def test_a_task_that_waits_too_long_runs_on_slurms_cpus(site: Slurm) -> None:
    """After the deadline of the site it starts, unmanaged."""
    rigid = Program(site, "holder")
    site.launch("holder", "-p", "malleable", "-s", "-n1", "-c2", "--drom=on", *rigid.words)
    job = f"slurm-{site.number_of('holder')}"
    site.await_true(lambda: site.ranks() == {job: ["0-1"]}, "a rigid job on both CPUs")
    malleable = ("-p", "malleable", "-s", "-n1", "-c2", "--malleable=1:2")
    with plugstack(site, "deadline=1"):
        done = site.srun(*malleable, "sh", "-c", "taskset -cp $$; env | sort")

    assert done.returncode == 0
    assert done.stdout.splitlines()[0].endswith(": 0,1")
    assert not is_touched(variables(done.stdout))
    told = f"the agent in {site.folder}/agent/run has granted it none within 1 s."
    assert f"drom: this task runs unmanaged, on the CPUs that Slurm gave it: {told}" in done.stderr
    assert site.ranks() == {job: ["0-1"]}


def test_a_task_that_waits_can_be_cancelled(site: Slurm) -> None:
    """The agent then forgets it."""
    rigid = Program(site, "holder2")
    site.launch("holder", "-p", "malleable", "-s", "-n1", "-c2", "--drom=on", *rigid.words)
    site.await_true(lambda: list(site.ranks().values()) == [["0-1"]], "a rigid job on both CPUs")
    site.launch("waits", "-p", "malleable", "-s", "-n1", "-c2", "--malleable=1:2", "true")
    site.await_true(lambda: len(site.rows()) == 2, "a task that waits")
    site.cancel("waits")
    site.await_true(lambda: list(site.ranks().values()) == [["0-1"]], "the rigid job alone")


def test_a_requeued_job_is_registered_again(site: Slurm) -> None:
    """The tasks of a malleable job have all CPUs in its second try, in which none of the first is left."""
    program = Program(site, "requeued")
    job = site.submit(f"srun {' '.join(program.words)}", "--malleable=1:2", "--requeue")
    site.await_true(lambda: site.ranks() == {f"slurm-{job}": ["0-1"]}, "both CPUs")
    (first,) = (row["pid"] for row in site.rows())

    site.ask_slurm("scontrol", "requeue", job)
    site.await_true(lambda: not site.rows() and not site.processes_of(f"slurm-{job}"), "the end of the first try")
    site.start_requeued(job)
    site.await_true(lambda: site.ranks() == {f"slurm-{job}": ["0-1"]}, "both CPUs again")
    program.await_threads(2)
    assert first not in [row["pid"] for row in site.rows()]


def test_the_cpus_of_a_cancelled_step_go_to_the_other_step(site: Slurm) -> None:
    """The job goes on with the step that stays, whose program follows."""
    goes, stays = Program(site, "goes"), Program(site, "stays")
    steps = [
        f"srun -J {name} -n1 -c2 --overlap {' '.join(program.words)} &"
        for name, program in (("goes", goes), ("stays", stays))
    ]
    job = site.submit("\n".join([*steps, "wait"]), "--malleable=1:2")
    site.await_true(lambda: sorted(site.ranks().get(f"slurm-{job}", [])) == ["0", "1"], "one CPU for each step")
    stays.await_threads(1)
    named = dict(line.split() for line in site.ask_slurm("squeue", "-h", "-s", "-j", job, "-o", "%j %i").splitlines())

    site.ask_slurm("scancel", named["goes"])
    site.await_true(lambda: site.ranks() == {f"slurm-{job}": ["0-1"]}, "both CPUs for the step that stays")
    stays.await_threads(2)


def test_a_signal_reaches_an_unmodified_program(site: Slurm) -> None:
    """A malleable task ends by it as without drom."""
    ran = site.launch("signalled", "-n1", "-c2", "--malleable=1:2", *Program(site, "signalled").words)
    job = site.number_of("signalled")
    site.await_true(lambda: site.ranks() == {f"slurm-{job}": ["0-1"]}, "both CPUs")
    site.ask_slurm("scancel", "--signal=USR1", job)

    assert site.await_end(ran) == 128 + signal.SIGUSR1
    site.await_true(lambda: not site.rows(), "the agent to forget the task")


def test_steps_of_a_script_are_registered_and_the_script_is_not(site: Slurm) -> None:
    """A step has the script's option unless it is given its own."""
    step = Program(site, "step")
    other = Program(site, "other")
    job = site.submit(f"srun {' '.join(step.words)}\nsrun --malleable=2:2 {' '.join(other.words)}", "--malleable=1:2")
    site.await_true(lambda: site.ranks() == {f"slurm-{job}": ["0-1"]}, "the first step")
    assert [(row["min"], row["max"]) for row in site.rows()] == [(1, 2)]
    step.await_threads(2)
    step.end()
    other.await_threads(2)
    assert [(row["min"], row["max"]) for row in site.rows()] == [(2, 2)]


def test_programs_of_a_script_register_themselves(site: Slurm) -> None:
    """The script has the environment for that, and a program with OpenMP attaches as part of the Slurm job."""
    program = Program(site, "inside")
    job = site.submit(f"env > environment\n{' '.join(program.words)}", "--malleable=1:2")
    program.await_threads(2)
    site.await_true(lambda: site.ranks() == {f"slurm-{job}": ["0-1"]}, "the program of the script")
    assert [(row["min"], row["max"]) for row in site.rows()] == [(1, 2)]
    found = variables((site.folder / "work" / "environment").read_text())

    assert "DROM_TASK" not in found
    assert found["DROM_RUNTIME_DIR"] == str(site.folder / "agent" / "run")
    assert found["LD_PRELOAD"] == str(site.folder / "package" / "lib" / native.preload_path().name)


def test_the_plugin_shows_slurm_only_what_slurm_calls(site: Slurm) -> None:
    """Every other name would meet those of slurmd and of other plugins."""
    plugin = site.folder / "build" / "spank_drom.so"
    shown = subprocess.run(["nm", "-D", "--defined-only", plugin], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in shown.splitlines()}

    assert names == {"plugin_name", "plugin_type", "plugin_version", "slurm_spank_init", "slurm_spank_task_init"}


def test_tasks_keep_to_slurms_cpus_without_control_groups() -> None:
    """Their affinity is their cpuset then, and each is a job of the agent with the name of Slurm's job."""
    with slurm_with_plugin(groups=False) as site:
        site.launch("two", "-n2", "-c1", "--malleable=1:2", "sleep", "1000")
        site.await_true(lambda: sorted(site.tasks().values()) == ["0", "1"], "a CPU for each task")
        assert {job.partition(".")[0] for job in site.tasks()} == {f"slurm-{site.number_of('two')}"}
        site.cancel_all()
        done = site.srun("-n1", "-c1", "--malleable=1:2", "sh", "-c", "echo CPU=$(taskset -cp $$); env")
        found = variables(done.stdout)

        assert found["CPU"].endswith(f": {found['DROM_CPUS']}")
        assert found["DROM_CPUS"] in {"0", "1"}
