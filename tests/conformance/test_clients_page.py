"""The listings of docs/clients.md run, where the interpreter and the package are installed: in each language, an order
that is not paid is reminded of, and one that is paid is not."""

import re
import subprocess

import programs
import pytest
from clients_of_others import DIRECTORY, RUNS_WITHIN, jackd, of_debian

from conformance.compare.servers import started
from harness.caller import Caller
from harness.servers import ROOT, imported
from tests.server.recipes import blocks

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "clients.md"

CANCELLED, REMINDED = "CANCELLED", "order 16 is not paid"

WITHOUT_DEPRECATIONS = ["-d", "error_reporting=E_ALL & ~E_DEPRECATED"]
"""Debian's packages are older than its PHP."""

LARAVEL = r"""<?php
foreach (['Queue', 'Bus', 'Events'] as $each) {
    require "Illuminate/$each/autoload.php";
}
require 'Pheanstalk/autoload.php';
require 'beanstalk.php';
require 'app/Jobs/Remind.php';

class Handler implements Illuminate\Contracts\Debug\ExceptionHandler
{
    public function report(Throwable $error) { throw $error; }
    public function shouldReport(Throwable $error) { return true; }
    public function render($request, Throwable $error) {}
    public function renderForConsole($output, Throwable $error) {}
}

$app = new Illuminate\Container\Container;
$app->instance(Illuminate\Contracts\Container\Container::class, $app);
$app['events'] = new Illuminate\Events\Dispatcher($app);
$app->singleton(Illuminate\Contracts\Bus\Dispatcher::class, fn() => new Illuminate\Bus\Dispatcher($app));
$config = require 'config/queue.php';
$capsule = new Illuminate\Queue\Capsule\Manager($app);
$capsule->addConnection($config['connections']['beanstalkd'], $config['default']);
$app['config']['queue.default'] = $config['default'];
$app['queue'] = $capsule->getQueueManager();
Illuminate\Support\Facades\Facade::setFacadeApplication($app);
require 'order.php';
$worker = new Illuminate\Queue\Worker($app['queue'], $app['events'], new Handler, fn() => false);
$worker->runNextJob('beanstalkd', 'default', new Illuminate\Queue\WorkerOptions);
"""
"""What a Laravel application does before and after the listings, with the package of its queues alone."""

SYMFONY = r"""<?php
namespace App\Message { final class Remind { public function __construct(public int $order) {} } }
namespace {
    require 'Symfony/Component/Messenger/Bridge/Beanstalkd/autoload.php';
    require 'Symfony/Component/Messenger/autoload.php';
    require 'Pheanstalk/autoload.php';
    require 'beanstalk.php';
    require 'order.php';
    $factory = new Symfony\Component\Messenger\Bridge\Beanstalkd\Transport\BeanstalkdTransportFactory;
    $serializer = new Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;
    $transport = $factory->createTransport($argv[1], [], $serializer);
    $transport->send(new Symfony\Component\Messenger\Envelope(new App\Message\Remind(15)));
    for ($i = 0; $i < 2; $i++) {
        foreach ($transport->get() as $envelope) {
            echo "order ", $envelope->getMessage()->order, " is not paid\n";
            $transport->ack($envelope);
        }
    }
}
"""

ACTIVE_JOB = """
require 'active_job'
ActiveJob::Base.logger = nil
$stdout.sync = true
load 'config/initializers/beanstalk.rb'
load 'app/jobs/remind.rb'
load 'order.rb'
load 'bin/worker.rb'
"""


@pytest.fixture
def server():
    with started(imported(), ()) as server:
        yield server


@pytest.fixture
def write(server, tmp_path):
    """A function: write the listings of a section as the files that they name, and return their directory."""

    def written(title):
        for _, text in blocks(PAGE, title):
            found = re.match(r"(?:<\?php )?(?://|#) (\S+\.\w+)\n", text)
            path = tmp_path / found[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("11300", str(server.address[1])))
        return tmp_path

    return written


def run(directory, *line):
    done = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=RUNS_WITHIN, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def left(server):
    """The jobs that a server has, in all states."""
    caller = Caller(server.address)
    try:
        return sum(int(each) for each in re.findall(rb"current-jobs-\w+: (\d+)", caller.ask(b"stats\r\n")))
    finally:
        caller.close()


def test_laravel(write, server):
    of_debian("php", ["-r", "require 'Illuminate/Queue/autoload.php';"], "php-illuminate-queue", "")
    of_debian("php", ["-r", "require 'Pheanstalk/autoload.php';"], "php-pda-pheanstalk", "")
    directory = write("Laravel")
    (directory / "boot.php").write_text(LARAVEL)
    assert run(directory, "php", *WITHOUT_DEPRECATIONS, "boot.php") == [CANCELLED, REMINDED]
    assert left(server) == 0


def test_symfony(write, server):
    bridge = "require 'Symfony/Component/Messenger/Bridge/Beanstalkd/autoload.php';"
    of_debian("php", ["-r", bridge], "php-symfony-beanstalkd-messenger", "")
    write("Laravel")
    directory = write("Symfony")
    (dsn,) = re.findall(r'"(beanstalkd://.*)"', (directory / "config/packages/messenger.yaml").read_text())
    (directory / "boot.php").write_text(SYMFONY)
    found = run(directory, "php", *WITHOUT_DEPRECATIONS, "boot.php", dsn)
    assert found == [CANCELLED, REMINDED, "order 15 is not paid"]
    assert left(server) == 0


def test_rails(write, server):
    of_debian("ruby", ["-e", "require 'beaneater'"], "ruby-beaneater", "")
    of_debian("ruby", ["-e", "require 'active_job'"], "ruby-activejob", "")
    directory = write("Rails")
    (directory / "boot.rb").write_text(ACTIVE_JOB)
    with subprocess.Popen(["ruby", "boot.rb"], cwd=directory, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert [process.stdout.readline() for _ in range(2)] == [f"{CANCELLED}\n", f"{REMINDED}\n"]
        finally:
            process.kill()


def test_node(write, server):
    node = jackd()[0]
    directory = write("Node")
    (directory / "node_modules").symlink_to(DIRECTORY / "node_modules")
    assert run(directory, node, "order.mjs") == [CANCELLED, REMINDED]
    assert left(server) == 0


def test_go(write, server):
    go = programs.find("go", "golang-go")
    directory = write("Go")
    (directory / "go.mod").write_text("module shop\n\nrequire github.com/beanstalkd/go-beanstalk v0.2.0\n")
    line = [go, "build", "-mod=mod", "-o", "shop", "."]
    if subprocess.run(line, cwd=directory, capture_output=True, check=False).returncode:
        programs.missing("go-beanstalk", "go install github.com/beanstalkd/go-beanstalk@v0.2.0")
    assert run(directory, directory / "shop") == [CANCELLED, REMINDED]
    assert left(server) == 0


def test_every_listing_is_of_a_section_that_is_run():
    titles = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    with_listings = [
        title for title in titles if "```" in PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    ]
    assert with_listings == ["Laravel", "Symfony", "Rails", "Go", "Node"]
