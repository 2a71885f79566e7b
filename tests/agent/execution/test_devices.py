# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from drom.agent.execution import devices, launch
from drom.agent.execution.launch import LaunchSite

from tests.support.fake_scheduler import start

RESOURCES = {"gpu": 4, "fast-disk": 2}


@pytest.mark.parametrize(
    ("has", "amd", "found"),
    [
        (
            {"gpu": (1, 3), "fast-disk": (0,)},
            False,
            {
                "DROM_DEVICES_GPU": "1,3",
                "DROM_DEVICES_FAST_DISK": "0",
                "CUDA_VISIBLE_DEVICES": "1,3",
                "NVIDIA_VISIBLE_DEVICES": "1,3",
                "ZE_AFFINITY_MASK": "1,3",
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            },
        ),
        ({"gpu": (2,)}, True, {"DROM_DEVICES_GPU": "2", "ROCR_VISIBLE_DEVICES": "2"}),
        ({}, True, {"ROCR_VISIBLE_DEVICES": "-1"}),
        (
            {},
            False,
            {"CUDA_VISIBLE_DEVICES": "-1", "NVIDIA_VISIBLE_DEVICES": "void", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        ),
    ],
)
def test_a_job_sees_the_gpus_that_it_has(has: dict[str, Any], found: dict[str, str], *, amd: bool) -> None:
    """One without any sees none on a node that has some, whatever its submission has set."""
    assert devices.variables(start(1, "true", devices=has), RESOURCES, amd=amd) == found


def test_variables_of_the_submission_name_gpus_of_another_node() -> None:
    """They are dropped on a node with GPUs, and are the user's own on one that declares none."""
    wanted = start(1, "true", env={"HIP_VISIBLE_DEVICES": "7", "CUDA_VISIBLE_DEVICES": "7"}, devices={"gpu": (0,)})
    with_gpus = launch.environment(wanted, LaunchSite("n1", Path("/run/drom"), RESOURCES))
    without = launch.environment(start(1, "true", env=wanted.env), LaunchSite("n1", Path("/run/drom")))

    assert "HIP_VISIBLE_DEVICES" not in with_gpus
    assert with_gpus.get("CUDA_VISIBLE_DEVICES", "0") == "0"
    assert (without["HIP_VISIBLE_DEVICES"], without["CUDA_VISIBLE_DEVICES"]) == ("7", "7")


@pytest.mark.parametrize(
    ("has", "why_not"),
    [
        ({"gpu": (0, 3)}, ""),
        ({"gpu": (4,)}, "it was given gpu 4, and the node has gpu=4."),
        ({"tpu": (0,)}, "it was given tpu 0, and the node has tpu=0."),
        ({"gpu": (0, 1)}, "job 9 has gpu 1 of the node."),
        ({"fast-disk": (1,)}, ""),
    ],
)
def test_nothing_is_given_twice(has: dict[str, Any], why_not: str) -> None:
    """Whatever the scheduler believes."""
    other = start(9, "true", devices={"gpu": (1, 2), "fast-disk": (0,)})

    assert devices.why_not(start(1, "true", devices=has), RESOURCES, [other]) == why_not
