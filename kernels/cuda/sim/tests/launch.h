// What tests of kernels share: launches by name, rows of numbers, and the comparison of bits.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"

namespace check {

constexpr float INF = std::numeric_limits<float>::infinity(), NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();

using Row = std::vector<float>;

// The arguments of kernels that begin early behind which is what no kernel writes: weights, and tables that the host uploads.
inline uint32_t constants_of(const std::string& kernel) {
  const auto arguments = [](std::initializer_list<int> numbers) {
    uint32_t bits = 0;
    for (int number : numbers) bits |= 1u << number;
    return bits;
  };
  const auto is = [&](const char* prefix) { return kernel.rfind(prefix, 0) == 0; };
  if (is("gemv_") || is("gemm_mma_")) return arguments({1, 2, 3, 4});
  return 0;
}

// Arguments have the types of the kernel's parameters.
template <class... A>
void launch(const char* kernel, const sim::Launch& launch, const sim::Schedule& schedule, A... arguments) {
  void* pointers[] = {&arguments...};
  sim::races::constants(constants_of(kernel));
  sim::run(kernel, launch, schedule, pointers);
}

inline unsigned divided_up(unsigned a, unsigned b) { return (a + b - 1) / b; }

inline bool same_bits(const Row& a, const Row& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

inline Row part(const Row& x, size_t from, size_t len) { return {x.begin() + from, x.begin() + from + len}; }

inline Row uniform(Random& random, size_t len, float scale = 1.0f) {
  Row x(len);
  for (float& value : x) value = random.uniform() * scale;
  return x;
}

// Every element within `allowed` of what is expected; the first that is not is reported.
inline void compare(const Row& actual, const std::vector<double>& expected, double absolute, double relative,
                    const std::string& what) {
  CHECK(actual.size() == expected.size(), what);
  for (size_t i = 0; i < expected.size(); i++) {
    const bool close = std::fabs(actual[i] - expected[i]) <= absolute + relative * std::fabs(expected[i]);
    if (close || (std::isnan(actual[i]) && std::isnan(expected[i]))) continue;
    CHECK(close, what + ", element " + std::to_string(i) + ": " + std::to_string(actual[i]) + " instead of " +
                     std::to_string(expected[i]));
    return;
  }
}

}  // namespace check
