"""What a job queue is: jobs, tubes, clients, deadlines, and the broker that moves jobs from state to state.

`broker.py` has the commands, which the other rooms call.
"""
