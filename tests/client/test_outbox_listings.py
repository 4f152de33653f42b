"""The listings of docs/outbox.md run, with a server, a relay and a worker, on SQLite."""

import pytest
from listings import Program

from harness.servers import ROOT

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "outbox.md"

MORE_SETTINGS = """
SECRET_KEY = "not secret"
ROOT_URLCONF = "urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db", "TEST": {"NAME": ":memory:"}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""

MODELS = """
from django.db import models
class Order(models.Model):
    product = models.TextField()
"""

URLS = """
from django.urls import path
from shop.views import place_order
urlpatterns = [path("orders", place_order)]
"""

ORDER = """
import django
django.setup()
from django.test import RequestFactory
from shop.views import place_order
print(place_order(RequestFactory().post("/orders", {"product": "tea"})).content.decode())
"""


@pytest.fixture
def project(tmp_path, run):
    program = Program(PAGE, "Django", tmp_path, run().address)
    program.write("settings.py", program.read("settings.py") + MORE_SETTINGS)
    for name, text in (("shop/__init__.py", ""), ("shop/models.py", MODELS), ("urls.py", URLS), ("order.py", ORDER)):
        program.write(name, text)
    program.run("-m", "django", "makemigrations", "shop")
    program.run("-m", "django", "migrate")
    return program


def test_the_test_of_a_django_project(project):
    project.run("-m", "django", "test", "shop")
    assert "0 rows waiting" in project.run("-m", "django", "beanstalk_outbox", "shop.jobs:tasks", "--status")


def test_an_order_of_a_django_project_is_a_row(project):
    assert project.run("order.py") == '{"order": 1}\n'
    assert "2 rows waiting" in project.run("-m", "django", "beanstalk_outbox", "shop.jobs:tasks", "--status")


def test_a_django_project(project):
    project.run("order.py")
    project.run("-m", "django", "beanstalk_outbox", "shop.jobs:tasks", "--once")
    log = project.work("-m", "beanstalk_client.worker", "shop.jobs:tasks", until={"mail for order 1: tea"})
    assert "buried" not in log


def test_sqlalchemy(tmp_path, run, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/shop.db")
    program = Program(PAGE, "SQLAlchemy", tmp_path, run().address)
    assert program.run("-c", "import shop; shop.Base.metadata.create_all(shop.engine); print(shop.place_order('tea'))")
    program.run("-m", "beanstalk_client.outbox", "$DATABASE_URL", "shop:tasks", "--once")
    program.work("-m", "beanstalk_client.worker", "shop:tasks", until={"mail for order 1"})
