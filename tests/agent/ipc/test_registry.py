# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.ipc.registry import Owner, Registry, RegistryError, SlotRecord, restore
from drom.agent.model.jobs import Arrival, Grant, Job, Task
from drom.agent.model.layouts import Layout

from dromlib import layout
from dromlib.layout import HEADER, SLOT

if TYPE_CHECKING:
    from pathlib import Path

BOOT = bytes(range(16))
OWNER = Owner(pid=11, start_time=12, boot_id=BOOT, digest=13, emulated=False)


def task_of(slot: int = 0, *grants: tuple[int, int], **fields: Any) -> Task:
    """Return a task whose grants are (epoch, mask) pairs."""
    arrival = Arrival(100 + slot, 7, 1000, "a", "moldable", session=5, rank=0, restore=0xFF)
    epoch = grants[-1][0] if grants else 0
    return Task(slot, "a", 0, arrival, epoch, [Grant(e, mask, 0.0) for e, mask in grants], **{"mailbox": 3, **fields})


def job_of(task: Task, **fields: Any) -> Job:
    """Return the job of one task."""
    base = {"task_min": 2, "task_max": 6, "ranks": {0: task}, "session": 5, "job_class": "moldable", "arrived": 4}
    return Job(name="a", asked="a", user=1000, **{**base, **fields})


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Return an empty registry of four slots for 128 CPUs."""
    return Registry.create(tmp_path / "registry", 4, 100, OWNER)


def put(registry: Registry, task: Task, **fields: Any) -> Job:
    """Register a task as the daemon does, and publish its grants; what has an epoch of its own is saved with it."""
    job = job_of(task, **fields)
    grants, task.grants = task.grants, []
    registry.register(task, job)
    for grant in grants:
        task.grants.append(grant)
        registry.save(task, job, target=grant.mask, owned=0)
        registry.publish(task, grant.epoch, grant.mask, "share")
    return job


def reopened(registry: Registry, slot: int = 0) -> tuple[Task, Job]:
    """Return a slot's task and job as the next agent finds them."""
    record = next(r for r in Registry.open(registry.path).records() if r.index == slot)
    return restore(record)


@pytest.mark.parametrize(
    ("came_with", "stored"),
    [
        (0, 0),
        (0b11 << 62, 1 << 62 | 1 << 63),
        ((1 << 128) - 1, (1 << 64) - 1),
        (1 << 64, (1 << 64) - 1),
        (1 << 100 | 0b10, 0b10),
    ],
)
def test_a_task_may_come_from_cpus_that_the_registry_has_no_bits_for(
    tmp_path: Path, came_with: int, stored: int
) -> None:
    """Of its affinity the rest is kept for the next agent; where none is left it is restored to every CPU there is."""
    registry = Registry.create(tmp_path / "registry", 4, 64, OWNER)
    task = task_of(0, (1, 0b11))
    task.arrival = replace(task.arrival, restore=came_with)
    put(registry, task)

    found, _ = reopened(registry)

    assert found.arrival.restore == stored
    assert task.arrival.restore == came_with
    assert found.held == 0b11


