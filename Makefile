# make demo   the main job, offline, on the bundled world; ends with demo-out/report.html
# make demo-long  the same on four times as many scenes, half an hour; demo-long-out/report.html
# make lab    all recipes compared with the same data and samples (two hours at most; goes on after a stop)
# make photos DATA=PATH     a base of real photos (reports/real-photos.md); goes on after a stop
# make photo-lab DATA=PATH  the recipes compared on real photos, 2 hours; goes on after a stop
# make bench  throughput and memory of every stage, as ratios, with the targets
# make test   the whole test suite
# make lint   style and types
# make docs   the guide and the API reference, in site/
# Each does everything on a fresh machine with Python >= 3.11: creates .venv, installs, runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo demo-long lab photos photo-lab bench test lint docs install clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml world/pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "compoclip needs Python >= 3.11; run: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into $(VENV), which takes about two minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable ".[dev]" --editable world
	$(BIN)/python -m compileall -q src world lab bench scripts
	touch $@

demo: install
	$(BIN)/compoclip demo --out demo-out

demo-long: install
	$(BIN)/compoclip demo --out demo-long-out --scenes 64000

lab: install
	$(BIN)/python -m lab --out lab-out --page reports/lab.md

photos: install
	@test -n "$(DATA)" || { echo "where are the photos? make $@ DATA=PATH (reports/real-photos.md)"; exit 2; }
	PATH="$(CURDIR)/$(BIN):$$PATH" recipes/photos/pretrain.sh "$(DATA)" photos-out

photo-lab: photos
	$(BIN)/python -m lab --photos "$(DATA)" --page reports/real-photos.md

bench: install
	$(BIN)/python -m bench all

# Processes take whole files, in their order; one that dies ends the run. What they start reads compiled modules.
test: install
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --max-worker-restart 0

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable ".[dev,docs]" --editable world
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) site demo-out demo-long-out lab-out photos-out photo-lab-out .mypy_cache .ruff_cache .pytest_cache .hypothesis
