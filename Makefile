# Every target makes the environments that it needs, unless they exist.
PYTHON ?= python3
ENVIRONMENTS = $(PYTHON) local/environments.py
# The environment of the stack's Airflow. Not ?=, because k8s/README.md has a variable of this name.
AIRFLOW = airflow
DEMO = PYTHONPATH=plugins .envs/"$$AIRFLOW"/bin/python -m local.demo --airflow "$$AIRFLOW" --state "$$STATE"
NIGHT = driver emulators server airflow "$$AIRFLOW"
LOCAL_CLUSTER = PYTHONPATH=plugins .envs/test/bin/python -m local.cluster
STATE ?= .state$(if $(filter-out local,$(RUNTIME)),-$(RUNTIME))$(if $(filter-out airflow,$(AIRFLOW)),-$(AIRFLOW))
# The shell reads these, so they may contain any character.
export AIRFLOW BASES CLUSTER FILE LOCATION PARTITION PROFILE PROJECT Q RUNTIME STATE TABLE WITH

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-stream search lineage chat-model load up down status env cluster-up cluster-down screenshots test test-all chaos bench bench-gpu figures lint format lock images composer-bundle smoke-gcp

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make all environments (every other target makes those that it needs)
	@$(ENVIRONMENTS) driver stream airflow emulators server test composer figures

demo: ## run one night on this machine: warehouse -> vLLM -> warehouse, then a search (PARTITION=2026-11-19: another day; FRESH=1: compute it again; RUNTIME=kubernetes: run the workers as pods of a real cluster; AIRFLOW=composer: with the versions of Cloud Composer's image)
	@$(ENVIRONMENTS) $(NIGHT)
	@$(DEMO) $(if $(RUNTIME),--runtime "$$RUNTIME") $(if $(PARTITION),--partition "$$PARTITION") $(if $(FRESH),--fresh)

demo-stream: ## run a stream on this machine: messages -> vLLM -> PostgreSQL, a subscriber killed in the middle, then a search
	@$(ENVIRONMENTS) stream emulators server
	@PYTHONPATH=plugins .envs/stream/bin/python -m local.stream_demo

load: ## put a CSV or Parquet file into a table of the running stack: make load FILE=tickets.csv TABLE=support.tickets
	@$(ENVIRONMENTS) airflow
	@PYTHONPATH=plugins .envs/airflow/bin/python -m local.load "$$FILE" "$$TABLE" --state "$$STATE"

search: ## search what the demo published: make search Q="parse yaml"
	@$(ENVIRONMENTS) $(NIGHT)
	@$(DEMO) --search "$$Q"

lineage: ## list the datasets that the stack's OpenLineage events name
	@$(PYTHON) -m local.lineage --state $(STATE)

chat-model: ## make SmolLM2-135M-Instruct, a chat model for jobs on this machine (93 MB; docs/develop/local-stack.md)
	@$(ENVIRONMENTS) server chat-model
	@$(PYTHON) -m local.models smollm2-135m-instruct

up: ## start the local stack and leave it up; prints Airflow's address and password (WITH="pubsub postgres": these parts, too)
	@$(ENVIRONMENTS) $(NIGHT)
	@$(PYTHON) -m local.stack up --airflow "$$AIRFLOW" --state "$$STATE" $(if $(WITH),--with "$$WITH")

down: ## stop the local stack and everything it started
	@$(PYTHON) -m local.stack down --state "$$STATE"

status: ## show what is up in the local stack
	@$(PYTHON) -m local.stack status --state "$$STATE"

env: ## print the variables of the local stack for a shell: eval "$(make env)" (airflow, nightshift status and Google's clients then use the stack)
	@$(PYTHON) -m local.stack env --state "$$STATE"

cluster-up: ## start a real Kubernetes on this machine, with JobSet and Kueue, and print its KUBECONFIG; builds it the first time (needs root, Linux, Go)
	@$(ENVIRONMENTS) test
	@$(LOCAL_CLUSTER) up

cluster-down: ## stop that Kubernetes and remove every trace
	@$(ENVIRONMENTS) test
	@$(LOCAL_CLUSTER) down

