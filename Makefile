# Every target sets up what it needs in .venv; a fresh machine needs Python 3.11 or newer, pip and make.
#   make demo      install the core, train a small Chinese-English translator, translate with it
#   make test      install the development tools, check style, types and imports, run all tests
#   make docs      build the documentation as a site in English and Chinese, build/site/index.html
# Other interpreters and more processes: make test PYTHON=python3.12 JOBS=8

PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CORE := $(VENV)/.core-installed
DEV := $(VENV)/.dev-installed
DOCS := $(VENV)/.docs-installed
ENVIRONMENT := $(VENV)/pyvenv.cfg
LOG := $(VENV)/.install.log
CHECKS := $(VENV)/.checks.log

# What targets say while they install is Chinese where the messages of transduce are.
zh := $(filter zh%,$(firstword $(TRANSDUCE_LANGUAGE) $(LC_ALL) $(LC_MESSAGES) $(LANG)))
CORE_SAYS := $(if $(zh),正在安装 transduce 及其依赖,Installing transduce and its dependencies)
FAST_SAYS := $(if $(zh),正在安装 llvmlite（使训练和解码更快）,Installing llvmlite, which makes training and decoding faster)
DEV_SAYS := $(if $(zh),正在安装开发工具,Installing the development tools)
DOCS_SAYS := $(if $(zh),正在安装构建文档站点的工具,Installing what builds the site)
BUILT_SAYS := $(if $(zh),文档站点已生成：,Built )
VENV_SAYS := $(if $(zh),正在创建环境 $(VENV)：,Creating the environment $(VENV) with )

# $(call quietly,WHAT,COMMAND) prints one line; the command's output is printed only if the command fails.
quietly = echo "$(1)"; { $(2); } >$(LOG) 2>&1 || { cat $(LOG) >&2; echo "$(1): failed (see above)." >&2; exit 1; }

# An environment whose interpreter is gone (for example after an upgrade of the system's Python) is recreated.
$(shell test -x $(BIN)/python || rm -f $(ENVIRONMENT))

.PHONY: help demo test docs check lint format types contracts clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(CORE)
	$(BIN)/transduce demo

# One thread a process: two processes with a thread pool each would wait for one another. Types and imports are checked
# meanwhile, as the tests do not keep all cores busy all the time; what is found is printed at the end.
test: lint
	@{ $(BIN)/mypy && $(BIN)/lint-imports --no-cache; } >$(CHECKS) 2>&1 & checks=$$!; status=0; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder || status=$$?; \
	wait $$checks || status=$$?; cat $(CHECKS); exit $$status

# The Chinese site lies inside the English one, whose build empties the folder.
docs: $(DOCS)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file mkdocs.zh.yml
	@echo "$(BUILT_SAYS)build/site/index.html"

check: lint types contracts

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(DEV)
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

types: $(DEV)
	$(BIN)/mypy

contracts: $(DEV)
	$(BIN)/lint-imports --no-cache

clean:
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The build backend comes from the constraints too, hence no isolated build environment.
$(CORE): $(ENVIRONMENT) pyproject.toml constraints.txt
	@$(call quietly,$(CORE_SAYS),$(PIP) install --constraint constraints.txt hatchling editables && \
	  $(PIP) install --constraint constraints.txt --no-build-isolation --editable .)
	@echo "$(FAST_SAYS)"; \
	  $(PIP) install --constraint constraints.txt --only-binary :all: llvmlite >$(LOG) 2>&1 || { tail -n 3 $(LOG); \
	  echo "llvmlite was not installed (see above): training and decoding take longer; try $(BIN)/python -m pip install llvmlite."; }
	@touch $@

$(DEV): $(CORE)
	@$(call quietly,$(DEV_SAYS),$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]')
	@touch $@

# The site needs the packages of the extra `docs` alone, not the project and PyTorch.
$(DOCS): $(ENVIRONMENT) constraints.txt
	@$(call quietly,$(DOCS_SAYS),$(PIP) install --constraint constraints.txt setuptools && \
	  $(PIP) install --constraint constraints.txt --no-build-isolation jieba mkdocs mkdocs-material)
	@touch $@

# Some systems ship a Python without ensurepip, which puts pip inside a new environment: their own pip does it then.
$(ENVIRONMENT):
	@command -v $(PYTHON) >/dev/null || \
	  { echo "$(PYTHON) was not found: install Python 3.11 or newer, or name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), but 3.11 or newer is needed: name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import venv' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module: install the system's package for it (python3-venv on Debian)." >&2; exit 2; }
	@echo "$(VENV_SAYS)$$($(PYTHON) -V 2>&1)"
	@rm -rf $(VENV)
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
	    $(PYTHON) -m venv $(VENV); \
	  elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
	    $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --quiet --python $(BIN)/python install pip; \
	  else \
	    echo "$(PYTHON) has neither ensurepip nor pip: install one (python3-venv or python3-pip on Debian)." >&2; exit 2; \
	  fi
