// Warp operations: shuffles, votes, __syncwarp.
//
// Models: the lanes of the mask wait for each other and exchange values. Reported: a lane outside its own mask, lanes that
// have ended, different masks or operations meeting, a shuffle that reads a lane outside the mask (undefined in CUDA).
#pragma once
#include "machine.h"

namespace sim {

struct ShuffleInput {
  uint64_t value;
  unsigned source;
};

SIM_UNCHECKED inline void shuffle_lanes(Lane* lanes, uint32_t mask) {
  for (unsigned lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    const unsigned source = static_cast<const ShuffleInput*>(lanes[lane].in)->source;
    if (!(mask >> source & 1)) fault("a shuffle reads lane " + std::to_string(source) + ", which its mask lacks");
    *static_cast<uint64_t*>(lanes[lane].out) = static_cast<const ShuffleInput*>(lanes[source].in)->value;
  }
}

template <class T> T shuffle(uint32_t mask, T value, unsigned source, Where where) {
  static_assert(sizeof(T) <= 8, "CUDA shuffles up to 64 bits");
  ShuffleInput in{0, source};
  std::memcpy(&in.value, &value, sizeof value);
  uint64_t out = 0;
  warp_operation(mask, &in, &out, where, shuffle_lanes);
  std::memcpy(&value, &out, sizeof value);
  return value;
}

SIM_UNCHECKED inline void ballot_lanes(Lane* lanes, uint32_t mask) {
  uint32_t votes = 0;
  for (unsigned lane = 0; lane < 32; lane++)
    if ((mask >> lane & 1) && *static_cast<const bool*>(lanes[lane].in)) votes |= 1u << lane;
  for (unsigned lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) *static_cast<uint32_t*>(lanes[lane].out) = votes;
}

inline uint32_t ballot(uint32_t mask, bool vote, Where where) {
  uint32_t votes = 0;
  warp_operation(mask, &vote, &votes, where, ballot_lanes);
  return votes;
}

SIM_UNCHECKED inline unsigned lane() { return current->lane; }

}  // namespace sim

constexpr int warpSize = 32;

// Lanes beyond the segment of `width` keep their own value.
template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32, sim::Where where = "__shfl_sync") {
  return sim::shuffle(mask, value, (sim::lane() & ~(width - 1)) | (source & (width - 1)), where);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, sim::Where where = "__shfl_xor_sync") {
  const unsigned source = sim::lane() ^ bits;
  return sim::shuffle(mask, value, source / width > sim::lane() / width ? sim::lane() : source, where);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, int by, int width = 32, sim::Where where = "__shfl_down_sync") {
  const int source = int(sim::lane() & (width - 1)) + by;
  return sim::shuffle(mask, value, source >= width ? sim::lane() : sim::lane() + by, where);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, int by, int width = 32, sim::Where where = "__shfl_up_sync") {
  const int source = int(sim::lane() & (width - 1)) - by;
  return sim::shuffle(mask, value, source < 0 ? sim::lane() : sim::lane() - by, where);
}

inline uint32_t __ballot_sync(uint32_t mask, int vote, sim::Where where = "__ballot_sync") {
  return sim::ballot(mask, vote, where);
}
inline int __any_sync(uint32_t mask, int vote, sim::Where where = "__any_sync") {
  return sim::ballot(mask, vote, where) != 0;
}
inline int __all_sync(uint32_t mask, int vote, sim::Where where = "__all_sync") {
  return sim::ballot(mask, vote, where) == mask;
}
inline void __syncwarp(uint32_t mask = 0xffffffff, sim::Where where = "__syncwarp") {
  sim::warp_operation(mask, nullptr, nullptr, where, sim::order_lanes);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
