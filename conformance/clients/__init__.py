"""Real clients, each through its documented API: a producer and a worker with delays, a ttr that runs out, bury and
kick, and a connection that is lost. Each is a program that takes HOST and PORT, and ends with status 0 if all was well.
"""
