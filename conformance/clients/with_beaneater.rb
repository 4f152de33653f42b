# beaneater (Ruby): a producer and a worker, as its documentation shows them, and its loop of registered processors.

require 'beaneater'

ADDRESS = ARGV.first(2).join(':')

def client
  Beaneater.new(ADDRESS)
end

def same(expected, found)
  raise "#{expected.inspect} was expected, not #{found.inspect}" unless expected == found
end

def fails(error)
  yield
rescue error
  nil
else
  raise "#{error} was expected"
end

def produce_and_work
  producer, worker = client, client
  mails = producer.tubes['mails']
  worker.tubes.watch!('mails')
  same ['mails'], worker.tubes.watched.map(&:name)
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  late = mails.put('late', delay: 1)
  second = mails.put('second', pri: 20)
  first = mails.put('first', pri: 10)
  same first[:id], mails.peek(:ready).id
  same late[:id], mails.peek(:delayed).id
  same nil, mails.peek(:buried)
  same 'second', producer.jobs.find(second[:id]).body
  same 'mails', producer.tubes.used.name
  done = Array.new(3) do
    job = worker.tubes.reserve(10)
    job.delete
    job.body
  end
  same %w[first second late], done
  same true, Process.clock_gettime(Process::CLOCK_MONOTONIC) - began >= 0.99
  fails(Beaneater::TimedOutError) { worker.tubes.reserve(0) }
  same 3, mails.stats.total_jobs
  same true, producer.tubes.all.map(&:name).include?('mails')
  [producer, worker].each(&:close)
end

def bury_and_kick
  queue = client
  tube = queue.tubes['default']
  body = (0..255).to_a.pack('C*')
  id = tube.put(body)[:id]
  job = queue.tubes.reserve
  same body, job.body
  job.touch
  job.bury(pri: 7)
  same id, tube.peek(:buried).id
  same '1', tube.kick(5)[:id]
  job = queue.tubes.reserve(0)
  job.release(pri: 1, delay: 100)
  same id, tube.peek(:delayed).id
  job.kick
  stats = job.stats
  same [2, 1, 1, 1, 'ready'], [stats.kicks, stats.buries, stats.releases, stats.pri, stats.state]
  job.delete
  same false, job.exists?
  fails(Beaneater::NotFoundError) { job.delete }
  fails(Beaneater::NotIgnoredError) { queue.tubes.ignore('default') }
  fails(Beaneater::JobTooBigError) { tube.put('x' * 65_536) }
  fails(Beaneater::InvalidTubeName) { queue.tubes.watch('-') }
  queue.close
end

def pause
  queue = client
  tube = queue.tubes['paused']
  id = tube.put('work')[:id]
  tube.pause(100)
  fails(Beaneater::TimedOutError) { tube.reserve(0) }
  same 100, tube.stats.pause
  tube.pause(0)
  job = tube.reserve(0)
  same id, job.id
  job.delete
  same 0, queue.stats.current_jobs_buried
  queue.close
end

def let_a_ttr_run_out
  slow, quick = client, client
  id = slow.tubes['default'].put('work', ttr: 1)[:id]
  job = slow.tubes.reserve
  fails(Beaneater::DeadlineSoonError) { slow.tubes.reserve(5) }
  sleep 1.2 # real time: the ttr is over, but beanstalkd may not know before it hears of this client
  same 'default', slow.tubes.used.name
  again = quick.tubes.reserve(10)
  same id, again.id
  fails(Beaneater::NotFoundError) { job.touch }
  again.delete
  [slow, quick].each(&:close)
end

def lose_a_connection
  lost = client
  id = lost.tubes['default'].put('work')[:id]
  same id, lost.tubes.reserve.id
  lost.close
  again = client
  job = again.tubes.reserve(10)
  same id, job.id
  job.delete
  again.close
end

def process_as_registered
  queue = client
  queue.tubes['numbers'].put('1')
  queue.tubes['numbers'].put('no number')
  queue.tubes['numbers'].put('2')
  sum = 0
  queue.jobs.register('numbers') do |job|
    sum += Integer(job.body)
    raise Beaneater::AbortProcessingError if sum == 3
  end
  queue.jobs.process!(reserve_timeout: 1)
  same 3, sum
  same 2, queue.tubes['numbers'].stats.current_jobs_buried # the one that failed, and the last
  queue.tubes['numbers'].clear
  queue.close
end

# The replies of policies that clients tell apart (docs/policies.md). with_greenstalk.py meets every policy.
#
# On DRAINING, beaneater tries three times, a second apart. If there is still no room then, it raises its error, and has
# closed the connection.
def be_refused_by_policies
  queue = client
  tube = queue.tubes['max-jobs']
  %w[one two].each { |body| tube.put(body) }
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  fails(Beaneater::DrainingError) { tube.put('three') }
  same true, Process.clock_gettime(Process::CLOCK_MONOTONIC) - began >= 1.99
  fails(Beaneater::NotConnected) { tube.stats }
  queue = client
  fails(Beaneater::JobTooBigError) { queue.tubes['max-job-size'].put('longer') }
  tube = queue.tubes['max-tries']
  tube.put('released')
  same 'BURIED', tube.reserve.release[:status] # no error
  queue.close
end

def release_with_its_own_delay
  queue = client
  tube = queue.tubes['backoff']
  id = tube.put('again')[:id]
  job = tube.reserve
  [100, 200].each do |seconds| # beaneater releases a job with the delay that its statistics say: its own, not the last
    job.release
    fails(Beaneater::TimedOutError) { tube.reserve(0) }
    same id, tube.peek(:delayed).id
    same true, (seconds - 5..seconds).cover?(job.stats.time_left)
    job = Beaneater::Job.new(queue, queue.connection.transmit("reserve-job #{id}"))
  end
  job.delete
  queue.close
end

ORDINARY = %i[produce_and_work bury_and_kick pause let_a_ttr_run_out lose_a_connection process_as_registered]
POLICIES = %i[be_refused_by_policies release_with_its_own_delay]

(ARGV[2] == 'policies' ? POLICIES : ORDINARY).each { |story| send(story) }
