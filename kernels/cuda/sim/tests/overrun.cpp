// A kernel that writes one element behind its shared memory: the address sanitizer must end the program.
#include "../../cuda.cuh"

int main() {
  sim::run({1, 33}, {}, [] {
    SHARED(float, values, 32);
    values[threadIdx.x] = 1.0f;
  });
}
