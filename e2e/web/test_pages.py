"""The web pages in a real browser, against a real daemon on a simulated node."""

import json
import os
import signal
import subprocess
import time
import unittest

from browser import Browser
from world import World

BINARY = os.environ["PLEG_BINARY"]
CHROMIUM = os.environ["PLEG_CHROMIUM"]
ARTIFACTS = os.environ["PLEG_WEB_ARTIFACTS"]

LIVE = "document.getElementById('connection').dataset.state === 'live'"
ROWS = "document.querySelectorAll('#pods .rows .row:not([hidden])')"


def row_of(name):
    """The row of a pod of the table, as an expression."""
    return f"[...{ROWS}].find((row) => row.querySelector('.pod-name').textContent === {json.dumps(name)})"


class PageTest(unittest.TestCase):
    """Each test has a page of its own, and no page may complain."""

    pods = 6
    history = True

    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(CHROMIUM)
        cls.addClassCleanup(cls.browser.close)
        cls.world = World(BINARY, pods=cls.pods, history=cls.history)
        cls.addClassCleanup(cls.world.close)

    def open(self, path="/", **options):
        page = self.browser.page(**options)
        self.addCleanup(page.close)
        page.goto(self.world.url + path)
        page.wait(LIVE, 20)
        return page

    def keep(self, page, name, **options):
        page.screenshot(os.path.join(ARTIFACTS, f"{name}.png"), **options)


