"""The scenarios: each prints what it has found. Speed is a ratio of two servers, measured in turn in one run."""

from __future__ import annotations

import random
import select
import statistics
import time
from collections.abc import Callable, Sequence

from bench.load import BODY, Cost, ask, cycles, pipelined
from bench.servers import Server, running

HOUR = 3600


def _spread(values: Sequence[float], unit: str = "") -> str:
    return f"{statistics.median(values):.2f}{unit} ({min(values):.2f} to {max(values):.2f})"


def _compare(servers: list[Server], pairs: int, measure: Callable[[Server], Cost]) -> None:
    """Measure the servers in turn, and print each, and the ratio to the first pair by pair."""
    found: dict[str, list[Cost]] = {server.peer: [] for server in servers}
    for _ in range(pairs):
        for server in servers:
            found[server.peer].append(measure(server))
    first = found[servers[0].peer]
    for peer, costs in found.items():
        rate = statistics.median(cost.rate for cost in costs)
        cpu = _spread([cost.cpu for cost in costs], " µs")
        shares = statistics.median(cost.user for cost in costs), statistics.median(cost.system for cost in costs)
        print(f"  {peer:12} {rate:9,.0f}/s   CPU a command {cpu}, user {shares[0]:.2f}, system {shares[1]:.2f}")
        if costs is not first:
            rates = [cost.rate / other.rate for cost, other in zip(costs, first, strict=True)]
            cpus = [other.cpu / cost.cpu for cost, other in zip(costs, first, strict=True)]
            print(f"  {'':12} {_spread(rates, ' x')} the throughput, {_spread(cpus, ' x')} the commands per CPU time")


def request_response(peers: Sequence[str], pairs: int, size: float) -> None:
    """put + reserve + delete, 50 connections, one command in flight on each"""
    with running(*peers) as servers:
        _compare(servers, pairs, lambda server: cycles(server, 50, 1, int(30_000 * size)))


def in_flight(peers: Sequence[str], pairs: int, size: float) -> None:
    """put + reserve + delete, 50 connections, 100 commands in flight on each"""
    with running(*peers) as servers:
        _compare(servers, pairs, lambda server: cycles(server, 50, 100, int(200_000 * size)))


def delayed(peers: Sequence[str], pairs: int, size: float) -> None:
    """a million delayed jobs in one tube: putting them, their memory, and commands among them"""
    count = int(1_000_000 * size)
    rng = random.Random(1)
    delays = [rng.randrange(HOUR, 24 * HOUR) for _ in range(count)]
    rates: dict[str, list[float]] = {peer: [] for peer in peers}
    for pair in range(pairs):
        for peer in peers:
            with running(peer) as (server,):
                empty = server.resident()
                cost = pipelined(server, count, lambda i: b"put 0 %d 60 100\r\n%b\r\n" % (delays[i], BODY))
                memory = (server.resident() - empty) / count
                rates[peer].append(cost.rate)
                print(f"  {peer:12} put {cost.rate:9,.0f}/s   CPU {cost.cpu:.2f} µs   {memory:.0f} bytes a job")
                if pair == 0:
                    _commands_among(server, count)
    for peer in peers[1:]:
        ratios = [rate / other for rate, other in zip(rates[peer], rates[peers[0]], strict=True)]
        print(f"  {peer:12} {_spread(ratios, ' x')} the put rate of {peers[0]}")


def _commands_among(server: Server, count: int) -> None:
    """CPU time of single commands, one at a time, while there are that many jobs."""
    rng = random.Random(2)
    ids = rng.sample(range(1, count + 1), 1000)
    commands: dict[str, tuple[int, Callable[[int], bytes]]] = {
        "peek-delayed": (2, lambda _: b"peek-delayed\r\n"),
        "stats-tube": (17, lambda _: b"stats-tube default\r\n"),
        "kick 1": (1, lambda _: b"kick 1\r\n"),
        "delete": (1, lambda i: b"delete %d\r\n" % ids[i]),
    }
    sock = server.connect()
    for name, (lines, make) in commands.items():
        slowest = 0.0
        user, system = server.cpu()
        for number in range(1000):
            started = time.perf_counter()
            ask(sock, make(number), lines)
            slowest = max(slowest, time.perf_counter() - started)
        later_user, later_system = server.cpu()
        spent = (later_user + later_system - user - system) / 1000
        print(f"  {'':12} {name:14} CPU {spent * 1e6:7.1f} µs   slowest answer {slowest * 1e3:.2f} ms")
    sock.close()