class TestCreate:
    """A new registry."""

    def test_the_header_says_what_it_is(self, registry: Registry) -> None:
        """Sizes, writer and boot stand in it, and the mask is rounded up to words."""
        names = ("capacity", "mask_bits", "agent_pid", "agent_start", "topology_digest", "flags", "retired")

        assert [registry.header(name) for name in names] == [4, 128, 11, 12, 13, 0, 0]
        assert registry.boot_id == BOOT
        assert 0 < registry.header("heartbeat_ns") <= time.monotonic_ns()

    def test_a_registry_is_whole_and_readable_by_all(self, registry: Registry) -> None:
        """The file has its full size on disk, so that no store ever fails."""
        stat = registry.path.stat()

        assert stat.st_size == layout.HEADER_SIZE + 4 * layout.slot_size(128)
        assert stat.st_blocks * 512 >= stat.st_size
        assert stat.st_mode & 0o7777 == 0o644

    def test_emulation_is_marked(self, tmp_path: Path) -> None:
        """Programs see in the header that no affinity is to be set."""
        emulated = Owner(1, 1, BOOT, 1, emulated=True)

        assert Registry.create(tmp_path / "r", 1, 1, emulated).header("flags") == layout.HEADER_EMULATED

    def test_threads_are_marked(self, tmp_path: Path) -> None:
        """The next agent sees in the header what the counts of slots count."""
        owner = Owner(1, 1, BOOT, 1, emulated=True, threads=True)
        flags = Registry.create(tmp_path / "r", 1, 1, owner).header("flags")

        assert flags == layout.HEADER_EMULATED | layout.HEADER_THREADS

    def test_what_an_agent_left_half_made_is_no_hindrance(self, tmp_path: Path) -> None:
        """A file from a creation that was cut short is replaced, and none is left."""
        (tmp_path / "registry.new").write_bytes(b"half")
        Registry.create(tmp_path / "registry", 1, 1, OWNER)

        assert [path.name for path in tmp_path.iterdir()] == ["registry"]

    @pytest.mark.parametrize(
        ("number", "sentence"),
        [
            (
                errno.ENOSPC,
                r"^cannot make .* bytes\): No space left on device: free space there or choose another .*\.$",
            ),
            (errno.EIO, r"^cannot make .* bytes\): Input/output error: check the directory\.$"),
        ],
    )
    def test_a_full_disk_is_a_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
    ) -> None:
        """Where the file cannot be allocated in full nothing is left."""

        def fail(*_: object) -> None:
            raise OSError(number, "")

        monkeypatch.setattr(os, "posix_fallocate", fail)
        with pytest.raises(RegistryError, match=sentence):
            Registry.create(tmp_path / "registry", 1, 1, OWNER)
        assert list(tmp_path.iterdir()) == []


class TestOpen:
    """A registry that somebody else has made."""

    @pytest.mark.parametrize(
        ("fields", "sentence"),
        [
            ({"magic": 1}, "it is not a registry of drom"),
            ({"layout_version": 99}, "its layout is version 99, this agent writes version 1"),
            ({"capacity": 5}, "its header contradicts its size"),
            ({"mask_bits": 65}, "its header contradicts its size"),
            ({"mask_bits": 1 << 16}, "its header contradicts its size"),
            ({"slot_size": 64}, "its header contradicts its size"),
            ({"header_size": 64}, "its header contradicts its size"),
        ],
    )
    def test_a_header_that_does_not_fit_is_refused(
        self, registry: Registry, fields: dict[str, int], sentence: str
    ) -> None:
        """Each fault is named, with what to do."""
        HEADER.write(registry.memory, **fields)

        with pytest.raises(RegistryError, match=rf"cannot be adopted, {sentence}.*: remove it once .*\.$"):
            Registry.open(registry.path)

    @pytest.mark.parametrize(("size", "fault"), [(0, "too short"), (100, "too short"), (5000, "contradicts its size")])
    def test_a_file_that_was_cut_is_refused(self, registry: Registry, size: int, fault: str) -> None:
        """A file of another size is not read beyond its end."""
        os.truncate(registry.path, size)

        with pytest.raises(RegistryError, match=fault):
            Registry.open(registry.path)

    @pytest.mark.parametrize("kind", ["gone", "link", "folder"])
    def test_what_is_no_file_is_refused(self, tmp_path: Path, kind: str) -> None:
        """A registry is opened only where it lies itself."""
        path = tmp_path / "registry"
        if kind == "link":
            path.symlink_to("/etc/passwd")
        elif kind == "folder":
            path.mkdir()

        with pytest.raises(
            RegistryError, match=r"^cannot open .*: .*: move it away or choose another --runtime-dir\.$"
        ):
            Registry.open(path)


