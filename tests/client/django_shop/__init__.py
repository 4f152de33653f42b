"""A Django project with tasks: what the tests of the backend enqueue and its worker runs."""
