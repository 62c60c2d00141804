PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: setup demo test test-slow clean

# The local version "+cpu" exists only as a CPU build, so a CUDA build is never fetched here.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$(TORCH)" || $(BIN)/pip install -q --index-url $(TORCH_INDEX) "$(TORCH)"
	$(BIN)/pip install -q -e ".[weight-io,dev]" "triton>=3.6"
	# Only the reference pipeline in the tests needs torchvision; out of sight, because PyPI's build breaks beside CPU torch.
	$(BIN)/pip install -q --no-deps --upgrade --target $(VENV)/reference torchvision==0.28.0
	touch $@

setup: $(VENV)/.ready

demo: setup
	rm -f demo.mp4 demo.receipt.json
	$(BIN)/vflash demo --output demo.mp4

test: setup
	PATH="$(abspath $(BIN)):$$PATH" tools/check

test-slow: setup
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf $(VENV)
