# `make demo` and `make test` set up everything they need in .venv, inside this checkout.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Byte code is written when a module is first imported, not for all that is installed: most of it is never used.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo federation test test-long fuzz soak docs check style types format clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip  # newer ones resolve in half the time
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)  ## what clients gain from their kin, on real digits: a table and a figure
	$(BIN)/fedkin run --out results
	$(BIN)/fedkin report results/demo

federation: $(READY)  ## FedAvg, FedProx and FedKin on Flower: a SuperLink and five SuperNodes on this machine
	PYTHONPATH=tools $(BIN)/python -m loopback examples/flower/digits --nodes 5

docs: $(READY)  ## regenerate the figures of the README and the pages (not the benchmark's)
	$(BIN)/fedkin run --out build
	$(BIN)/fedkin report build/demo
	cp build/demo/chosen.png docs/demo.png
	PYTHONPATH=tools $(BIN)/python -m browser build/demo/report.html docs/report.png
	$(BIN)/fedkin theory --out build
	$(BIN)/fedkin theory --quadratic --out build
	PYTHONPATH=tools $(BIN)/python -m algorithm_table

check: style types  ## formatting, lint and types

style: $(READY)
	$(BIN)/ruff format --check src tests tools examples
	$(BIN)/ruff check src tests tools examples

types: $(READY)
	$(BIN)/mypy

# The types take a core for a minute or two, beside kernels and tests; what they say is shown at the end, where it is seen.
# Kernels are compiled before the tests, once, not by each worker. The types are nice: they leave tests of time alone.
test: style  ## check and the tests
	@said=$$(mktemp); trap 'kill $$types 2>/dev/null; rm -f "$$said"' EXIT; trap 'exit 130' INT TERM; \
	echo '$(BIN)/mypy, beside the tests'; nice $(BIN)/mypy >"$$said" 2>&1 & types=$$!; \
	$(BIN)/python -c 'import fedkin.engine.spaces.compiled, fedkin.engine.spaces.primal, fedkin.engine.spaces.scoring, fedkin.models.layer_kernels' \
	&& $(BIN)/pytest -n 2 --dist worksteal; tests=$$?; \
	wait $$types; typed=$$?; cat "$$said"; \
	test $$typed = 0 || echo 'make test: the TYPES are wrong (see above; make types repeats it)'; \
	test $$tests = 0 || echo 'make test: TESTS failed (see above)'; \
	test $$typed = 0 && test $$tests = 0

test-long: $(READY)  ## longer tests with real Flower federations, which `make test` leaves out
	$(BIN)/pytest -m long

fuzz: SEED ?= $(shell date +%s)
fuzz: TIMES ?= 40
fuzz: $(READY)  ## the fuzzers with many more examples: make fuzz TIMES=40 SEED=1 (none: by the clock)
	FEDKIN_FUZZ=$(TIMES) $(BIN)/pytest tests/test_fuzz_*.py --hypothesis-seed=$(SEED)

soak: KILLS ?= 200
soak: $(READY)  ## kill runs at random moments, and compare how they end: make soak KILLS=200 SEED=1
	PYTHONPATH=tools $(BIN)/python -m soak --kills $(KILLS) $(if $(SEED),--seed $(SEED))

format: $(READY)  ## format the code and mend what lint can mend
	$(BIN)/ruff format src tests tools examples
	$(BIN)/ruff check --fix src tests tools examples

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
