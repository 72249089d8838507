// Tensor-core operations of a warp: ldmatrix and mma.m16n8k16.
//
// Models: which lane holds which element (PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix"), alignment of rows,
// products of 16-bit inputs summed in float32 in order of k. The hardware aligns and truncates sums in its own way, so its
// last bits differ. The layouts are our reading of the manual: confirm them once on each architecture.
#pragma once
#include "warp.h"

namespace sim {

// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. Lane l receives of each
// matrix elements 2 (l % 4) and the next of row l / 4; transposed, those of column l / 4.
template <bool TRANSPOSED> SIM_UNCHECKED void load_matrices(Lane* lanes, uint32_t) {
  for (unsigned lane = 0; lane < 32; lane++)
    if (reinterpret_cast<uintptr_t>(lanes[lane].in) % 16) fault("a row of ldmatrix is not aligned to 16 bytes");
  for (unsigned lane = 0; lane < 32; lane++)
    for (unsigned matrix = 0; matrix < 4; matrix++)
      for (unsigned half = 0; half < 2; half++) {
        const unsigned along = lane % 4 * 2 + half, across = lane / 4;
        const unsigned row = TRANSPOSED ? along : across, column = TRANSPOSED ? across : along;
        const auto* from = static_cast<const uint16_t*>(lanes[matrix * 8 + row].in) + column;
        std::memcpy(static_cast<char*>(lanes[lane].out) + matrix * 4 + half * 2, from, 2);
      }
}

struct Fragments {
  const uint32_t *a, *b;
};

// D (16 x 8) += A (16 x 16, rows) * B (16 x 8, columns).
template <class Element, float (*TO_FLOAT)(Element)> SIM_UNCHECKED void multiply_matrices(Lane* lanes, uint32_t) {
  const auto element = [](uint32_t pair, unsigned half) {
    Element bits;
    bits.bits = uint16_t(pair >> 16 * half);
    return TO_FLOAT(bits);
  };
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < 32; lane++) {
    const unsigned group = lane / 4, pair = lane % 4 * 2;
    const auto* in = static_cast<const Fragments*>(lanes[lane].in);
    for (unsigned half = 0; half < 2; half++) {
      for (unsigned i = 0; i < 4; i++) a[group + i % 2 * 8][pair + i / 2 * 8 + half] = element(in->a[i], half);
      for (unsigned i = 0; i < 2; i++) b[pair + i * 8 + half][group] = element(in->b[i], half);
    }
  }
  for (unsigned lane = 0; lane < 32; lane++)
    for (unsigned i = 0; i < 4; i++) {
      const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = 0;
      for (unsigned k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
      static_cast<float*>(lanes[lane].out)[i] += sum;
    }
}

}  // namespace sim

namespace ptx {

inline void ldmatrix_x4(uint32_t (&to)[4], const void* row, sim::Where where = "ldmatrix_x4") {
  sim::races::read(row, 16);
  sim::warp_operation(0xffffffff, row, to, where, sim::load_matrices<false>);
}
inline void ldmatrix_x4_transposed(uint32_t (&to)[4], const void* row,
                                   sim::Where where = "ldmatrix_x4_transposed") {
  sim::races::read(row, 16);
  sim::warp_operation(0xffffffff, row, to, where, sim::load_matrices<true>);
}
inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              sim::Where where = "mma_m16n8k16_bf16") {
  const sim::Fragments in{a, b};
  sim::warp_operation(0xffffffff, &in, d, where, sim::multiply_matrices<__nv_bfloat16, __bfloat162float>);
}
inline void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             sim::Where where = "mma_m16n8k16_f16") {
  const sim::Fragments in{a, b};
  sim::warp_operation(0xffffffff, &in, d, where, sim::multiply_matrices<__half, __half2float>);
}

// Two numbers rounded to nearest, ties to even; `low` in the lower half.
inline uint32_t pack_bf16(float low, float high) {
  return __float2bfloat16(low).bits | uint32_t(__float2bfloat16(high).bits) << 16;
}
inline uint32_t pack_f16(float low, float high) { return __float2half(low).bits | uint32_t(__float2half(high).bits) << 16; }

}  // namespace ptx