class Node(PageTest):
    def test_the_page_shows_what_the_api_says(self):
        page = self.open()
        page.wait(f"{ROWS}.length === {self.pods}")
        api = {pod["pod"]["name"]: pod for pod in self.world.json("/api/v1/pods")}
        shown = page.eval(f"[...{ROWS}].map((row) => [...row.querySelectorAll('.cell')].map((cell) => cell.textContent))")
        self.assertEqual({row[0].split("/")[1] for row in shown}, set(api))
        for name, state, ready, restarts, *_, address in shown:
            pod = api[name.split("/")[1]]
            self.assertEqual((state, ready, restarts, address),
                             (pod["state"], f"{pod['running']}/{pod['total']}", str(pod["restarts"]), pod["ips"][0]))
        health = self.world.json("/api/v1/health")
        self.assertEqual((page.text("#level"), page.text("#headline")), (health["level"], health["headline"]))
        self.assertEqual(page.text("#node"), self.world.at("cri"))
        self.assertEqual(page.errors, [])

    def test_nothing_comes_from_elsewhere(self):
        page = self.open()
        page.wait(f"{ROWS}.length > 0")
        self.assertEqual([url for url in page.requests if not url.startswith(self.world.url)], [])
        for path in ("/", "/pods/default/web-0", "/assets/main.js"):
            status, _, headers = self.world.get(path)
            self.assertEqual(status, 200, path)
            policy = headers["content-security-policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(headers["cache-control"], "no-cache", path)
            self.assertEqual(self.world.get(path, {"If-None-Match": headers["etag"]})[0], 304, path)
        self.assertEqual(self.world.get("/", {"Host": "evil.example"})[0], 421)
        # The policy holds in the browser too.
        blocked = page.eval("new Promise((done) => { document.addEventListener('securitypolicyviolation', (e) => done(e.effectiveDirective)); "
                            "const script = document.createElement('script'); try { script.text = 'window.hacked=1'; } catch { done('trusted-types'); } "
                            "document.body.append(script); })")
        self.assertIn(blocked, ("script-src-elem", "require-trusted-types-for", "trusted-types"))
        self.assertFalse(page.eval("'hacked' in window"))

    def test_an_event_is_shown_within_a_second(self):
        page = self.open()
        page.wait(row_of("web-1"))
        times = []
        for code in (3, 4, 5):
            self.world.command(restart={"pod": "default/web-1", "container": "app"})
            page.wait(f"{row_of('web-1')}.querySelector('.state').textContent === 'Running'", 5)
            self.world.command(exit={"pod": "default/web-1", "container": "app", "exit_code": code})
            _, took = page.wait(f"document.querySelector('#events .event')?.textContent.includes('exit {code}') && "
                                f"{row_of('web-1')}.querySelector('.ready').textContent === '1/2'", 5)
            times.append(took)
        self.world.command(restart={"pod": "default/web-1", "container": "app"})
        self.assertLess(min(times), 1.0, times)
        self.assertEqual(page.errors, [])

    def test_a_trouble_is_named_with_the_next_command(self):
        page = self.open()
        self.world.command(hang={"rpc": "ContainerStatus", "pod": "default/web-2", "container": "app"})
        self.addCleanup(lambda: self.world.command(unhang={}))
        self.world.command(exit={"pod": "default/web-2", "container": "app", "exit_code": 1})
        page.wait("document.getElementById('level').textContent === 'Degraded'", 15)
        page.wait("document.querySelector('#causes .cause')?.textContent.includes('default/web-2')")
        page.wait(f"{row_of('web-2')}.querySelector('.state').textContent === 'Quarantined'")
        cause = self.world.json("/api/v1/health")["causes"][0]
        first = cause["next"].split("`")[1]
        self.assertEqual(page.text("#causes .command code"), first)
        self.assertTrue(page.eval("document.title").startswith("Degraded"))
        page.wait("document.getElementById('announce').textContent.includes('Degraded') || document.getElementById('announce').textContent.includes('Trouble')")
        page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"], origin=self.world.url,
                  browserContextId=page.context)
        page.click("#causes .copy")
        page.wait("document.querySelector('#causes .copy').textContent === 'Copied'")
        self.assertEqual(page.eval("navigator.clipboard.readText()"), first)
        page.dark(True)
        self.keep(page, "degraded-dark", whole=True)
        self.world.command(unhang={})
        page.wait("document.getElementById('level').textContent === 'Healthy'", 20)
        page.wait("document.querySelectorAll('#causes .cause').length === 0")
        self.assertEqual(page.errors, [])

    def test_filters_and_sorting_live_in_the_address(self):
        page = self.open()
        page.wait(f"{ROWS}.length === {self.pods}")
        page.key("/")
        page.type("web-4")
        page.wait(f"{ROWS}.length === 1 && location.search === '?q=web-4'")
        page.goto(self.world.url + "/?q=web-&sort=-name")
        page.wait(f"{LIVE} && {ROWS}.length === {self.pods}", 20)
        names = page.eval(f"[...{ROWS}].map((row) => row.querySelector('.pod-name').textContent)")
        self.assertEqual(names, sorted(names, reverse=True))
        self.assertEqual(page.eval("document.getElementById('filter').value"), "web-")
        page.click("[data-column=restarts] button")
        page.wait("location.search.includes('sort=-restarts') && document.querySelector('[data-column=restarts]').getAttribute('aria-sort') === 'descending'")
        page.goto(self.world.url + "/?show=nonsense&sort=nonsense&range=nonsense&other=1")
        page.wait(f"{LIVE} && {ROWS}.length === {self.pods}", 20)
        self.assertEqual(page.errors, [])

    def test_it_can_be_used_by_keyboard(self):
        page = self.open()
        page.wait(f"{ROWS}.length === {self.pods}")
        page.key("/")
        self.assertEqual(page.eval("document.activeElement.id"), "filter")
        page.key("ArrowDown")
        page.key("ArrowDown")
        page.wait("document.getElementById('pods').getAttribute('aria-activedescendant') === 'row-1'")
        page.key("End")
        page.wait(f"document.getElementById('pods').getAttribute('aria-activedescendant') === 'row-{self.pods - 1}'")
        page.key("Home")
        page.key("Enter")
        page.wait("location.pathname === '/pods/default/web-0' && document.getElementById('pod-title').textContent === 'web-0'")
        page.key("n")
        page.wait("location.pathname === '/'")
        page.key("?")
        page.wait("document.getElementById('help').open")
        self.assertEqual(page.errors, [])

    def test_a_screen_reader_finds_its_way(self):
        page = self.open()
        page.wait(f"{ROWS}.length === {self.pods}")
        page.wait("document.querySelector('svg.chart')?.getAttribute('aria-label').startsWith('Events: ')")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        found = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")}
        roles = {role for role, _ in found}
        for role in ("banner", "main", "grid", "row", "columnheader", "gridcell", "status", "log", "heading"):
            self.assertIn(role, roles)
        for role, name in found:
            if role in ("button", "link", "textbox", "searchbox", "combobox", "img", "image", "grid"):
                self.assertTrue(name, f"a {role} has no name")
        charts = [name for role, name in found if role in ("img", "image") and name.startswith("Events: ")]
        self.assertTrue(charts and "starts" in charts[0], found)
        self.assertEqual(page.eval("document.getElementById('pods').getAttribute('aria-rowcount')"), str(self.pods + 1))

    def test_events_can_be_paused(self):
        page = self.open()
        self.world.command(restart={"pod": "default/web-3", "container": "sidecar"})
        page.wait("document.querySelector('#events .event')")
        page.key("p")
        page.wait("document.getElementById('pause').getAttribute('aria-pressed') === 'true'")
        before = page.eval("document.getElementById('events').textContent")
        self.world.command(restart={"pod": "default/web-3", "container": "sidecar"})
        page.wait("/Go on .[1-9]/.test(document.getElementById('pause').textContent)")
        self.assertEqual(page.eval("document.getElementById('events').textContent"), before)
        page.key("p")
        page.wait(f"document.getElementById('events').textContent !== {json.dumps(before)}")
        self.assertEqual(page.errors, [])

    def test_a_phone_shows_all_of_it(self):
        page = self.open(width=390, height=844, scale=2, mobile=True)
        page.wait(f"{ROWS}.length > 0")
        self.assertLessEqual(page.eval("document.documentElement.scrollWidth"), 390)
        self.keep(page, "phone", whole=True)
        page.goto(self.world.url + "/pods/default/web-0")
        page.wait("document.querySelector('#lives tbody tr td:nth-child(2)')")
        self.assertLessEqual(page.eval("document.documentElement.scrollWidth"), 390)
        self.assertEqual(page.errors, [])

    def test_light_and_dark_are_kept(self):
        page = self.open()
        page.wait(f"{ROWS}.length > 0")
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.eval(ground)
        page.dark(True)
        page.wait(f"{ground} !== {json.dumps(light)}")
        page.click("#theme")
        page.wait(f"{ground} === {json.dumps(light)}")
        page.goto(self.world.url + "/")
        page.wait(f"{LIVE} && {ground} === {json.dumps(light)}", 20)


