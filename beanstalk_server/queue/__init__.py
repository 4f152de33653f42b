"""What a job queue is: jobs, tubes, clients, deadlines, and the broker that moves jobs from state to state.

Must never know commands, files or asyncio, nor read a clock: every moment is an argument, in nanoseconds of one
monotonic clock that the caller reads. `interface.py` is what the other rooms may call.
"""