def cancel(peers: Sequence[str], pairs: int, size: float) -> None:
    """delete, and here cancel, of delayed jobs in random order out of a million, 100 commands in flight"""
    count, part = int(1_000_000 * size), int(100_000 * size)
    commands = [(peer, b"delete") for peer in peers] + [(peer, b"cancel") for peer in peers if peer != "beanstalkd"]
    with running(*peers) as servers:
        rng = random.Random(4)
        by_peer = {server.peer: server for server in servers}
        ids = {}
        for server in servers:
            pipelined(server, count, lambda _: b"put 0 %d 60 100\r\n%b\r\n" % (rng.randrange(HOUR, 24 * HOUR), BODY))
            ids[server.peer] = rng.sample(range(1, count + 1), count)
        found: dict[tuple[str, bytes], list[Cost]] = {command: [] for command in commands}
        added = dict.fromkeys(peers, count)
        for _ in range(pairs):
            for peer, verb in commands:
                server = by_peer[peer]
                numbers = [ids[peer].pop() for _ in range(part)]
                found[peer, verb].append(pipelined(server, part, lambda i, v=verb, n=numbers: b"%b %d\r\n" % (v, n[i])))
                # As many again, so that there is a million the next time too.
                pipelined(server, part, lambda _: b"put 0 %d 60 100\r\n%b\r\n" % (rng.randrange(HOUR, 24 * HOUR), BODY))
                fresh = range(added[peer] + 1, added[peer] + part + 1)
                added[peer] += part
                ids[peer] += fresh
                rng.shuffle(ids[peer])
    first = found[commands[0]]
    for (peer, verb), costs in found.items():
        rate = statistics.median(cost.rate for cost in costs)
        ratios = [cost.rate / other.rate for cost, other in zip(costs, first, strict=True)]
        own = [cost.rate / other.rate for cost, other in zip(costs, found[peer, b"delete"], strict=True)]
        cpu = _spread([cost.cpu for cost in costs], " µs")
        print(
            f"  {peer:12} {verb.decode()} {rate:9,.0f}/s   CPU {cpu}   "
            f"{_spread(ratios, ' x')} the rate of {commands[0][0]}'s delete"
        )
        if verb == b"cancel":
            print(f"  {'':12} {_spread(own, ' x')} the rate of its own delete")


