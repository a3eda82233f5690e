# Two commands do everything:  make book   and   make test      (make help lists the rest)
#
#   VENV    the environment's folder (default .venv); one environment may serve several clones
#   PYTHON  the Python that creates it (3.11 or newer)
#   JOBS    chapters executed at the same time
#   TORCH   cpu: PyTorch without its GPU libraries, which its registry lacks for Linux: TORCH_INDEX names an index of wheels that
#           has it, or TORCH_WHEEL the files. An environment stays what it was made as.
VENV   ?= .venv
PYTHON ?= python3
JOBS   ?= $(shell n=$$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1); [ $$n -gt 4 ] && echo 4 || echo $$n)

override VENV := $(abspath $(VENV))
BIN    := $(VENV)/bin
PY     := $(BIN)/python
STAMP  := $(VENV)/.fedlearn-installed
FLOWER := $(VENV)-flower
CLASS  := $(VENV)-class
DIST   := $(VENV)-dist
TORCH  ?= $(shell sed -n 3p "$(STAMP)" 2>/dev/null)
LOCK   := requirements$(if $(TORCH),-$(TORCH)).lock
HTML   := _build/html

# The clone that is being built always wins over whatever clone the environment was installed for.
export PYTHONPATH := $(CURDIR)
# One thread for each kernel: chapters run side by side, and their numbers do not depend on the number of cores.
export OMP_NUM_THREADS ?= 1
export PYTHONDONTWRITEBYTECODE := 1
export PYTHONHASHSEED := 0
export FEDLEARN_JOBS := $(JOBS)
# Kernels choose matplotlib's inline backend only when nobody else chose one; the kernel is this environment's own.
unexport MPLBACKEND
export JUPYTER_PREFER_ENV_PATH := 1
export JUPYTER_PLATFORM_DIRS := 1

PYTEST := $(PY) -m pytest
# An hour for a cell and for a kernel's start: limits are against hanging only.
NBVAL  := --nbval-lax --nbval-current-env --nbval-sanitize-with tests/chapters/nbval_sanitize.cfg \
  --nbval-cell-timeout=3600 --nbval-kernel-startup-timeout=3600
title   = @printf '\n==== %s ====\n' '$(1)'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help env env-flower env-class env-dist with-flower book pdf live test test-all lint test-unit test-chapters test-class test-dist test-browser test-flower record-flower gpu lock clean

help:
	@echo 'make book           environment, execution of all chapters, site in $(HTML), slides and cheat sheets in its slides/'
	@echo 'make pdf            book, then the whole of it as one PDF, which the site offers'
	@echo 'make test           everything that is tested, in the order of the next six lines'
	@echo 'make lint             ruff and mypy'
	@echo 'make test-unit        the package'
	@echo 'make test-chapters    every chapter through nbval, with other parameters'
	@echo 'make test-class       the class edition through nbgrader and otter-grader, in an environment of its own ($(notdir $(CLASS)), beside the other)'
	@echo 'make test-flower      the same methods on Flower, in an environment of its own ($(notdir $(FLOWER)), beside the other)'
	@echo 'make test-browser     every chapter through papermill into the book; the built site and live widgets in headless Chromium (a choice of pages; test-all: each)'
	@echo 'make test-all       the same with what is marked slow: every page, method and pair of parts, the PDF, kills'
	@echo 'make test-dist        of that: wheel and sdist through twine, and in empty environments'
	@echo 'make live           JupyterLab on the chapters'
	@echo 'make gpu            all that only a GPU can show, into a folder (OUT=gpu-results MINUTES=20 STEPS="tests chapters speed recipes");'
	@echo '                    PYTHON needs torch, numpy and safetensors; no environment is made'
	@echo 'make lock           requirements*.lock anew from pyproject.toml and constraints*.txt'
	@echo 'make clean          remove the build (not the environment)'
	@echo 'Options: VENV=<folder> PYTHON=<python 3.11+> JOBS=<chapters at a time>'
	@echo '         TORCH=cpu with TORCH_INDEX=<index of wheels> or TORCH_WHEEL=<files>: no GPU libraries'

# ---- environment -------------------------------------------------------------------------------------------------
# Installed once for each version of pyproject.toml + constraints.txt; when another clone used the environment last,
# only the package itself is pointed here again.
# PyTorch for the CPU comes first, from where the user says, in the versions of constraints.txt or of the files; the rest of its
# lock is requirements.lock's.
ifneq ($(filter-out cpu,$(TORCH)),)
  $(error TORCH is cpu or not given, not '$(TORCH)')
