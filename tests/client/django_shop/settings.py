"""Its settings. The environment says where the server is, and where the database."""

import os

import django

SECRET_KEY = "not secret"
USE_TZ = True
TIME_ZONE = "UTC"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DATABASE", ":memory:")}}
INSTALLED_APPS = ["django_shop", "beanstalk_client.integrations.django", "beanstalk_client.outbox.django"]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")
TASKS = {
    "default": {
        "BACKEND": "beanstalk_client.integrations.django.BeanstalkBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {
            "addresses": os.environ.get("SHOP_QUEUE", "127.0.0.1:11300"),
            "ttr": 5,
            "backoff": 0.1,
            "result_ttl": os.environ.get("SHOP_RESULT_TTL"),
        },
    }
}
