// A host implementation of the part of the AIE API that the bf16 kernels of AIE2P use, after the
// documentation of Xilinx/aie_api: the same kernel source compiles for a core and for the host.
//
// Compile with -std=c++17 -O3 -ffp-contract=off and without -ffast-math: a fused multiply-add or a
// reordered sum would give other numbers than the core.
#pragma once

#include "elementary.hpp"
#include "ops.hpp"
#include "types.hpp"
#include "vector.hpp"

#if __has_include("mmul.hpp")
#include "mmul.hpp"
#endif
