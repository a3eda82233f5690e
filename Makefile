# make book and make test do everything; make help lists the rest. They need make and Python 3.11 or newer with venv.
VENV   ?= .venv
PYTHON ?= python3
JOBS   ?= $(shell unset OMP_NUM_THREADS; n=$$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1); [ $$n -gt 4 ] && echo 4 || echo $$n)
BOOK   ?= book
PY     := "$(VENV)/bin/python"
ENV    := "$(PYTHON)" book/_environment.py "$(VENV)"
PYTEST := -m pytest -n $(JOBS) $(if $(SLOW),-m "")
NBVAL  := --nbval-lax --nbval-current-env --nbval-sanitize-with tests/chapters/nbval_sanitize.cfg \
  --nbval-cell-timeout=3600 --nbval-kernel-startup-timeout=3600 --dist loadfile
PARTS  := lint test-golden test-unit test-chapters test-class test-flower $(if $(SLOW),test-install) book $(if $(SLOW),pdf) test-browser
# This clone wins over the one that the environment was made for. Numbers do not depend on the number of cores.
export PYTHONPATH := $(CURDIR)
export OMP_NUM_THREADS ?= 1
export PYTHONHASHSEED := 0
export PYTHONDONTWRITEBYTECODE := 1
export FEDLEARN_JOBS := $(JOBS)
export JUPYTER_PREFER_ENV_PATH := 1
export JUPYTER_PLATFORM_DIRS := 1
export CPU TORCH_INDEX TORCH_WHEEL
unexport MPLBACKEND VIRTUAL_ENV UV_PYTHON

.NOTPARALLEL:
.PHONY: help env book pdf live test test-all lint test-unit test-chapters test-golden test-class test-flower test-browser test-install test-processors gpu lock clean
help: # this list
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*# /\1 /p' Makefile | while read -r name what; do printf 'make %-14s %s\n' "$$name" "$$what"; done
	@echo 'Options: VENV=<folder of the environment> PYTHON=<that makes it> JOBS=<chapters at a time> SLOW=1 (tests marked slow, too)'
	@echo '         CPU=1 with TORCH_INDEX=<index of wheels> or TORCH_WHEEL=<files>: no GPU libraries; an environment stays as it was made'
env: # the environment, in the versions of uv.lock
	@$(ENV) dev
lock: env # uv.lock anew from pyproject.toml; versions stay where they can
	@$(PY) -m uv lock

book live: export JUPYTER_PATH := $(if $(filter /%,$(VENV)),,$(CURDIR)/)$(VENV)-flower/share/jupyter
book: env # environment, execution of all chapters, site in _build/html, slides and cheat sheets in its slides/
	@$(ENV) flower || true
	@"$(VENV)/bin/jupyter-book" build book --config _config.yml --path-output . -W -n --keep-going --all
	@$(PY) book/_slides.py
	@printf '\nThe book is ready: open %s in a browser (no server and no network needed).\n' "file://$(CURDIR)/_build/html/index.html"
pdf: $(BOOK) # the whole book as one PDF, which the site offers
	@CHROMIUM="$$($(PY) tests/browser/chromium.py)" && export CHROMIUM && $(PY) book/_pdf.py
live: env # JupyterLab on the chapters
	@$(ENV) flower || true
	@$(PY) -m jupyterlab --allow-root --notebook-dir=book

# Each part in turn, also after one that failed. They share one book, built with what holds its sentences: data/<chapter>/sentences.yaml.
test: export FEDLEARN_HOLDS := $(CURDIR)/tests/chapters/other.py
test: env # lint, the package, lessons, graders, Flower, the book and its site
	+@failed=; for part in $(PARTS); do printf '\n==== %s %s ====\n' "$$(date +%T)" $$part; \
	  $(MAKE) --no-print-directory BOOK= $$part || failed="$$failed $$part"; done; \
	printf '\n==== %s %s%s ====\n' "$$(date +%T)" $@ "$${failed:+ failed:}$${failed:- passed}"; [ -z "$$failed" ]
test-all: # that, what is marked slow, audits with other parameters, wheel and sdist, and the PDF
	@$(MAKE) --no-print-directory SLOW=1 test
lint: env # ruff, mypy, and whether uv.lock has what pyproject.toml wants
	@$(PY) -m ruff check --no-cache . && $(PY) -m ruff format --no-cache --check . && $(PY) -m mypy --no-incremental
	@$(PY) -m uv lock --check --offline --quiet
test-unit: env # the package
	@MPLBACKEND=Agg $(PY) $(PYTEST) tests/unit
test-chapters: env # every lesson through nbval, with other parameters; papermill executes all pages when the book is built
	@$(PY) tests/chapters/other.py _build/other
	@$(PY) $(PYTEST) tests/chapters _build/other $(NBVAL) $(if $(SLOW),,--ignore-glob='*_audit.ipynb')
test-golden: env # histories of every method, against stored ones
	@$(PY) tests/golden/golden.py compare
test-processors: env # fast tests, chapters and their sentences under seven kinds of arithmetic
	@$(PY) tests/processors.py -n $(JOBS)
test-class: env # the class edition through nbgrader and otter-grader, in an environment of its own
	@if $(ENV) class; then "$(VENV)-class/bin/python" $(PYTEST) --dist loadscope tests/class; fi
test-flower: env # the same methods on Flower, in an environment of its own
	@if $(ENV) flower; then $(PY) tests/chapters/other.py _build/other-flower together/flower $(if $(SLOW),together/flower_audit) && \
	  "$(VENV)-flower/bin/python" $(PYTEST) tests/flower _build/other-flower $(NBVAL); fi
test-browser: $(if $(SLOW),$(BOOK:book=pdf),$(BOOK)) # the built site and live widgets in headless Chromium (a choice of pages)
	@CHROMIUM="$$($(PY) tests/browser/chromium.py)" && export CHROMIUM && $(PY) $(PYTEST) tests/browser
test-install: env # wheel and sdist in empty environments; lessons beside what Colab holds
	@$(PY) -m pytest tests/install
gpu: export CUDA_VISIBLE_DEVICES ?= 0
gpu: # what only a GPU can show, and Table A.1 on it into OUT=speed_cuda.json, in MINUTES=20; PYTHON needs torch, numpy, safetensors, pytest
	@$(PYTHON) -m pytest -q -rsf -c /dev/null --rootdir . -p no:cacheprovider tests/gpu
	@$(PYTHON) tests/benchmarks/speed.py table growth --device cuda --minutes $(or $(MINUTES),20) --out "$(or $(OUT),speed_cuda.json)"
clean: # remove the build (not the environment)
	rm -rf _build build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
