# The commands to start with are `make serve`, `make check` (while you work) and `make test` (before you send a change);
# each does its own set-up. `make test-all` is everything, for hours or for as many minutes as you say.

PYTHON ?= python3
VENV := .venv
CLIENTS := conformance/clients
SOURCES := $(shell find beanstalk_server client/beanstalk_client -name '*.py') pyproject.toml setup.py client/pyproject.toml
ARGS ?=
SECONDS ?= 60
SEED ?= $(shell date +%s)
MINUTES ?=
VERSION ?=
CPU_LIMIT ?=
PACKAGE := $(if $(filter 1,$(BEANSTALK_SERVER_PURE)),pure,$(if $(shell command -v cc || command -v gcc),compiled,pure))
PROCESSORS := $(shell nproc 2>/dev/null || echo 2)

PIP := $(VENV)/bin/pip --disable-pip-version-check --quiet --quiet install --no-compile
install-requirements = @wanted="$$($(VENV)/bin/python -m harness.requirements $(1))" \
	&& echo "$$wanted" | $(PIP) --requirement /dev/stdin
WHEEL := $(VENV)/bin/python -c "import logging, sys, setuptools.build_meta as backend; \
	logging.disable(logging.WARNING); backend.build_wheel(sys.argv[1], {'--global-option': ['--quiet']})"
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600
export PIP_ROOT_USER_ACTION := ignore
unexport PYTHONDONTWRITEBYTECODE    # each of the many processes that tests start would compile all that it imports

# Tests that wait for sockets and clocks leave a processor idle: more workers than processors. Half as many workers run
# on the installed package as on both (tests/conftest.py).
POOL := $(VENV)/bin/pytest -q --dist load --tx $(PROCESSORS)*popen//env:TEST_PACKAGE=sources \
	--tx $(shell expr 2 \* $(PROCESSORS))*popen//env:TEST_PACKAGE=$(PACKAGE)

FOR_TESTS := beanstalkd redis-server postgresql
FOR_ALL_TESTS := haproxy stunnel4 openssl systemd prometheus strace valgrind php-cli php-pda-pheanstalk ruby ruby-beaneater pypy3 php-illuminate-queue php-illuminate-events php-symfony-beanstalkd-messenger ruby-activejob chromium

.PHONY: serve check test test-all everything coverage pool style types debian debian-all compatibility fuzz record cluster console bench docs wheels release clean

serve:                            ## run the server; options: make serve ARGS="-p 11400 -V"
	@began=$$(date +%s); $(MAKE) --no-print-directory $(VENV)/installed \
		&& echo "make serve took $$(($$(date +%s) - began)) seconds before the start" \
		&& exec $(VENV)/bin/beanstalk-server $(ARGS)

check: style types                ## while you work, a minute: format, lint, types, and the tests without sockets
	$(VENV)/bin/pytest -q --numprocesses auto -m "not slow and not sockets" --hypothesis-profile fast

test:                             ## before you send a change: the strongest test of every promise
	@began=$$(date +%s); $(MAKE) --no-print-directory $(VENV)/developer $(VENV)/installed debian \
		&& $(MAKE) --no-print-directory --keep-going --jobs 2 style types pool; status=$$?; \
	echo "make test took $$(($$(date +%s) - began)) seconds"; exit $$status

test-all: export CPU_LIMIT := --cpu-limit
test-all: test                    ## everything, for hours: SEED=… repeats a run, MINUTES=30 stops it
	@began=$$(date +%s); $(MAKE) --no-print-directory --keep-going everything $(if $(MINUTES),,coverage); status=$$?; \
	echo "make test-all took $$(($$(date +%s) - began)) seconds after make test; to repeat it: make test-all SEED=$(SEED)"; exit $$status

pool: $(VENV)/developer $(VENV)/installed debian
	$(POOL) -m "not slow" --hypothesis-seed 0 --durations 10 $(CPU_LIMIT)

everything: $(VENV)/developer $(VENV)/installed $(VENV)/documents $(VENV)/browser debian debian-all $(CLIENTS)/node_modules
	SEED=$(SEED) $(POOL) --everything --hypothesis-profile deep --hypothesis-seed $(SEED) --seed $(SEED) --timeout 3600 \
		-rs $(if $(MINUTES),--minutes $(MINUTES))

# Coverage makes tests slow, and its trace function fails in a thread that begins while another one installs it.
coverage: $(VENV)/developer debian    ## coverage of the sources by all tests except slow ones: at least 95 %
	$(VENV)/bin/pytest -q --dist loadfile --numprocesses $(shell expr 2 \* $(PROCESSORS)) -m "not slow" \
		--hypothesis-profile fast --cov --timeout 600 -W ignore::pytest.PytestUnraisableExceptionWarning

style: $(VENV)/developer
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/vermin --quiet --no-tips --eval-annotations --violations -t=3.9- --exclude-regex "/(cli|console|observe)/" client/beanstalk_client

