from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import select
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dromlib import layout, native
from dromlib.testing import Registry, start_time
from tests.support import native_build
from tests.support.agents import wait_until
from tests.support.registration import Request, serve_registrations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNMANAGED, RESPONDER, FOLLOWER = range(3)
ORDER, SHARE = (layout.ENUMS["REASON"].index(name) for name in ("order", "share"))
RETIRED = layout.EPOCH_RETIRED
ANSWER_SECONDS = 60
FUTEX, FUTEX_WAKE, FUTEX_PRIVATE_FLAG = 202, 1, 128


class Client:
    """A running tests/native/client.c."""

    def __init__(self, program: Path, folder: Path) -> None:
        environment = {**os.environ, "DROM_RUNTIME_DIR": str(folder), "TSAN_OPTIONS": native_build.TSAN_OPTIONS}
        environment.pop("DROM_TASK", None)
        pipe = subprocess.PIPE
        self.told = ""
        """What it is to say to its user."""
        self.process = subprocess.Popen([program], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def send(self, line: str) -> None:
        """Tell the client to do something."""
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Return the next line of the client."""
        assert self.process.stdout
        assert self.process.stderr
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        assert ready, "no answer"
        return self.process.stdout.readline().rstrip("\n") or self.process.stderr.read()

    def ask(self, line: str) -> str:
        """Return the client's answer to a line."""
        self.send(line)
        return self.hear()

    def end(self) -> None:
        """Let the client come to its end, without complaints of a sanitizer."""
        _, complaints = self.process.communicate(timeout=ANSWER_SECONDS)
        assert complaints == self.told
        assert self.process.returncode == 0


@pytest.fixture(scope="module", params=list(native_build.SANITIZERS))
def sanitizer(request: pytest.FixtureRequest) -> str:
    """Name each way to build the C programs."""
    return str(request.param)


@pytest.fixture(scope="module")
def client_program(sanitizer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile client.c."""
    return native_build.build(tmp_path_factory.mktemp("client"), "client", sanitizer)


@pytest.fixture(scope="module")
def storm_program(sanitizer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile storm.c."""
    return native_build.build(tmp_path_factory.mktemp("storm"), "storm", sanitizer)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Make a registry of synthetic CPUs."""
    return Registry(tmp_path, flags=layout.HEADER_EMULATED)


@pytest.fixture
def start(client_program: Path, tmp_path: Path) -> Iterator[Callable[[], Client]]:
    """Start clients that must end well."""
    clients: list[Client] = []

    def start_one() -> Client:
        clients.append(Client(client_program, tmp_path))
        return clients[-1]

    yield start_one
    try:
        for client in clients:
            client.end()
    finally:
        for client in clients:
            client.process.kill()
            client.process.wait()


def test_a_grant_is_polled_taken_and_applied(start: Callable[[], Client], registry: Registry, tmp_path: Path) -> None:
    """A published grant makes poll true once, and apply writes its epoch into the mailbox."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        assert client.ask("attach") == f"attach {RESPONDER}"
        assert client.ask("poll") == "poll 0"
        epoch = registry.publish(0, 0b1110 | 1 << 100, "order")
        assert client.ask("poll") == "poll 1"
        assert client.ask("take") == f"take 1 epoch={epoch} ncpus=4 reason={ORDER} cpus=1,2..4"
        assert client.ask("poll") == "poll 0"
        assert client.ask("take") == "take 0"
        assert registry.mail(0, "applied") == 0
        assert client.ask("apply") == "apply 0"
        assert registry.mail(0, "applied") == epoch
        assert client.ask("progress 12") == "progress"
        assert (registry.mail(0, "polls"), registry.mail(0, "progress")) == (3, 12)


def test_a_newer_grant_supersedes_one_not_taken(
    start: Callable[[], Client], registry: Registry, tmp_path: Path
) -> None:
    """A program that missed two grants takes the newest."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        client.ask("attach")
        for mask in (0b1, 0b11, 0b111):
            epoch = registry.publish(0, mask)
        assert client.ask("take") == f"take 1 epoch={epoch} ncpus=3 reason={SHARE} cpus=0,1..3"
        assert client.ask("acknowledge") == "acknowledge 0"
        assert registry.mail(0, "applied") == epoch


def test_wait_wakes_at_a_grant(start: Callable[[], Client], registry: Registry, tmp_path: Path) -> None:
    """A program blocked in wait is woken by a publish from another process, and by its time-out."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        client.ask("attach")
        assert client.ask("wait 1") == "wait 0"
        client.send("wait -1")
        wait_until_blocked(client.process.pid)
        registry.publish(0, 1)
        assert wake_sleepers(registry) == 0, "the publish has left it asleep"
        assert client.hear() == "wait 1"
        assert client.ask("wait -1") == "wait 1"


def wake_sleepers(registry: Registry) -> int:
    """Wake whoever sleeps until slot 0 has another epoch; return how many they were."""
    woken: int = ctypes.CDLL(None).syscall(
        FUTEX, ctypes.c_void_p(registry.address(0)), FUTEX_WAKE, 1 << 30, None, None, 0
    )
    return woken


def wait_until_blocked(pid: int) -> None:
    """Await the moment when the main thread of a process sleeps in a futex that it shares with others."""
    deadline = time.monotonic() + ANSWER_SECONDS
    number, operation = "", "0"
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            number, _, operation, *_ = Path(f"/proc/{pid}/syscall").read_text(encoding="utf-8").split()
        if number == str(FUTEX) and not int(operation, 16) & FUTEX_PRIVATE_FLAG:
            return
    pytest.fail(f"the process sleeps in system call {number}")


def test_wait_wakes_when_the_slot_retires(start: Callable[[], Client], registry: Registry, tmp_path: Path) -> None:
    """A retired slot wakes a waiting program, which turns unmanaged when no agent answers its second request."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        client.ask("attach")
        client.send("wait -1")
        wait_until_blocked(client.process.pid)
    registry.retire(0)
    assert client.hear() == "wait 1"
    assert client.ask("take") == "take 0"
    assert client.ask("mode") == f"mode {UNMANAGED}"
    assert client.ask("poll") == "poll 0"
    assert client.ask("wait -1") == "wait 0"


def test_a_retired_program_joins_the_next_agent(
    start: Callable[[], Client], registry: Registry, tmp_path: Path
) -> None:
    """A program whose slot is retired registers again and takes its grant from the new registry."""
    (tmp_path / "new").mkdir()
    successor = Registry(tmp_path / "new", flags=layout.HEADER_EMULATED)
    successor.publish(2, 0b11)
    answers = (lambda request: request.attach(registry), lambda request: request.attach(successor, 2))
    with serve_registrations(tmp_path, *answers) as server:
        client = start()
        client.ask("attach")
        fds = client.ask("fds")
        registry.retire(0)
        assert client.ask("poll") == "poll 1"
        assert client.ask("take") == f"take 1 epoch=1 ncpus=2 reason={SHARE} cpus=0,1..2"
        assert client.ask("apply") == "apply 0"
        assert successor.mail(2, "applied") == 1
        assert client.ask("fds") == fds
        assert len(server.requests) == 2


def test_a_reused_slot_is_not_obeyed(start: Callable[[], Client], registry: Registry, tmp_path: Path) -> None:
    """A program that finds another task in its slot turns unmanaged without a second request."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)) as server:
        client = start()
        client.ask("attach")
        registry.assign(0, client.process.pid, start_time(client.process.pid) + 1)
        registry.publish(0, 1)
        assert client.ask("take") == "take 0"
        assert client.ask("mode") == f"mode {UNMANAGED}"
        assert client.ask("acknowledge") == "acknowledge 0"
        assert registry.mail(0, "applied") == 0
        assert len(server.requests) == 1


def test_a_follower_never_acknowledges(start: Callable[[], Client], registry: Registry, tmp_path: Path) -> None:
    """A follower takes the same grants as the responder but leaves the mailbox alone."""
    answers = (lambda request: request.attach(registry), lambda request: request.attach(registry, follower=True))
    with serve_registrations(tmp_path, *answers):
        first, second = start(), start()
        assert first.ask("attach") == f"attach {RESPONDER}"
        assert second.ask("attach") == f"attach {FOLLOWER}"
        epoch = registry.publish(0, 0b10)
        assert second.ask("wait -1") == "wait 1"
        assert second.ask("take") == f"take 1 epoch={epoch} ncpus=1 reason={SHARE} cpus=1,-1..1"
        assert second.ask("apply") == "apply 0"
        assert second.ask("acknowledge") == "acknowledge 0"
        assert second.ask("progress 9") == "progress"
        assert [registry.mail(0, field) for field in ("applied", "polls", "progress")] == [0, 0, 0]


@pytest.mark.parametrize("how", ["fork", "raw-fork"])
def test_a_child_cannot_speak_for_its_parent(
    start: Callable[[], Client], registry: Registry, tmp_path: Path, how: str
) -> None:
    """After fork, with or without its handlers, a child is unmanaged and the parent goes on."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        client.ask("attach")
        registry.publish(0, 0b1)
        client.ask("take")
        registry.publish(0, 0b11)
        assert client.ask(how) == f"{how} mode=0 take=0 acknowledge=0 apply=0 wait=0"
        assert registry.mail(0, "applied") == 0
        assert client.ask("take") == f"take 1 epoch=2 ncpus=2 reason={SHARE} cpus=0,1..2"
        assert client.ask("acknowledge") == "acknowledge 0"
        assert registry.mail(0, "applied") == 2


def test_a_child_may_attach_for_itself(start: Callable[[], Client], registry: Registry, tmp_path: Path) -> None:
    """A forked child holds no descriptor of the handle it inherited, and can register on its own."""
    answers = (lambda request: request.attach(registry), lambda request: request.attach(registry, follower=True))
    with serve_registrations(tmp_path, *answers):
        client = start()
        before = int(client.ask("fds").split()[1])
        client.ask("attach")
        registry.publish(0, 1)
        assert client.ask("fork-and-detach") == f"child fds={before} mode={FOLLOWER} poll=1"
        assert registry.mail(0, "applied") == 0


def test_a_detached_process_is_no_responder(start: Callable[[], Client], registry: Registry, tmp_path: Path) -> None:
    """A responder that detaches says so in its mailbox and keeps nothing open."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        before = client.ask("fds")
        client.ask("attach")
        assert client.ask("detach") == "detach"
        assert registry.mail(0, "applied") == RETIRED
        assert client.ask("fds") == before


@contextlib.contextmanager
def attach_beside(client: Client, registry: Registry, folder: Path, *, managed: bool) -> Iterator[None]:
    """Let another thread of a responder attach, and answer it after the block: as `managed`, or not."""
    block_over = threading.Event()

    def answer_late(request: Request) -> None:
        assert block_over.wait(ANSWER_SECONDS)
        if managed:
            request.attach(registry)
        else:
            request.hang_up()

    with serve_registrations(folder, lambda request: request.attach(registry), answer_late) as server:
        assert client.ask("attach") == f"attach {RESPONDER}"
        assert client.ask("knock") == "knock"
        wait_until(lambda: len(server.requests) == 2, lambda: "nobody registers")
        try:
            yield
        finally:
            block_over.set()
        assert client.ask("sit") == f"sit {RESPONDER if managed else UNMANAGED}"


def test_a_handle_closed_while_another_thread_attaches_leaves_that_the_responder(
    start: Callable[[], Client], registry: Registry, tmp_path: Path
) -> None:
    """A process whose second handle the agent has registered is no responder after that handle closes."""
    client = start()
    before = client.ask("fds")
    with attach_beside(client, registry, tmp_path, managed=True):
        assert client.ask("detach") == "detach"
        assert registry.mail(0, "applied") == 0
    assert registry.mail(0, "applied") == 0
    epoch = registry.publish(0, 1)
    assert client.ask("take").startswith("take 1")
    assert client.ask("acknowledge") == "acknowledge 0"
    assert registry.mail(0, "applied") == epoch
    client.ask("detach")
    assert registry.mail(0, "applied") == RETIRED
    assert client.ask("fds") == before


def test_a_responder_without_a_successor_leaves(
    start: Callable[[], Client], registry: Registry, tmp_path: Path
) -> None:
    """Where a thread attaches in vain while another one closes, the agent is told of the end all the same."""
    client = start()
    before = client.ask("fds")
    with attach_beside(client, registry, tmp_path, managed=False):
        assert client.ask("detach") == "detach"
    assert registry.mail(0, "applied") == RETIRED
    assert client.ask("fds") == before


def test_a_descriptor_that_the_program_has_closed_is_not_used(
    start: Callable[[], Client], registry: Registry, tmp_path: Path
) -> None:
    """A file of the program's own that has its number is neither written nor closed; the next grant is acknowledged."""
    mine = tmp_path / "mine"
    with serve_registrations(tmp_path, lambda request: request.attach(registry)) as server:
        client = start()
        client.ask("attach")
        registry.publish(0, 0b11)
        client.ask("take")
        assert client.ask("lose") == "lose"
        assert client.ask("apply") == f"apply {-errno.EBADF}"
        registry.publish(0, 0b1)
        assert client.ask("take").startswith("take 1")
        epoch = registry.mail(0, "applied")
        assert client.ask("acknowledge") == "acknowledge 0"
        assert registry.mail(0, "applied") > epoch
        assert len(server.requests) == 2
        client.ask("lose")
        assert client.ask("detach") == "detach"
        assert client.ask("fds") == f"fds {3 + 8 + 1}"
    assert mine.read_bytes() == b""


def test_threads_attach_and_detach_together(start: Callable[[], Client], registry: Registry, tmp_path: Path) -> None:
    """Handles of several threads come and go without a race or a leaked descriptor."""
    registry.publish(0, 1)
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        before = client.ask("fds").split()[1]
        assert client.ask("crowd 20") == f"crowd {before}"


def test_no_agent_is_harmless(start: Callable[[], Client]) -> None:
    """Without an agent every call answers as if nothing ever changed."""
    client = start()
    assert client.ask("attach") == f"attach {UNMANAGED}"
    assert client.ask("poll") == "poll 0"
    assert client.ask("take") == "take 0"
    assert client.ask("apply") == "apply 0"
    assert client.ask("wait -1") == "wait 0"
    assert client.ask("progress 1") == "progress"


def short_mailbox(request: Request, registry: Registry) -> None:
    """Hand out a mailbox cut short."""
    os.truncate(registry.mailbox(0), 100)
    request.attach(registry)


def short_registry(request: Request, registry: Registry) -> None:
    """Hand out a registry that ends before its slots."""
    os.truncate(registry.path, layout.HEADER_SIZE + 10)
    request.attach(registry)


def strange_version(request: Request, registry: Registry) -> None:
    """Hand out a registry of another layout."""
    layout.HEADER.write(registry.view, layout_version=layout.LAYOUT_VERSION + 1)
    request.attach(registry)


def wide_masks(request: Request, registry: Registry) -> None:
    """Hand out a registry with masks wider than any."""
    layout.HEADER.write(registry.view, mask_bits=1 << 20)
    request.attach(registry)


def far_slot(request: Request, registry: Registry) -> None:
    """Register the program in a slot beyond the registry."""
    with registry.path.open("rb") as file:
        request.reply("granted", (file.fileno(), file.fileno()), slot=1 << 30)


def no_descriptors(request: Request, registry: Registry) -> None:
    """Grant without descriptors."""
    del registry
    request.reply("granted")


def one_descriptor(request: Request, registry: Registry) -> None:
    """Grant without a mailbox."""
    with registry.path.open("rb") as file:
        request.reply("granted", (file.fileno(),))


def too_many_descriptors(request: Request, registry: Registry) -> None:
    """Grant with more descriptors than there is room for."""
    with registry.path.open("rb") as file:
        request.reply("granted", (file.fileno(),) * 30)


def pipes(request: Request, registry: Registry) -> None:
    """Hand out pipes for files."""
    del registry
    ends = os.pipe()
    request.reply("granted", ends)
    for end in ends:
        os.close(end)


def refusal(request: Request, registry: Registry) -> None:
    """Refuse."""
    del registry
    request.reply("refused", text="Not today.")


def gibberish(request: Request, registry: Registry) -> None:
    """Send bytes that are no reply."""
    del registry
    request.connection.send(b"x" * 3000)


def hang_up(request: Request, registry: Registry) -> None:
    """Close the connection."""
    del registry
    request.hang_up()


BAD_ANSWERS = (
    short_mailbox,
    short_registry,
    strange_version,
    wide_masks,
    far_slot,
    no_descriptors,
    one_descriptor,
    too_many_descriptors,
    pipes,
    refusal,
    gibberish,
    hang_up,
)


@pytest.mark.parametrize("answer", BAD_ANSWERS, ids=lambda answer: answer.__name__)
def test_a_bad_answer_leaves_the_program_unmanaged(
    start: Callable[[], Client], registry: Registry, tmp_path: Path, answer: Callable[[Request, Registry], None]
) -> None:
    """Whatever the agent answers, attach returns at once and leaks no descriptor; nonsense is told to the user."""
    with serve_registrations(tmp_path, lambda request: answer(request, registry)):
        client = start()
        before = client.ask("fds")
        assert client.ask("attach") == f"attach {UNMANAGED}"
        assert client.ask("fds") == before
        assert client.ask("poll") == "poll 0"
    if answer not in (refusal, hang_up):
        client.told = (
            f"drom: the agent in {tmp_path} answers what this version of drom cannot use, so this program runs "
            "unmanaged: bring both to one version.\n"
        )


@pytest.mark.parametrize("free", range(3))
def test_a_program_without_free_descriptors_is_told_so(
    start: Callable[[], Client], registry: Registry, tmp_path: Path, free: int
) -> None:
    """Attaching takes three file descriptors: with fewer it reports that, leaks none, and is no responder."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)) as server:
        client = start()
        before = client.ask("fds")
        client.ask(f"fill {free}")
        assert client.ask("attach") == f"attach {UNMANAGED}"
        client.ask("drain")
        assert client.ask("fds") == before
        assert [request.connection.recv(4096) for request in server.requests] == [
            request.raw for request in server.requests
        ]
        assert len(server.requests) == bool(free)
    missing = f"this program has no free file descriptor for the agent in {tmp_path}"
    client.told = f"drom: {missing}, so this program runs unmanaged: give it more (ulimit -n).\n"


def test_a_program_without_free_descriptors_is_not_told_of_no_agent(start: Callable[[], Client]) -> None:
    """Where none listens it hears nothing."""
    client = start()
    client.ask("fill 0")
    assert client.ask("attach") == f"attach {UNMANAGED}"
    client.ask("drain")


def test_three_free_descriptors_are_enough(start: Callable[[], Client], registry: Registry, tmp_path: Path) -> None:
    """A program that may open three more files attaches, and hangs up."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)) as server:
        client = start()
        client.ask("fill 3")
        assert client.ask("attach") == f"attach {RESPONDER}"
        assert server.requests[0].connection.recv(4096) == b""
        client.ask("drain")


def test_a_handle_that_cannot_be_a_second_responder_leaves_the_first(
    start: Callable[[], Client], registry: Registry, tmp_path: Path
) -> None:
    """A second session without descriptors gives nothing back: the first goes on answering."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)) as server:
        client = start()
        client.ask("attach")
        client.ask("fill 2")
        assert client.ask("attach") == f"attach {UNMANAGED}"
        client.ask("drain")
        assert [request.connection.recv(4096) for request in server.requests] == [b"", b""]
    missing = f"this program has no free file descriptor for the agent in {tmp_path}"
    client.told = f"drom: {missing}, so this program runs unmanaged: give it more (ulimit -n).\n"


def test_a_program_that_may_not_stat_files_is_no_responder(
    start: Callable[[], Client], registry: Registry, tmp_path: Path
) -> None:
    """Where a sandbox denies fstat() it is unmanaged, and is not told to update drom."""
    with serve_registrations(tmp_path, lambda request: request.attach(registry)) as server:
        client = start()
        client.ask("deny")
        assert client.ask("attach") == f"attach {UNMANAGED}"
        assert server.requests[0].connection.recv(4096) == server.requests[0].raw


def test_an_agent_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    """A program that has waited long enough for an answer is unmanaged, and says so; this one waits for a second."""
    sources = [native_build.SOURCES / "client.c", *sorted((native_build.NATIVE / "src").glob("*.c"))]
    native_build.compile_c(tmp_path / "client", sources, ["-DDROMI_ANSWER_SECONDS=1"])
    with serve_registrations(tmp_path, lambda _: None):
        client = Client(tmp_path / "client", tmp_path)
        assert client.ask("attach") == f"attach {UNMANAGED}"
        silent = f"the agent in {tmp_path} has not answered for 1 s"
        client.told = f"drom: {silent}, so this program runs unmanaged: see `drom doctor`.\n"
        client.end()


def test_apply_binds_every_thread(start: Callable[[], Client], tmp_path: Path) -> None:
    """Each thread of the program is on the granted CPUs before the grant is acknowledged."""
    cpu = max(os.sched_getaffinity(0))
    registry = Registry(tmp_path)
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        client.ask("attach")
        client.ask("sleepers 8")
        epoch = registry.publish(0, 1 << cpu)
        client.ask("take")
        assert client.ask("apply") == "apply 0"
        assert registry.mail(0, "applied") == epoch
        words = client.ask(f"masks {cpu}").split()
        assert int(words[1]) >= 9
        assert words[2] == "astray=0"


@pytest.mark.parametrize("how", ["retired", "forgotten"])
@pytest.mark.parametrize("order", ["apply", "acknowledge"])
def test_who_was_let_go_gives_a_late_grant_back(
    start: Callable[[], Client], tmp_path: Path, how: str, order: str
) -> None:
    """A program that applies a grant of a slot which is no longer its own is left where it was before the agent."""
    cpu = min(os.sched_getaffinity(0))
    registry = Registry(tmp_path)
    at = registry.base(0) + layout.mask_offset("restore", registry.words * 64)
    registry.view[at : at + 8] = (1 << cpu).to_bytes(8, "little")
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        client.ask("attach")
        registry.publish(0, 1 << max(os.sched_getaffinity(0)))
        client.ask("take")
        if how == "retired":
            registry.retire(0)
        else:
            registry.assign(0, 0, 0)
        registry.view[at : at + 8] = bytes(8)
        assert client.ask(order) == f"{order} 0"
        assert registry.mail(0, "applied") == 0
        assert client.ask(f"masks {cpu}").endswith("astray=0")


def test_apply_catches_threads_made_meanwhile(start: Callable[[], Client], tmp_path: Path) -> None:
    """Threads that make threads while apply walks do not escape it."""
    cpu = min(os.sched_getaffinity(0))
    registry = Registry(tmp_path)
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        client.ask("attach")
        registry.publish(0, 1 << cpu)
        client.ask("take")
        client.ask("churn 2")
        assert client.ask("apply") == "apply 0"
        assert client.ask(f"masks {cpu}").endswith("astray=0")
        client.ask("calm")


@pytest.mark.skipif(os.sysconf("SC_THREAD_STACK_MIN") > 16384, reason="threads need larger stacks here")
def test_a_small_stack_has_room_for_a_grant(tmp_path: Path) -> None:
    """A thread with a stack of 16 KiB attaches and puts a grant in force."""
    client = Client(native_build.build(tmp_path, "client", "plain"), tmp_path)
    registry = Registry(tmp_path)
    epoch = registry.publish(0, 1 << min(os.sched_getaffinity(0)))
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        assert client.ask("narrow") == f"narrow {RESPONDER}"
    assert registry.mail(0, "applied") == epoch
    client.end()


def test_apply_tells_when_it_cannot_bind(start: Callable[[], Client], tmp_path: Path) -> None:
    """A grant of CPUs that do not exist is an error and is not acknowledged."""
    registry = Registry(tmp_path)
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = start()
        client.ask("attach")
        registry.publish(0, 1 << 127)
        client.ask("take")
        assert client.ask("apply") == "apply -22"
        assert registry.mail(0, "applied") == 0


def test_readers_never_see_a_torn_grant(storm_program: Path) -> None:
    """Threads that read while another publishes see whole grants in order."""
    done = subprocess.run([storm_program, "threads", "300000"], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr, done.returncode) == ("torn=0\n", "", 0)


def test_a_killed_writer_never_hangs_a_reader(storm_program: Path, registry: Registry, tmp_path: Path) -> None:
    """Fifty publishers killed at any instant leave whole grants, and the reader takes the last one."""
    place = [str(registry.path), str(registry.base(0)), str(registry.words)]
    environment = {**os.environ, "DROM_RUNTIME_DIR": str(tmp_path)}
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        reader = subprocess.Popen([storm_program, "read"], stdout=subprocess.PIPE, text=True, env=environment)
        assert reader.stdout
        assert reader.stdout.readline() == "go\n"
        for _ in range(50):
            with subprocess.Popen([storm_program, "publish", *place], stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout
                assert writer.stdout.readline() == "go\n"
                wait_for_grants(registry, random.randrange(2_000))
                writer.send_signal(signal.SIGKILL)
        publish_last(registry)
        output, _ = reader.communicate(timeout=ANSWER_SECONDS)

    assert (output, reader.returncode) == ("taken=1 torn=0\n", 0)


def wait_for_grants(registry: Registry, count: int) -> None:
    """Await the moment when `count` more grants are out."""
    deadline = time.monotonic() + ANSWER_SECONDS
    end = layout.SLOT.read(registry.view, "epoch", registry.base(0)) + count
    while layout.SLOT.read(registry.view, "epoch", registry.base(0)) < end:
        assert time.monotonic() < deadline, "the writer stands still"


def publish_last(registry: Registry) -> None:
    """Publish the grant at which storm.c stops."""
    epoch = layout.SLOT.read(registry.view, "epoch", registry.base(0)) + 1
    mask = 0
    for word in range(registry.words):
        mask |= (((epoch + 1) * 0x9E3779B97F4A7C15 + word) % (1 << 64)) << 64 * word
    assert registry.publish(0, mask, "death") == epoch


def test_paths_that_are_not_built_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the compiled part the error says how to build it."""
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    with pytest.raises(FileNotFoundError, match=r"^dromlib/examples/nosuch.c is not built: install the package with"):
        native.example_path("nosuch")


def test_log_is_one_line_an_event(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DROM_LOG makes the library tell each event in logfmt on stderr; without it the library is silent."""
    monkeypatch.setenv("DROM_LOG", "1")
    program = native_build.build(tmp_path, "client", "plain")
    registry.publish(0, 1)
    with serve_registrations(tmp_path, lambda request: request.attach(registry)):
        client = Client(program, tmp_path)
        _, log = client.process.communicate("attach\ntake\napply\n", timeout=ANSWER_SECONDS)

    events = [line.split()[1] for line in log.splitlines()]
    assert events == ["event=attached", "event=applied"]
    assert f"pid={client.process.pid} task={client.process.pid} epoch=1 ncpus=1 error=0" in log
