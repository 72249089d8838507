// Tokens drawn from rows of logits, so that a row of a vocabulary need not go to the host.
//
// A token at distance d = |max - x| from the largest logit weighs w = 2^(-d log2 e / T), and its mass is floor(w 2^44): sums of masses
// are whole numbers, so no order of adding changes them, and with up to 2^19 tokens they stay below 2^63. Temperature 0 takes the
// largest logit, the lowest id among equals. Else, in this order, each over what the one before left:
//
//     min_p   w >= min_p of the largest weight, and a mass of at least 1
//     top_k   the k smallest distances, the lower ids among equals
//     top_p   of these, in the same order, the fewest whose mass reaches the share p
//     draw    by ascending id, the first token with which the running mass exceeds floor(unit mass / 2^64)
//
// So what is kept are the tokens below some distance, and the first few at it (Prefix). Distances are not negative: their bits have
// their order. Which one it is, is found by what all tokens within three distances between two bounds count for: each pass over
// the row leaves a quarter of what was between the bounds. Tokens of at least 2^-20 of the largest weight are listed in shared memory, if there
// is room, and where they are enough a search passes over these alone.
//
// Grid (draws), 1024 threads, no dynamic shared memory. Bytes of a row: 4 vocab for each pass, from the second-level cache, where the
// product before left it: two passes for temperature 0, four for a draw, one or two more with filters, and 16 more for each filter
// that the list is not enough for. One multiprocessor reads 60 to 150 GB/s, so 128,000 tokens take 4 to 8 us a pass. Computed, not
// measured.
//
// Launch contract: no dependent launch; 0 < vocab <= 2^19.
#include "softmax_common.cuh"

namespace {

constexpr int THREADS = 1024, WARPS = THREADS / 32;
// Of the list.
constexpr int CAPACITY = 4096;

using Mass = unsigned long long;

// Of a weight of 1; and of a token that is listed, at least.
constexpr float UNITS = 17592186044416.0f;
constexpr Mass LISTED = 1ull << 24;
// A weight of 2^-45 has no mass.
constexpr float LOG2_OF_NOTHING = -45.0f;

// How a token is drawn, as the host writes it.
struct alignas(16) Draw {
  int row;
  float inverse;        // log2 e / T; zero for temperature 0
  float min_p, top_p;   // 0 and 1 leave out nothing
  unsigned top_k;       // 0 leaves out nothing
  unsigned unit[2];     // the random number, low half first
  unsigned unused;
};

// Tokens below a distance, by its bits, and the first `ties` of those at it.
struct Prefix {
  unsigned bits;
  Mass ties;
};
constexpr Prefix EVERYTHING = {0xffffffffu, 0};

// A row as it is seen from its largest logit.
struct Row {
  const float* logits;
  int vocab;
  float largest, inverse, least;  // weight

  __device__ __forceinline__ unsigned bits(float x) const { return __float_as_uint(fabsf(largest - x)); }
  __device__ __forceinline__ float weight(unsigned bits) const {
    const float log2 = -__fmul_rn(__uint_as_float(bits), inverse);  // rounded, so that a host computes the same
    return log2 > LOG2_OF_NOTHING ? softmax::exp2_from(log2, 0.0f) : 0.0f;
  }
  // Zero for what min_p leaves out.
  __device__ __forceinline__ Mass mass(unsigned bits) const {
    const float w = weight(bits);
    return w >= least ? __float2ull_rz(w * UNITS) : 0;
  }
};

// What tokens count for: their mass, or one if they have any.
struct Count {
  bool masses;

  __device__ __forceinline__ Mass of(const Row& row, unsigned bits) const {
    const Mass mass = row.mass(bits);
    return masses ? mass : Mass(mass != 0);
  }
};

// Logits that a search passes over.
struct Logits {
  const float* at;
  int len;
};

constexpr int MAX_SUMS = 4;

struct Shared {
  Mass of_warps[MAX_SUMS][WARPS];
  unsigned ties[WARPS];
  float list[CAPACITY];
  unsigned listed;
};

__device__ __forceinline__ Mass warp_sum(Mass x) {
#pragma unroll
  for (int bits = 16; bits; bits /= 2) x += __shfl_xor_sync(softmax::ALL_LANES, x, bits);
  return x;
}

// Of this lane and those before it.
template <class T> __device__ __forceinline__ T running_sum(T x) {
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const T before = __shfl_up_sync(softmax::ALL_LANES, x, by);
    if (int(threadIdx.x % 32) >= by) x += before;
  }
  return x;
}

