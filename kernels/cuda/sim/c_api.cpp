// The simulator for callers in other languages: kernels by name, faults as text. No exception leaves these functions.
#include <cstdio>

#include "machine.h"

extern "C" {

struct sim_launch {
  uint32_t grid[3];
  uint32_t block[3];
  uint64_t dynamic_shared;
  uint32_t cooperative;
};

// A letter per argument (machine.h, Kernel); null where there is no such kernel. Valid as long as the program runs.
const char* sim_signature(const char* kernel) {
  try {
    const auto found = sim::kernels().find(kernel);
    return found == sim::kernels().end() ? nullptr : found->second.signature.c_str();
  } catch (...) {
    return nullptr;
  }
}

// Runs a kernel to its end; `arguments` are addresses of the values, as many as the signature has letters.
// 0, or 1 and as much of the fault's text as `error_bytes` hold with the zero behind it.
int sim_run(const char* kernel, const sim_launch* launch, uint32_t schedule, uint32_t seed, void** arguments, char* error,
            size_t error_bytes) {
  const auto failed = [&](const char* what) {
    std::snprintf(error, error_bytes, "%s", what);
    return 1;
  };
  try {
    if (schedule >= uint32_t(sim::Schedule::COUNT)) return failed("there is no schedule of this number");
    sim::Launch of{dim3(launch->grid[0], launch->grid[1], launch->grid[2]),
                   dim3(launch->block[0], launch->block[1], launch->block[2])};
    of.dynamic_shared = launch->dynamic_shared;
    of.cooperative = launch->cooperative != 0;
    sim::run(kernel, of, sim::Schedule::numbered(int(schedule), seed), arguments);
    return 0;
  } catch (const std::exception& thrown) {
    return failed(thrown.what());
  } catch (...) {
    return failed("an unknown exception");
  }
}

}  // extern "C"
