# The commands to start with are `make serve`, `make check` (while you work) and `make test` (all there is); each does
# its own set-up.

PYTHON ?= python3
VENV := .venv
CLIENTS := conformance/clients
DEBIAN_CLIENTS := php-cli php-pda-pheanstalk ruby ruby-beaneater pypy3
PROXIES := haproxy stunnel4 openssl
OPERATORS := systemd prometheus strace
SOURCES := $(shell find beanstalk_server client/beanstalk_client -name '*.py') pyproject.toml setup.py client/pyproject.toml
ARGS ?=
SECONDS ?= 60
PACKAGE := $(if $(filter-out 0,$(BEANSTALK_SERVER_PURE)),pure,compiled)
WITH_ENGINES := $(wildcard tests/cluster/test_redis_*.py) tests/cluster/test_relays.py tests/cluster/test_conversations_with_nodes.py \
	tests/cluster/test_kills.py
IN_MEMORY := tests/queue tests/access tests/wire tests/storage tests/admin $(wildcard tests/test_*.py) tests/conformance/test_format.py \
	tests/client/test_client_addresses.py tests/client/test_client_protocol.py tests/client/test_client_protocol_model.py \
	tests/bench/test_report.py tests/bench/test_samples.py $(filter-out tests/cli/test_top.py,$(wildcard tests/cli/test_*.py)) \
	$(filter-out $(WITH_ENGINES),$(wildcard tests/cluster/test_*.py))
AT_ONCE := --numprocesses auto --dist worksteal

.PHONY: serve check test style types check-interpreted check-compiled check-package conformance compatibility fuzz beanstalkd proxies operators redis debian-clients cluster bench docs clean

serve: $(VENV)/installed          ## run the server; options: make serve ARGS="-p 11400 -V"
	$(VENV)/bin/beanstalk-server $(ARGS)

check: style types                ## in a minute: format, lint, types, and the tests without sockets
	$(VENV)/bin/pytest $(AT_ONCE) -q -m "not slow" $(IN_MEMORY)

test: style types check-interpreted check-compiled check-package conformance

style: $(VENV)/developer
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/vermin --quiet --no-tips --eval-annotations --violations -t=3.9- client/beanstalk_client

types: $(VENV)/developer
	$(VENV)/bin/mypy

check-interpreted: $(VENV)/developer beanstalkd proxies operators redis debian-clients    ## every test, on the sources as they are
	$(VENV)/bin/pytest $(AT_ONCE) -m "not slow" $(IN_MEMORY) $(WITH_ENGINES) tests/server tests/client tests/cli/test_top.py tests/packaging --cov
	$(VENV)/bin/pytest $(AT_ONCE) -m slow -rP --show-capture stdout $(IN_MEMORY) tests/client

check-compiled: $(VENV)/installed $(VENV)/developer beanstalkd proxies operators    ## the queue, the wire and what goes through a socket, on the installed package
	@test $(PACKAGE) = compiled || echo "BEANSTALK_SERVER_PURE is set: the installed package is tested without compiled modules"
	$(VENV)/bin/pytest --package $(PACKAGE) $(AT_ONCE) -m "not slow" tests/queue tests/access tests/wire tests/admin tests/server
	$(VENV)/bin/pytest --package $(PACKAGE) $(AT_ONCE) -m slow -rP --show-capture stdout tests/server tests/cluster/test_kills.py

check-package: $(VENV)/documents    ## what is built of the sources, with and without a compiler, and of the documents
	$(VENV)/bin/pytest -m slow -rP --show-capture stdout tests/package tests/packaging

conformance: $(VENV)/installed $(VENV)/developer beanstalkd $(CLIENTS)/node_modules debian-clients    ## the installed package beside beanstalkd
	$(VENV)/bin/pytest --package $(PACKAGE) $(AT_ONCE) -rs tests/conformance tests/bench

compatibility: $(VENV)/installed $(VENV)/developer beanstalkd    ## writes docs/compatibility.md
	$(VENV)/bin/python -m conformance --both --write docs/compatibility.md

fuzz: $(VENV)/installed $(VENV)/developer beanstalkd    ## as long as wanted: make fuzz SECONDS=600
	$(VENV)/bin/python -m conformance.fuzz --seconds $(SECONDS) $(ARGS)

