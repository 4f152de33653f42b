# The two commands to start with are `make serve` and `make test`; each does its own set-up.

PYTHON ?= python3
VENV := .venv
SOURCES := $(shell find beanstalk_server -name '*.py') pyproject.toml setup.py
ARGS ?=

.PHONY: serve test style types check-interpreted check-compiled bench clean

serve: $(VENV)/installed          ## run the server; options: make serve ARGS="-p 11400 -V"
	$(VENV)/bin/beanstalk-server $(ARGS)

test: style types check-interpreted check-compiled

style: $(VENV)/developer
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

types: $(VENV)/developer
	$(VENV)/bin/mypy

check-interpreted: $(VENV)/developer    ## every test, on the sources as they are
	$(VENV)/bin/pytest --cov

check-compiled: $(VENV)/installed $(VENV)/developer    ## what goes through a socket, on the installed package
	$(VENV)/bin/pytest --override-ini pythonpath= tests/server

bench: $(VENV)/benching           ## figures beside beanstalkd's and Redis's: make bench ARGS="--help"
	$(VENV)/bin/python -m bench $(ARGS)

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/installed: $(VENV)/bin/pip $(SOURCES)
	rm -rf build    # or what has been removed from the sources would be installed from there
	$(VENV)/bin/pip install --quiet --upgrade .
	touch $@

$(VENV)/developer: $(VENV)/bin/pip pyproject.toml | $(VENV)/installed
	$(VENV)/bin/pip install --quiet --upgrade --group dev
	touch $@

$(VENV)/benching: $(VENV)/installed pyproject.toml
	$(VENV)/bin/pip install --quiet --upgrade --group bench
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
