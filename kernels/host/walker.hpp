// The emulated NPU2 executes a plan with this interpreter: the tables of a dispatch (generated from
// its TilePlans) are walked loop by loop; copies move data L3 -> L2 -> L1 and back with the plan's
// own sizes and strides, calls run the compiled core functions on L1 buffers.
//
// Host threads share the herd's columns; rows of a column (cascade neighbours) stay on one thread,
// so a launch needs no synchronisation inside. Launches run strictly one after the other.
#pragma once

#include <cstdint>

namespace tilegate {

constexpr int kVariables = 10;  // x, y, and up to eight enclosing loops
constexpr int kDimensions = 6;
constexpr int kArguments = 12;

struct Affine {
  std::int64_t base;
  std::int64_t coefficient[kVariables];
};

// A place in a tensor of the launch (target >= 0) or in a buffer (target = -1 - index).
struct Place {
  std::int32_t target;
  Affine offset;  // elements
  Affine at_x, at_y;
};

enum class Kind : std::int32_t { loop, copy, call };

struct Step {
  Kind kind;
  std::int32_t index;     // loop: variable slot; copy, call: index of its table
  std::int32_t count;     // loop: trips
  std::int32_t end;       // loop: first step after its body
  std::int32_t over_x, over_y;
  std::int32_t row_low, row_high, column_low, column_high;
};

struct Copy {
  Place source, target;
  std::int32_t element_bytes;
  std::int32_t dimensions;
  std::int64_t size[kDimensions], source_stride[kDimensions], target_stride[kDimensions];
  std::int32_t alias;   // dense and read-only: the target may point at the source
  std::int32_t matrix;  // 0 none, 1 left, 2 right operand of the matrix unit, `tiles` 8x8 tiles
  std::int64_t tiles;
};

using Trampoline = void (*)(void *const *pointers, const std::int32_t *scalars);

struct Call {
  Trampoline function;
  std::int32_t pointers, scalars;
  Place pointer[kArguments];
  Affine scalar[kArguments];
};

struct Buffer {
  std::int64_t bytes;  // one instance
  std::int32_t element_bytes;
  std::int32_t per_x, per_y;
  std::int32_t aliased_only;
};

struct Launch {
  std::int32_t columns, rows;
  const Step *steps;
  std::int32_t step_count;
  const Copy *copies;
  const Call *calls;
  const Buffer *buffers;
  std::int32_t buffer_count;
  const std::int32_t *arguments;  // launch tensor -> dispatch argument
  const std::int32_t *tensor_bytes;  // element size per launch tensor
};

// The workers of this library. Given those of another library with this very walker, takes them, so
// that the dispatches of a program do not each keep threads that wait for work.
void *pool(void *shared);

// Runs the launches in order on `threads` host threads. Returns 0.
int run(const Launch *launches, int launch_count, void *const *arguments, int threads);

}  // namespace tilegate