screenshots: ## take pictures of Airflow's pages into docs/images/, with Chromium (after make demo and make up)
	@$(ENVIRONMENTS) test
	@PYTHONPATH=plugins .envs/test/bin/python -m local.screenshots --state "$$STATE"

test: ## run the tests that every change must pass, in about half an hour (REQUIRE=all: fail if some cannot run here)
	@$(PYTHON) -m local.test $(foreach tier,$(REQUIRE),--require $(tier))

test-all: ## run all tests, with random seeds, and print the seeds
	@$(PYTHON) -m local.test --all $(foreach tier,$(REQUIRE),--require $(tier))

chaos: ## inject real faults into all processes of a night, and prove that nothing was lost: make chaos N=200 SEED=7
	@$(ENVIRONMENTS) emulators server test
	@PYTHONPATH=plugins .envs/test/bin/python -m tests.chaos.soak --faults $(or $(N),200) $(if $(SEED),--seed $(SEED))

bench: ## measure the driver and the ledger, and write benchmarks/results.txt: make bench P="p2 kill_waste"
	@$(ENVIRONMENTS) driver emulators server test
	@PYTHONPATH=plugins .envs/test/bin/python -m benchmarks $(P)

bench-gpu: ## measure driver and vLLM on an NVIDIA GPU: make bench-gpu ENGINE_PYTHON=... (an interpreter with CUDA's vLLM; CPU=1: tiny models here, to try it)
	@$(ENVIRONMENTS) server chat-model test
	@PYTHONPATH=plugins .envs/test/bin/python -m benchmarks.gpu_models $(STATE)/bench-gpu
	@PYTHONPATH=plugins .envs/test/bin/python -m benchmarks.gpu $(if $(CPU),--cpu --python .envs/server/bin/python,--python "$(or $(ENGINE_PYTHON),python3)") --tokenizers $(STATE)/bench-gpu --out $(STATE)/bench-gpu/results.jsonl

figures: ## measure batching on a real vLLM, and write its part of docs/develop/benchmarks.md with plots, in half an hour (DRAW_ONLY=1: from the figures that are there)
	@$(ENVIRONMENTS) test figures $(if $(DRAW_ONLY),,server)
	@$(if $(DRAW_ONLY),,PYTHONPATH=plugins .envs/test/bin/python -m benchmarks.figures.measure)
	@.envs/figures/bin/python -m benchmarks.figures.draw
	@PYTHONPATH=plugins .envs/test/bin/python -m benchmarks.figures.page

lint: ## run ruff and mypy as the tests do
	@$(ENVIRONMENTS) test
	@.envs/test/bin/ruff format --check .
	@.envs/test/bin/ruff check .
	@.envs/test/bin/mypy

format: ## format the code
	@$(ENVIRONMENTS) test
	@.envs/test/bin/ruff format .
	@.envs/test/bin/ruff check --fix .

smoke-gcp: ## try nightshift on a real project: make smoke-gcp PROJECT=my-project LOCATION=europe-west4 CLUSTER=projects/my-project/locations/europe-west4/clusters/my-cluster (without CLUSTER: everything but a night of a thousand rows; PROFILE=gpu-h100-spot: where it computes)
	@$(ENVIRONMENTS) driver airflow
	@PYTHONPATH=plugins .envs/airflow/bin/python -m local.smoke --project "$$PROJECT" $(if $(LOCATION),--location "$$LOCATION") $(if $(CLUSTER),--cluster "$$CLUSTER") $(if $(PROFILE),--profile "$$PROFILE")

images: ## build the container images with Docker or buildah (BASES=debian: on bases made here, without a registry)
	@$(ENVIRONMENTS) driver
	@$(PYTHON) -m local.containers.images $(if $(BASES),--bases "$$BASES")

composer-bundle: ## write what Cloud Composer needs into dist/composer/: wheel, DAGs, requirements, commands
	@$(ENVIRONMENTS) driver
	@$(PYTHON) -m local.composer

lock: ## compile requirements/*.in into pins
	@$(ENVIRONMENTS) driver
	@UV=$$($(PYTHON) -c 'from local.environments import uv_program; print(uv_program())') requirements/compile.sh