class Markup(PageTest):
    def test_markup_in_names_stays_text(self):
        self.world.command(odd={"kind": "markup-names"})
        page = self.open()
        found = "[...document.querySelectorAll('#pods .pod-name')].find((name) => name.textContent.startsWith('<img src=x onerror='))"
        page.wait(found)
        name = page.eval(f"{found}.textContent")
        page.eval(f"{found}.parentElement.click()")
        page.wait("document.getElementById('pod-title')?.textContent.startsWith('<img')")
        self.assertEqual(page.text("#pod-title"), name)
        page.wait("document.querySelector('#lives tbody td')?.textContent === '<script>window.hacked=2</script>'")
        page.eval("location.reload()")
        page.wait(f"document.getElementById('pod-title')?.textContent === {json.dumps(name)} && document.querySelector('#lives tbody td')")
        self.assertEqual(page.count("main img, main script, main i:not(.swatch)"), 0)
        self.assertFalse(page.eval("'hacked' in window"))
        self.keep(page, "markup")
        self.assertEqual(page.errors, [])


class Pod(PageTest):
    def test_the_timeline_has_the_lives_of_the_containers(self):
        for code in (1, 2):
            self.world.command(exit={"pod": "default/web-0", "container": "app", "exit_code": code})
            self.world.command(restart={"pod": "default/web-0", "container": "app"})
        page = self.open("/pods/default/web-0")
        page.wait("document.querySelectorAll('#lives tbody tr').length >= 3")
        lives = page.eval("[...document.querySelectorAll('#lives tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))")
        ends = [end for name, _, _, _, end, _ in lives if name == "app"]
        self.assertEqual(ends[0], "running")
        self.assertTrue(any("exit 2" in end for end in ends), lives)
        self.assertGreaterEqual(page.count(".timeline .life"), 4)
        status = self.world.json("/api/v1/pods/default/web-0")
        self.assertEqual(page.text("#state"), status["state"])
        self.keep(page, "pod-light", whole=True)
        self.assertEqual(page.errors, [])

    def test_the_timeline_can_be_zoomed(self):
        page = self.open("/pods/default/web-1")
        page.wait("document.querySelectorAll('.timeline .life').length > 0")
        span = page.text("#span")
        page.eval("document.querySelector('.timeline').focus()")
        page.key("+")
        page.wait(f"document.getElementById('span').textContent !== {json.dumps(span)}")
        zoomed = page.text("#span")
        page.key("ArrowLeft")
        page.wait(f"document.getElementById('span').textContent !== {json.dumps(zoomed)}")
        page.key("0")
        page.click("[aria-label='Zoom in']")
        page.click("[aria-label='Show all of it']")
        self.assertEqual(page.errors, [])

    def test_a_new_event_changes_the_page(self):
        page = self.open("/pods/default/web-2")
        page.wait("document.querySelectorAll('#lives tbody tr').length >= 2")
        self.world.command(exit={"pod": "default/web-2", "container": "app", "exit_code": 9})
        _, took = page.wait("[...document.querySelectorAll('#lives tbody tr')].some((row) => row.textContent.includes('exit 9')) && "
                            "document.querySelector('.events .event')?.textContent.includes('exit 9')", 5)
        self.assertLess(took, 1.5)
        self.world.command(remove={"pod": "default/web-2"})
        page.wait("document.getElementById('state').textContent === 'Removed'", 5)
        self.assertEqual(page.errors, [])

    def test_a_pod_that_does_not_exist_is_said_to_be_unknown(self):
        page = self.open("/pods/default/nobody")
        page.wait("document.getElementById('state').textContent === 'Unknown'")
        self.assertEqual(page.errors, [])