types: $(VENV)/developer
	$(VENV)/bin/mypy

compatibility: $(VENV)/installed $(VENV)/developer debian    ## write docs/compatibility.md
	$(VENV)/bin/python -m conformance.compare --both --write docs/compatibility.md

fuzz: $(VENV)/installed $(VENV)/developer debian    ## compare random scripts with beanstalkd: make fuzz SECONDS=600
	$(VENV)/bin/python -m conformance.compare.fuzz --seconds $(SECONDS) $(ARGS)

record: $(VENV)/installed $(VENV)/developer debian    ## run the open-ended tests, and add to docs/tested.md: make record MINUTES=60
	$(VENV)/bin/python -m harness.record --minutes $(or $(MINUTES),30) $(ARGS)

cluster: $(VENV)/installed debian    ## run Redis with two replicas and two nodes on this machine, until Ctrl-C
	@$(VENV)/bin/python -m harness.cluster $(ARGS)

console: $(VENV)/builder          ## run a server with sample jobs and the console, until Ctrl-C; compiles nothing
	@PYTHONPATH=.:client $(VENV)/bin/python -m harness.console --sources $(ARGS)

bench: $(VENV)/benching           ## compare speed with beanstalkd and Redis: make bench ARGS="--help"
	$(VENV)/bin/python -m bench $(ARGS)

docs: $(VENV)/documents           ## build the documentation site in build/docs
	$(VENV)/bin/python -m docs.site.build build/docs

wheels: $(VENV)/publishing         ## build the packages in dist, check them, and try them in an empty environment
	@$(VENV)/bin/python -m harness.wheels dist

release: $(VENV)/publishing $(VENV)/developer debian    ## checks a version and makes all of it in dist; publishes nothing: make release VERSION=1.2.3
	@$(VENV)/bin/python -m harness.release "$(VERSION)"

# Installs Debian packages if it may, and says which are missing if it may not. On CI, a missing one of FOR_TESTS is an error.
define install-debian
@missing="$$(for name in $(1); do command -v $$name >/dev/null || dpkg -s $$name >/dev/null 2>&1 || echo $$name; done)"; \
if test -z "$$missing"; then true; \
elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing" $$missing "(Debian packages)" \
	&& { $(APT) install -y --no-install-recommends $$missing >/dev/null 2>&1 \
	|| { $(APT) update && $(APT) install -y --no-install-recommends $$missing >/dev/null; }; }; then true; \
else echo "not installed, and tests that need them are skipped:" $$missing >&2; $(2); fi
endef

debian:
	$(call install-debian,$(FOR_TESTS),test "$$CI" != true)

debian-all: debian
	$(call install-debian,$(FOR_ALL_TESTS),true)

$(CLIENTS)/node_modules: $(CLIENTS)/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix $(CLIENTS) --silent --no-audit --no-fund && touch $@; \
	else echo "npm is not installed (nodejs.org): a client in JavaScript is not tried"; fi

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "beanstalk-server needs Python 3.11 or newer: $(PYTHON) is %d.%d: make PYTHON=python3.11, say" % sys.version_info[:2])'
	@echo "creating an environment in $(VENV)"
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/builder: $(VENV)/python pyproject.toml
	@echo "installing what the server and its build need"
	$(call install-requirements,build run cli console http)
	@touch $@

$(VENV)/installed: $(VENV)/builder $(SOURCES)
	@echo "building beanstalk-client and beanstalk-server"
	@rm -rf build/wheels client/build && mkdir -p build/wheels
	@cd client && ../$(WHEEL) ../build/wheels
	@$(WHEEL) build/wheels
	@$(PIP) --no-deps --force-reinstall build/wheels/*.whl
	@if test $(PACKAGE) = pure || ! ls build/wheels/beanstalk_server-*-none-any.whl >/dev/null 2>&1; then touch $@; \
	else echo "not compiled: the next make tries again, unless BEANSTALK_SERVER_PURE=1" >&2; fi

$(VENV)/developer: $(VENV)/builder
	@echo "installing what the tests need"
	$(call install-requirements,run dev)
	@touch $@

$(VENV)/benching: $(VENV)/installed
	$(call install-requirements,bench)
	@touch $@

$(VENV)/documents: $(VENV)/developer
	@echo "installing what the documents' site needs"
	$(call install-requirements,docs)
	@touch $@

$(VENV)/browser: $(VENV)/developer
	@echo "installing what the tests in a browser need"
	$(call install-requirements,browser)
	@touch $@

$(VENV)/publishing: $(VENV)/builder
	@echo "installing what builds and checks wheels"
	$(call install-requirements,publish)
	@touch $@

clean:
	rm -rf $(VENV) $(CLIENTS)/node_modules build dist */build *.egg-info */*.egg-info .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
