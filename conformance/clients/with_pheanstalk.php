<?php
// Pheanstalk 4 (PHP), as Debian has it: a producer and a worker, as its documentation shows them. What its parser of
// statistics makes of quotes around a string is not looked at (docs/differences.md).

declare(strict_types=1);

require 'Pheanstalk/autoload.php';

use Pheanstalk\Exception\DeadlineSoonException;
use Pheanstalk\Exception\JobNotFoundException;
use Pheanstalk\Exception\JobTooBigException;
use Pheanstalk\Exception\ServerDrainingException;
use Pheanstalk\Exception\ServerException;
use Pheanstalk\Exception\ServerOutOfMemoryException;
use Pheanstalk\JobId;
use Pheanstalk\Pheanstalk;

[, $host, $port] = $argv;

function client(): Pheanstalk
{
    global $host, $port;
    return Pheanstalk::create($host, (int) $port);
}

function same($expected, $found): void
{
    if ($expected !== $found) {
        throw new RuntimeException(var_export($expected, true) . ' was expected, not ' . var_export($found, true));
    }
}

function fails(string $class, callable $work): void
{
    try {
        $work();
    } catch (Throwable $error) {
        same(true, $error instanceof $class);
        return;
    }
    throw new RuntimeException("$class was expected");
}

function produce_and_work(): void
{
    $producer = client()->useTube('mails');
    $worker = client()->watchOnly('mails');
    same('mails', $producer->listTubeUsed(true));
    same(['mails'], $worker->listTubesWatched(true));
    $began = microtime(true);
    $late = $producer->put('late', 1024, 1);
    $second = $producer->put('second', 20);
    $first = $producer->put('first', 10);
    same($first->getId(), $producer->peekReady()->getId());
    same($late->getId(), $producer->peekDelayed()->getId());
    same(null, $producer->peekBuried());
    same('second', $producer->peek($second)->getData());
    $done = [];
    while (count($done) < 3) {
        $job = $worker->reserveWithTimeout(10);
        $done[] = $job->getData();
        $worker->delete($job);
    }
    same(['first', 'second', 'late'], $done);
    same(true, microtime(true) - $began >= 0.99);
    same(null, $worker->reserveWithTimeout(0));
    same('3', (string) $producer->statsTube('mails')['total-jobs']);
    same(true, in_array('mails', $producer->listTubes(), true));
}

function bury_and_kick(): void
{
    $client = client();
    $body = implode('', array_map('chr', range(0, 255)));
    $job = $client->put($body);
    same($body, $client->reserve()->getData());
    $client->touch($job);
    $client->bury($job, 7);
    same($job->getId(), $client->peekBuried()->getId());
    same(1, $client->kick(5));
    $client->reserveWithTimeout(0);
    $client->release($job, 1, 100);
    same($job->getId(), $client->peekDelayed()->getId());
    $client->kickJob($job);
    $stats = $client->statsJob($job);
    same(['2', '1', '1', '1'], array_map('strval', [$stats->kicks, $stats->buries, $stats->releases, $stats->pri]));
    $client->delete($job);
    fails(ServerException::class, fn() => $client->delete($job));
    fails(ServerException::class, fn() => $client->ignore('default'));
    fails(JobTooBigException::class, fn() => $client->put(str_repeat('x', 65536)));
}

function pause(): void
{
    $client = client()->useTube('paused')->watchOnly('paused');
    $job = $client->put('work');
    $client->pauseTube('paused', 100);
    same(null, $client->reserveWithTimeout(0));
    same('100', (string) $client->statsTube('paused')->pause);
    $client->resumeTube('paused');
    same($job->getId(), $client->reserveWithTimeout(0)->getId());
    $client->delete($job);
    same('0', (string) $client->stats()->current_jobs_buried);
}

function let_a_ttr_run_out(): void
{
    [$slow, $quick] = [client(), client()];
    $job = $slow->put('work', 1024, 0, 1);
    $slow->reserve();
    fails(DeadlineSoonException::class, fn() => $slow->reserveWithTimeout(5));
    usleep(1_200_000); // real time: the ttr is over, but beanstalkd may not know before it hears of this client
    same('default', $slow->listTubeUsed(true));
    same($job->getId(), $quick->reserveWithTimeout(10)->getId());
    fails(ServerException::class, fn() => $slow->touch($job));
    $quick->delete($job);
}

