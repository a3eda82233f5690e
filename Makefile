# Two commands do everything:  make book   and   make test      (make help lists the rest, and the options)
VENV   ?= .venv
PYTHON ?= python3
JOBS   ?= $(shell unset OMP_NUM_THREADS; n=$$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1); [ $$n -gt 4 ] && echo 4 || echo $$n)

override VENV := $(abspath $(VENV))
BIN    := $(VENV)/bin
PY     := $(BIN)/python
STAMP  := $(VENV)/.fedlearn-installed
FLOWER := $(VENV)-flower
TORCH  ?= $(shell sed -n 3p "$(STAMP)" 2>/dev/null)
BOOK   ?= book
LOCK   := requirements$(if $(TORCH),-$(TORCH)).lock
PIP    := -m pip install --disable-pip-version-check -q

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
MARK    = $(if $(SLOW),-m "")
# An hour for a cell and for a kernel's start: limits are against hanging only.
NBVAL  := --nbval-lax --nbval-current-env --nbval-sanitize-with tests/chapters/nbval_sanitize.cfg \
  --nbval-cell-timeout=3600 --nbval-kernel-startup-timeout=3600

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help env env-flower env-class env-dist with-flower lock book pdf live test test-all lint test-unit test-chapters \
  test-class test-flower test-browser test-dist test-golden test-processors test-fuzz record-flower gpu clean

help: # this list
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*# /\1 /p' Makefile | while read -r name what; do printf 'make %-14s %s\n' "$$name" "$$what"; done
	@echo 'Options: VENV=<folder> (default .venv; one may serve several clones) PYTHON=<python 3.11+ that makes it>'
	@echo '         TORCH=cpu with TORCH_INDEX=<index of wheels> or TORCH_WHEEL=<files>: no GPU libraries; an environment stays as it was made'
	@echo '         JOBS=<chapters at a time> SLOW=1 (tests marked slow, too) BOOK= (of the book as it is built)'
	@echo '         OUT=gpu-results MINUTES=20 STEPS="tests chapters speed recipes" (make gpu)'

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
	    "$(PY)" $(PIP) --no-deps $(TORCH_WHEEL); \
	  elif [ -n "$(TORCH_INDEX)" ]; then \
	    "$(PY)" $(PIP) --no-deps --index-url "$(TORCH_INDEX)" -c constraints.txt torch torchvision; \
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
	  "$(PY)" $(PIP) $(if $(TORCH),--no-deps) --require-hashes -r $(LOCK); \
	fi; \
	if [ "$$(sed -n 2p "$(STAMP)" 2>/dev/null)" != "$$here" ]; then \
	  "$(PY)" $(PIP) --no-build-isolation --no-deps -e .; \
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
	  "$$its/bin/python" $(PIP) --require-hashes -r requirements-$*.lock; \
	  "$$its/bin/python" $(PIP) --no-build-isolation --no-deps -e .; \
	  "$$its/bin/python" -m ipykernel install --prefix "$$its" --name python3 >/dev/null; \
	  printf '%s\n' "$$deps" > "$$its/.fedlearn-installed"; \
	fi

# Where an environment cannot be installed at all, what needs it is left out, loudly.
define WITH
@if $(MAKE) --no-print-directory env-$(1); then $(3); else rm -rf "$(VENV)-$(1)"; \
	  printf '\n**** What $@ needs cannot be installed here (see above): %s. ****\n\n' '$(2)'; fi
endef
with-flower: env
	$(call WITH,flower,the chapter about Flower shows a recorded run,:)

# The versions of constraints.txt, for every system, with the hashes that pip must find. Needs a network.
lock: env # requirements*.lock anew from pyproject.toml and constraints*.txt
	@"$(PY)" $(PIP) "uv>=0.12"
	@UV="$(BIN)/uv" sh -e tests/lock.sh

# ---- book --------------------------------------------------------------------------------------------------------
# --all so that old warnings are seen again; chapters that did not change come from the execution cache.
book live: export JUPYTER_PATH := $(FLOWER)/share/jupyter
book: env with-flower # environment, execution of all chapters, site in _build/html, slides and cheat sheets in its slides/
	@$(BIN)/jupyter-book build book --config _config.yml --path-output . -W -n --keep-going --all
	@$(PY) book/_slides.py
	@printf '\nThe book is ready: open %s in a browser (no server and no network needed).\n' "file://$(CURDIR)/_build/html/index.html"

pdf: $(BOOK) # the whole book as one PDF, which the site offers
	@CHROMIUM="$$($(PY) tests/browser/chromium.py)" && export CHROMIUM && $(PY) book/_pdf.py

