# Included by the Makefile above. Studies run in an environment of their own, which `make setup` and
# `make test` don't make.
STUDIES_VENV := .venv-studies
STUDIES_READY := $(STUDIES_VENV)/.ready
STUDY := $(STUDIES_VENV)/bin/python -m studies

.PHONY: studies-test bench-autoscale bench-autoscale-many bench-unseen-loads bench-lengths bench-forecasters bench-priorities bench-headline bench-simulator bench-first-tokens bench-capacity bench-prefix bench-placement bench-lending bench-queue-order bench-readers study-energy

$(STUDIES_READY): pyproject.toml requirements.lock
	$(call ENVIRONMENT,$(STUDIES_VENV),product studies,300 MB on disk: some seconds)
	@touch $@

studies-test: $(STUDIES_READY) ## The studies' own tests (two minutes)
	@$(STUDIES_VENV)/bin/pytest -c studies/pytest.ini --rootdir . -n 2 studies/tests

bench-autoscale: $(STUDIES_READY) ## Study: autoscaling policies replayed on real arrivals: build/reports/autoscale.json (minutes)
	@$(STUDY).autoscale

bench-autoscale-many: $(STUDIES_READY) ## Study: many services at once, with caches and pools: build/reports/autoscale_many.json, .png (an hour)
	@$(STUDY).autoscale.many

bench-unseen-loads: $(STUDIES_READY) ## Study: autoscaling on loads drawn at random: build/reports/autoscale_unseen.json (LOADS=14 FIRST=0; half an hour)
	@$(STUDY).autoscale.unseen $(if $(FIRST),--first $(FIRST)) $(if $(LOADS),--loads $(LOADS))

bench-lengths: $(STUDIES_READY) ## Study: what forecasts by tokens would save: build/reports/autoscale_lengths.json (minutes)
	@$(STUDY).autoscale.lengths

bench-forecasters: $(STUDIES_READY) ## Study: forecasts of load, trained ones too: build/reports/forecasters.json (minutes)
	@$(STUDY).forecasters

bench-priorities: $(STUDIES_READY) ## Study: rules of priority, trained ones too, on five clusters: build/reports/priorities.json (minutes)
	@$(STUDY).priorities

bench-headline: $(STUDIES_READY) ## Study: two public clusters, and services with batch, beside other systems: build/reports/headline.json (half an hour)
	@$(STUDY).headline

bench-simulator: $(STUDIES_READY) ## Study: a simulated month of 1,000 GPUs and 100,000 jobs: build/reports/simulator.json (an hour)
	@$(STUDY).simulator

bench-first-tokens: $(STUDIES_READY) ## Study: whether ttft_ms is kept behind a model of vLLM's scheduler: build/reports/first_tokens.json (minutes)
	@$(STUDY).first_tokens

bench-capacity: $(STUDIES_READY) ## Study: how well the concurrency of a replica is learnt: build/reports/capacity.json (minutes)
	@$(STUDY).capacity

bench-prefix: $(STUDIES_READY) ## Study: which replica gets a conversation: build/reports/prefix_routing.json (seconds)
	@$(STUDY).prefix_routing

bench-placement: $(STUDIES_READY) ## Study: MIG placement and profiles, beside others and the optimum: build/reports/placement.json (minutes)
	@$(STUDY).placement

bench-lending: $(STUDIES_READY) ## Study: who must go, what starts on idle quota, how long lenders wait: build/reports/lending.json (minutes)
	@$(STUDY).lending

study-energy: $(STUDIES_READY) ## Study: joules for the same work beside other systems, and which lever saves what: build/reports/energy.json, .png (nine minutes of CPU)
	@$(STUDY).energy

bench-queue-order: $(STUDIES_READY) ## Study: orders of a full service's queue: build/reports/queue_order.json (a minute)
	@$(STUDY).queue_order

# On a real Slurm, in the sandbox: with the product's environment.
bench-readers: setup ## Study: reading Slurm by commands, pyslurm, slurmrestd: build/reports/readers.json (SLURM=25.11.7; minutes)
	@$(BIN)/python -m studies.readers