// Sums over the threads of the block, in each of them.
template <int N> __device__ __forceinline__ void block_sums(Mass (&sums)[N], Shared& shared) {
  static_assert(N <= MAX_SUMS, "places");
  const int lane = threadIdx.x % 32;
  __syncthreads();  // the sums before were read
#pragma unroll
  for (int i = 0; i < N; i++) {
    sums[i] = warp_sum(sums[i]);
    if (lane == 0) shared.of_warps[i][threadIdx.x / 32] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; i++) sums[i] = warp_sum(shared.of_warps[i][lane]);
}

// The largest logit; not a number where one is not.
__device__ __forceinline__ float largest_of(const float* logits, int vocab, Shared& shared) {
  float largest = -INFINITY;
  bool is_nan = false;
  for (int i = threadIdx.x; i < vocab; i += THREADS) {
    const float x = logits[i];
    is_nan = is_nan || x != x;
    largest = softmax::larger(x, largest);
  }
  largest = softmax::warp_largest(largest);
  if (threadIdx.x % 32 == 0) shared.list[threadIdx.x / 32] = largest;
  is_nan = __syncthreads_or(is_nan);
  largest = softmax::warp_largest(shared.list[threadIdx.x % 32]);
  __syncthreads();
  return is_nan ? NAN : largest;
}

// The shortest prefix that counts for `goal`, which is no more than `bounds` counts for; `from` has all tokens of it.
__device__ __forceinline__ Prefix shortest(const Row& row, Logits from, Count count, Mass goal, Prefix bounds, Shared& shared) {
  // The distance lies from `low` to `high`; those below `low` count for `below`.
  unsigned low = 0, high = min(bounds.bits, __float_as_uint(-LOG2_OF_NOTHING / row.inverse));
  Mass below = 0;
  while (low < high) {
    unsigned at[3];
    Mass sums[3] = {0, 0, 0};
#pragma unroll
    for (int i = 0; i < 3; i++) at[i] = low + unsigned((i + 1) * Mass(high - low) / 4);
    for (int i = threadIdx.x; i < from.len; i += THREADS) {
      const unsigned bits = row.bits(from.at[i]);
      if (bits > at[2]) continue;
      const Mass counts = count.of(row, bits);
      sums[2] += counts;
      if (bits <= at[1]) sums[1] += counts;
      if (bits <= at[0]) sums[0] += counts;
    }
    block_sums(sums, shared);
#pragma unroll
    for (int i = 0; i < 3; i++)
      if (sums[i] < goal) low = at[i] + 1, below = sums[i];
#pragma unroll
    for (int i = 2; i >= 0; i--)
      if (sums[i] >= goal) high = at[i];
  }
  const Mass one = count.of(row, low);
  return {low, (goal - below + one - 1) / one};
}

// What the tokens of a prefix weigh.
__device__ __forceinline__ Mass mass_of(const Row& row, Logits from, Prefix prefix, Shared& shared) {
  Mass sums[1] = {0};
  for (int i = threadIdx.x; i < from.len; i += THREADS) {
    const unsigned bits = row.bits(from.at[i]);
    if (bits < prefix.bits) sums[0] += row.mass(bits);
  }
  block_sums(sums, shared);
  return sums[0] + prefix.ties * row.mass(prefix.bits);
}

// The tokens that the filters keep.
__device__ __forceinline__ Prefix kept(const Row& row, const Draw& draw, Shared& shared) {
  if (draw.top_k == 0 && draw.top_p >= 1.0f) return EVERYTHING;
  // How many tokens there are and what they weigh, all and those of the list.
  Mass sums[4] = {0, 0, 0, 0};
  if (threadIdx.x == 0) shared.listed = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < row.vocab; i += THREADS) {
    const float x = row.logits[i];
    const Mass mass = row.mass(row.bits(x));
    sums[0] += mass != 0;
    sums[1] += mass;
    if (mass < LISTED) continue;
    sums[2]++;
    sums[3] += mass;
    const unsigned place = atomicAdd(&shared.listed, 1u);
    if (place < CAPACITY) shared.list[place] = x;
  }
  block_sums(sums, shared);
  const Logits all = {row.logits, row.vocab}, list = {shared.list, int(sums[2])};
  const bool is_listed = sums[2] <= CAPACITY;

  Prefix prefix = EVERYTHING;
  Mass mass = sums[1];
  bool by_list = false;
  if (draw.top_k > 0 && draw.top_k < sums[0]) {
    by_list = is_listed && sums[2] >= draw.top_k;
    prefix = shortest(row, by_list ? list : all, Count{false}, draw.top_k, prefix, shared);
    if (draw.top_p < 1.0f) mass = mass_of(row, by_list ? list : all, prefix, shared);
  }
  if (draw.top_p >= 1.0f) return prefix;
  const Mass share = __double2ull_rz(ceil(double(draw.top_p) * double(mass)));
  const Mass goal = min(max(share, Mass(1)), mass);
  by_list = by_list || (is_listed && sums[3] >= goal);
  return shortest(row, by_list ? list : all, Count{true}, goal, prefix, shared);
}

