"""Kubernetes as a scheduler: the requests to its API server and the resulting objects.
The client is real, over real HTTP; the server is kmock's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from provision.desired import variables
from provision.errors import StackError
from provision.fleet import Fleet, Node
from provision.paths import DOCS
from provision.remote.schedulers import BreakerError, Holder, chosen
from provision.remote.schedulers.kubernetes import Kubernetes, Member, Result, members, published
from provision.remote.schedulers.lease import Lease, put
from tests.support import kubernetes_api
from tests.support.kubernetes_api import BEFORE, TOKEN, Request, Served, scheduler

NODE = "/api/v1/nodes/gpu-01"
TAINT = {"key": "gpuprov.io/unhealthy", "value": "true", "effect": "NoSchedule"}
GPUS = "nvidia.com/gpu"
DEDICATED = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
LOST = {"gpu-01": "GPU 3 has fallen off the bus (run 7)"}
GOOD = Result("pass", "h100-sxm", "r580-cuda13.0", "2026-05-04T10:00:00.250Z", "12 checks passed")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with kubernetes_api.serve(tmp_path) as found:
        yield found


@pytest.fixture
def cluster(served: Served) -> Kubernetes:
    """Return a scheduler of gpu-01, gpu-02 (same names in the cluster) and spare-01 (gpu-09 there)."""
    pools = ("pool", "topology.kubernetes.io/rack")
    names = {"gpu-01": "gpu-01", "gpu-02": "gpu-02", "spare-01": "gpu-09"}
    for name in names.values():
        served.api.add_node(name, spec={"taints": [DEDICATED]})
    return scheduler({node: Member(name, served.kubeconfig, "", pools) for node, name in names.items()})


@pytest.mark.parametrize("gpus", [GPUS, "nvidia.com/mig-1g.10gb", "amd.com/gpu"])
def test_a_node_is_told_with_its_pools_and_the_pods_that_somebody_waits_for(
    served: Served, cluster: Kubernetes, gpus: str
) -> None:
    served.api.change("gpu-01", {"metadata": {"labels": {"pool": "train", "other": "x"}}}, "kubectl")
    served.api.add_pod("web", "gpu-01", owner="ReplicaSet")
    served.api.add_pod("train", "gpu-01", gpus=gpus)
    served.api.add_pod("exporter", "gpu-01", owner="DaemonSet", gpus=GPUS)
    served.api.add_pod(
        "static", "gpu-01", owner="Node", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}
    )
    served.api.add_pod("done", "gpu-01", phase="Succeeded", gpus=GPUS)
    served.api.add_pod("elsewhere", "gpu-02", gpus=GPUS)
    found = cluster.look(["gpu-01"])["gpu-01"]
    assert (found.name, found.state, found.holder) == ("gpu-01", "Ready", Holder.NOBODY)
    assert (found.takes_jobs, found.down, found.pools) == (True, False, ("pool=train",))
    assert [job.id for job in found.jobs] == ["team/train", "team/web"], "those with GPUs first"
    assert found.jobs[0].seconds is not None
    assert [one.path for one in served.api.came] == [NODE, "/api/v1/pods"]


def test_many_nodes_are_told_from_pages_of_two_lists(served: Served) -> None:
    names = [f"n-{number:03}" for number in range(300)]
    for name in names:
        served.api.add_node(name)
    served.api.add_pod("train", "n-299", gpus=GPUS)
    found = scheduler({name: Member(name, served.kubeconfig) for name in [*names, "absent"]}).look(
        [*names, "absent"]
    )
    assert [found[name].state for name in names] == ["Ready"] * 300
    assert [job.id for job in found["n-299"].jobs] == ["team/train"]
    assert "gpuprov_scheduler_name" in found["absent"].error
    assert [one.path for one in served.api.came] == ["/api/v1/nodes", "/api/v1/nodes", "/api/v1/pods"]


def test_a_node_that_kubernetes_lost_is_down(served: Served, cluster: Kubernetes) -> None:
    lost = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
    served.api.change("gpu-01", {"status": {"conditions": [lost]}}, "kube-controller-manager")
    found = cluster.look(["gpu-01"])["gpu-01"]
    assert (found.state, found.down, found.takes_jobs) == ("NotReady", True, False)
    assert found.reason == "Kubelet stopped posting node status."


# --- drain, mark, resume


def test_a_drain_is_one_patch_that_holds_cordon_taint_and_reason(served: Served, cluster: Kubernetes) -> None:
    version = served.api.node("gpu-01")["metadata"]["resourceVersion"]
    assert cluster.drain(LOST) == {}
    (patch,) = served.api.changes()
    assert (patch.method, patch.path, patch.query) == ("PATCH", NODE, {"fieldManager": "gpuprov"})
    assert patch.headers["Content-Type"] == "application/strategic-merge-patch+json"
    moment = patch.body["metadata"]["annotations"].pop("gpuprov.io/drained-at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", moment)
    assert patch.body == {
        "metadata": {
            "resourceVersion": version,
            "annotations": {"gpuprov.io/reason": "gpuprov: GPU 3 has fallen off the bus (run 7)"},
        },
        "spec": {"unschedulable": True, "taints": [DEDICATED, TAINT]},
    }
    found = cluster.look(["gpu-01"])["gpu-01"]
    assert (found.holder, found.takes_jobs, found.down) == (Holder.US, False, False)
    assert (found.state, found.reason) == (
        "Ready,SchedulingDisabled",
        f"gpuprov: GPU 3 has fallen off the bus (run 7) [{moment}]",
    )


def test_drain_and_resume_twice_change_nothing_more_and_leave_the_node_as_it_was(
    served: Served, cluster: Kubernetes
) -> None:
    before = served.api.node("gpu-01")
    assert cluster.drain(LOST) == cluster.drain({"gpu-01": "another reason"}) == {}
    assert len(served.api.changes()) == 1
    assert cluster.resume(["gpu-01"]) == cluster.resume(["gpu-01"]) == {}
    assert len(served.api.changes()) == 2
    after = served.api.node("gpu-01")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["annotations"] == {}


def test_a_node_without_other_taints_has_none_afterwards(served: Served) -> None:
    served.api.add_node("bare", spec={})
    bare = scheduler({"bare": Member("bare", served.kubeconfig)})
    assert bare.drain({"bare": "x"}) == bare.resume(["bare"]) == {}
    assert served.api.node("bare")["spec"] == {}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"unschedulable": True}, f"cordoned by kubectl [{BEFORE}]"),
        ({"taints": [{**TAINT, "value": "by-hand"}]}, "gpuprov.io/unhealthy=by-hand:NoSchedule"),
    ],
)
def test_a_node_that_others_hold_is_left_to_them(
    served: Served, cluster: Kubernetes, spec: dict[str, Any], reason: str
) -> None:
    served.api.change("gpu-01", {"spec": spec}, "kubectl")
    found = cluster.look(["gpu-01"])["gpu-01"]
    assert (found.holder, found.takes_jobs, found.reason) == (Holder.OTHERS, False, reason)
    assert cluster.drain(LOST) == cluster.resume(["gpu-01"]) == {}
    assert served.api.changes() == []


def test_a_cordon_by_hand_over_ours_is_theirs_until_they_take_it_away(
    served: Served, cluster: Kubernetes
) -> None:
    cluster.drain(LOST)
    served.api.change("gpu-01", {"spec": {"unschedulable": None}}, "kubectl")
    assert cluster.look(["gpu-01"])["gpu-01"].holder is Holder.US, "our taint still keeps pods away"
    served.api.change("gpu-01", {"spec": {"unschedulable": True}}, "kubectl")
    assert cluster.look(["gpu-01"])["gpu-01"].holder is Holder.OTHERS
    assert cluster.resume(["gpu-01"]) == {}
    assert served.api.node("gpu-01")["spec"]["unschedulable"] is True
    served.api.change("gpu-01", {"spec": {"unschedulable": None}}, "kubectl")
    assert cluster.resume(["gpu-01"]) == {}
    assert served.api.node("gpu-01")["spec"] == {"taints": [DEDICATED]}


def test_what_others_change_in_between_is_kept(served: Served, cluster: Kubernetes) -> None:
    other = {"key": "maintenance", "effect": "NoExecute"}
    served.api.meddling = [{"spec": {"taints": [DEDICATED, other]}}]
    assert cluster.drain(LOST) == {}
    assert served.api.node("gpu-01")["spec"]["taints"] == [DEDICATED, other, TAINT]
    assert len(served.api.changes()) == 2, "the first was refused with 409"


def test_a_person_who_cordons_in_between_is_first(served: Served, cluster: Kubernetes) -> None:
    served.api.meddling = [{"spec": {"unschedulable": True}}]
    assert cluster.drain(LOST) == {}
    assert served.api.node("gpu-01")["spec"]["taints"] == [DEDICATED], "refused, read again, and left to them"


def test_a_node_that_changes_all_the_time_is_given_up_after_a_few_tries(
    served: Served, cluster: Kubernetes
) -> None:
    served.api.meddling = [{"metadata": {"labels": {"n": str(number)}}} for number in range(20)]
    assert "during each of 5 tries (409)" in cluster.drain(LOST)["gpu-01"]
    assert len(served.api.changes()) == 5


def test_of_two_watches_one_gets_the_lease(served: Served, cluster: Kubernetes) -> None:
    """The other watch writes between our read and our patch."""
    mine, theirs = Lease("f", "h1", 1, "ctl-1:/home/" + "é" * 300), Lease("f", "h2", 1, "ctl-2:/home")
    assert cluster.lease({"gpu-02": mine}, {"gpu-02": None}) == {}
    served.api.meddling = [{"metadata": {"annotations": {"gpuprov.io/watch": put("", theirs)}}}]
    errors = cluster.lease({"gpu-01": mine}, {"gpu-01": None})
    assert errors == {"gpu-01": "another watch changed its lease just now"}
    assert [one.lease for one in cluster.look(["gpu-01", "gpu-02"]).values()] == [theirs, mine]
    assert cluster.lease({"gpu-02": None}, {"gpu-02": mine}) == {}
    assert "gpuprov.io/watch" not in served.api.node("gpu-02")["metadata"].get("annotations", {})
    assert served.api.node("gpu-02")["spec"] == {"taints": [DEDICATED]}, "a lease drains nothing"


def test_only_the_reason_of_a_node_that_we_hold_is_replaced(served: Served, cluster: Kubernetes) -> None:
    assert cluster.mark(LOST) == {"gpu-01": "gpuprov does not hold it: in service"}
    assert served.api.changes() == []
    cluster.drain(LOST)
    assert cluster.mark({"gpu-01": "in repair\x1b[2J"}) == {}
    assert (
        served.api.node("gpu-01")["metadata"]["annotations"]["gpuprov.io/reason"] == "gpuprov: in repair�[2J"
    )
    assert cluster.look(["gpu-01"])["gpu-01"].holder is Holder.US


# --- the breaker of all drains


def test_the_breaker_is_an_annotation_that_a_person_takes_away(served: Served, cluster: Kubernetes) -> None:
    assert cluster.breaker() is None
    for name in ("gpu-01", "gpu-02", "gpu-09"):
        served.api.change(name, {"metadata": {"labels": {"pool": "train"}}}, "kubectl")
    assert cluster.permit("gpu-01", 0, 1) == ""
    cluster.drain({"gpu-01": "20260504T100000Z-gpu-01-0a0b0c0d GPU 3 has fallen off the bus"})
    why = "pool=train has had 1 of its 3 nodes drained within an hour"
    assert f"({why}): close it" in cluster.permit("gpu-02", 0, 1)
    assert cluster.breaker() == why
    assert "is open" in cluster.permit("gpu-02", 100, 9), "whatever the limit is now"
    for name in ("gpu-01", "gpu-02", "gpu-09"):  # kubectl annotate nodes --all gpuprov.io/breaker-
        served.api.change(name, {"metadata": {"annotations": {"gpuprov.io/breaker": None}}}, "kubectl")
    assert cluster.breaker() is None
    assert cluster.permit("gpu-02", 67, 1) == ""
    cluster.open_breaker("ann looks into it")
    assert cluster.breaker() == "ann looks into it"
    cluster.close_breaker()
    assert cluster.breaker() is None
    assert "gpuprov.io/breaker" not in served.api.node("gpu-09")["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("reason", "drained_at", "counts"),
    [
        ("gpuprov: gpu3: lost", "2000-01-01T00:00:00+00:00", False),
        ("gpuprov: gpu3: lost", "no time", True),
        ("gpuprov: up 20260504", "no time", False),
        ("gpuprov: spare", "no time", False),
        ("gpuprov: (was DOWN) burn-in 7: slow", "no time", False),
        ("mine", "no time", False),
    ],
)
def test_only_drains_for_a_fault_within_the_hour_count(
    served: Served, cluster: Kubernetes, reason: str, drained_at: str, counts: bool
) -> None:
    notes = {"gpuprov.io/reason": reason, "gpuprov.io/drained-at": drained_at}
    served.api.change("gpu-01", {"metadata": {"annotations": notes}, "spec": {"taints": [TAINT]}}, "gpuprov")
    assert (cluster.permit("gpu-02", 0, 1) != "") == counts


def test_a_breaker_that_cannot_be_read_permits_nothing(served: Served, cluster: Kubernetes) -> None:
    served.api.failures = [kubernetes_api.Failure("GET", "/api/v1/nodes", 403)]
    for call in (cluster.breaker, lambda: cluster.permit("gpu-01", 10, 3)):
        with pytest.raises(BreakerError, match="list nodes"):
            call()


# --- pools


IN_POOLS = {"pool": "train", "topology.kubernetes.io/rack": "r7"}
ELSE = {"kubernetes.io/hostname": "gpu-01"}


def test_a_spare_gets_the_labels_of_the_pool_and_no_others(served: Served, cluster: Kubernetes) -> None:
    served.api.change("gpu-01", {"metadata": {"labels": IN_POOLS | ELSE}}, "kubectl")
    pools = cluster.look(["gpu-01"])["gpu-01"].pools
    assert cluster.join("spare-01", "gpu-01", pools) == cluster.join("spare-01", "gpu-01", pools) == ""
    (patch,) = served.api.changes()
    assert (patch.path, patch.body) == ("/api/v1/nodes/gpu-09", {"metadata": {"labels": IN_POOLS}})


def labels(served: Served) -> Any:
    return served.api.node("gpu-01")["metadata"]["labels"]


def test_a_failed_node_leaves_its_pools_and_is_put_back_into_them(
    served: Served, cluster: Kubernetes
) -> None:
    """A node outside its pools still counts as a member, because the limit on a pool depends on that."""
    served.api.change("gpu-01", {"metadata": {"labels": IN_POOLS | ELSE}}, "kubectl")
    before = cluster.look(["gpu-01"])["gpu-01"].pools
    cluster.drain(LOST)
    assert cluster.leave("gpu-01") == cluster.leave("gpu-01") == ""
    assert labels(served) == ELSE
    assert (
        cluster.look(["gpu-01"])["gpu-01"].pools == before == ("pool=train", "topology.kubernetes.io/rack=r7")
    )
    assert cluster.rejoin("gpu-01") == cluster.rejoin("gpu-01") == ""
    assert labels(served) == IN_POOLS | ELSE
    assert "gpuprov.io/pools" not in served.api.node("gpu-01")["metadata"]["annotations"]
    assert len(served.api.changes()) == 3


def test_a_node_that_is_resumed_is_in_its_pools_again_but_for_what_others_gave_it(
    served: Served, cluster: Kubernetes
) -> None:
    served.api.change("gpu-01", {"metadata": {"labels": IN_POOLS}}, "kubectl")
    cluster.drain(LOST)
    cluster.leave("gpu-01")
    served.api.change("gpu-01", {"metadata": {"labels": {"pool": "test"}}}, "kubectl")
    assert cluster.resume(["gpu-01"]) == {}
    assert labels(served) == IN_POOLS | {"pool": "test"}
    assert served.api.node("gpu-01")["metadata"]["annotations"] == {}


@pytest.mark.parametrize("note", ["no JSON", "[1]", '{"pool": 7}'])
def test_a_note_of_pools_that_somebody_else_wrote_puts_nothing_back(
    served: Served, cluster: Kubernetes, note: str
) -> None:
    served.api.change("gpu-01", {"metadata": {"annotations": {"gpuprov.io/pools": note}}}, "kubectl")
    assert cluster.rejoin("gpu-01") == ""
    assert served.api.changes() == []


def test_a_node_that_we_do_not_hold_stays_in_its_pools(served: Served, cluster: Kubernetes) -> None:
    served.api.change("gpu-01", {"metadata": {"labels": IN_POOLS}}, "kubectl")
    assert cluster.leave("gpu-01") == ""
    assert labels(served) == IN_POOLS


# --- evictions


def test_pods_are_evicted_again_until_their_budget_allows_it(served: Served, cluster: Kubernetes) -> None:
    served.api.add_pod("train", "gpu-01", gpus=GPUS)
    served.api.add_pod("web", "gpu-01", owner="ReplicaSet")
    served.api.add_pod("exporter", "gpu-01", owner="DaemonSet")
    served.api.add_pod("other", "gpu-02")
    served.api.budgets = {"web": 1}
    cluster.drain(LOST)
    served.api.came.clear()
    assert cluster.evict(["gpu-01"], 30) == {}
    asked = served.api.changes()
    assert sorted(one.path.split("/")[-2] for one in asked) == ["train", "web", "web"]
    assert {one.method for one in asked} == {"POST"}
    assert asked[0].body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "train", "namespace": "team"},
        "deleteOptions": {"preconditions": {"uid": "u-train"}},
    }


def test_at_the_deadline_the_budget_and_the_pods_it_holds_are_named(
    served: Served, cluster: Kubernetes
) -> None:
    served.api.add_pod("web", "gpu-01", owner="ReplicaSet")
    served.api.budgets = {"web": 1000}
    cluster.drain(LOST)
    assert cluster.evict(["gpu-01"], 3) == {
        "gpu-01": "1 pod left when the time was over: The disruption budget web needs 2 healthy pods and has "
        "2 currently: team/web"
    }


def test_another_pod_of_the_same_name_is_not_evicted_for_it(served: Served, cluster: Kubernetes) -> None:
    """A StatefulSet reuses the pod name, so the request carries the UID of the pod observed here."""
    served.api.add_pod("db-0", "gpu-01", owner="StatefulSet")
    cluster.drain(LOST)
    seen = served.api.objects[kubernetes_api.PODS, "team", "db-0"].raw
    served.api.listed_instead = [{**seen, "metadata": {**seen["metadata"], "uid": "the-one-before"}}]
    assert "409" in cluster.evict(["gpu-01"], 3)["gpu-01"]
    assert (kubernetes_api.PODS, "team", "db-0") in served.api.objects


def test_a_pod_that_does_not_end_is_named(served: Served, cluster: Kubernetes) -> None:
    served.api.add_pod("train", "gpu-01", metadata={"deletionTimestamp": BEFORE})
    cluster.drain(LOST)
    served.api.came.clear()
    assert "still ending: team/train" in cluster.evict(["gpu-01"], 3)["gpu-01"]
    assert served.api.changes() == [], "it is leaving already"


def test_a_pod_that_nobody_would_start_again_is_left_and_named(served: Served, cluster: Kubernetes) -> None:
    served.api.add_pod("notebook", "gpu-01", owner="", gpus=GPUS)
    cluster.drain(LOST)
    served.api.came.clear()
    assert "1 pod without a controller left" in cluster.evict(["gpu-01"], 5)["gpu-01"]
    assert served.api.changes() == []


def test_nothing_is_evicted_from_a_node_that_others_hold(served: Served, cluster: Kubernetes) -> None:
    served.api.add_pod("train", "gpu-01")
    served.api.change("gpu-01", {"spec": {"unschedulable": True}}, "kubectl")
    said = cluster.evict(["gpu-01", "gpu-02"], 5)
    assert said["gpu-01"].startswith("gpuprov does not hold it: cordoned by kubectl")
    assert said["gpu-02"].startswith("gpuprov does not hold it: in service")
    assert served.api.changes() == []


# --- results


@pytest.mark.parametrize(
    ("verdict", "status", "reason"),
    [
        ("pass", "True", "Validated"),
        ("warn", "True", "ValidatedWithWarnings"),
        ("fail", "False", "CheckFailed"),
        ("error", "Unknown", "NotMeasured"),
        ("skip", "Unknown", "NotMeasured"),
    ],
)
def test_a_result_is_a_condition_and_labels(
    served: Served, cluster: Kubernetes, verdict: str, status: str, reason: str
) -> None:
    result = Result(
        verdict, "h100-sxm", "./stacks/our own.yml", "2026-05-04T12:00:00.250+02:00", "GPU 3\x1b[2J\nis lost"
    )
    assert cluster.publish({"gpu-01": result}) == {}
    condition, labels = served.api.changes()
    assert (condition.path, labels.path) == (f"{NODE}/status", NODE)
    (said,) = condition.body["status"]["conditions"]
    assert (said["type"], said["status"], said["reason"]) == ("GpuHealthy", status, reason)
    assert said["message"] == "GPU 3�[2J is lost"
    assert labels.body["metadata"]["labels"] == {
        "gpuprov.io/verdict": verdict,
        "gpuprov.io/sku": "h100-sxm",
        "gpuprov.io/stack": "stacks_our_own.yml",
        "gpuprov.io/validated-at": "20260504T100000Z",
    }
    kinds = [one["type"] for one in served.api.node("gpu-01")["status"]["conditions"]]
    assert kinds == ["Ready", "GpuHealthy"], "the kubelet's own stay"


def test_the_time_of_the_last_change_stays_while_the_status_does(served: Served, cluster: Kubernetes) -> None:
    old = {"type": "GpuHealthy", "status": "True", "reason": "Validated", "lastTransitionTime": BEFORE}
    served.api.change("gpu-01", {"status": {"conditions": [old]}}, "gpuprov")
    cluster.publish({"gpu-01": GOOD})
    assert _condition(served)["lastTransitionTime"] == BEFORE
    assert _condition(served)["lastHeartbeatTime"] > BEFORE
    cluster.publish({"gpu-01": Result("fail", "", "", "2026-05-04T11:00:00Z", "lost")})
    assert _condition(served)["lastTransitionTime"] > BEFORE
    assert "gpuprov.io/sku" not in served.api.node("gpu-01")["metadata"]["labels"], "not what it was once"


def _condition(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.api.node("gpu-01")["status"]["conditions"][-1]
    return found


def test_an_older_result_does_not_hide_a_newer_one(served: Served, cluster: Kubernetes) -> None:
    assert cluster.publish({"gpu-01": Result("fail", "", "", "2026-05-04T11:00:00Z", "GPU 3 is lost")}) == {}
    count = len(served.api.changes())
    assert "newer result already (20260504T110000Z)" in cluster.publish({"gpu-01": GOOD})["gpu-01"]
    assert (len(served.api.changes()), _condition(served)["status"]) == (count, "False")


@pytest.mark.parametrize(
    ("value", "label"),
    [("a" * 62 + "/b", "a" * 62 + "_"), ("-.x.-", "x"), ("Ünï", "n"), ("", None), ("///", None)],
)
def test_a_label_is_cut_to_what_kubernetes_takes(value: str, label: str | None) -> None:
    found = published.label_value(value)
    assert found == (label.rstrip("_") if label else None)
    assert found is None or re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", found)


# --- agreement with the published schemas, the manifest of rights, and kubectl


def everything(served: Served, cluster: Kubernetes) -> list[Request]:
    """Make every kind of call once and return the requests."""
    served.api.add_pod("train", "gpu-01", gpus=GPUS)
    served.api.change("gpu-02", {"metadata": {"labels": {"pool": "train"}}}, "kubectl")
    assert cluster.drain(LOST) == cluster.mark({"gpu-01": "in repair"}) == {}
    assert cluster.evict(["gpu-01"], 10) == cluster.publish({"gpu-01": GOOD}) == {}
    assert cluster.leave("gpu-01") == cluster.rejoin("gpu-01") == ""
    assert cluster.resume(["gpu-01"]) == {}
    assert cluster.join("spare-01", "gpu-02", ()) == ""
    many = {f"n-{number}": Member(f"n-{number}", served.kubeconfig) for number in range(20)}
    scheduler(many).look(list(many))
    return list(served.api.came)


def test_every_body_is_what_the_published_schema_describes(served: Served, cluster: Kubernetes) -> None:
    """The client's models are generated from the API's OpenAPI document and must round-trip each part."""
    seen = set()

    def same(model: Any, part: dict[str, Any]) -> None:
        seen.add(model.__name__)
        assert _deserialized(part, model) == {key: value for key, value in part.items() if value is not None}

    for one in everything(served, cluster):
        if one.body and one.path.endswith("/eviction"):
            same(client.V1Eviction, one.body)
        elif one.body:
            same(client.V1ObjectMeta, _without_nulls(one.body.get("metadata", {})))
            same(client.V1NodeSpec, _without_nulls(one.body.get("spec", {})))
            for condition in one.body.get("status", {}).get("conditions", ()):
                same(client.V1NodeCondition, condition)
    assert seen == {"V1Eviction", "V1ObjectMeta", "V1NodeSpec", "V1NodeCondition"}


def _without_nulls(part: Any) -> Any:
    """Drop nulls, which delete a field in a patch but appear in no object."""
    if not isinstance(part, dict):
        return part
    return {key: _without_nulls(value) for key, value in part.items() if value is not None}


def _deserialized(part: dict[str, Any], model: Any) -> Any:
    """Return `part` after parsing it as this model and serialising it again."""
    api = client.ApiClient()

    class Response:
        data = json.dumps(part)

    if hasattr(model, "from_dict"):  # from version 36 on
        read = model.from_dict(json.loads(json.dumps(part)))
    else:
        read = api.deserialize(Response, model)
    written = api.sanitize_for_serialization(read)
    return json.loads(json.dumps(written).replace("+00:00", "Z").replace(".000Z", "Z"))


def test_the_manifest_gives_the_rights_that_are_used_and_no_others(
    served: Served, cluster: Kubernetes
) -> None:
    verbs = {"PATCH": "patch", "POST": "create"}
    used = set()
    for one in everything(served, cluster):
        path = one.path.removeprefix("/api/v1/")
        if match := re.fullmatch(r"(nodes|pods)", path):
            used.add(("list", match[1]))
        elif match := re.fullmatch(r"nodes/[^/]+(/status)?", path):
            used.add((verbs.get(one.method, "get"), f"nodes{match[1] or ''}"))
        else:
            assert re.fullmatch(r"namespaces/[^/]+/pods/[^/]+/eviction", path), path
            used.add((verbs[one.method], "pods/eviction"))
    manifest = list(yaml.safe_load_all((DOCS / "examples" / "kubernetes" / "rbac.yml").read_text()))
    (role,) = (one for one in manifest if one["kind"] == "ClusterRole")
    assert {tuple(one["apiGroups"]) for one in role["rules"]} == {("",)}
    given = {(verb, name) for one in role["rules"] for name in one["resources"] for verb in one["verbs"]}
    assert used == given


def test_every_request_has_the_token_and_nothing_shows_it(served: Served, cluster: Kubernetes) -> None:
    for one in everything(served, cluster):
        assert one.headers["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in repr(cluster.look(["gpu-01", "gpu-02"]))


@pytest.mark.skipif(
    not shutil.which("kubectl"), reason="kubectl is not installed (Debian: kubernetes-client)"
)
def test_kubectl_shows_what_was_written(served: Served, cluster: Kubernetes, tmp_path: Path) -> None:
    cluster.drain(LOST)
    cluster.publish({"gpu-01": Result("fail", "h100-sxm", "r580", "2026-05-04T10:00:00Z", "GPU 3 is lost")})
    words = ["kubectl", "--kubeconfig", str(served.kubeconfig), "get", "node", "gpu-01", "-o", "yaml"]
    shown = subprocess.run(
        words,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    node = yaml.safe_load(shown.stdout)
    assert node["metadata"]["labels"] == {
        "gpuprov.io/verdict": "fail",
        "gpuprov.io/sku": "h100-sxm",
        "gpuprov.io/stack": "r580",
        "gpuprov.io/validated-at": "20260504T100000Z",
    }
    assert node["metadata"]["annotations"]["gpuprov.io/reason"].startswith("gpuprov: GPU 3")
    assert node["spec"] == {"unschedulable": True, "taints": [DEDICATED, TAINT]}
    said = {
        one["type"]: (one["status"], one["reason"], one["message"])
        for one in node["status"]["conditions"][1:]
    }
    assert said == {"GpuHealthy": ("False", "CheckFailed", "GPU 3 is lost")}


# --- variables


def test_what_is_set_on_the_command_line_holds(tmp_path: Path) -> None:
    given = {"gpuprov_scheduler": "kubernetes", "gpuprov_kubeconfig": "/of-the-inventory"}
    fleet = Fleet(tmp_path / "inventory.yml", {"gpu-01": Node("gpu-01", (), given)}, {})
    found, _ = chosen.only(
        fleet, {"gpuprov_kubeconfig": "/chosen", "gpuprov_kubernetes_pool_labels": ["pool"]}
    )
    assert isinstance(found, Kubernetes)
    assert found._members == {"gpu-01": Member("gpu-01", Path("/chosen"), "", ("pool",))}


def test_members_come_from_the_inventory(tmp_path: Path) -> None:
    given = {
        "gpuprov_kubeconfig": "secret/kubeconfig",
        "gpuprov_kubernetes_context": "prod",
        "gpuprov_kubernetes_pool_labels": ["pool"],
    }
    nodes = {"gpu-01": Node("gpu-01", (), given), "gpu-02": Node("gpu-02", (), {"gpuprov_kubeconfig": "/k"})}
    fleet = Fleet(tmp_path / "inventory.yml", {**nodes, "gpu-03": Node("gpu-03", (), {})}, {})
    assert members(fleet, {"gpu-01": "ip-10-0-0-1", "gpu-02": "gpu-02", "gpu-03": "gpu-03"}) == {
        "gpu-01": Member("ip-10-0-0-1", tmp_path / "secret" / "kubeconfig", "prod", ("pool",)),
        "gpu-02": Member("gpu-02", Path("/k")),
        "gpu-03": Member("gpu-03"),
    }


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("gpuprov_kubernetes_pool_labels", ["pool", "example.com/pool"], True),
        ("gpuprov_kubernetes_pool_labels", ["kubernetes.io/hostname"], False),
        ("gpuprov_kubernetes_pool_labels", ["-x"], False),
        ("gpuprov_kubernetes_pool_labels", "pool", False),
        ("gpuprov_kubernetes_context", "arn:aws:eks:eu-1:1:cluster/prod", True),
        ("gpuprov_kubernetes_context", "two words", False),
        ("gpuprov_kubeconfig", "~/.kube/config", True),
        ("gpuprov_kubeconfig", "", False),
        ("gpuprov_gpu_operator", "with_driver", True),
        ("gpuprov_gpu_operator", True, False),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(tmp_path: Path, name: str, value: Any, fits: bool) -> None:
    fleet = Fleet(tmp_path / "inventory.yml", {"gpu-01": Node("gpu-01", (), {name: value})}, {})
    if fits:
        variables.check(fleet, {})
    else:
        with pytest.raises(StackError, match=f"gpu-01: {name} must be"):
            variables.check(fleet, {})