beanstalkd:                       ## the server to compare with: installed where that can be done, else told
	@if command -v beanstalkd >/dev/null; then true; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get -qq update && apt-get -qq install -y --no-install-recommends beanstalkd; then true; \
	elif test "$$CI" = true; then echo "beanstalkd is not installed, and could not be" >&2; false; \
	else echo "beanstalkd is not installed (Debian: apt-get install beanstalkd): nothing is compared with it"; fi

proxies: export PATH := $(PATH):/usr/sbin
proxies:                          ## what the recipes of docs/access.md need: installed where that can be done, else told
	@if command -v haproxy >/dev/null && command -v stunnel4 >/dev/null && command -v openssl >/dev/null; then true; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get -qq update && apt-get -qq install -y --no-install-recommends $(PROXIES); then true; \
	elif test "$$CI" = true; then echo "$(PROXIES): not installed, and could not be" >&2; false; \
	else echo "not all installed (Debian: apt-get install $(PROXIES)): recipes that need them are not tried"; fi

operators: export PATH := $(PATH):/usr/sbin
operators:                        ## what looks at the files in packaging/: installed where that can be done, else told
	@if command -v systemd-analyze >/dev/null && command -v promtool >/dev/null && command -v strace >/dev/null; then true; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get -qq update && apt-get -qq install -y --no-install-recommends $(OPERATORS); then true; \
	elif test "$$CI" = true; then echo "$(OPERATORS): not installed, and could not be" >&2; false; \
	else echo "not all installed (Debian: apt-get install $(OPERATORS)): units and rules are not looked at"; fi

redis:                            ## the engine of clusters: installed where that can be done, else told
	@if command -v redis-server >/dev/null; then true; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get -qq update && apt-get -qq install -y --no-install-recommends redis-server; then true; \
	elif test "$$CI" = true; then echo "redis-server is not installed, and could not be" >&2; false; \
	else echo "redis-server is not installed (Debian: apt-get install redis-server): clusters are not tried"; fi

debian-clients:                   ## clients in PHP and Ruby, and an old Python for ours: installed where that can be done, else told and not tried
	@if php -r "require 'Pheanstalk/autoload.php';" 2>/dev/null && ruby -e "require 'beaneater'" 2>/dev/null \
		&& command -v pypy3 >/dev/null; then true; \
	elif test "$$(id -u)" = 0 && command -v apt-get >/dev/null && timeout 60 apt-get -qq update \
		&& timeout 300 apt-get -qq install -y --no-install-recommends $(DEBIAN_CLIENTS); then true; \
	else echo "not all installed, and not all tried: clients in PHP and Ruby, and ours on pypy3 (Debian: apt-get install $(DEBIAN_CLIENTS))"; fi

$(CLIENTS)/node_modules: $(CLIENTS)/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix $(CLIENTS) --silent --no-audit --no-fund && touch $@; \
	elif test "$$CI" = true; then echo "npm is not installed: a client in JavaScript cannot be tried" >&2; false; \
	else echo "npm is not installed (nodejs.org): a client in JavaScript is not tried"; fi

cluster: $(VENV)/installed redis    ## Redis with two replicas and two nodes on this machine, until Ctrl-C
	@$(VENV)/bin/python -m harness.cluster $(ARGS)

bench: $(VENV)/benching           ## figures beside beanstalkd's and Redis's: make bench ARGS="--help"
	$(VENV)/bin/python -m bench $(ARGS)

docs: $(VENV)/documents           ## the documents as a site, in build/docs
	$(VENV)/bin/python -m docs.site.build build/docs

$(VENV)/pip:    # dependency groups need 25.1, also in an environment that somebody has made by hand
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --upgrade 'pip>=25.1'
	touch $@

$(VENV)/installed: $(VENV)/pip $(SOURCES)
	rm -rf client/build    # what is left of an earlier build would get into this one
	$(VENV)/bin/pip install --quiet --upgrade ./client '.[cluster,http]'
	touch $@

# What the sources need to be tested as they are: nothing is built for that.
$(VENV)/developer: $(VENV)/pip pyproject.toml
	$(VENV)/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
		| $(VENV)/bin/pip install --quiet --upgrade --group dev -r /dev/stdin
	touch $@

$(VENV)/benching: $(VENV)/installed pyproject.toml
	$(VENV)/bin/pip install --quiet --upgrade --group bench
	touch $@

$(VENV)/documents: $(VENV)/developer pyproject.toml
	$(VENV)/bin/pip install --quiet --upgrade --group docs
	touch $@

clean:
	rm -rf $(VENV) $(CLIENTS)/node_modules build client/build *.egg-info client/*.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