// The token at the share unit / 2^64 of what is kept, which some thread writes. Each warp has a part of the vocabulary.
__device__ __forceinline__ void draw_token(const Row& row, Prefix prefix, Mass unit, int* token, Shared& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = (row.vocab + THREADS - 1) / THREADS * 32, begin = warp * part, end = min(begin + part, row.vocab);
  Mass mass = 0, ties = 0;
  for (int i = begin + lane; i < end; i += 32) {
    const unsigned bits = row.bits(row.logits[i]);
    if (bits < prefix.bits) mass += row.mass(bits);
    ties += bits == prefix.bits;
  }
  mass = warp_sum(mass);
  ties = warp_sum(ties);
  __syncthreads();  // the places are free
  if (lane == 0) shared.of_warps[0][warp] = mass, shared.of_warps[1][warp] = ties;
  __syncthreads();

  // Lane by lane what the parts have.
  mass = shared.of_warps[0][lane];
  ties = shared.of_warps[1][lane];
  const Mass one = row.mass(prefix.bits);
  const Mass ties_before = running_sum(ties) - ties;
  mass += min(ties, prefix.ties - min(prefix.ties, ties_before)) * one;
  const Mass up_to = running_sum(mass);
  const Mass target = __umul64hi(unit, __shfl_sync(softmax::ALL_LANES, up_to, 31));
  const int mine = __ffs(__ballot_sync(softmax::ALL_LANES, up_to > target)) - 1;
  Mass to_go = target - __shfl_sync(softmax::ALL_LANES, up_to - mass, mine);
  Mass ties_left = prefix.ties - min(prefix.ties, __shfl_sync(softmax::ALL_LANES, ties_before, mine));
  if (warp != mine) return;
  for (int from = begin; from < end; from += 32) {
    const int i = from + lane;
    const unsigned bits = i < end ? row.bits(row.logits[i]) : EVERYTHING.bits;
    const unsigned equal = __ballot_sync(softmax::ALL_LANES, i < end && bits == prefix.bits);
    const Mass rank = __popc(equal & ((1u << lane) - 1));
    const bool is_kept = i < end && (bits < prefix.bits || (bits == prefix.bits && rank < ties_left));
    mass = is_kept ? row.mass(bits) : 0;
    const Mass so_far = running_sum(mass);
    const unsigned beyond = __ballot_sync(softmax::ALL_LANES, so_far > to_go);
    if (beyond != 0) {
      if (lane == __ffs(beyond) - 1) *token = i;
      return;
    }
    to_go -= __shfl_sync(softmax::ALL_LANES, so_far, 31);
    ties_left -= min(ties_left, Mass(__popc(equal)));
  }
}

// The lowest id with the largest logit, which some thread writes.
__device__ __forceinline__ void take_largest(const Row& row, int* token, Shared& shared) {
  unsigned first = 0xffffffffu;
  for (int i = threadIdx.x; i < row.vocab && first == 0xffffffffu; i += THREADS)
    if (row.logits[i] == row.largest) first = i;
#pragma unroll
  for (int bits = 16; bits; bits /= 2) first = min(first, __shfl_xor_sync(softmax::ALL_LANES, first, bits));
  if (threadIdx.x % 32 == 0) shared.ties[threadIdx.x / 32] = first;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < WARPS; warp++) first = min(first, shared.ties[warp]);
  *token = int(first);
}

}  // namespace

// logits [.., vocab]; draws [gridDim.x], whose rows there are; tokens [gridDim.x], of which those become -1 whose row has a logit that is not a
// number, or an infinite one as its largest.
extern "C" __global__ void __launch_bounds__(THREADS)
    choose_tokens(const float* logits, const uint4* draws, int* tokens, int vocab) {
  SHARED(Shared, shared, 1);
  const Draw draw = reinterpret_cast<const Draw*>(draws)[blockIdx.x];
  const float* const from = logits + size_t(draw.row) * vocab;
  int* const token = tokens + blockIdx.x;
  Row row = {from, vocab, largest_of(from, vocab, *shared), draw.inverse, 0.0f};
  if (!(fabsf(row.largest) < INFINITY)) {
    if (threadIdx.x == 0) *token = -1;
    return;
  }
  if (draw.inverse == 0.0f) return take_largest(row, token, *shared);
  row.least = draw.min_p * row.weight(0);
  const Prefix prefix = kept(row, draw, *shared);
  draw_token(row, prefix, Mass(draw.unit[1]) << 32 | draw.unit[0], token, *shared);
}
EXPORT_KERNEL(choose_tokens)
