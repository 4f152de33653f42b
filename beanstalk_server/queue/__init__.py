"""What a job queue is: jobs, tubes, clients, deadlines, and the broker that moves jobs from state to state.

`interface.py` is what the other rooms may call.
"""
