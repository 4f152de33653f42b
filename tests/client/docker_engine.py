"""An imitation of a Docker engine for tests: its API over HTTP, as far as testcontainers needs it. A container is a
server of this repository, which listens on a free port of this machine."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from harness import servers

PORT = "11300/tcp"


class Engine(ThreadingHTTPServer):
    """An engine on a free port of loopback; use as a context manager.

    Attributes:
        url: its address, for DOCKER_HOST.
        created: what each container was made from, as the API has it.
        processes: the server of each container, once it is started.
        answers: whether a container has a server that answers; if not, its port is one where nothing listens.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Api)
        self.url = f"tcp://127.0.0.1:{self.server_port}"
        self.created, self.processes, self.answers = [], [], True
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self._thread.join()
        self.server_close()
        for process in self.processes:
            process.kill()


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, value=None, status=200):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(204 if value is None else status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        engine, what = self.server, self.path.partition("?")[0]
        if what == "/version":
            self.reply({"ApiVersion": "1.44"})
        elif what.endswith("/logs"):
            self.reply("")
        elif "/images/" in what:
            self.reply({"Id": "sha256:0", "RepoTags": [], "Config": {}})
        else:
            port = str(engine.processes[-1].address[1]) if engine.processes else str(servers.unused_port())
            state = {"Status": "running", "Running": True}
            ports = {PORT: [{"HostIp": "127.0.0.1", "HostPort": port}]}
            config = {"Image": engine.created[-1]["Image"], "Tty": False, "Labels": {}}
            found = {"Id": "c0", "Name": "/c0", "State": state, "NetworkSettings": {"Ports": ports}, "Config": config}
            self.reply(found | {"Image": "sha256:0", "HostConfig": {"LogConfig": {"Type": "json-file"}}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.partition("?")[0].endswith("/containers/create"):
            self.server.created.append(json.loads(body))
            self.reply({"Id": "c0", "Warnings": []}, 201)
        else:
            if self.server.answers:
                self.server.processes.append(servers.start(servers.imported()))
            self.reply()

    def do_DELETE(self):
        while self.server.processes:
            self.server.processes.pop().kill()
        self.reply()
