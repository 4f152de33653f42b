// jackd (JavaScript): a producer and a worker, as its documentation shows them. Not its pauseTube, which sends no CR LF,
// and no Buffer as a body, which it writes as JSON.

import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import jackd from 'jackd'

const host = process.argv[2]
const port = Number(process.argv[3])

async function connect() {
  const client = new jackd()
  await client.connect({ host, port })
  return client
}

async function produceAndWork() {
  const producer = await connect()
  const worker = await connect()
  assert.equal(await producer.use('mails'), 'mails')
  assert.equal(await worker.watch('mails'), 2)
  assert.equal(await worker.ignore('default'), 1)
  const began = performance.now()
  const late = await producer.put('late', { delay: 1 })
  const second = await producer.put({ second: 2 }, { priority: 20 })
  const first = await producer.put('first', { priority: 10 })
  assert.equal((await producer.peekReady()).id, first)
  assert.equal((await producer.peekDelayed()).id, late)
  const done = []
  while (done.length < 3) {
    const job = await worker.reserveWithTimeout(10)
    done.push([job.id, job.payload.toString()])
    await worker.delete(job.id)
  }
  assert.deepEqual(done, [[first, 'first'], [second, '{"second":2}'], [late, 'late']])
  const seconds = (performance.now() - began) / 1000
  assert(seconds >= 0.99, `${seconds} s`)
  await assert.rejects(worker.reserveWithTimeout(0), /TIMED_OUT/)
  assert.match(await producer.statsTube('mails'), /total-jobs: 3/)
  await producer.disconnect()
  await worker.disconnect()
}

async function buryAndKick() {
  const client = await connect()
  const id = await client.put('work')
  await client.reserve()
  await client.touch(id)
  await client.bury(id, 7)
  assert.equal((await client.peekBuried()).id, id)
  assert.equal(await client.kick(5), 1)
  await client.reserveJob(id)
  await client.release(id, { priority: 1, delay: 100 })
  await client.kickJob(id)
  assert.match(await client.statsJob(id), /kicks: 2/)
  await client.delete(id)
  await assert.rejects(client.delete(id), /NOT_FOUND/)
  await assert.rejects(client.ignore('default'), /NOT_IGNORED/)
  await client.disconnect()
}

async function letATtrRunOut() {
  const slow = await connect()
  const quick = await connect()
  const id = await slow.put('work', { ttr: 1 })
  await slow.reserve()
  await assert.rejects(slow.reserve(), /DEADLINE_SOON/)
  const waiting = quick.reserve()
  await sleep(1200) // real time: the ttr is over, but beanstalkd may not know before it hears of this client
  assert.equal(await slow.listTubeUsed(), 'default')
  assert.equal((await waiting).id, id)
  await assert.rejects(slow.touch(id), /NOT_FOUND/)
  await quick.delete(id)
  await slow.disconnect()
  await quick.disconnect()
}

async function loseAConnection() {
  const lost = await connect()
  const id = await lost.put('work')
  await lost.reserve()
  lost.socket.destroy()
  const again = await connect()
  const job = await again.reserveWithTimeout(10)
  assert.equal(job.id, id)
  await again.delete(id)
  await again.disconnect()
}

// The replies of policies that clients tell apart (docs/policies.md). with_greenstalk.py meets every policy.
async function beRefusedByPolicies() {
  const client = await connect()
  await client.use('max-jobs')
  await client.put('one')
  await client.put('two')
  await assert.rejects(client.put('three'), /^Error: DRAINING$/)
  await client.use('max-job-size')
  await assert.rejects(client.put('longer'), /^Error: JOB_TOO_BIG$/)
  await client.watch('max-tries')
  await client.use('max-tries')
  const id = await client.put('released')
  await client.reserve()
  await assert.rejects(client.release(id), /^Error: BURIED$/)
  await client.disconnect()
}

const ORDINARY = [produceAndWork, buryAndKick, letATtrRunOut, loseAConnection]
const POLICIES = [beRefusedByPolicies]

for (const story of process.argv[4] === 'policies' ? POLICIES : ORDINARY) await story()
