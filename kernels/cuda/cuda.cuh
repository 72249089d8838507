// The one include of every kernel. nvcc finds CUDA here; any other compiler the simulator (sim/sim.h), which runs the same
// source on the CPU.
#pragma once
#ifndef __CUDACC__
#include "sim/sim.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#include "ptx.cuh"

#define EXPORT_KERNEL(name)
#define SHARED(T, name, count) __shared__ T name[count]
extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
#define DYNAMIC_SHARED(T, name) T* const name = reinterpret_cast<T*>(dynamic_shared_memory)
#endif
