"""What a job queue is: jobs, tubes, clients, deadlines, and the broker that moves a job between them.

Knows no commands, no files and no asyncio; reads no clock. Every time is an argument, in nanoseconds on one
monotonic clock that the caller reads.
"""
