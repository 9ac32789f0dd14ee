# Two targets are all a newcomer needs: `make demo` and `make test`. Both make .venv first.
PYTHON ?= python3
VENV := .venv/bin

.PHONY: help demo test check format interop sim crash fuzz browser bench lock clean bootstrap
.DEFAULT_GOAL := help

help:  ## Say what each target does
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

bootstrap:  ## Make .venv with the locked packages (every other target does it for you)
	@sh scripts/bootstrap.sh "$(PYTHON)"

demo: bootstrap  ## Run the shop with faults on the embedded broker and show what Spark found
	@$(VENV)/mqtrail demo

test: bootstrap  ## The fast suite, under five minutes on two cores
	@$(VENV)/python -m pytest tests -n 2

check: bootstrap  ## Lint, types, import rules
	@$(VENV)/ruff format --check src tests bench interop examples
	@$(VENV)/ruff check src tests bench interop examples
	@$(VENV)/mypy
	@$(VENV)/lint-imports

format: bootstrap  ## Format and mend what the linter can
	@$(VENV)/ruff format src tests bench interop examples
	@$(VENV)/ruff check --fix src tests bench interop examples

interop: bootstrap  ## Real peers: Apache RocketMQ's clients and servers, fetched with Maven (needs JDK 17 and mvn)
	@$(VENV)/python -m pytest tests/interop -m interop

sim: bootstrap  ## Seeded lives of whole clusters that crash, a minute of seeds of its own; prints how to replay
	@$(VENV)/python -m tests.sim

crash: bootstrap  ## kill -9 of real brokers under load, and a disk that fills up; some rounds of each
	@$(VENV)/python -m tests.crash

fuzz: bootstrap  ## Random and mutated frames at both servers and at the net layer, for a minute
	@$(VENV)/python -m tests.fuzz

bench: bootstrap  ## The figures, beside a real Apache RocketMQ broker (needs cc, JDK 17 and mvn)
	@$(VENV)/python -m bench

lock: bootstrap  ## Renew the locked versions and hashes
	@$(VENV)/python -m pip --disable-pip-version-check --quiet install uv
	@$(VENV)/uv pip compile -q --upgrade --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-annotate --no-header requirements/build.in -o requirements/build.lock
	@$(VENV)/uv pip compile -q --upgrade --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-annotate --no-header requirements/all.in -o requirements/all.lock

clean:  ## Remove what the targets made
	rm -rf .venv .build mqtrail-data .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