class Restart(PageTest):
    def test_the_page_survives_a_restart_of_the_daemon(self):
        page = self.open()
        page.wait(f"{ROWS}.length === {self.pods}")
        instance = page.eval("pleg.store.instance")
        self.world.stop_daemon(signal.SIGKILL)
        page.wait("document.getElementById('connection').dataset.state === 'lost' && !document.getElementById('banner').hidden", 10)
        self.assertTrue(page.eval("document.title").startswith("Not connected"))
        self.world.command(exit={"pod": "default/web-5", "container": "app", "exit_code": 7})
        self.world.command(remove={"pod": "default/web-4"})
        self.world.start_daemon()
        page.wait(f"{LIVE} && document.getElementById('banner').hidden", 15)
        page.wait(f"pleg.store.instance && pleg.store.instance !== {json.dumps(instance)}", 10)
        page.wait(f"{ROWS}.length === {self.pods - 1} && {row_of('web-5')}.querySelector('.ready').textContent === '1/2'", 10)
        # What the browser itself says about a refused connection is not an error of the page.
        self.assertEqual([error for error in page.errors if "ERR_" not in error and "Failed to fetch" not in error], [])


class Many(PageTest):
    pods = 5000

    def test_five_thousand_pods_scroll(self):
        page = self.open()
        page.wait(f"document.getElementById('count').textContent === '5,000 pods'", 60)
        self.assertLess(page.count("#pods .row"), 60)
        longest = 0
        for step in range(41):
            before = page.metrics()["ScriptDuration"]
            seen = page.eval(f"""(async () => {{
                const scroller = document.querySelector('#pods .scroller');
                scroller.scrollTop = (scroller.scrollHeight - scroller.clientHeight) * {step} / 40;
                await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                const shown = [...{ROWS}].map((row) => row.getBoundingClientRect());
                const box = scroller.getBoundingClientRect();
                return {{ rows: shown.length, covered: shown.some((row) => row.top <= box.top + 1) && shown.some((row) => row.bottom >= box.bottom - 1),
                    last: document.querySelector('#pods .rows .row:nth-last-child(1 of :not([hidden])) .pod-name').textContent }};
            }})()""")
            longest = max(longest, page.metrics()["ScriptDuration"] - before)
            self.assertLess(seen["rows"], 60, seen)
            self.assertTrue(seen["covered"], seen)
        self.assertEqual(seen["last"], "web-4999")
        # Seconds of CPU time of the page's thread in all scripts of a step, whatever else the machine does.
        self.assertLess(longest, 0.1)
        page.key("/")
        page.type("web-4321")
        page.wait(f"{ROWS}.length === 1 && {row_of('web-4321')}")
        self.keep(page, "many")
        self.assertEqual(page.errors, [])

    def test_a_change_of_all_pods_costs_a_few_lists(self):
        page = self.open()
        page.wait("document.getElementById('count').textContent === '5,000 pods'", 60)
        before = len(page.requests)
        self.world.command(storm={"exit_code": 1})
        page.wait("[...document.querySelectorAll('.chip')].some((chip) => chip.textContent === 'Not ready5,000')", 60)
        self.assertLess(len(page.requests) - before, 120)
        self.assertLessEqual(page.count("#events .event"), 200)
        self.assertLess(page.count("#pods .row"), 60)


