# Everything a contributor types. `make` alone explains.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
# One file stays in one worker: what its module builds is built once, and tests that look at the machine do not meet themselves.
# Modules are kept compiled whatever the caller's environment says: hundreds of Pythons would compile them again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest
# Two workers more than there are processors: many tests wait for something. Files start in the order of tests/conftest.py.
PYTEST_FLAGS ?= -n $$(( $$(nproc) + 2 )) --dist loadfile --no-loadscope-reorder
SOURCES := $(wildcard pyproject.toml constraints.txt CMakeLists.txt dromlib/layout.py man/*) \
           $(shell find dromlib/native -type f -not -name '*.so' 2>/dev/null) $(wildcard examples/*.*) $(wildcard contrib/slurm/*)

.DEFAULT_GOAL := help
.PHONY: help setup kernel kernel-node kernel-simulator kernel-live kernel-filling kernel-controllers test-modules manual test test-random test-crash chaos soak fuzz test-programs test-vm test-cluster test-slurm test-slurm-new chaos-cluster chaos-controllers chaos-fillers chaos-slurm slurm-plugin slurm-helper criu wheel docs lint demo demo-cluster demo-adaptive demo-controllers demo-mixed demo-slurm bench clean

help: ## say what there is (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## prepare .venv with drom and its tools; does nothing when nothing changed

$(READY): scripts/setup.sh $(SOURCES)
	@PYTHON=$(PYTHON) scripts/setup.sh $(VENV)
	@touch $@

kernel: $(READY)
	@$(MAKE) --no-print-directory -j2 kernel-simulator kernel-node kernel-controllers test-modules kernel-live kernel-filling

kernel-node:
	@$(VENV)/bin/python -c "from drom.agent.placement.kernel.distributor import kernel; kernel()"

kernel-simulator:
	@$(VENV)/bin/python -c "from drom.scheduler.engine.compiler import *; [compile_program(load_policy(name), ordered=one) for name in BUILT_IN for one in (True, False)]; compile_start()"

# These two use some of the simulator's compiled functions, and compile those that are not there yet: they come last.
kernel-live:
	@$(VENV)/bin/python -c "from drom.scheduler.engine.compiler import load_policy; from drom.scheduler.live.cluster.driver import prepare; prepare(load_policy('fcfs')); prepare(load_policy('resources'))"

kernel-filling:
	@$(VENV)/bin/python -c "from drom.scheduler.gap_filling.simulation import compile_all; compile_all()"

kernel-controllers:
	@$(VENV)/bin/python -c "from drom.scheduler.reproduction.controllers.experiment import *; setup = Setup(1, 50, 1); simulate(setup, sizes_of(LARGE, setup, 1), COSTS, OURS)"

# Beside the kernels, on a core that would be idle: otherwise each of pytest's workers compiles all modules of tests.
test-modules: $(READY)
	@test -d tests/system/__pycache__ || $(PYTEST) --collect-only -q > /dev/null || true

test: kernel ## run the tests
	$(PYTEST) $(PYTEST_FLAGS)

test-random: kernel ## run the property tests with examples that were never tried before
	$(PYTEST) $(PYTEST_FLAGS) --hypothesis-profile=random

test-crash: kernel ## run the tests that kill agents and programs at every moment
	$(PYTEST) -m crash

chaos: kernel ## inject thousands of faults into a node of real programs; FAULTS and SEED may be set
	$(VENV)/bin/python -m tests.chaos --faults $(or $(FAULTS),5000) $(if $(SEED),--seed $(SEED))

soak: kernel ## one agent in a storm for an hour, or MINUTES: it must not grow
	$(VENV)/bin/python -m tests.chaos.soak --minutes $(or $(MINUTES),60)

FUZZ_SECONDS ?= 600

fuzz: kernel ## feed all that reads what others wrote with what nobody would write
	DROM_FUZZ_SECONDS=$(FUZZ_SECONDS) $(PYTEST) --hypothesis-profile=fuzz tests/fuzz

test-programs: $(READY) ## put real programs and adaptive MPI jobs through storms of resizes
	@scripts/programs.sh $(VENV)
	$(PYTEST) -m programs tests/programs tests/system

test-vm: $(READY) ## run the tests that boot virtual machines
	$(PYTEST) -m vm

test-cluster: $(READY) ## run the tests on clusters of namespaces, as root
	$(PYTEST) -m cluster tests/cluster

test-slurm: $(READY) ## run the tests with a real Slurm of Debian's packages, as root
	@scripts/slurm.sh
	$(PYTEST) -m slurm tests/slurm

chaos-slurm: $(READY) ## kill the daemons of a real Slurm with drom, as root; KILLS (100) and SEED may be set
	@scripts/slurm.sh
	$(VENV)/bin/python -m tests.slurm.chaos --kills $(or $(KILLS),100) $(if $(SEED),--seed $(SEED))

SUITES ?= trixie sid

test-slurm-new: $(READY) ## run these with newer Slurms, of Debian's SUITES (trixie sid), as root
	@scripts/slurm.sh
	@scripts/slurm_new.sh $(SUITES)
	@failed=0; for suite in $(SUITES); do \
	    echo "slurm-new: tests with Slurm of Debian's $$suite"; \
	    DROM_SLURM_ROOT=build/slurm-new/$$suite/root $(PYTEST) -m slurm tests/slurm --ignore tests/slurm/test_demo.py --ignore tests/slurm/test_daemon.py --ignore tests/slurm/test_daemon_jobs.py || failed=1; \
	done; exit $$failed

chaos-cluster: $(READY) ## kill scheduler, agents and jobs of a cluster, cut links, as root; KILLS (500) and SEED may be set
	$(VENV)/bin/python -m tests.cluster --kills $(or $(KILLS),500) $(if $(SEED),--seed $(SEED))

chaos-controllers: $(READY) ## kill and pause schedulers, agents and members of etcd, cut links as root; KILLS (500) and SEED may be set
	KILLS=$(or $(KILLS),500) SEED=$(or $(SEED),1) $(PYTEST) -s --timeout 0 -m "system or cluster" -k no_job_is_lost tests/system/test_controllers.py tests/cluster/test_links.py

chaos-fillers: $(READY) ## kill scheduler, agents and what keeps and saves fillers, as root; KILLS (300) and SEED may be set
	@scripts/criu.sh
	DROM_FILLER_KILLS=$(or $(KILLS),300) DROM_FILLER_SEED=$(or $(SEED),1) $(PYTEST) -s tests/system/test_filler_kills.py

manual: $(READY) ## write the manual pages of the commands anew
	$(VENV)/bin/python scripts/manual.py

slurm-plugin: ## compile the SPANK plugin for Slurm, build/slurm/spank_drom.so
	PYTHON=$(PYTHON) contrib/slurm/build.sh

slurm-helper: ## compile the helper of drom slurm, build/slurm/drom-slurm-helper
	contrib/slurm/build_helper.sh

criu: ## provide CRIU and runc, which save jobs and restore them, as root
	@scripts/criu.sh

wheel: $(READY) ## build what is published, in dist/: the sources, and a wheel for any Linux with glibc 2.17 or newer
	rm -rf dist
	$(VENV)/bin/python -m build --outdir dist/built
	$(VENV)/bin/auditwheel show dist/built/*.whl
	PATH="$(abspath $(VENV)/bin):$$PATH" auditwheel repair --wheel-dir dist dist/built/*.whl
	mv dist/built/*.tar.gz dist
	rm -r dist/built

docs: $(READY) ## build the documentation as a site, build/site; a broken link fails
	@$(VENV)/bin/python -c "import sphinx, myst_parser" 2>/dev/null || \
		$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	$(VENV)/bin/python -m sphinx --quiet --fail-on-warning --keep-going -c docs . build/site

lint: $(READY) ## check style, formatting and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@scripts/sources.sh
	cd build/sources && ../../$(VENV)/bin/mypy --config-file ../../pyproject.toml

demo: $(READY) ## watch two malleable programs share this machine
	$(VENV)/bin/drom demo

demo-slurm: $(READY) ## watch jobs of a real Slurm share four nodes on this machine; takes root's rights
	@scripts/slurm.sh
	$(VENV)/bin/drom demo-slurm

demo-cluster: $(READY) ## watch a cluster of four nodes on this machine; takes root's rights
	$(VENV)/bin/drom demo-cluster

demo-controllers: $(READY) ## watch three active schedulers, of which one is killed, on an etcd of three members
	$(VENV)/bin/drom demo-controllers

demo-adaptive: $(READY) ## watch an adaptive MPI job on four nodes shrink and grow; takes root's rights
	$(VENV)/bin/drom demo-adaptive

demo-mixed: $(READY) ## watch jobs get cores, memory and GPUs of unlike nodes on this machine
	$(VENV)/bin/drom demo-mixed

bench: kernel ## measure the costs
	$(VENV)/bin/drom bench

clean: ## remove what was built, keep .venv
	rm -rf build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis $(READY)
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
