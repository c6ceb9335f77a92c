# propose: search for better kernels of one op and put them on a branch.   make propose OP=front ARGS="--rounds 24"
# test:    everything that CI runs, offline once installed.        make test ARGS="tests/fasttrack -x"
# clean:   remove what the two made.

PYTHON ?= python3
MODEL ?= kimi_k3
OP ?= kda_decode
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: propose test clean

propose: $(INSTALLED)
	$(VENV)/bin/fasttrack propose $(MODEL) --op $(OP) $(ARGS)

# One thread a worker, and one worker more than cores: each waits a third of its time for processes of its own. Files go
# to workers in the order of tests/conftest.py: the longest first.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) \
	  --dist loadfile --no-loadscope-reorder $(ARGS)

# The stamp comes last, so an install that was cut off is done again.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "fasttrack needs Python 3.11 to 3.13; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; \
	    echo "choose another one: make PYTHON=python3.12" >&2; exit 2; }
	@rm -f $@
	@echo "installing into $(VENV): 2.6 GB (torch and Triton among it), which takes some minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,cuda]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
