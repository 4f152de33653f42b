<?php
// Pheanstalk 4 (PHP), as Debian has it: a producer and a worker, as its documentation shows them. What its parser of
// statistics makes of quotes around a string is not looked at (docs/differences.md).

declare(strict_types=1);

require 'Pheanstalk/autoload.php';

use Pheanstalk\Exception\DeadlineSoonException;
use Pheanstalk\Exception\JobTooBigException;
use Pheanstalk\Exception\ServerDrainingException;
use Pheanstalk\Exception\ServerException;
use Pheanstalk\Exception\ServerOutOfMemoryException;
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

// The replies of policies that clients tell apart (docs/policies.md). with_greenstalk.py meets every policy.
function be_refused_by_policies(): void
{
    $client = client()->useTube('max-jobs');
    $client->put('one');
    $client->put('two');
    fails(ServerDrainingException::class, fn() => $client->put('three'));
    $client->useTube('max-job-size');
    fails(JobTooBigException::class, fn() => $client->put('longer'));
    $client->useTube('max-tries')->watchOnly('max-tries');
    $job = $client->put('released');
    $client->reserve();
    // Pheanstalk takes it that the server has no memory: beanstalkd buries such a job for no other reason.
    fails(ServerOutOfMemoryException::class, fn() => $client->release($job));
}

const ORDINARY = ['produce_and_work', 'bury_and_kick', 'pause', 'let_a_ttr_run_out', 'lose_a_connection'];
const POLICIES = ['be_refused_by_policies'];

foreach (($argv[3] ?? '') === 'policies' ? POLICIES : ORDINARY as $story) {
    $story();
}
