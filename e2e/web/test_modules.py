"""The pure modules of the web pages, in the browser: tables of what goes in and what comes out."""

import json
import os
import unittest

from browser import Browser
from world import World

MINUTE = 60_000


class Modules(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(os.environ["PLEG_CHROMIUM"])
        cls.addClassCleanup(cls.browser.close)
        cls.world = World(os.environ["PLEG_BINARY"], pods=1, history=False)
        cls.addClassCleanup(cls.world.close)
        cls.page = cls.browser.page()
        cls.page.call("Emulation.setTimezoneOverride", timezoneId="UTC")
        cls.page.goto(cls.world.url + "/")
        cls.page.wait("document.readyState === 'complete'")

    def call(self, module, function, *arguments):
        args = ", ".join(json.dumps(argument) for argument in arguments)
        return self.page.eval(f"import('/assets/{module}.js').then((module) => module.{function}({args}))")

    def table(self, module, function, rows):
        for *arguments, expected in rows:
            with self.subTest(function=function, arguments=arguments):
                self.assertEqual(self.call(module, function, *arguments), expected)

    def test_durations(self):
        self.table("format", "duration", [
            (0, "0s"), (0.000004, "4µs"), (0.35, "350ms"), (4.25, "4.3s"), (59.9, "59s"), (60, "1m"), (185, "3m5s"), (7800, "2h10m"), (90000, "1d1h"),
        ])

    def test_ages_are_kubectls(self):
        self.table("format", "age", [(5, "5s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172800, "2d")])

    def test_states_are_those_of_the_command_line(self):
        self.table("format", "podState", [
            ({"state": "Running"}, "Running"),
            ({"state": "Running", "trouble": "hung-shim"}, "HungShim"),
            ({"state": "Running", "trouble": "stuck-inspection", "quarantined": True}, "Quarantined"),
            ({"state": "Error", "quarantined": True, "status_stale": {"why": "x"}}, "StatusStale"),
        ])

    def test_ids_in_texts_are_shortened(self):
        self.table("format", "shortIds", [("container app (" + "ab" * 32 + ") in", "container app (ababababababa) in"), ("deadbeef", "deadbeef")])

    def test_addresses_of_pods_are_escaped(self):
        self.table("format", "podPath", [({"namespace": "a/b", "name": "<x>?#%"}, "/pods/a%2Fb/%3Cx%3E%3F%23%25")])

    def test_ticks_are_round(self):
        self.table("scale", "linearTicks", [(138, [0, 50, 100, 150]), (1, [0, 0.5, 1]), (0, [0, 1]), (0.0123, [0, 0.005, 0.01, 0.015])])

    def test_queries_survive_nonsense(self):
        usual = {"q": "", "ns": "", "show": "all", "sort": "name", "range": "15m"}
        self.table("query", "read", [
            ("", usual), ("?show=x&sort=constructor&nope=1", usual), ("?q=a+b&sort=-age", {**usual, "q": "a b", "sort": "-age"}),
        ])
        self.table("query", "write", [(usual, ""), ({**usual, "q": "a&b"}, "?q=a%26b")])

    def lives(self, items, status, now):
        return self.call("lives", "lives", items, status, now)

    @staticmethod
    def event(kind, at, attempt=0, **more):
        return {"type": kind, "at": at, "subject": {"kind": "container", "id": f"c{attempt}", "name": "app", "attempt": attempt}, "pod": {"uid": "u"}, **more}

    def bars(self, data):
        return [[bar["from"], bar["to"], bar["tone"], bar["fromKnown"], bar["toKnown"]] for lane in data["lanes"] for bar in lane["bars"]]

    def test_lives_follow_from_events(self):
        items = [
            self.event("ContainerStarted", 10_500, lag=0.5), self.event("ContainerDied", 20_000, exit_code=137, reason="OOMKilled"),
            self.event("ContainerStarted", 30_000, 1), self.event("ContainerDied", 40_000, 1, exit_code=0),
            self.event("ContainerStarted", 50_000, 2),
        ]
        status = {"containers": [{"id": "c2", "name": "app", "attempt": 2, "state": "Running", "image": "i"}], "sandboxes": []}
        data = self.lives(items, status, 60_000)
        self.assertEqual(self.bars(data), [
            [10_000, 20_000, "failed", True, True], [30_000, 40_000, "completed", True, True], [50_000, None, "running", True, True],
        ])

    def test_what_the_first_relist_found_began_before(self):
        data = self.lives([self.event("ContainerStarted", 10_000, initial=True)], {"containers": [], "sandboxes": []}, 60_000)
        # It is no longer there, and nobody saw it end.
        self.assertEqual(self.bars(data), [[10_000, 10_000, "unknown", False, False]])

    def test_a_life_across_a_restart_ends_where_nobody_looked(self):
        items = [
            self.event("ContainerStarted", 10_000), {"type": "DaemonStopped", "at": 20_000},
            {"type": "DaemonStarted", "at": 35_000, "previous": {"clean": True}}, self.event("ContainerStarted", 36_000, 1, initial=True),
        ]
        status = {"containers": [{"id": "c1", "name": "app", "attempt": 1, "state": "Running", "started_at": "1970-01-01T00:00:25Z", "image": "i"}], "sandboxes": []}
        data = self.lives(items, status, 60_000)
        self.assertEqual(self.bars(data), [[10_000, 20_000, "unknown", True, False], [25_000, None, "running", True, True]])
        self.assertEqual([[gap["from"], gap["to"]] for gap in data["gaps"]], [[20_000, 35_000]])

    def test_a_trouble_ends_with_its_end_or_with_the_daemon(self):
        items = [
            self.event("TroubleStarted", 10_000, trouble="stuck-inspection"), self.event("TroubleEnded", 15_000, trouble="stuck-inspection", lasted=5),
            self.event("TroubleEnded", 25_000, 1, trouble="hung-shim", lasted=5), self.event("TroubleStarted", 30_000, trouble="hung-shim"),
            {"type": "DaemonStarted", "at": 40_000}, self.event("TroubleStarted", 50_000, trouble="hung-shim"),
        ]
        data = self.lives(items, None, 60_000)
        self.assertEqual([[one["from"], one["to"]] for one in data["troubles"]], [[10_000, 15_000], [20_000, 25_000], [30_000, 40_000], [50_000, None]])

    def test_a_container_that_is_listed_otherwise_is_not_known(self):
        status = {
            "containers": [{"id": "c0", "name": "app", "attempt": 0, "state": "Running", "started_at": "1970-01-01T00:00:10Z", "image": "i"}], "sandboxes": [],
            "stale": [{"kind": "container", "id": "c0", "listed": "Exited"}],
        }
        data = self.lives([], status, 60_000)
        self.assertEqual(self.bars(data), [[10_000, None, "unknown", True, True]])

    def test_series_count_what_changed(self):
        script = """import('/assets/series.js').then(({ Series }) => {
            const series = new Series();
            const add = (type, at, more) => series.add({ type, at, ...more });
            add('ContainerStarted', 1000, { initial: true });
            add('ContainerStarted', 11000, { lag: 0.5 });
            add('ContainerDied', 12000, { exit_code: 0, lag: 0.25 });
            add('ContainerDied', 61000, { exit_code: 1 });
            add('ContainerDied', 62000, {});
            series.addRelists({ time: 62000, count: 2, sum: 0.5 });
            const { buckets } = series.view(0, 120000, 2);
            return buckets.map(({ started, ended, failed, other, total, median, most, relist }) => [started, ended, failed, other, total, median || 0, most, relist || 0]);
        })"""
        self.assertEqual(self.page.eval(script), [[1, 1, 0, 0, 2, 0.5, 0.5, 0], [0, 0, 1, 1, 2, 0, 0, 0.25]])