class TestRestore:
    """What the next agent finds."""

    def test_every_field_comes_back(self, registry: Registry) -> None:
        """A task and the description of its job are what they were."""
        task = task_of(1, (1, 0b1111), responder=(200, 201), pin=0b1111, enforced=True)
        put(registry, task, hold=4)
        again, job = reopened(registry, 1)

        assert (again.slot, again.job, again.rank, again.epoch, again.mailbox) == (1, "a", 0, 1, 3)
        assert (again.arrival.pid, again.arrival.start_time, again.arrival.uid) == (101, 7, 1000)
        assert (again.arrival.session, again.arrival.job_class, again.arrival.restore) == (5, "moldable", 0xFF)
        assert again.reason == "share"
        assert (again.responder, again.pin, again.enforced) == ((200, 201), 0b1111, True)
        assert [(g.epoch, g.mask) for g in again.grants] == [(1, 0b1111)]
        assert (job.task_min, job.task_max, job.hold, job.arrived, job.user) == (2, 6, 4, 4, 1000)

    @pytest.mark.parametrize("strict", [True, False])
    def test_layout_memory_and_order_come_back(self, registry: Registry, strict: bool) -> None:
        """How a job lies, what memory it declared, until when and by whom it is held, and that it was taken in."""
        wish = Layout("per_socket", 3, strict=strict)
        arrival = Arrival(100, 7, 1000, "a", layout=wish, memory=5 << 30, attached=True)
        task = Task(0, "a", 0, arrival, 1, [Grant(1, 0b11, 0.0)])
        put(registry, task, hold=2, hold_until=12.5, hold_by=1234, layout=wish, memory=5 << 30, job_class="malleable")
        again, job = reopened(registry)

        assert (again.arrival.layout, again.arrival.memory, again.arrival.attached) == (wish, 5 << 30, True)
        assert (job.layout, job.memory, job.hold, job.hold_until, job.hold_by) == (wish, 5 << 30, 2, 12.5, 1234)

    @pytest.mark.parametrize("user", [None, 0, (1 << 32) - 2])
    def test_who_ordered_comes_back(self, registry: Registry, user: int | None) -> None:
        """Root, nobody and the last of all users are told apart; who has the slot next is under nobody's order."""
        task = task_of(0, (1, 0b1111), pin=0b1111)
        put(registry, task, hold_by=user)
        assert reopened(registry)[1].hold_by == user
        registry.forget(task)

        assert SLOT.read(registry.memory, "ordered_by", layout.HEADER_SIZE) == 0

    def test_a_pending_grant_stays_pending(self, registry: Registry) -> None:
        """What was not acknowledged is held, with the deadline it had."""
        put(registry, task_of(0, (1, 0b1111), (2, 0b0011), deadline=12.5))
        again, _ = reopened(registry)

        assert [(g.epoch, g.mask) for g in again.grants] == [(1, 0b1111), (2, 0b0011)]
        assert (again.held, again.deadline) == (0b1111, 12.5)

    def test_several_pending_grants_keep_everything_held(self, registry: Registry) -> None:
        """Grants between the acknowledged one and the newest are not told apart, but what they hold is."""
        put(registry, task_of(0, (1, 0b0011), (2, 0b0111), (3, 0b0001)))
        again, _ = reopened(registry)

        assert (again.held, again.granted, again.epoch) == (0b0111, 0b0001, 3)

    def test_a_waiting_task_waits(self, registry: Registry) -> None:
        """A slot without a grant is a task that has not started."""
        put(registry, task_of())
        again, _ = reopened(registry)

        assert (again.grants, again.started) == ([], False)

    def test_what_held_grew_by_for_a_grant_never_published_does_not_count(self, registry: Registry) -> None:
        """An agent that died between the two stores had given nothing away."""
        task = task_of(0, (1, 0b0011))
        job = put(registry, task)
        task.grants.append(Grant(2, 0b1111, 0.0))
        registry.save(task, job, target=0b1111, owned=0)
        again, _ = reopened(registry)

        assert (again.held, again.epoch) == (0b0011, 1)

    def test_a_first_grant_never_published_is_none(self, registry: Registry) -> None:
        """A task whose first grant was only saved still waits."""
        task = task_of()
        job = put(registry, task)
        task.grants.append(Grant(1, 0b1111, 0.0))
        registry.save(task, job, target=0b1111, owned=0)

        assert reopened(registry)[0].grants == []

    def test_an_earlier_tasks_grant_is_not_taken_for_ones_own(self, registry: Registry) -> None:
        """Nor when the agent before died while it gave the slot back."""
        first = task_of(0, (1, 0b1111))
        put(registry, first)
        second = task_of()
        job = put(registry, second)

        assert reopened(registry)[0].grants == []
        second.grants.append(Grant(2, 0b0011, 0.0))
        registry.save(second, job, target=0b0011, owned=0)
        assert reopened(registry)[0].grants == []

    def test_masks_reach_to_the_last_cpu(self, registry: Registry) -> None:
        """CPU 127 is in the second word."""
        put(registry, task_of(3, (1, 1 << 127 | 1)))

        assert reopened(registry, 3)[0].held == 1 << 127 | 1