endif
define TORCH_FIRST
if [ -n "$(TORCH_WHEEL)" ]; then \
	    "$(PY)" -m pip install --disable-pip-version-check -q --no-deps $(TORCH_WHEEL); \
	  elif [ -n "$(TORCH_INDEX)" ]; then \
	    "$(PY)" -m pip install --disable-pip-version-check -q --no-deps --index-url "$(TORCH_INDEX)" -c constraints.txt torch torchvision; \
	  elif ! "$(PY)" -c "import sys, torch; sys.exit(torch.version.cuda is not None)" 2>/dev/null; then \
	    echo "TORCH=cpu needs TORCH_INDEX=<index of wheels>, such as https://download.pytorch.org/whl/cpu, or TORCH_WHEEL=<files>" >&2; exit 1; \
	  fi;
endef
env:
	@set -e; \
	usable() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	if ! "$(PY)" -m pip --version >/dev/null 2>&1; then \
	  usable "$(PYTHON)" || { echo "The book needs Python 3.11 or newer, but '$(PYTHON)' is missing or older: run make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }; \
	  printf '\n==== environment in %s ====\n' "$(VENV)"; \
	  "$(PYTHON)" -m venv "$(VENV)"; \
	fi; \
	usable "$(PY)" || { echo "The environment $(VENV) has a Python older than 3.11: remove it, or choose another with VENV=..." >&2; exit 1; }; \
	deps=$$(cat pyproject.toml $(LOCK) | cksum); here="$(CURDIR)"; \
	if [ "$$(sed -n 1p "$(STAMP)" 2>/dev/null)" != "$$deps" ]; then \
	  printf '\n==== installing into %s (a few minutes the first time) ====\n' "$(VENV)"; \
	  rm -f "$(STAMP)"; \
	  $(if $(TORCH),$(TORCH_FIRST)) \
	  "$(PY)" -m pip install --disable-pip-version-check -q $(if $(TORCH),--no-deps) --require-hashes -r $(LOCK); \
	  "$(PY)" -m pip install --disable-pip-version-check -q --no-build-isolation --no-deps -e .; \
	elif [ "$$(sed -n 2p "$(STAMP)")" != "$$here" ]; then \
	  "$(PY)" -m pip install --disable-pip-version-check -q --no-build-isolation --no-deps -e .; \
	fi; \
	printf '%s\n%s\n%s\n' "$$deps" "$$here" "$(TORCH)" > "$(STAMP)"

# Flower pins packaging, typer, rich and others tightly, and nbgrader, otter-grader and twine are needed by one test each, so each gets an
# environment of its own: a small one on top of the first (whose packages it sees, so that torch is there once), in which its
# versions come first.
env-flower env-class env-dist: env-%: env
	@set -e; its="$(VENV)-$*"; \
	deps=$$(cat pyproject.toml $(LOCK) requirements-$*.lock | cksum); \
	if [ "$$(cat "$$its/.fedlearn-installed" 2>/dev/null)" != "$$deps" ]; then \
	  printf '\n==== installing into %s ====\n' "$$its"; \
	  rm -rf "$$its"; \
	  "$(PY)" -m venv "$$its"; \
	  base=$$("$(PY)" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	  own=$$("$$its/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	  printf 'import site; site.addsitedir("%s")\n' "$$base" > "$$own/fedlearn_base.pth"; \
	  "$$its/bin/python" -m pip install --disable-pip-version-check -q --require-hashes -r requirements-$*.lock; \
	  "$$its/bin/python" -m pip install --disable-pip-version-check -q --no-build-isolation --no-deps -e .; \
	  "$$its/bin/python" -m ipykernel install --prefix "$$its" --name python3 >/dev/null; \
	  printf '%s\n' "$$deps" > "$$its/.fedlearn-installed"; \
	fi

# Where Flower can be had, the chapters' kernels have it; where not, the book is built without, and says so.
ABSENT = printf '\n**** %s cannot be installed here (see above): %s. ****\n\n' "$(1)" "$(2)"
with-flower: env
	@$(MAKE) --no-print-directory env-flower || { rm -rf "$(FLOWER)"; $(call ABSENT,Flower,the chapter about it shows a recorded run instead); }

# The versions of constraints.txt, for every system, with the hashes that pip must find. Needs a network.
lock: env
	$(call title,lock files)
	@"$(PY)" -m pip install --disable-pip-version-check -q "uv>=0.12"
	@UV="$(BIN)/uv" sh -e tests/lock.sh

# ---- book --------------------------------------------------------------------------------------------------------
# --all so that old warnings are seen again; chapters that did not change come from the execution cache.
book live: export JUPYTER_PATH := $(FLOWER)/share/jupyter
book: env with-flower
	$(call title,book)
	@$(BIN)/jupyter-book build book --config _config.yml --path-output . -W -n --keep-going --all
	@test -f _config.yml
	@$(PY) book/_slides.py
	@printf '\nThe book is ready: open %s in a browser (no server and no network needed).\n' "file://$(CURDIR)/$(HTML)/index.html"

# Printed from the built site.
pdf: book
	$(call title,PDF)
	@CHROMIUM="$$($(PY) tests/browser/chromium.py)" && export CHROMIUM && $(PY) book/_pdf.py

live: env with-flower
	@$(BIN)/jupyter lab --allow-root --notebook-dir=book

# ---- tests -------------------------------------------------------------------------------------------------------
# `make test-all` takes what is marked slow, too: every page, every method on Flower, every pair of parts, the PDF.
EACH := test-unit test-chapters test-class test-flower
test: lint $(EACH) test-browser
	@printf '\n==== all tests passed ====\n'

test-all: SLOW := -m ""
test-all: lint $(EACH) test-dist pdf test-browser
	$(call title,golden histories; hostile messages and kills)
	@$(PY) tests/golden/golden.py compare --engines sequential stacked
	@$(PY) tests/benchmarks/fuzz.py messages --count 100000
	@$(PY) tests/benchmarks/fuzz.py kills --count 20
	@printf '\n==== all tests passed, the slow ones, too ====\n'

lint: env
	$(call title,ruff: rules and form)
	@$(BIN)/ruff check --no-cache . && $(BIN)/ruff format --no-cache --check .
	$(call title,mypy: types)
	@$(BIN)/mypy --no-incremental

test-unit: env
	$(call title,unit tests)
	@MPLBACKEND=Agg $(PYTEST) tests/unit $(SLOW) -n $(JOBS)

# nbval, papermill and Playwright each get a process of their own: their event loops block one another.
# Each chapter is executed twice: here by nbval with other parameters, and by papermill with its own when the book is built.
test-chapters: env
	$(call title,chapters: nbval with other parameters)
	@$(PY) tests/chapters/other.py _build/other
	@$(PYTEST) _build/other $(NBVAL) -n $(JOBS) --dist loadfile
	$(call title,chapters: form and parameters)
	@$(PYTEST) tests/chapters $(SLOW) -n $(JOBS)

# This and the next fail if a test fails; only where nbgrader or Flower cannot be installed at all is it left out, loudly.
test-class: env
	$(call title,the class edition through nbgrader and otter-grader)
	@if $(MAKE) --no-print-directory env-class; then $(CLASS)/bin/python -m pytest tests/class; \
	else rm -rf "$(CLASS)"; $(call ABSENT,nbgrader or otter-grader,THEIR TEST DID NOT RUN); fi

test-dist: env
	$(call title,wheel and sdist in empty environments)
	@if $(MAKE) --no-print-directory env-dist; then $(DIST)/bin/python -m pytest tests/dist; \
	else rm -rf "$(DIST)"; $(call ABSENT,twine,ITS TESTS DID NOT RUN); fi

test-flower: env
	$(call title,Flower)
	@if $(MAKE) --no-print-directory env-flower; then \
	  MPLBACKEND=Agg $(FLOWER)/bin/python -m pytest tests/flower $(SLOW) && \
	  $(PY) tests/chapters/other.py _build/other-flower together/flower together/flower_audit && \
	  $(FLOWER)/bin/python -m pytest _build/other-flower $(NBVAL); \
	else rm -rf "$(FLOWER)"; $(call ABSENT,Flower,ITS TESTS DID NOT RUN); fi

# What the tests saw, with every method in the simulation, becomes what the chapter shows.
record-flower: SLOW := -m ""
record-flower: test-flower
	$(FLOWER)/bin/python tests/benchmarks/flower.py
	$(PY) tests/flower/record.py

test-browser: book
	$(call title,the built site in Chromium)
	@CHROMIUM="$$($(PY) tests/browser/chromium.py)" && export CHROMIUM && $(PYTEST) tests/browser $(SLOW) -n $(JOBS)

# With the Python that is there: a machine with a GPU may have neither network nor book tools.
gpu:
	@$(PYTHON) tests/gpu/run.py --out "$(or $(OUT),gpu-results)" --minutes $(or $(MINUTES),20) $(if $(STEPS),--steps $(STEPS))

clean:
	rm -rf _build build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