class WithoutHistory(PageTest):
    history = False

    def test_the_pages_say_that_history_is_off(self):
        page = self.open("/?range=6h")
        page.wait("document.getElementById('past').textContent.startsWith('History is off')")
        page.goto(self.world.url + "/pods/default/web-0")
        page.wait("document.getElementById('past')?.textContent.startsWith('History is off')", 20)
        page.wait("document.querySelectorAll('.timeline .life').length >= 3")
        self.assertEqual(page.errors, [])


class Demo(unittest.TestCase):
    def test_the_demonstration_shows_a_past(self):
        browser = Browser(CHROMIUM)
        self.addCleanup(browser.close)
        demo = subprocess.Popen([BINARY, "demo", "--web"], stdout=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
        self.addCleanup(demo.stdout.close)
        self.addCleanup(demo.wait)
        self.addCleanup(demo.terminate)
        url = next(word for line in demo.stdout for word in line.split() if word.startswith("http://127.0.0.1:"))
        page = browser.page()
        page.goto(f"{url}?range=6h")
        page.wait(f"{LIVE} && {ROWS}.length > 10", 20)
        page.wait("pleg.store.health?.level === 'Degraded'", 60)
        page.wait("document.querySelector('#causes .cause')")
        time.sleep(1)  # for the picture only: the charts are drawn once a second
        page.screenshot(os.path.join(ARTIFACTS, "demo-light.png"), whole=True)
        page.goto(f"{url}pods/shop/payments-5c8d4f9b7-7mzlt?range=6h")
        page.wait("document.querySelectorAll('.timeline .life').length > 2", 20)
        page.dark(True)
        time.sleep(1)
        page.screenshot(os.path.join(ARTIFACTS, "demo-pod-dark.png"), whole=True)
        self.assertEqual(page.errors, [])
