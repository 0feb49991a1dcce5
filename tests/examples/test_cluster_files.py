"""The files for KubeRay and Slurm: what can be checked of them without a cluster."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cluster"

# The fields of KubeRay's API ray.io/v1 that a file may use, by kind; and those that each must have.
FIELDS = {
    "RayJobSpec": {
        *("activeDeadlineSeconds", "backoffLimit", "rayClusterSpec", "submitterPodTemplate", "metadata"),
        *("clusterSelector", "submitterConfig", "managedBy", "deletionStrategy", "entrypoint"),
        *("runtimeEnvYAML", "jobId", "submissionMode", "entrypointResources", "entrypointNumCpus"),
        *("entrypointNumGpus", "ttlSecondsAfterFinished", "shutdownAfterJobFinishes", "suspend"),
    },
    "RayClusterSpec": {
        *("headGroupSpec", "workerGroupSpecs", "rayVersion", "enableInTreeAutoscaling", "autoscalerOptions"),
        *("headServiceAnnotations", "suspend"),
    },
    "HeadGroupSpec": {"serviceType", "headService", "enableIngress", "rayStartParams", "template"},
    "WorkerGroupSpec": {
        *("groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template"),
        "scaleStrategy",
    },
}  # fmt: skip
NEEDED = {
    "RayJobSpec": {"entrypoint", "rayClusterSpec"},
    "RayClusterSpec": {"headGroupSpec", "workerGroupSpecs"},
    "HeadGroupSpec": {"rayStartParams", "template"},
    "WorkerGroupSpec": {"groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"},
}


def parts(job: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    cluster = job["spec"]["rayClusterSpec"]
    yield "RayJobSpec", job["spec"]
    yield "RayClusterSpec", cluster
    yield "HeadGroupSpec", cluster["headGroupSpec"]
    yield from (("WorkerGroupSpec", group) for group in cluster["workerGroupSpecs"])


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "rayjob.yaml").read_text())
    return loaded


def test_the_ray_job_has_the_fields_of_kuberays_api(job: dict[str, Any]) -> None:
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    for kind, part in parts(job):
        assert set(part) <= FIELDS[kind], kind
        assert NEEDED[kind] <= set(part), kind
        parameters = part.get("rayStartParams", {})
        assert all(isinstance(value, str) for value in parameters.values())  # the API takes nothing else


def test_all_pods_have_one_image_one_class_of_cpu_and_whole_cores(job: dict[str, Any]) -> None:
    pods = [part["template"]["spec"] for _, part in parts(job) if "template" in part]
    assert len(pods) == 2
    assert pods[0]["nodeSelector"] == pods[1]["nodeSelector"]
    containers = [pod["containers"][0] for pod in pods]
    assert len({container["image"] for container in containers}) == 1
    for container in containers:
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["resources"]["limits"]["cpu"].isdigit()
    assert containers[0]["image"].endswith(job["spec"]["rayClusterSpec"]["rayVersion"])


def test_the_head_scores_nothing_and_the_command_is_octunes(job: dict[str, Any]) -> None:
    assert job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    command = shlex.split(shlex.split(job["spec"]["entrypoint"])[2])
    assert command[:3] == ["cd", "/octune", "&&"]
    spec = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert command[1] in [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
    assert " ".join(command[3:]).startswith("octune tune conf.yaml --engine ray --address auto")


@pytest.mark.parametrize("command", [["bash", "-n"], ["shellcheck"]])
def test_the_slurm_script_is_sound(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run([*command, str(FOLDER / "slurm.sh")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


SLURM = {
    "scontrol": "printf 'one\\ntwo\\nthree\\n'",
    "hostname": "echo 127.0.0.1",
    "sleep": "true",
    "ray": 'echo "ray $*" >> "$LOG"',
    "srun": 'echo "srun $*" >> "$LOG"',
    "octune": 'echo "octune $*" >> "$LOG"; trap "echo interrupted >> $LOG; exit 130" INT; [[ $1 == resume ]] '
    '&& exit 1; kill -INT "$PPID"; for _ in {1..100}; do /bin/sleep 0.1; done',
}


@pytest.mark.parametrize(("words", "code"), [(("--resume", "run"), 1), (("conf.yaml", "run"), 130)])
def test_the_slurm_script_ends_as_octune_does(tmp_path: Path, words: tuple[str, str], code: int) -> None:
    """With stand-ins for the commands of Slurm and Ray: what it would start, where, and how it ends."""
    for name, body in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").touch()
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "LOG": str(tmp_path / "log"),
        "HOME": str(tmp_path),
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "16",
        "OCTUNE_VENV": str(tmp_path / "venv"),
    }
    done = subprocess.run(
        ["bash", str(FOLDER / "slurm.sh"), *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    log = (tmp_path / "log").read_text().splitlines()
    assert done.returncode == code, done.stderr
    assert (
        log[0]
        == "ray start --head --node-ip-address=127.0.0.1 --port=20007 --num-cpus=0 --disable-usage-stats"
    )
    assert any(line.startswith("srun --nodes=2 --ntasks=2 --nodelist=two,three ray start") for line in log)
    asked = "resume run" if words[0] == "--resume" else "tune conf.yaml --workspace run"
    assert f"octune {asked} --engine ray --address 127.0.0.1:20007" in log
    assert log[-1] == "ray stop"
    assert ("interrupted" in log) == (code == 130)