live: env with-flower # JupyterLab on the chapters
	@$(BIN)/jupyter lab --allow-root --notebook-dir=book

# ---- tests -------------------------------------------------------------------------------------------------------
# Each part in turn, also after one that failed; at the end what each took, and which failed. They share one book.
define EACH
+@failed=; told=; for part in $(1); do \
	  printf '\n==== %s ====\n' $$part; began=$$(date +%s); how=passed; \
	  $(MAKE) --no-print-directory BOOK= $(2) $$part || { how=FAILED; failed="$$failed $$part"; }; \
	  seconds=$$(($$(date +%s) - began)); \
	  told="$$told$$(printf '%-14s %s %4d min %02d s' $$part $$how $$((seconds / 60)) $$((seconds % 60)))\n"; \
	done; \
	printf '\n==== make $@ ====\n%b' "$$told"; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi
endef

# The book is built with what holds the sentences of the chapters: tests/chapters/prose.yaml.
test test-all: export FEDLEARN_HOLDS := $(CURDIR)/tests/chapters/other.py
test: env # the book and the next seven
	$(call EACH,lint test-golden test-unit test-chapters test-class test-flower book test-browser)

test-all: env # every test, also of what is marked slow: every page, method and pair of parts; and the PDF
	$(call EACH,lint test-golden test-unit test-chapters test-class test-flower test-dist book pdf test-browser test-fuzz,SLOW=1)

lint: env # ruff and mypy
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --no-cache --check .
	@$(BIN)/mypy --no-incremental

test-unit: env # the package
	@MPLBACKEND=Agg $(PYTEST) tests/unit $(MARK) -n $(JOBS)

# nbval, papermill and Playwright each get a process of their own: their event loops block one another.
# Each chapter is executed twice: here by nbval with other parameters, and by papermill with its own when the book is built.
test-chapters: env # every chapter through nbval, with other parameters
	@$(PY) tests/chapters/other.py _build/other
	@$(PYTEST) _build/other $(NBVAL) -n $(JOBS) --dist loadfile
	@$(PYTEST) tests/chapters $(MARK) -n $(JOBS)

test-class: env # the class edition through nbgrader and otter-grader, in an environment of its own beside the other
	$(call WITH,class,ITS TESTS DID NOT RUN,$(VENV)-class/bin/python -m pytest tests/class -n $(JOBS))

test-flower: env # the same methods on Flower, in an environment of its own beside the other
	$(call WITH,flower,ITS TESTS DID NOT RUN,MPLBACKEND=Agg $(FLOWER)/bin/python -m pytest tests/flower $(MARK) -n $(JOBS) --dist loadfile && \
	  $(PY) tests/chapters/other.py _build/other-flower together/flower together/flower_audit && \
	  $(FLOWER)/bin/python -m pytest _build/other-flower $(NBVAL) -n $(JOBS) --dist loadfile)

# What is slow reads the PDF, too.
test-browser: $(if $(SLOW),$(BOOK:book=pdf),$(BOOK)) # the built site and live widgets in headless Chromium (a choice of pages)
	@CHROMIUM="$$($(PY) tests/browser/chromium.py)" && export CHROMIUM && $(PYTEST) tests/browser $(MARK) -n $(JOBS)

test-dist: env # wheel and sdist through twine, and in empty environments
	$(call WITH,dist,ITS TESTS DID NOT RUN,$(VENV)-dist/bin/python -m pytest tests/dist)

test-golden: env # histories of every method, against stored ones
	@$(PY) tests/golden/golden.py compare

test-processors: env # fast tests, chapters and their sentences under seven kinds of arithmetic
	@$(PY) tests/processors.py -n $(JOBS)

test-fuzz: env # hostile messages, and kills
	@$(PY) tests/benchmarks/fuzz.py messages --count 100000
	@$(PY) tests/benchmarks/fuzz.py kills --count 20

# What the tests saw, with every method in the simulation, becomes what the chapter shows.
record-flower: SLOW := 1
record-flower: test-flower # what the chapter about Flower shows, anew
	$(FLOWER)/bin/python tests/benchmarks/flower.py

# With the Python that is there: a machine with a GPU may have neither network nor book tools.
gpu: # what only a GPU can show, into a folder; PYTHON needs torch, numpy and safetensors, no environment is made
	@$(PYTHON) tests/gpu/run.py --out "$(or $(OUT),gpu-results)" --minutes $(or $(MINUTES),20) $(if $(STEPS),--steps $(STEPS))

clean: # remove the build (not the environment)
	rm -rf _build build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
