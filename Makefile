# Every target makes the environments that it needs; those that are there are not made again.
PYTHON ?= python3
ENVIRONMENTS = $(PYTHON) local/environments.py
STATE ?= .state
export STATE

.DEFAULT_GOAL := help
.PHONY: help setup demo search up down status test lint format lock clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make all environments (every other target makes those that it needs)
	@$(ENVIRONMENTS) driver airflow emulators server test

demo: ## one night on this machine: warehouse -> vLLM -> warehouse, then a search (PARTITION=2026-11-19 for another day)
	@$(ENVIRONMENTS) driver airflow emulators server
	@$(PYTHON) -m local.demo

search: ## search what the demo published: make search Q="parse yaml"
	@$(ENVIRONMENTS) driver airflow emulators server
	@$(PYTHON) -m local.demo search

up: ## start the local stack and leave it up; prints Airflow's address and password
	@$(ENVIRONMENTS) driver airflow emulators server
	@$(PYTHON) -m local.stack up --state $(STATE)

down: ## stop the local stack and everything that it started
	@$(PYTHON) -m local.stack down --state $(STATE)

status: ## say what of the local stack is up
	@$(PYTHON) -m local.stack status --state $(STATE)

test: ## all tests; says what was skipped and why
	@$(ENVIRONMENTS) driver airflow emulators server test
	@$(PYTHON) local/test.py

lint: ## ruff and mypy, as the tests run them
	@$(ENVIRONMENTS) test
	@.envs/test/bin/ruff format --check .
	@.envs/test/bin/ruff check .
	@.envs/test/bin/mypy

format: ## put the code into shape
	@$(ENVIRONMENTS) test
	@.envs/test/bin/ruff format .
	@.envs/test/bin/ruff check --fix .

lock: ## compile requirements/*.in into pins
	@$(ENVIRONMENTS) driver
	@UV=$$($(PYTHON) -c 'from local.environments import _uv; print(_uv())') requirements/compile.sh

clean: down ## stop the stack and delete its data
	@rm -rf $(STATE)
