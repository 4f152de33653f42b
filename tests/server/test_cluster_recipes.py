"""What docs/cluster.md says how to set up works as it stands there, and `make cluster` does it all at once."""

import contextlib
import re
import signal
import subprocess
import sys

import beanstalk_client
import programs
import pytest
from recipes import Proxy, Recipe, blocks

from harness.servers import ROOT, Process, accepts, command, environment_of, imported, unused_port
from harness.waiting import eventually

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "cluster.md"

PORTS = ("6379", "6380", "6381", "11300", "11301")

LEADS_WITHIN = 90
"""Seconds until another node must lead: many times the lease, and what an engine's failover takes."""


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def test_in_ten_minutes(stack, open_path):
    programs.find("redis-server")
    recipe = Recipe("Quick start", open_path, page=PAGE, ports=PORTS)
    stack.callback(recipe.end)
    recipe.run()
    for port in ("6379", "6380", "6381"):
        recipe.serve_proxy(port)
    recipe.serve()
    first = recipe.server
    eventually(lambda: "leads" in first.log, "the first node leads", LEADS_WITHIN)
    recipe.serve()
    assert re.fullmatch(r"still here 127\.0\.0\.1:\d+\n", recipe.run_program())
    assert "epoch" in recipe.run()
    first.kill()
    assert recipe.run_program() == "still here\n"
    recipe.check_that_all_was_run()


class Machine:
    """One of three: Redis, Sentinel and a node on ports of its own."""

    def __init__(self, directory, number, machines):
        self.directory = directory / str(number)
        self.number = number
        self.ports = {name: unused_port() for name in ("redis", "sentinel", "node")}
        self.machines = machines
        self.running = []
        for name in ("etc-beanstalk", "var-lib-beanstalk", "var-lib-redis"):
            (self.directory / name).mkdir(parents=True)

    def of_this_machine(self, text):
        for machine in self.machines:
            name = f"queue-{machine.number}.example.com"
            text = text.replace(f"{name}:26379", f"127.0.0.1:{machine.ports['sentinel']}")
            text = text.replace(f"{name} 6379", f"127.0.0.1 {machine.ports['redis']}")
        text = text.replace("port 6379", f"port {self.ports['redis']}")
        text = text.replace("port 26379", f"port {self.ports['sentinel']}")
        text = text.replace("0.0.0.0", "127.0.0.1")
        for path in ("/etc/beanstalk", "/var/lib/beanstalk", "/var/lib/redis"):
            text = text.replace(path, str(self.directory / path[1:].replace("/", "-")))
        return text

    def write(self, text):
        text = self.of_this_machine(text)
        if self.number > 1 and "redis.conf" in text.splitlines()[0]:
            more = re.search(r"`(replicaof\s.*?)`", PAGE.read_text(), re.DOTALL)[1]
            text += self.of_this_machine(" ".join(more.split()))
        with open(text.split()[1], "w") as file:
            file.write(text)

    def serve(self, line, port):
        program, *arguments = self.of_this_machine(line).split()
        self.running.append(Proxy([programs.find(program), *arguments], self.ports[port], self.directory))

    def serve_node(self, line):
        program, *arguments = self.of_this_machine(line).split()
        assert program == "beanstalk-server"
        whole = [*command(imported()), *arguments, "-p", str(self.ports["node"])]
        self.node = Process(imported(), whole, directory=self.directory)
        self.running.append(self.node)

    def connect(self):
        return beanstalk_client.Client(("127.0.0.1", self.ports["node"]), timeout=LEADS_WITHIN)

    def lose(self):
        """All that runs there is gone."""
        for process in self.running:
            process.kill()
        self.running.clear()


@pytest.mark.slow
def test_on_three_machines(stack, open_path):
    programs.find("redis-server")
    machines = []
    machines += [Machine(open_path, number, machines) for number in (1, 2, 3)]
    redis_conf, sentinel_conf, redis, sentinel, node = [text for _, text in blocks(PAGE, "On three machines")]
    for machine in machines:
        stack.callback(machine.lose)
        machine.write(redis_conf)
        machine.write(sentinel_conf)
        machine.serve(redis, "redis")
    for machine in machines:
        machine.serve(sentinel, "sentinel")
    first, _, third = machines
    for machine in machines:
        machine.serve_node(node)
        if machine is first:
            eventually(lambda: "leads" in first.node.log, "the first node leads", LEADS_WITHIN)
    with first.connect() as queue:
        queue.put("still here")
    first.lose()
    with third.connect() as queue:
        job = queue.reserve()
        assert job.body == "still here"
        queue.delete(job)


@pytest.mark.slow
def test_make_cluster_prints_what_to_connect_to_and_ends_all_of_it(stack):
    programs.find("redis-server")
    line = [sys.executable, "-m", "harness.cluster", "--program", imported()]
    process = subprocess.Popen(
        line, env=environment_of(imported()), cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    stack.callback(process.kill)
    said = [process.stdout.readline() for _ in range(4)]
    assert said[0].startswith("engine  redis://127.0.0.1:"), said
    nodes = [
        re.fullmatch(r"node \d  127\.0\.0\.1:(\d+), process (\d+), (leader|standby)\n", line) for line in said[1:3]
    ]
    assert {node[3] for node in nodes} == {"leader", "standby"}
    for node in nodes:
        with beanstalk_client.Client(("127.0.0.1", int(node[1]))) as queue:
            queue.delete(queue.put("hello"))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert "stopped" in process.stdout.read()
    process.stdout.close()
    for node in nodes:
        assert not accepts(int(node[1]))