function lose_a_connection(): void
{
    $lost = client();
    $job = $lost->put('work');
    same($job->getId(), $lost->reserve()->getId());
    unset($lost);
    gc_collect_cycles();
    $again = client();
    same($job->getId(), $again->reserveWithTimeout(10)->getId());
    $again->delete($job);
}

function meet_limits(): void
{
    $client = client()->useTube('max-jobs');
    $first = $client->put('one');
    $client->put('two');
    fails(ServerDrainingException::class, fn() => $client->put('three'));
    $client->delete($first);
    $client->put('three');
    $client->useTube('max-bytes')->put('ten bytes!');
    fails(ServerDrainingException::class, fn() => $client->put('!'));
    $client->useTube('max-delay');
    fails(ServerDrainingException::class, fn() => $client->put('late', 1024, 2));
    $client->delete($client->put('late', 1024, 1));
    $client->useTube('max-job-size');
    fails(JobTooBigException::class, fn() => $client->put('longer'));
    $client->delete($client->put('short'));
    same('1', (string) $client->stats()['refused-size']);
}

function run_out_of_tries(): void
{
    $dead = client()->watchOnly('dead');
    $client = client()->useTube('max-tries')->watchOnly('max-tries');
    $job = $client->put('released');
    $client->reserve();
    // Pheanstalk takes it that the server has no memory: beanstalkd buries such a job for no other reason.
    fails(ServerOutOfMemoryException::class, fn() => $client->release($job));
    same($job->getId(), $client->peekBuried()->getId());
    $client->kickJob($job);
    $client->delete($client->reserve());
    $client->useTube('dead-tube')->watchOnly('dead-tube');
    $job = $client->put('released');
    $client->release($client->reserve());
    same($job->getId(), $dead->reserveWithTimeout(10)->getId());
    same('dead-tube', trim($dead->statsJob($job)->origin, '"'));
    $dead->delete($job);
    $job = $client->put('too slow', 1024, 0, 1);
    $client->reserve();
    same($job->getId(), $dead->reserveWithTimeout(10)->getId());
    $dead->delete($job);
    fails(JobNotFoundException::class, fn() => $client->touch($job));
    $job = $client->put('lost');
    $client->reserve();
    unset($client);
    gc_collect_cycles();
    same($job->getId(), $dead->reserveWithTimeout(10)->getId());
    same('disconnected', trim($dead->statsJob($job)->reason, '"'));
    $dead->delete($job);
}

function be_told_to_wait(): void
{
    $client = client()->useTube('backoff')->watchOnly('backoff');
    $job = $client->put('again');
    $client->release($client->reserve());
    same(null, $client->reserveWithTimeout(0));
    same($job->getId(), $client->peekDelayed()->getId());
    $client->kickJob($job);
    $client->delete($client->reserve());
    foreach (['max-reserved', 'rate'] as $tube) {
        $client->useTube($tube)->watchOnly($tube);
        $client->put('first');
        $second = $client->put('second');
        $first = $client->reserve();
        same(null, $client->reserveWithTimeout(0));
        same($second->getId(), $client->peekReady()->getId());
        same('1', (string) $client->statsTube($tube)->throttled);
        $client->delete($first);
        if ($tube === 'max-reserved') {
            same($second->getId(), $client->reserveWithTimeout(10)->getId());
        }
        $client->delete($second);
    }
}

function come_too_late(): void
{
    $client = client()->watchOnly('key-hold')->watch('dead');
    $keyed = new JobId($client->reserve()->getId());
    $client->delete($keyed); // it has a key, which stays taken
    $gone = $client->useTube('ttl')->put('deleted');
    $moved = $client->useTube('ttl-dead')->put('moved');
    same($moved->getId(), $client->reserveWithTimeout(10)->getId());
    same('expired', trim($client->statsJob($moved)->reason, '"'));
    $client->delete($moved);
    foreach ([$keyed, $gone] as $job) {
        fails(JobNotFoundException::class, fn() => $client->peek($job));
        fails(JobNotFoundException::class, fn() => $client->kickJob($job));
        fails(JobNotFoundException::class, fn() => $client->delete($job));
    }
}

const ORDINARY = ['produce_and_work', 'bury_and_kick', 'pause', 'let_a_ttr_run_out', 'lose_a_connection'];
const POLICIES = ['meet_limits', 'run_out_of_tries', 'be_told_to_wait', 'come_too_late'];

foreach (($argv[3] ?? '') === 'policies' ? POLICIES : ORDINARY as $story) {
    $story();
}
