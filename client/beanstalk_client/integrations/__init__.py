"""Other people's programs that take this package for their queue: Celery's kombu, taskiq, Django, OpenTelemetry.

Each module needs what it integrates with, and an extra of the same name installs that. Must never import any of them
here.
"""
