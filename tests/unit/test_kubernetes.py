"""The Kubernetes manifests, against the schemas of Kubernetes and of a campaign; nothing of them is run."""

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from longctx.campaign.campaign import Campaign, from_dict
from longctx.plan.campaign_plan import plan_campaign
from longctx.plan.plan_table import PlanTable
from longctx.run.node_request import NodeRequest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "resources" / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.31", kubernetes_validate.latest_version())


def documents(path: Path) -> dict[str, Any]:
    """Return the objects of a file by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(path.read_text())}


def campaign(path: Path) -> Campaign:
    return from_dict(yaml.safe_load(documents(path)["ConfigMap"]["data"]["campaign.yaml"]))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_object_keeps_its_schema(path: Path, version: str) -> None:
    assert documents(path).keys() == {"PersistentVolumeClaim", "ConfigMap", "Job"}
    for document in documents(path).values():
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_find_a_typo() -> None:
    job = copy.deepcopy(documents(FILES[0])["Job"])
    job["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_objects_of_a_file_refer_to_each_other(path: Path) -> None:
    made = documents(path)
    pod = made["Job"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert volumes["results"]["persistentVolumeClaim"]["claimName"] == made["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["campaign"]["configMap"]["name"] == made["ConfigMap"]["metadata"]["name"]
    assert container["args"][container["args"].index("--configfile") + 1] == "/campaign/campaign.yaml"
    assert "NOT RUN" in path.read_text()


def test_the_sweep_asks_for_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = ROOT / "resources/kubernetes/sweep.yaml"
    planned = PlanTable(plan_campaign(campaign(path)).rows)
    request, points = NodeRequest(campaign(path), planned), campaign(path).points()
    (container,) = documents(path)["Job"]["spec"]["template"]["spec"]["containers"]
    assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == request.gpus
    assert int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024 >= request.memory_mib(points)


def test_the_external_job_names_its_key_and_needs_no_gpu() -> None:
    path = ROOT / "resources/kubernetes/external.yaml"
    (container,) = documents(path)["Job"]["spec"]["template"]["spec"]["containers"]
    assert campaign(path).config.plain()["external"]["api_key_env"] in {entry["name"] for entry in container["env"]}
    request = NodeRequest(campaign(path), PlanTable.empty())
    assert request.gpus == 0
    memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024
    assert memory >= request.memory_mib(campaign(path).points())
