// What the test programs share: named tests, checks that say where they failed, and a random number generator.
#pragma once
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "../machine.h"

namespace check {

struct Test {
  const char* name;
  void (*body)();
};
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
struct Add {
  Add(const char* name, void (*body)()) { tests().push_back({name, body}); }
};
inline int failures = 0;
// Leaves out what takes long: for sanitizers, and for a look.
inline bool quick = false;

inline void that(bool holds, const char* file, int line, const std::string& what) {
  if (holds) return;
  failures++;
  std::printf("  %s:%d: %s\n", file, line, what.c_str());
}

// Runs all tests, with the argument `quick` smaller ones; the exit code.
inline int run_all(int count, char** arguments) {
  quick = count > 1 && std::string(arguments[1]) == "quick";
  for (const Test& test : tests()) {
    const int before = failures;
    try {
      test.body();
    } catch (const sim::Fault& fault) {
      that(false, test.name, 0, std::string("fault: ") + fault.what());
    }
    std::printf("%s %s\n", failures == before ? "ok    " : "FAILED", test.name);
  }
  std::printf("%zu tests, %d failures\n", tests().size(), failures);
  return failures ? 1 : 0;
}

struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed) {}
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  // In [-1, 1).
  float uniform() { return float(int64_t(next()) >> 40) / float(1 << 23); }
};

inline void for_each_schedule(const std::function<void(const sim::Schedule&)>& body) {
  for (int number = 0; number < sim::Schedule::COUNT; number++) body(sim::Schedule::numbered(number));
}

}  // namespace check

#define TEST(name)                                \
  static void name();                            \
  static const check::Add add_##name(#name, name); \
  static void name()
#define CHECK(condition, what) check::that(condition, __FILE__, __LINE__, std::string(#condition " (") + (what) + ")")
