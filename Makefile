# Two targets are all a newcomer needs: `make demo` and `make test`. Both make .venv first.
PYTHON ?= python3
VENV := .venv/bin
CODE := src tests bench interop examples scripts

.PHONY: help demo test slow thorough check format coverage spark cycles browser pictures databases outages interop sim crash links kills fuzz bench docs release lock clean bootstrap
.DEFAULT_GOAL := help
# Tests and tools start hundreds of Python processes: let them keep what they compile.
unexport PYTHONDONTWRITEBYTECODE
# RERUN=FILE runs failed tests once more, alone, and lists those that then pass in FILE. .ci/run sets it.
PYTEST := $(VENV)/python -m $(if $(RERUN),tests.rerun --flaky $(RERUN),pytest)
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 2 ? 2 : n > 4 ? 4 : n)))
COMPILE = $(VENV)/uv pip compile -q --upgrade --python-version 3.11 --universal --generate-hashes --no-emit-index-url \
	--no-annotate --no-header

help:  ## Show what each target does
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

bootstrap:  ## Make .venv with the locked packages (every other target does it for you)
	@sh scripts/bootstrap.sh "$(PYTHON)"

demo: bootstrap  ## Run the shop with faults on the embedded broker and show what Spark found
	@$(VENV)/mqtrail demo

test: bootstrap  ## The fast suite, under five minutes on two cores (JOBS=N: processes; default: cores, 2 to 4)
	@$(PYTEST) tests -n $(JOBS)

slow: bootstrap  ## Tests that take a second or more: large tables, killed processes, further seeds, planted bugs
	@$(PYTEST) tests -m slow -n $(JOBS)

thorough: bootstrap  ## The suites test and slow with all seeds and histories, and twenty times as many examples
	@$(PYTEST) tests -m "not interop and not spark and not cycles and not browser and not databases" -n $(JOBS) --hypothesis-profile thorough --timeout 3600

spark: bootstrap  ## The pipeline on Spark: jobs, sources, tasks, pipelines that are killed
	@$(PYTEST) tests -m spark -n 2

cycles: bootstrap  ## Tests that judging in cycles, in shares, after crashes and migrations equals judging everything at once
	@$(PYTEST) tests -m cycles -n 2

check: bootstrap  ## Lint, types, import rules
	@$(VENV)/ruff format --check $(CODE)
	@$(VENV)/ruff check $(CODE)
	@$(VENV)/mypy
	@$(VENV)/lint-imports

format: bootstrap  ## Format the code and fix what the linter can
	@$(VENV)/ruff format $(CODE)
	@$(VENV)/ruff check --fix $(CODE)

coverage: bootstrap  ## The suites test, slow, spark and cycles with coverage; fails if a room is below its floor (WRITE=1: set new floors)
	@mkdir -p .build
	@$(VENV)/python -m pytest tests -m "not interop and not browser and not databases and not timed" -n $(JOBS) --timeout 600 --cov --cov-report=json:.build/coverage.json
	@$(VENV)/python scripts/coverage_floors.py .build/coverage.json $(if $(WRITE),--write)

browser: bootstrap  ## The console in the system's Chromium (as root the Debian package is installed); pictures in .build/browser
	@sh scripts/chromium.sh
	@$(PYTEST) tests/browser -m browser -n 2

pictures: bootstrap  ## Take the docs' pictures of the console again, in docs/pictures
	@sh scripts/chromium.sh
	@PICTURES=1 $(PYTEST) tests/browser -m browser -n 2

databases: bootstrap  ## The store on tables and the client over real PostgreSQL, MariaDB and Redis (as root their Debian packages are installed)
	@sh scripts/databases.sh
	@for mode in postgresql mariadb nodes; do $(VENV)/python -m tests.crash --mode $$mode --rounds 3 & jobs="$$jobs $$!"; done; \
	$(PYTEST) tests/databases tests/store tests/scenarios -m databases -n 2; failed=$$?; \
	for job in $$jobs; do wait $$job || failed=1; done; exit $$failed

outages: bootstrap  ## Kill brokers and their database servers under load (ROUNDS=N: N kills of each mode; 100 by default), and stop a server for a minute
	@sh scripts/databases.sh
	@for mode in postgresql mariadb nodes; do \
		$(VENV)/python -m tests.crash --mode $$mode --rounds $(or $(ROUNDS),100) || failed=1; \
		$(VENV)/python -m tests.crash --mode $$mode --rounds 3 --down 60 || failed=1; \
	done; exit $${failed:-0}

interop: bootstrap  ## Real peers: Apache RocketMQ's clients and servers, fetched with Maven (needs JDK 17 and mvn)
	@$(PYTEST) tests/interop -m interop -n 4 --no-loadscope-reorder

sim: bootstrap  ## Simulate clusters that crash, for a minute (SEEDS=N: N seeds of each kind; FIRST=N: from N on); a failure prints how to replay it
	@$(VENV)/python -m tests.sim $(if $(FIRST),--first $(FIRST)) $(if $(SEEDS),--count $(SEEDS))

crash: bootstrap  ## Kill real brokers under load, then fill a disk (ROUNDS=N: N kills in each mode)
	@$(VENV)/python -m tests.crash $(if $(ROUNDS),--rounds $(ROUNDS))

links: bootstrap  ## Kill, stop and cut off members of replicated groups, and fill their disks (ROUNDS=N faults in each mode; 100 by default)
	@for mode in classic controller dledger; do $(VENV)/python -m tests.crash --mode links-$$mode --rounds $(or $(ROUNDS),100) && \
	$(VENV)/python -m tests.crash --mode full-$$mode || exit 1; done

kills: bootstrap  ## Kill a running pipeline 50 times under load (KILLS=N)
	@$(VENV)/python -m tests.crash.pipeline $(if $(KILLS),--kills $(KILLS))

fuzz: bootstrap  ## Fuzz servers, clients' readers and filters for a minute (SECONDS=N, FRAMES=N, SEED=N)
	@$(VENV)/python -m tests.fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(FRAMES),--count $(FRAMES)) $(if $(SEED),--seed $(SEED))

bench: bootstrap  ## The figures, beside a real Apache RocketMQ broker (needs cc, JDK 17 and mvn)
	@$(VENV)/python -m bench

docs: bootstrap  ## Build the site in site/, with the Python API; fails on a dead link
	@sh scripts/docs.sh

release: bootstrap  ## Build wheel and sdist in dist/, install the wheel in an empty environment and try it (no upload)
	@sh scripts/release.sh

lock: bootstrap  ## Renew the locked versions and hashes from pyproject.toml
	@$(VENV)/python -m pip --disable-pip-version-check --quiet install uv
	@$(COMPILE) --group build -o requirements/build.lock
	@$(COMPILE) pyproject.toml --all-extras --group dev -o requirements/all.lock
	@$(COMPILE) --group docs -o requirements/docs.lock

clean:  ## Remove what the targets made
	rm -rf .venv .build mqtrail-data .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist site .coverage