def cancelled_memory(peers: Sequence[str], pairs: int, size: float) -> None:
    """ten million jobs put and cancelled, a thousand alive at a time: what is left of them in memory"""
    total = int(10_000_000 * size)
    for peer in peers:
        if peer == "beanstalkd":
            continue
        with running(peer) as (server,):
            sock = server.connect()
            rng = random.Random(5)
            alive: list[int] = []
            after_first = 0
            number = 0
            while number < total:
                data = b"".join(
                    [b"put 0 %d 60 100\r\n%b\r\n" % (rng.randrange(1, 100 * HOUR), BODY) for _ in range(100)]
                )
                ask(sock, data, 100)
                alive += range(number + 1, number + 101)
                number += 100
                if len(alive) > 1000:
                    rng.shuffle(alive)
                    ask(sock, b"".join([b"cancel %d\r\n" % alive.pop() for _ in range(100)]), 100)
                if number == min(100_000, total // 10):
                    after_first = server.resident()
            grown = (server.resident() - after_first) / (1 << 20)
            print(f"  {peer:12} {total:,} jobs: {grown:+.1f} MiB since the first {min(100_000, total // 10):,}")


def clear(peers: Sequence[str], pairs: int, size: float) -> None:
    """clear-tube of a million jobs: how long it takes, and what another client waits for an answer meanwhile"""
    count = int(1_000_000 * size)
    for peer in peers:
        if peer == "beanstalkd":
            continue
        with running(peer) as (server,):
            pipelined(server, count, lambda i: b"put 0 %d 60 100\r\n%b\r\n" % (i % 2 * HOUR, BODY))
            client, other = server.connect(), server.connect()
            ask(other, b"list-tube-used\r\n")
            started = time.perf_counter()
            client.sendall(b"clear-tube default\r\n")
            client.setblocking(False)
            waits = []
            while True:
                asked = time.perf_counter()
                ask(other, b"list-tube-used\r\n")
                waits.append(time.perf_counter() - asked)
                try:
                    answer = client.recv(100)
                    break
                except BlockingIOError:
                    pass
            took = time.perf_counter() - started
            print(
                f"  {peer:12} {answer.decode().strip()} in {took:.2f} s   "
                f"another waited {max(waits) * 1e3:.1f} ms at most"
            )


def other_tubes(peers: Sequence[str], pairs: int, size: float) -> None:
    """put + reserve + delete on one tube, while 100,000 other tubes hold one job each, against the same with none"""
    count = int(100_000 * size)
    for peer in peers[1:]:
        with running(peer, peer) as (alone, crowded):
            alone.peer, crowded.peer = "no others", f"{count:,} others"
            pipelined(
                crowded, 2 * count, lambda i: b"use u%d\r\n" % (i // 2) if i % 2 == 0 else b"put 0 0 1 1\r\nx\r\n"
            )
            print(f"  {peer}:")
            _compare([alone, crowded], pairs, lambda server: cycles(server, 50, 1, int(30_000 * size)))


def lateness(peers: Sequence[str], pairs: int, size: float) -> None:
    """100,000 jobs due within 10 s, a worker that waits for them, and another client that asks meanwhile"""
    count = int(100_000 * size)
    for peer in peers:
        with running(peer) as (server,):
            _lateness(server, count)


def _lateness(server: Server, count: int) -> None:
    rng = random.Random(3)
    producer, worker, other = server.connect(), server.connect(), server.connect()
    ask(worker, b"watch w\r\n")
    ask(producer, b"use w\r\n")
    due: dict[bytes, float] = {}
    # Delays are whole seconds: the puts are spread over a second instead, before ten seconds of delays.
    number = 0
    started = time.perf_counter()
    while number < count:
        batch = min(500, count - number)
        delays = [rng.randrange(3, 13) for _ in range(batch)]
        now = time.perf_counter()
        data = b"".join([b"put 0 %d 600 8\r\n%08d\r\n" % (delay, number + i) for i, delay in enumerate(delays)])
        ask(producer, data, batch)
        done = time.perf_counter()
        for i, delay in enumerate(delays):
            due[b"%08d" % (number + i)] = now + delay
        number += batch
        time.sleep(max(0.0, started + number / count - done))
    # The worker asks for many at a time, so that it is never the worker that is late.
    late: list[float] = []
    answers: list[float] = []
    worker.setblocking(False)
    other.setblocking(False)
    poll = select.epoll()
    poll.register(worker, select.EPOLLIN)
    poll.register(other, select.EPOLLIN)
    pending = b""
    asked = 0.0
    other_due = time.perf_counter()
    in_flight = 0
    while len(late) < count:
        if in_flight < 100:
            worker.send(b"reserve\r\n" * 200)
            in_flight += 200
        if not asked and time.perf_counter() >= other_due:
            asked = time.perf_counter()
            other.send(b"list-tube-used\r\n")
        for descriptor, _ in poll.poll(0.001):
            now = time.perf_counter()
            if descriptor == other.fileno():
                other.recv(1000)
                answers.append(now - asked)
                asked, other_due = 0.0, now + 0.002
                continue
            pending += worker.recv(1 << 20)
            lines = pending.split(b"\r\n")
            whole = len(lines) // 2 * 2 if pending.endswith(b"\r\n") else (len(lines) - 1) // 2 * 2
            for body in lines[1:whole:2]:
                late.append(now - due[body])
                in_flight -= 1
            pending = b"\r\n".join(lines[whole:])
    late.sort()
    answers.sort()

    def at(values: list[float], share: float) -> float:
        return values[min(int(len(values) * share), len(values) - 1)] * 1e3

    print(
        f"  {server.peer:12} early {sum(value < 0 for value in late)}   late: median {at(late, 0.5):.1f} ms, "
        f"99 % {at(late, 0.99):.1f} ms, most {late[-1] * 1e3:.1f} ms   "
        f"another client's answers: median {at(answers, 0.5):.2f} ms, 99 % {at(answers, 0.99):.2f} ms"
    )


def idle(peers: Sequence[str], pairs: int, size: float) -> None:
    """five seconds of nothing, with a million delayed jobs an hour away"""
    count = int(1_000_000 * size)
    for peer in peers:
        with running(peer) as (server,):
            pipelined(server, count, lambda _: b"put 0 3600 60 100\r\n" + BODY + b"\r\n")
            time.sleep(1)
            before, switches = sum(server.cpu()), server.switches()
            time.sleep(5)
            spent, woken = sum(server.cpu()) - before, server.switches() - switches
            print(f"  {peer:12} CPU {spent * 1e3:.3f} ms, woken {woken} times in 5 s")


SCENARIOS: dict[str, Callable[[Sequence[str], int, float], None]] = {
    "request-response": request_response,
    "in-flight": in_flight,
    "delayed": delayed,
    "cancel": cancel,
    "cancelled-memory": cancelled_memory,
    "clear": clear,
    "other-tubes": other_tubes,
    "lateness": lateness,
    "idle": idle,
}