class TestSlots:
    """Slots that are used, given back and used again."""

    def test_epochs_continue(self, registry: Registry) -> None:
        """A slot's next tenant goes on counting; unused slots have no epoch."""
        task = task_of(2, (1, 0b1))
        put(registry, task)
        registry.forget(task)
        put(registry, task_of(2, (3, 0b1)))

        assert Registry.open(registry.path).epochs() == {2: 3}

    def test_a_slot_given_back_is_empty(self, registry: Registry) -> None:
        """Nothing of the task is left, and whoever looks sees an empty grant."""
        task = task_of(0, (1, 0b1111))
        put(registry, task)
        registry.forget(task)

        assert registry.records() == []
        record = registry._record(0)
        assert (record.fields["pid"], record.granted, record.masks["held"]) == (0, 0, 0)

    def test_a_slot_is_complete_before_it_says_so(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        """`in_use` is the last store of a registration."""
        stores: list[str] = []
        write = SLOT.write

        def spy(*args: Any, **values: Any) -> None:
            stores.extend(values)
            write(*args, **values)

        monkeypatch.setattr(SLOT, "write", spy)
        registry.register(task := task_of(), job_of(task))

        assert stores[-1] == "in_use"

    def test_only_what_changed_is_written(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        """Saving the same again stores nothing."""
        task = task_of(0, (1, 0b11))
        job = put(registry, task)
        monkeypatch.setattr(SLOT, "write", None)
        monkeypatch.setattr(registry, "_write_mask", None)

        registry.save(task, job, target=0b11, owned=0)

    def test_an_epoch_out_of_step_is_a_fault(self, registry: Registry) -> None:
        """The state machine and the file count alike, or nothing goes on."""
        task = task_of()
        put(registry, task)

        with pytest.raises(AssertionError, match="slot 0 published epoch 1, planned 5"):
            registry.publish(task, 5, 1, "share")

    def test_retiring_tells_everybody(self, registry: Registry) -> None:
        """Every used slot has the last epoch there is, the header says so, and the file is gone."""
        put(registry, task_of(1, (1, 0b1)))
        registry.retire()

        epochs = [SLOT.read(registry.memory, "epoch", registry._base(slot)) for slot in range(4)]
        assert epochs == [0, layout.EPOCH_RETIRED, 0, 0]
        assert (registry.header("retired"), registry.path.exists()) == (1, False)


def test_the_newest_grant_is_chosen_by_parity() -> None:
    """An even epoch's grant is in the first copy, an odd one's in the second."""
    masks = {"grant0": 0b01, "grant1": 0b10}

    assert SlotRecord(0, {"epoch": 2}, "a", masks).granted == 0b01
    assert SlotRecord(0, {"epoch": 3}, "a", masks).granted == 0b10
