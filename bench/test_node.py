"""The pure parts of `bench/cluster`: what it makes of objects, of the audit log, and of numbers."""

import json
import tempfile
import unittest
from pathlib import Path

from compare import node_report
from compare.control_plane import ControlPlane
from compare.node_cases import is_running, node_facts, pod_facts

PLAN = {"pods": 30, "rest_pods": 100}


class Facts(unittest.TestCase):
    def test_a_pod(self):
        running = {"state": {"running": {}}, "restartCount": 0, "containerID": "cri-o://abc"}
        for container, died in (
            (running, False),
            (running | {"restartCount": 1}, True),
            (running | {"state": {"terminated": {}}}, True),
            (running | {"lastState": {"terminated": {}}}, True),
        ):
            found = pod_facts({"status": {"phase": "Running", "containerStatuses": [container]}})
            self.assertEqual((found["id"], found["died"], is_running(found)), ("abc", died, True))
        self.assertFalse(is_running(pod_facts({})) or is_running(None))

    def test_a_node(self):
        node = {"spec": {"taints": [{}]}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        self.assertEqual(node_facts(node), {"ready": "Unknown", "tainted": True})


class Audit(unittest.TestCase):
    def test_a_request_counts_once_and_in_its_time(self):
        def line(number, second, stage, verb="patch", **about):
            at = f"2026-11-18T00:00:{second:02}.500000Z"
            return {"auditID": str(number), "stage": stage, "verb": verb, "requestURI": "/x", "objectRef": about, "requestReceivedTimestamp": at}

        lines = (
            line(1, 1, "ResponseComplete", resource="pods", subresource="status"),
            line(2, 2, "ResponseStarted", "watch", resource="pods"),
            line(2, 2, "ResponseComplete", "watch", resource="pods"),
            line(3, 30, "ResponseComplete", resource="pods", subresource="status"),
        )
        with tempfile.TemporaryDirectory() as directory:
            cluster = ControlPlane.__new__(ControlPlane)
            cluster.audit_log = Path(directory) / "audit.log"
            cluster.audit_log.write_text("".join(json.dumps(one) + "\n" for one in lines))
            # 2026-11-18T00:00:00Z
            began = 1794960000
            self.assertEqual(cluster.requests(began, began + 20), {"patch pods/status": 1, "watch pods": 1})


class Limits(unittest.TestCase):
    def judged(self, ours, theirs):
        results = {"plan": PLAN, "pleg": [{"death_s": ours, "rest_rss_mib": 20.0}], "kubelet": [{"death_s": theirs, "rest_rss_mib": 20.0}]}
        found = {one["what"]: one["holds"] for one in node_report.judge(results)}
        return found["death of a container to its status in the API: median"], found["at rest, 100 pods: memory"], results

    def test_twice_as_fast_or_ahead(self):
        for ours, theirs, holds in (([1.0, 0.1, 0.2], [0.4, 0.4, 9.0], True), ([0.3], [0.4], False)):
            death, memory, results = self.judged(ours, theirs)
            self.assertEqual(death, holds)
            # As much is not ahead.
            self.assertIs(memory, False)
            self.assertIn("death of a container", node_report.table(results))

    def test_what_was_not_measured_is_no_miss(self):
        found = node_report.judge({"plan": PLAN, "pleg": [], "kubelet": []})
        self.assertEqual({one["holds"] for one in found}, {None})
        self.assertIn("not measured", node_report.verdict(found))


if __name__ == "__main__":
    unittest.main()
