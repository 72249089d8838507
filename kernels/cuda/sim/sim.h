// CUDA C++ on the CPU, for tests: what a kernel finds here where nvcc would give it CUDA's own headers.
//
//     machine.h  threads, blocks, the eight schedules       memory.h  barriers, shared memory, atomics, fences, cp.async
//     warp.h     shuffles and votes                         tensor.h  ldmatrix, mma
//     types.h    vectors, bfloat16, float16, e4m3           fiber.h   stacks and the switch between them
//     races.h    which access happens before which (`make races`)
//     hopper.h   mbarrier, bulk copies, wgmma, for who includes ../hopper.cuh
//
// A kernel keeps to three rules: shared memory is declared by SHARED or DYNAMIC_SHARED, PTX is called through the functions
// of namespace ptx (which have a body here and one in ../ptx.cuh), and EXPORT_KERNEL(name) follows its definition.
// Speed: ten million fiber switches a second, one thread of the host.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>

#include "machine.h"
#include "memory.h"
#include "tensor.h"
#include "types.h"
#include "warp.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __grid_constant__

#define threadIdx (::sim::thread_index())
#define blockIdx (::sim::block_index())
#define blockDim (::sim::block_extent())
#define gridDim (::sim::grid_extent())

using std::max;
using std::min;

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
// Never joined with an addition.
inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
// Conversions saturate, and what is not a number becomes zero.
inline int __float2int_rz(float x) {
  if (std::isnan(x)) return 0;
  return x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : int(x);
}
inline unsigned long long __double2ull_rz(double x) {
  if (!(x > 0.0)) return 0;
  return x >= 18446744073709551616.0 ? ~0ull : static_cast<unsigned long long>(x);
}
inline unsigned long long __float2ull_rz(float x) { return __double2ull_rz(x); }

namespace sim {

SIM_UNCHECKED inline dim3 thread_index() { return current->index; }
SIM_UNCHECKED inline dim3 block_index() { return current->block->index; }
SIM_UNCHECKED inline dim3 block_extent() { return current_launch().block; }
SIM_UNCHECKED inline dim3 grid_extent() { return current_launch().grid; }

template <class T> constexpr char signature_letter() {
  if (std::is_pointer_v<T>) return 'p';
  if (std::is_same_v<T, float>) return 'f';
  if (!std::is_integral_v<T>) return 's';
  return std::is_signed_v<T> ? (sizeof(T) == 8 ? 'I' : 'i') : (sizeof(T) == 8 ? 'U' : 'u');
}

template <class... A, size_t... I> SIM_UNCHECKED void apply(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_const_t<A>*>(arguments[I])...);
}
template <class... A> void call(void (*function)(), void** arguments) {
  apply(reinterpret_cast<void (*)(A...)>(function), arguments, std::index_sequence_for<A...>{});
}

struct Register {
  template <class... A> Register(const char* name, void (*kernel)(A...)) {
    kernels()[name] = {reinterpret_cast<void (*)()>(kernel), call<A...>, std::string{signature_letter<std::remove_const_t<A>>()...}};
  }
};

}  // namespace sim
namespace ptx {
SIM_UNCHECKED inline unsigned thread_index() { return sim::thread_index().x; }
}  // namespace ptx

#define EXPORT_KERNEL(name) static const ::sim::Register sim_register_##name(#name, name);
