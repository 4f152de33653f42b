"""The server's options, as the files in packaging/ give them."""

from beanstalk_server.settings.options import OPTIONS

FLAGS = {flag: each for each in OPTIONS for flag in each.flags}


def options_of(words):
    """The values of a command line, by the long names of its options; each option must exist, and its value be good."""
    found, left = {}, list(words)
    while left:
        flag = left.pop(0)
        option = FLAGS[flag]
        value = left.pop(0)
        if "$(" not in value:  # which Kubernetes fills in
            option.read(value, flag)
        found[option.flags[-1]] = value
    return found
