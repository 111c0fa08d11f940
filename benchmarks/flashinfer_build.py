"""FlashInfer's SM90 module of fused experts, reduced to BF16 activations x MXFP4 weights; needs no GPU.

    python3 benchmarks/flashinfer_build.py FLASHINFER OUT [--include DIR ...] [--jobs N] [--per-file N]

FLASHINFER is the unpacked folder `flashinfer` of the flashinfer-python wheel (written for 0.6.18). Of its 247 sources
remain the binding and one instantiation, both cut down to that pair of types, 184 launchers in small files, and 11
common ones; kernels, headers and flags are FlashInfer's own. Needs nvcc 13 (CUDA_HOME, else /usr/local/cuda) and
apache-tvm-ffi, and by `--include` the headers of cuBLAS and cuRAND where CUDA's own folder lacks them. A launcher costs
20 to 60 s of one core. What is compiled already is kept, so it may be stopped and called again. OUT/fused_moe_90.so is
the result. Exit 1 where something is missing or does not compile.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
PAIR = "<__nv_bfloat16, SafeFP4"
LAUNCHER = "template void"
BINDING = "fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu"
INSTANTIATION = "fused_moe/cutlass_backend/cutlass_fused_moe_instantiation.cu"
KERNELS = "nv_internal/tensorrt_llm/kernels/cutlass_kernels"
COMMON = (
    f"{KERNELS}/moe_gemm/moe_gemm_kernels_bf16_fp4.cu",
    f"{KERNELS}/moe_gemm/moe_gemm_tma_warp_specialized_input.cu",
    f"{KERNELS}/moe_gemm/moe_gemm_mixed_utils.cu",
    f"{KERNELS}/cutlass_heuristic.cpp",
    "nv_internal/cpp/common/envUtils.cpp",
    "nv_internal/cpp/common/logger.cpp",
    "nv_internal/cpp/common/stringUtils.cpp",
    "nv_internal/cpp/common/tllmException.cpp",
    "nv_internal/cpp/common/memoryUtils.cu",
    "nv_internal/tensorrt_llm/kernels/preQuantScaleKernel.cu",
    "nv_internal/tensorrt_llm/kernels/lora/lora.cpp",
)
# Stands in for deepgemm_jit_setup.cu, whose runtime compiler these types do not use.
STUB = """#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>
namespace flashinfer {
void set_deepgemm_jit_include_dirs(tvm::ffi::Array<tvm::ffi::String>) {}
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_deepgemm_jit_include_dirs, flashinfer::set_deepgemm_jit_include_dirs);
"""
TYPES = ("F16", "BF16", "FP8_E4M3", "FP8_E5M2", "FP8_E8M0", "FP4_E2M1")
FEATURES = (
    *("CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED", "COMPILE_HOPPER_TMA_GEMMS", "COMPILE_HOPPER_TMA_GROUPED_GEMMS"),
    *("ENABLE_BF16", "ENABLE_FP8", "ENABLE_FP8_BLOCK_SCALE", "ENABLE_FP4", "USING_OSS_CUTLASS_MOE_GEMM"),
    *("CUTLASS_ENABLE_GDC_FOR_SM90=1", "CUTLASS_MIXED_GEMM_FP4_FP8_PREPROCESSED_SIGNS=1"),
)


def between(text: str, start: str, end: str, instead: str) -> str:
    """`text` with the part from `start` up to `end` replaced. ValueError where either is not there."""
    first = text.index(start)
    return text[:first] + instead + text[text.index(end, first) :]


def reduced(sources: Path) -> dict[str, str]:
    """The binding and the instantiation, cut down to the one pair of types, and the stub."""
    binding = (sources / BINDING).read_text()
    binding = between(
        binding, "    auto make_humming_runner = [&] {", "    if (isWFP4A16Quant()) {", "#ifdef ENABLE_FP4\n"
    )
    binding = between(
        binding, "    if (isInt4Quant()) {\n      mInnerDimMultiplier = 2;", "    if (!mKernelRunner) {", ""
    )
    instantiation = between(
        (sources / INSTANTIATION).read_text(),
        "template class CutlassMoeFCRunner<float, float>;",
        "// Explicit instantiations for finalizeMoeRouting",
        "template class CutlassMoeFCRunner<__nv_bfloat16, Fp4Type>;\n",
    )
    binding = binding.replace('"../../tvm_ffi_utils.h"', '"tvm_ffi_utils.h"')
    return {"binding.cu": binding, "instantiation.cu": instantiation, "deepgemm_stub.cu": STUB}


def launchers(flashinfer: Path, scratch: Path, per_file: int) -> Iterator[tuple[str, str]]:
    """FlashInfer's generated launchers of the pair, `per_file` of them to a file: name and text."""
    package = types.ModuleType("cutlass_generator")
    package.__path__ = [str(flashinfer / "jit/gemm/cutlass")]
    sys.modules[package.__name__] = package
    generator = importlib.import_module("cutlass_generator.generate_kernels")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    generator.generate_gemm_operations(scratch, "90;90-real")
    for file in sorted(scratch.rglob("*.generated.cu")):
        text = file.read_text()
        if PAIR not in text:
            continue
        head, *parts = text.split(LAUNCHER)
        tail = parts[-1][parts[-1].index("} // namespace") :]
        parts[-1] = parts[-1].removesuffix(tail)
        for number in range(0, len(parts), per_file):
            body = "".join(LAUNCHER + part for part in parts[number : number + per_file])
            yield f"{file.name.removesuffix('.generated.cu')}_{number}.cu", head + body + tail


