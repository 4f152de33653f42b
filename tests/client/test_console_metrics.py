"""Percentiles and shards from pages of metrics."""

import asyncio

import pytest
from beanstalk_client.console.metrics import WAIT, Metrics, Node, get, quantile, read_metrics

from beanstalk_server.settings.sections import ListenerConfig
from harness.servers import unused_port

PAGE = """\
# TYPE beanstalkd_job_wait_seconds histogram
beanstalkd_job_wait_seconds_bucket{le="0.001"} 50
beanstalkd_job_wait_seconds_bucket{le="0.01"} 95
beanstalkd_job_wait_seconds_bucket{le="+Inf"} 100
beanstalkd_cluster_role{shard="0",role="leader"} 1
beanstalkd_cluster_role{shard="0",role="standby"} 0
beanstalkd_cluster_epoch{shard="0"} 7
beanstalkd_cluster_commit_latency_seconds{shard="0",quantile="0.99"} 0.002
beanstalkd_tube_current_jobs{tube="a",state="ready"} 5
beanstalkd_uptime_seconds 17
not a metric
"""


def test_a_page_is_read_without_the_tubes():
    found = read_metrics(PAGE)
    assert found["beanstalkd_uptime_seconds"] == [({}, 17.0)] and "beanstalkd_tube_current_jobs" not in found
    node = Node("http://a", samples=found)
    assert node.shards == [{"shard": "0", "role": "leader", "epoch": 7.0, "jobs": None, "latency": 0.002}]
    assert node.buckets(WAIT)[0.01] == 95


@pytest.mark.parametrize(("share", "end"), [(0.5, 0.001), (0.95, 0.01), (0.99, float("inf"))])
def test_a_percentile_is_the_end_of_its_bucket(share, end):
    assert quantile({0.001: 50, 0.01: 95, float("inf"): 100}, share) == end


def test_an_empty_histogram_has_none():
    assert quantile({}, 0.5) is None and quantile({1.0: 0.0}, 0.5) is None


@pytest.mark.sockets
async def test_the_page_of_a_server_is_asked_for(run):
    port = unused_port()
    run(listeners=(ListenerConfig(address="127.0.0.1:0"), ListenerConfig(address=f"127.0.0.1:{port}", protocol="http")))

    url = f"http://:TOKEN@127.0.0.1:{port}"
    assert "beanstalkd_uptime_seconds" in read_metrics(await get(url))
    metrics = Metrics([url])
    metrics.look()
    await metrics._task
    assert metrics.nodes[0].problem == "" and "TOKEN" not in metrics.nodes[0].url
    assert set(metrics.percentiles(WAIT)) == {0.5, 0.95, 0.99}


async def test_a_server_that_is_away_is_told():
    metrics = Metrics(["ftp://x", "http://127.0.0.1:1"])
    metrics._urls, metrics.nodes = metrics._urls[:1], metrics.nodes[:1]
    metrics.look()
    await metrics._task
    assert "must be http://host:port" in metrics.nodes[0].problem and metrics.percentiles(WAIT) == {}


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nx{} 1\r\n1\r\n5\r\n0\r\n\r\n",
            {"x": [({}, 15.0)]},
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nx 15", {"x": [({}, 15.0)]}),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "the server answered with status 401"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx 1", "malformed response"),
        (b"", "malformed response"),
    ],
)
async def test_answers_over_http(answer, told):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        if isinstance(told, str):
            with pytest.raises(ValueError, match=told):
                await get(url)
        else:
            assert read_metrics(await get(url)) == told
