# SPDX-License-Identifier: Apache-2.0
"""Accounting logs of Torque, PBS Professional and OpenPBS, with the fields that their manuals show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workloads.formats.test_sacct import columns, fault_of, log_of

if TYPE_CHECKING:
    from pathlib import Path

TORQUE = """\
08/26/2014 17:07:44;Q;11923.napali;queue=batch
08/26/2014 17:07:50;S;11923.napali;user=ann group=company jobname=STDIN queue=batch ctime=1409094464
08/26/2014 17:08:04;E;11923.napali;user=ann group=company jobname=STDIN queue=batch ctime=1409094464 qtime=1409094464 \
etime=1409094464 start=1409094470 owner=ann@napali exec_host=napali/0-5+torque-devtest-03/0,2-6 \
Resource_List.neednodes=2:ppn=6 Resource_List.nodect=2 Resource_List.nodes=2:ppn=6 Resource_List.walltime=00:16:40 \
session=11352 total_execution_slots=12 unique_node_count=2 end=1409094484 Exit_status=265 resources_used.cput=00:02:00 \
resources_used.mem=24576kb resources_used.vmem=0kb resources_used.walltime=00:00:14

08/26/2014 17:09:00;D;11923.napali;requestor=ann@napali
08/26/2014 17:10:00;E;11924[3].napali;user=bob group=company jobname=a queue=long ctime=1409094500 start=1409094600 \
exec_host=napali/0+napali/1 Resource_List.ncpus=2 Resource_List.mem=2gb end=1409094700 Exit_status=0
"""
PRO = """\
03/01/2026 12:10:00;R;7.pbs;user=ann group=hpc project="my project" jobname=md queue=workq ctime=1772362800 \
qtime=1772362800 start=1772362900 exec_host=n1/0*8+n2/0*8 Resource_List.ncpus=16 \
Resource_List.select=2:ncpus=8:mem=4gb end=1772363000 Exit_status=-29 run_count=1
03/01/2026 12:11:00;R;7.pbs;
03/01/2026 13:10:00;E;7.pbs;user=ann group=hpc account="null" jobname=md queue=workq ctime=1772362800 start=1772363100 \
exec_host=n1/0*8+n3 Resource_List.select=2:ncpus=8:mem=4gb+1:ncpus=2+n9 resources_used.ncpus=16 end=1772366700 \
Exit_status=0 resources_used.mem=100w run_count=2
03/01/2026 13:11:00;E;8.pbs;user=ann ctime=1772362801 Resource_List.ncpus=4 start=1772363100 end=1772366700 \
Exit_status=1
03/01/2026 13:12:00;E;9.pbs;user=ann ctime=1772362802
"""


def test_jobs_of_torque(tmp_path: Path) -> None:
    """A job is the record of its end; deleted jobs are cancelled, tasks of arrays get numbers of their own."""
    log = log_of(tmp_path / "20140826", TORQUE)

    assert columns(log, "job", "submit", "wait", "run_time", "status") == [
        [11923, 11924],
        [0, 36],
        [6, 100],
        [14, 100],
        [5, 1],
    ]
    assert columns(log, "allocated", "requested_processors", "requested_time") == [[12, 2], [12, 2], [1000, -1]]
    assert columns(log, "cpu_time", "used_memory", "requested_memory") == [[10, -1], [2048, -1], [-1, 1 << 20]]
    assert columns(log, "user", "group", "queue") == [[1, 2], [1, 1], [1, 2]]
    assert log.header_number("UnixStartTime") == 1409094464


def test_the_slots_of_hosts_count_where_torque_has_no_sum(tmp_path: Path) -> None:
    """Ranges and lists of them are understood."""
    log = log_of(tmp_path / "log", TORQUE.replace("total_execution_slots=12 ", ""))

    assert log.allocated.tolist() == [12, 2]


def test_jobs_of_pbs_professional(tmp_path: Path) -> None:
    """A rerun is an earlier run; chunks of a selection are added up; a job without times is left out."""
    log = log_of(tmp_path / "log", PRO)

    assert columns(log, "job", "submit", "wait", "run_time", "status") == [
        [7, 7, 8],
        [0, 0, 1],
        [300, 100, 299],
        [3600, 100, 3600],
        [1, 2, 0],
    ]
    assert columns(log, "allocated", "requested_processors", "used_memory") == [[16, 16, 4], [19, 16, 4], [0, -1, -1]]
    assert "; Note: left out: 1 job that had not started or not ended" in log.comments


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "17:07:50;S",
            "17:07;S",
            ", line 2: '08/26/2014 17:07;S;11923.napali;user=...' is not a record such as 03/01/2026",
        ),
        (";E;11923.napali;", ";E;11923", ", line 3: "),
        ("start=1409094470", "start=soon", ", line 3, start: 'soon' is not a whole number."),
        (
            " ctime=1409094464 qtime",
            " qtime",
            ", line 3: the job has no ctime, the time of its submission: leave out the",
        ),
        ("00:16:40", "00:16:4x", ", line 3, Resource_List.walltime: '00:16:4x' is not a duration such as 2-03:05:00."),
        ("24576kb", "24576", ""),
        ("24576kb", "24576kib", ", line 3, resources_used.mem: '24576kib' is not a size such as 8gb."),
        ("nodes=2:ppn=6 Res", "nodes=2:ppn=x Res", ", line 3, Resource_List.nodes: '2:ppn=x' is not a whole number."),
        ("total_execution_slots=12", "x=0", ""),
        (
            "exec_host=napali/0+",
            "exec_host=napali/x+",
            ", line 6, exec_host: 'napali/x+napali/1' is not a list of hosts",
        ),
        ("end=1409094484", "end=1409094469", ", line 3: the job ends 1 s before it starts: "),
    ],
)
def test_a_bad_record_is_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    """It names file, line and field; other forms of a field are read."""
    text = TORQUE.replace(old, new)
    if sentence:
        assert fault_of(tmp_path / "log", text).startswith(sentence)
    else:
        assert len(log_of(tmp_path / "log", text)) == 2
