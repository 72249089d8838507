// A streaming read, the ceiling that shares of bandwidth are of: out[block] = XOR of the 32-bit words that the block read.
//
// | kernel      | grid                        | threads | bytes     | flops |
// |-------------|-----------------------------|---------|-----------|-------|
// | read_stream | any; 4 per multiprocessor   | 512     | 16 count  | 0     |
//
// Memory bounds it: 2048 threads of a multiprocessor with 8 loads of 16 bytes each keep 256 KB under way, 33 MB on 132 of them,
// ten times what 4.8 TB/s times 700 ns ask for. Loads pass the first-level cache by; what the second level holds it gives, so
// that memory is measured by more bytes than it has.
//
// Launch contract: `from` is aligned to 16 bytes and `count` of 16 bytes long; out is [gridDim.x]; blocks of whole warps; no dynamic
// shared memory.
#include "cuda.cuh"

namespace {

constexpr int LOADS = 8;

__device__ __forceinline__ unsigned folded(uint4 words) { return words.x ^ words.y ^ words.z ^ words.w; }

}  // namespace

extern "C" __global__ void __launch_bounds__(512) read_stream(const uint4* from, unsigned count, unsigned* out) {
  constexpr unsigned ALL_LANES = 0xffffffffu;
  SHARED(unsigned, of_warps, 16);
  const size_t threads = size_t(gridDim.x) * blockDim.x, thread = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  size_t at = thread;
  for (; at + (LOADS - 1) * threads < count; at += LOADS * threads) {
    uint4 words[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) words[i] = __ldcs(from + at + i * threads);
#pragma unroll
    for (int i = 0; i < LOADS; i++) sum ^= folded(words[i]);
  }
  for (; at < count; at += threads) sum ^= folded(__ldcs(from + at));

#pragma unroll
  for (int bits = 16; bits; bits /= 2) sum ^= __shfl_xor_sync(ALL_LANES, sum, bits);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (unsigned warp = 1; warp < blockDim.x / 32; warp++) sum ^= of_warps[warp];
  out[blockIdx.x] = sum;
}
EXPORT_KERNEL(read_stream)
