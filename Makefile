.POSIX:

VENV = .venv
# Which Python makes the virtual environment; empty: the first 3.11 or newer in PATH.
PYTHON =
# Package index for PyTorch alone; empty: the default one, which serves a larger build with GPU support. The address of
# PyTorch's own CPU index makes the download several times smaller.
TORCH_INDEX =

SETTINGS = VENV="$(VENV)" PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)"

.PHONY: help demo test venv engine image

help:
	@echo "make demo    a real vLLM on this CPU: checked, patched, started, probed and stopped (no Docker, no GPU)"
	@echo "make test    lint and tests; REQUIRE_TIERS=\"docker vllm slow\" forbids skipping those"
	@echo "make engine  only the virtual environment with the project and the CPU engine"
	@echo "make image   the engine image of the docker tests, as root, from this machine's packages"

demo: engine
	$(SETTINGS) scripts/demo.sh

test:
	$(SETTINGS) scripts/test.sh

venv:
	$(SETTINGS) scripts/make_venv.sh

engine: venv
	"$(VENV)/bin/python" scripts/install_cpu_engine.py --torch-index "$(TORCH_INDEX)"

image: engine
	$(SETTINGS) scripts/build_engine_image.sh