def flags(flashinfer: Path, include: list[Path]) -> tuple[list[str], list[str]]:
    """The compilers' flags, for .cpp and for .cu, as FlashInfer's own build gives them."""
    import tvm_ffi.libinfo as tvm

    data = flashinfer / "data"
    csrc, internal = data / "csrc", data / "csrc/nv_internal"
    own = [internal, internal / "include", internal / "tensorrt_llm/cutlass_extensions/include"]
    own += [csrc / KERNELS / "include", csrc / KERNELS, csrc / "fused_moe/cutlass_backend"]
    own += [data / "cccl" / part for part in ("cub", "libcudacxx/include", "thrust")]
    system = [
        CUDA / "include",
        *include,
        Path(tvm.find_include_path()),
        data / "include",
        csrc,
        data / "spdlog/include",
    ]
    system += [data / "cutlass/include", data / "cutlass/tools/util/include"]
    if hasattr(tvm, "find_dlpack_include_path"):
        system.append(Path(tvm.find_dlpack_include_path()))
    common = ["-DPy_LIMITED_API=0x03090000", "-D_GLIBCXX_USE_CXX11_ABI=1", *(f"-I{path}" for path in own)]
    common += [word for path in system for word in ("-isystem", str(path))] + ["-std=c++17", "-DNDEBUG", "-O3"]
    cuda = ["--compiler-options=-fPIC", "--expt-relaxed-constexpr", "-static-global-template-stub=false", "--threads=1"]
    cuda += ["-use_fast_math", "-Xfatbin=-compress-all", "--compress-mode=size"]
    cuda += [f"-DFLASHINFER_ENABLE_{name}" for name in TYPES] + [f"-D{name}" for name in FEATURES]
    return [*common, "-fPIC", "-Wno-switch-bool"], [*common, *cuda, "-gencode=arch=compute_90a,code=sm_90a"]


def compile_one(source: Path, objects: Path, cpp: list[str], cuda: list[str]) -> str:
    """The compiler's complaint, "" where there is none; an object that is there already is kept."""
    target = objects / f"{source.name}.o"
    if target.is_file():
        return ""
    partial = target.with_suffix(".partial")
    compiler, words = (os.environ.get("CXX", "c++"), cpp) if source.suffix == ".cpp" else (str(CUDA / "bin/nvcc"), cuda)
    done = subprocess.run([compiler, *words, "-c", str(source), "-o", str(partial)], capture_output=True, text=True)
    if done.returncode:
        return f"{source.name}: {done.stderr[-1500:]}"
    partial.rename(target)
    return ""


def lacks(flashinfer: Path) -> str:
    """The first thing that the build needs and does not find; "" where there is none."""
    if not (flashinfer / "data/csrc" / BINDING).is_file():
        return f"{flashinfer} is not the unpacked folder `flashinfer` of a flashinfer-python wheel"
    if not (CUDA / "bin/nvcc").is_file():
        return f"{CUDA} has no bin/nvcc; set CUDA_HOME"
    if importlib.util.find_spec("tvm_ffi") is None:
        return "this Python has no apache-tvm-ffi"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flashinfer", metavar="FLASHINFER", type=Path, help="unpacked folder of the wheel")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for sources, objects and the module")
    parser.add_argument("--include", metavar="DIR", type=Path, nargs="*", default=[], help="further folders of headers")
    parser.add_argument("--jobs", metavar="N", type=int, default=os.cpu_count(), help="compilers at a time")
    parser.add_argument("--per-file", metavar="N", type=int, default=2, help="launchers in one file")
    arguments = parser.parse_args()
    if missing := lacks(arguments.flashinfer):
        sys.stderr.write(f"{missing}\n")
        return 1
    csrc, objects, written = arguments.flashinfer / "data/csrc", arguments.out / "objects", arguments.out / "sources"
    for folder in (objects, written):
        folder.mkdir(parents=True, exist_ok=True)
    texts = {
        **reduced(csrc),
        **dict(launchers(arguments.flashinfer, arguments.out / "generated", arguments.per_file)),
    }
    for name, text in texts.items():
        (written / name).write_text(text)
    sources = [*(csrc / name for name in COMMON), *(written / name for name in texts)]
    cpp, cuda = flags(arguments.flashinfer, arguments.include)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        complaints = list(filter(None, pool.map(lambda source: compile_one(source, objects, cpp, cuda), sources)))
    if complaints:
        sys.stderr.write("\n".join(complaints) + "\n")
        return 1
    module = arguments.out / "fused_moe_90.so"
    linked = [str(objects / f"{source.name}.o") for source in sources]
    command = [
        os.environ.get("CXX", "c++"),
        "-shared",
        "-o",
        str(module),
        *linked,
        f"-L{CUDA / 'lib64'}",
        "-lcudart",
    ]
    return subprocess.run([*command, "-Wl,-z,lazy"]).returncode


if __name__ == "__main__":
    sys.exit(main())
